//! `io` and `trace`.

use crate::common;

use common::{BIG, at, bad, content, good, json, pattern, text, uext4, uext4_with_input, volume};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;
use uext4_testkit::{Need, Volume, needs, oracle};

fn io(volume: &Volume, path: &str, commands: &[&str]) -> Vec<OsString> {
    let mut args = vec![OsString::from("io"), at(volume, path)];
    for command in commands {
        args.extend([OsString::from("-c"), OsString::from(command)]);
    }
    args
}

#[test]
fn an_overwrite_is_seen_by_others() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let told = text(io(&volume, "/big", &["pwrite -V 1 -D 0 1m", "pwrite -S 0x41 -W 2m 8k"]));
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "wrote 1048576/1048576 bytes at offset 0");
    assert!(lines[1].starts_with("1 MiB, 256 ops; 0:00:0") && lines[1].ends_with(" ops/sec)"), "{told}");
    assert!(lines[1].contains("/sec and "), "{told}");
    assert_eq!(lines[2], "wrote 8192/8192 bytes at offset 2097152");
    volume.assert_clean();
    let mut expected = pattern(BIG);
    expected[..1 << 20].fill(0xcd);
    expected[2 << 20..(2 << 20) + 8192].fill(b'A');
    assert!(content(&volume, "/big") == expected);
}

#[test]
fn any_byte_can_be_overwritten() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    good(io(&volume, "/big", &["pwrite -q -S 0x42 1000 3001", "pwrite -q -b 1 -S 0x43 7 3"]));
    good(io(&volume, "/hello", &["pwrite -q -S 0x58 1 2"]));
    volume.assert_clean();
    let mut expected = pattern(BIG);
    expected[1000..4001].fill(b'B');
    expected[7..10].fill(b'C');
    assert!(content(&volume, "/big") == expected);
    assert_eq!(content(&volume, "/hello"), b"wXXld\n");
}

#[test]
fn reads_and_dumps() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let dump = text(io(&volume, "/hello", &["pread -v 0 100"]));
    assert!(
        dump.starts_with("00000000:  77 6f 72 6c 64 0a  world.\nread 6/100 bytes at offset 0\n"),
        "{dump}"
    );
    let short = text(io(&volume, "/hello", &["pread 4k 4k"]));
    assert!(short.starts_with("read 0/4096 bytes at offset 4096\n0 bytes, 0 ops; 0:00:00.00 ("), "{short}");
    let calls = text(io(&volume, "/big", &["pread -b 64k 0 1m"]));
    assert!(calls.contains("1 MiB, 16 ops;"), "{calls}");
    let vectors = text(io(&volume, "/big", &["pread -b 4k -V 16 0 1m"]));
    assert!(vectors.contains("1 MiB, 16 ops;"), "{vectors}");
    let once = text(io(&volume, "/big", &["pwrite -O 0 64k"]));
    assert!(once.starts_with("wrote 4096/65536 bytes at offset 0\n4 KiB, 1 ops;"), "{once}");
    let condensed = text(io(&volume, "/big", &["pread -C 0 8k"]));
    assert!(condensed.starts_with("8192,2,0:00:00.") && condensed.matches(',').count() == 4, "{condensed}");
    assert_eq!(text(io(&volume, "/big", &["pread -q 0 8k", "pwrite -qw 0 4k", "fsync", "fdatasync"])), "");
}

/// Lengths of the data requests that `io` sent for one command, in order.
fn sent(volume: &Volume, path: &str, command: &str, op: &str) -> Vec<u64> {
    let log = volume.scratch().file("log");
    let mut args = vec!["trace".into(), "--json".into(), "--output".into(), log.clone().into(), "--".into()];
    args.extend(io(volume, path, &[command]));
    good(args);
    let trace = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let pieces = json([OsStr::new("map"), OsStr::new("--json"), &at(volume, path)]);
    let in_file = |line: &&Value| {
        let Some(pos) = line["pos"].as_u64() else { return false };
        pieces.as_array().unwrap().iter().any(|piece| {
            let start = piece["physical"].as_u64().unwrap_or(0);
            start > 0 && (start..start + piece["length"].as_u64().unwrap()).contains(&pos)
        })
    };
    // Writes to other places are the log, and the times that come home.
    let data = lines.iter().filter(|line| line["queued"] == true || op == "write" && in_file(line));
    data.filter(|line| line["phase"] == "submit" && line["op"] == op)
        .map(|line| line["length"].as_u64().unwrap())
        .collect()
}

#[test]
fn vectors_of_a_call_are_one_request() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    // As xfs_io splits: full vectors, the last one of the last call trimmed; the vectors of a call are one request.
    let put = sent(&volume, "/big", "pwrite -q -S 0x44 -b 8k -V 3 4k 60k", "write");
    assert_eq!(put, [24_576, 24_576, 12_288]);
    let got = sent(&volume, "/big", "pread -q -b 8k -V 3 4k 60k", "read");
    assert_eq!(got, put);
    // Durable vectors.
    good(io(&volume, "/big", &["pwrite -q -D -S 0x45 -b 512 -V 4 64k 2k"]));
    // No multiples of the logical block: one buffer, as before.
    good(io(&volume, "/big", &["pwrite -q -S 0x46 -b 1000 -V 3 128k 5000"]));
    let mut expected = pattern(BIG);
    expected[4096..65_536].fill(b'D');
    expected[65_536..67_584].fill(b'E');
    expected[131_072..136_072].fill(b'F');
    assert!(content(&volume, "/big") == expected);
    volume.assert_clean();
    // The dump is that of a single buffer, and what is behind the end of the file is not in it.
    let dump = |flags: &str| text(io(&volume, "/hello", &[&format!("pread -v {flags} 0 2k")]));
    let line = |told: String| told.lines().next().unwrap().to_owned();
    assert_eq!(line(dump("-b 512 -V 4")), line(dump("-b 2k")));
    let whole = |flags: &str| {
        let told = text(io(&volume, "/big", &[&format!("pread -v {flags} 60k 20k")]));
        told.lines().take_while(|line| line.contains(":  ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(whole("-b 4k -V 2").len(), 1280);
    assert!(whole("-b 4k -V 2") == whole("-b 4k"));
    let counted = text(io(&volume, "/big", &["pread -b 4k -V 5 0 64k"]));
    assert!(counted.contains("64 KiB, 4 ops;"), "{counted}");
    // Into written, unwritten and no blocks.
    good(io(&volume, "/holed", &["pwrite -q -S 0x47 -b 4k -V 4 56k 16k"]));
    assert!(content(&volume, "/holed")[56 << 10..72 << 10].iter().all(|byte| *byte == b'G'));
    volume.assert_clean();
}

#[test]
fn fiemap_and_stat() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let plain = text(io(&volume, "/holed", &["fiemap"]));
    let lines: Vec<&str> = plain.lines().collect();
    assert_eq!(lines[0], "/holed:");
    assert!(lines[1].starts_with("\t0: [0..127]: "), "{plain}");
    assert_eq!(lines[2], "\t1: [128..159]: hole");
    assert!(lines[3].starts_with("\t2: [160..191]: "), "{plain}");
    let verbose = text(io(&volume, "/holed", &["fiemap -v 80k 16k"]));
    assert!(verbose.contains("FLAGS") && verbose.trim_end().ends_with("0x800"), "{verbose}");
    assert_eq!(verbose.lines().count(), 3, "{verbose}");
    let stat = text(io(&volume, "/hello", &["stat"]));
    assert!(stat.contains("fd.path = \"/hello\"\nfd.flags = non-sync,direct,read-only\n"), "{stat}");
    assert!(stat.contains("stat.type = regular file\nstat.size = 6\nstat.blocks = 8\n"), "{stat}");
    assert!(text(io(&volume, "/hello", &["help"])).contains("pwrite"));
    assert!(text(io(&volume, "/hello", &["help fiemap"])).starts_with("fiemap [-v]"));
}

#[test]
fn each_command_says_one_json_object() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let said = |path: &str, commands: &[&str]| -> Vec<Value> {
        let told = text(io(&volume, path, commands).into_iter().chain(["--json".into()]));
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let rows =
        said("/big", &["pwrite -V 1 -D 0 8k", "fdatasync", "pread -C 4k 10000", "pread -q 0 4k", "fsync"]);
    assert_eq!(rows.len(), 2, "{rows:?}");
    for (row, (command, offset, length, calls)) in
        rows.iter().zip([("pwrite", 0, 8192, 2), ("pread", 4096, 10000, 3)])
    {
        assert_eq!((&row["command"], &row["offset"]), (&command.into(), &offset.into()));
        assert_eq!(
            (&row["length"], &row["bytes"], &row["calls"]),
            (&length.into(), &length.into(), &calls.into())
        );
        assert!(row["seconds"].as_f64().unwrap() > 0.0, "{row}");
    }
    let rows = said("/hello", &["pread -v 0 100", "stat", "help quit"]);
    assert_eq!((&rows[0]["offset"], &rows[0]["data_b64"]), (&0.into(), &"d29ybGQK".into()));
    assert_eq!((&rows[1]["length"], &rows[1]["bytes"]), (&100.into(), &6.into()));
    let place = at(&volume, "/hello");
    let mut stat = json([OsStr::new("stat"), OsStr::new("--json"), &place]);
    stat["command"] = "stat".into();
    assert_eq!(rows[2], stat);
    assert_eq!((&rows[3]["command"], &rows[3]["text"]), (&"help".into(), &"quit\n        leave\n".into()));
    assert_eq!(rows.len(), 4);
    let rows = said("/holed", &["fiemap", "fiemap 80k 16k"]);
    let place = at(&volume, "/holed");
    let map = json(["map", "--holes", "--json"].map(OsStr::new).into_iter().chain([place.as_os_str()]));
    assert_eq!((&rows[0]["command"], &rows[0]["extents"]), (&"fiemap".into(), &map));
    assert_eq!(rows[1]["extents"].as_array().unwrap().len(), 1);
    assert_eq!(rows[1]["extents"][0]["state"], "unwritten");
}

#[test]
fn stats_are_those_of_the_commands() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let commands = ["pread -q 0 4k", "pread -q 0 8k", "pwrite -q 512 512", "pread -q 1 1"];
    let with_stats = |commands: &[&str], more: &[&str]| {
        io(&volume, "/big", commands).into_iter().chain(more.iter().map(OsString::from)).collect::<Vec<_>>()
    };
    let told = json(with_stats(&commands, &["--stats", "--json"]));
    assert_eq!(told["command"], "stats");
    let count = |name: &str| told["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {told}"));
    // The first one loads the map, on the general route.
    assert_eq!((count("simple_reads"), count("general_reads"), count("map_loads")), (2, 1, 1), "{told}");
    assert_eq!(
        (count("bounces"), count("shared_subblock_writes"), count("dio_counted")),
        (1, 1, 5),
        "{told}"
    );
    assert_eq!((count("overwrites_without_handle"), count("handles_started")), (1, 0), "{told}");
    let plain = text(with_stats(&commands, &["--stats"]));
    assert_eq!(plain.lines().count(), told["counters"].as_object().unwrap().len(), "{plain}");
    assert!(plain.contains("stats.bounces = 1\n") && plain.contains("stats.flushes = 0\n"), "{plain}");
    // Those before a failure are told as well.
    let args = with_stats(&["pread -q 0 4k", "fcollapse 1 1"], &["--stats"]);
    let output = uext4(&args);
    let plain = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && plain.contains("stats.map_loads = 1\n"), "{plain}");
    assert!(text(["io", "--help"].map(OsString::from)).contains("--stats"));
}

#[test]
fn a_failure_says_how_far_it_came() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    // The volume has 64 MiB.
    let reason = bad(1, io(&volume, "/holed", &["pwrite -S 0x4a -b 1m 60k 200m"]));
    let (first, last) = ("no space left", " of 209715200 bytes were written before");
    assert!(reason.contains(first) && reason.contains(last), "{reason}");
    volume.assert_clean();
    let reason = bad(1, io(&volume, "/big", &["truncate 1m", "falloc 0 200m"]));
    assert!(reason.contains(first) && !reason.contains(" before"), "{reason}");
    assert_eq!(content(&volume, "/big").len(), 1 << 20);
    volume.assert_clean();
}

#[test]
fn files_change_their_size_and_blocks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let mut expected = content(&volume, "/holed");
    expected[4 << 10..6000].fill(0);
    expected.drain(8 << 10..16 << 10);
    expected.splice(4 << 10..4 << 10, vec![0; 12 << 10]);
    expected[100..300].fill(0);
    let commands = ["fpunch 4k 1904", "fcollapse 8k 8k", "finsert 4k 12k", "fzero -k 100 200", "fdatasync"];
    good(io(&volume, "/holed", &commands));
    assert!(content(&volume, "/holed") == expected);
    volume.assert_clean();
    let told =
        text(io(&volume, "/hello", &["falloc -k 0 64k", "stat", "falloc 0 100", "fsync", "stat", "t 3"]));
    assert!(told.contains("stat.size = 6\nstat.blocks = 128\n"), "{told}");
    assert!(told.contains("stat.size = 100\nstat.blocks = 128\n"), "{told}");
    assert_eq!(content(&volume, "/hello"), b"wor");
    volume.assert_clean();
    for command in ["fcollapse 1 4k", "fcollapse 0 1g", "finsert 0 1", "falloc 0 0", "fpunch 0 0"] {
        let args = io(&volume, "/holed", &[command]);
        let output = uext4(args.into_iter().chain(["--json".into()]));
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(error["errno"], libc::EINVAL, "{command}: {error}");
    }
    let mut reading = io(&volume, "/holed", &["truncate 0"]);
    reading.push("-r".into());
    assert!(bad(1, reading).contains("open read-only"));
    assert!(content(&volume, "/holed") == expected);
    volume.assert_clean();
}

#[test]
fn commands_change_the_size_and_blocks_of_a_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let run = |words: &[&str]| {
        let mut args = vec![OsString::from(words[0]), at(&volume, "/big")];
        args.extend(words[1..].iter().map(OsString::from));
        args
    };
    let mut expected = content(&volume, "/big");
    good(run(&["truncate", "1000001"]));
    expected.truncate(1_000_001);
    good(run(&["fallocate", "4k", "8k", "--punch"]));
    good(run(&["fallocate", "16000", "500", "--zero", "--keep-size"]));
    expected[4096..12_288].fill(0);
    expected[16_000..16_500].fill(0);
    good(run(&["fallocate", "20k", "4k", "--collapse"]));
    expected.drain(20 << 10..24 << 10);
    good(run(&["fallocate", "40k", "8k", "--insert"]));
    expected.splice(40 << 10..40 << 10, vec![0; 8 << 10]);
    assert!(content(&volume, "/big") == expected);
    let told = json(run(&["fallocate", "0", "2m", "--keep-size", "--json"]));
    // Blocks of the map count too.
    let allocated = told["allocated"].as_u64().unwrap();
    assert!(told["size"] == expected.len() && (2 << 20..3 << 20).contains(&allocated), "{told}");
    let told = json(run(&["prepare", "1100000", "--json"]));
    assert_eq!(told["size"], 1_100_000, "{told}");
    expected.resize(1_100_000, 0);
    assert!(content(&volume, "/big") == expected);
    assert!(!text(io(&volume, "/big", &["fiemap"])).contains("hole"));
    good(run(&["prepare"]));
    assert!(content(&volume, "/big") == expected);
    volume.assert_clean();
    bad(1, run(&["truncate", "1024t"]));
    bad(1, run(&["fallocate", "1", "4k", "--insert"]));
    bad(2, run(&["fallocate", "1", "4k", "--insert", "--punch"]));
    bad(2, run(&["fallocate", "1", "4k", "--collapse", "--keep-size"]));
    assert!(content(&volume, "/big") == expected);
    volume.assert_clean();
}

#[test]
fn nothing_runs_if_one_command_is_bad() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    bad(2, io(&volume, "/hello", &["pwrite -q 0 6", "pwrit 0 1"]));
    assert_eq!(content(&volume, "/hello"), b"world\n");
    // The first that fails is the last that runs.
    bad(1, io(&volume, "/hello", &["fcollapse 0 4k", "pwrite -q 0 6"]));
    assert_eq!(content(&volume, "/hello"), b"world\n");
    let quit = good(io(&volume, "/hello", &["quit", "pwrite -q 0 6"]));
    assert!(quit.is_empty() && content(&volume, "/hello") == b"world\n");
}

#[test]
fn commands_from_standard_input() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let place = at(&volume, "/hello");
    let script = "pwrite -q -S 0x59 0 1\n\nstat\nquit\npwrite -q 0 6\n";
    let output = uext4_with_input([OsStr::new("io"), &place], script);
    assert!(output.status.success(), "{}", oracle::text(&output));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("read-write") && !told.contains("uext4 io>"), "{told}");
    assert_eq!(content(&volume, "/hello"), b"Yorld\n");
    let output =
        uext4_with_input([OsStr::new("io"), &place], "nonsense\nfinsert 1 1\npwrite -q -S 0x5a 0 1\n");
    assert_eq!(output.status.code(), Some(1));
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(complaints.lines().count(), 3, "two commands and the end: {complaints}");
    assert_eq!(content(&volume, "/hello"), b"Zorld\n");
    let output = uext4_with_input([OsStr::new("io"), OsStr::new("-r"), &place], "pwrite 0 1\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("open read-only"));
    volume.assert_clean();
}

#[test]
fn reading_commands_leave_the_image_alone() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let before = std::fs::read(volume.path()).unwrap();
    let stamp =
        |volume: &Volume| -> SystemTime { std::fs::metadata(volume.path()).unwrap().modified().unwrap() };
    let modified = stamp(&volume);
    good(io(&volume, "/big", &["pread -q 0 1m", "fiemap", "stat", "fsync"]));
    good([OsStr::new("info"), volume.path().as_os_str()]);
    good([OsStr::new("ls"), OsStr::new("-l"), OsStr::new("-R"), volume.path().as_os_str()]);
    good([OsStr::new("stat"), &at(&volume, "/big")]);
    good([OsStr::new("cat"), &at(&volume, "/big")]);
    good([OsStr::new("map"), &at(&volume, "/big")]);
    assert!(std::fs::read(volume.path()).unwrap() == before);
    assert_eq!(stamp(&volume), modified, "looking does not write");
}

/// What allocates is told by `explain` before, by `io --stats` and `trace` afterwards.
#[test]
fn allocation_conversion_commits_and_checkpoints_are_told() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let (place, end) = (at(&volume, "/big"), BIG.next_multiple_of(4096).to_string());
    let query = ["--write", &end, "8k", "--dsync", "--json"].map(OsStr::new);
    let told = json([OsStr::new("explain"), place.as_os_str()].into_iter().chain(query));
    assert_eq!(
        (&told["journal"], &told["handles_before"], &told["handles_after"], &told["commits"]),
        (&"extend".into(), &0.into(), &1.into(), &1.into()),
        "{told}"
    );
    let reasons = told["reasons"].to_string();
    assert!(reasons.contains("handles: 1 or more after it, 1 commit"), "{reasons}");
    let write = format!("pwrite -q -b 8k {end} 8k");
    let args = io(&volume, "/big", &[&write, "fdatasync"]);
    let told = json(args.into_iter().chain(["--stats", "--json"].map(OsString::from)));
    let count = |name: &str| told["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {told}"));
    assert_eq!((count("conversions"), count("extensions")), (1, 1), "{told}");
    assert!(count("handles_started") >= 1 && count("commits") == 1, "{told}");
    assert!(count("blocks_logged") > 2 && count("flushes") > 0, "{told}");
    // The end of the command brings it home.
    let words = ["trace", "--", "truncate"].map(OsStr::new);
    let output = uext4(words.iter().copied().chain([place.as_os_str(), OsStr::new("1m")]));
    assert!(output.status.success(), "{}", oracle::text(&output));
    let trace = String::from_utf8(output.stderr).unwrap();
    let total = trace.lines().last().unwrap();
    for part in ["handles started", "1 commits", "blocks logged", "1 checkpoints", "home writes"] {
        assert!(total.contains(part), "{part}: {total}");
    }
    let words = ["trace", "--json", "--", "truncate"].map(OsStr::new);
    let output = uext4(words.iter().copied().chain([place.as_os_str(), OsStr::new("2m")]));
    let trace = String::from_utf8(output.stderr).unwrap();
    let last: Value = serde_json::from_str(trace.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["volume"]["commits"], &last["volume"]["checkpoints"]),
        (&1.into(), &1.into()),
        "{last}"
    );
    volume.assert_clean();
}

#[test]
fn a_trace_shows_each_request() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let place = at(&volume, "/big");
    let physical = json([OsStr::new("map"), OsStr::new("--json"), &place])[0]["physical"].as_u64().unwrap();
    let words = ["trace", "--", "io"].map(OsStr::new);
    let more = ["-c", "pwrite -q -b 8k 0 8k", "-c", "fsync"].map(OsStr::new);
    let output = uext4(words.iter().copied().chain([place.as_os_str()]).chain(more));
    assert!(output.status.success(), "{}", oracle::text(&output));
    assert!(output.stdout.is_empty());
    let trace = String::from_utf8(output.stderr).unwrap();
    let write = format!("W {}+16", physical / 512);
    for phase in ["Q", "C"] {
        let wanted = format!(" {phase} {write}");
        let found = trace.lines().filter(|line| line.contains(&wanted)).count();
        assert_eq!(found, 1, "{wanted}:\n{trace}");
    }
    let total = trace.lines().last().unwrap();
    assert!(total.starts_with("total: ") && total.contains(" writes ("), "{trace}");
    let times: Vec<f64> = trace
        .lines()
        .filter(|line| !line.starts_with("total") && (line.contains(" Q ") || line.contains(" C ")))
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    assert!(times.len() > 4 && times.windows(2).all(|pair| pair[0] <= pair[1]), "{trace}");
}

#[test]
fn a_trace_of_a_queue_in_json() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let log = volume.scratch().file("trace");
    let place = at(&volume, "/big");
    let output = uext4([
        OsStr::new("trace"),
        OsStr::new("--json"),
        OsStr::new("--output"),
        log.as_os_str(),
        OsStr::new("--"),
        OsStr::new("cat"),
        &place,
    ]);
    assert!(output.status.success() && output.stdout == pattern(BIG));
    let trace = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (total, events) = lines.split_last().unwrap();
    let queued: u64 = events
        .iter()
        .filter(|event| event["queued"] == true && event["phase"] == "submit")
        .map(|event| event["length"].as_u64().unwrap())
        .sum();
    assert!(queued >= BIG as u64 && queued < BIG as u64 + 4096, "{queued}");
    assert_eq!(total["total"]["writes"], 0);
    assert_eq!(total["total"]["errors"], 0);
    let submitted = events.iter().filter(|event| event["phase"] == "submit").count() as u64;
    let completed = events.iter().filter(|event| event["phase"] == "complete").count() as u64;
    assert_eq!((submitted, completed), (total["total"]["reads"].as_u64().unwrap(), submitted));
}

#[test]
fn a_trace_passes_the_outcome_on() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let missing = uext4([OsStr::new("trace"), OsStr::new("--"), OsStr::new("cat"), &at(&volume, "/none")]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("uext4 cat: "));
    let usage = uext4(["trace", "--", "cat"]);
    assert_eq!(usage.status.code(), Some(2));
    let place = at(&volume, "/hello");
    let full = uext4([
        OsStr::new("trace"),
        OsStr::new("--output"),
        OsStr::new("/dev/full"),
        OsStr::new("--"),
        OsStr::new("cat"),
        &place,
    ]);
    assert_eq!(full.status.code(), Some(1), "a trace that cannot be written is a failure");
}
