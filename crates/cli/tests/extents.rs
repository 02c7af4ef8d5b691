//! `map` and `explain`.

use crate::common;

use common::{BIG, at, bad, json, text, uext4, volume};
use serde_json::Value;
use std::ffi::OsStr;
use uext4_testkit::{Need, Volume, debugfs, needs, oracle};

fn map(volume: &Volume, path: &str, more: &[&str]) -> Vec<Value> {
    let mut args = vec![OsStr::new("map").to_owned(), at(volume, path), OsStr::new("--json").to_owned()];
    args.extend(more.iter().map(Into::into));
    json(args).as_array().unwrap().clone()
}

#[test]
fn map_agrees_with_debugfs() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for path in ["/big", "/sparse", "/hello"] {
        let mut physical: Vec<u64> = Vec::new();
        for piece in map(&volume, path, &[]) {
            assert_eq!(piece["state"], "written");
            let (first, length) = (piece["physical"].as_u64().unwrap(), piece["length"].as_u64().unwrap());
            physical.extend((first / 4096)..(first + length) / 4096);
        }
        let theirs: Vec<u64> = debugfs(volume.path(), &format!("blocks {path}"))
            .split_whitespace()
            .map(|block| block.parse().unwrap())
            .collect();
        assert_eq!(physical, theirs, "{path}");
    }
}

#[test]
fn map_tells_states_apart() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let states = |pieces: &[Value]| -> Vec<(u64, u64, String)> {
        let field = |piece: &Value, name: &str| piece[name].as_u64().unwrap();
        pieces
            .iter()
            .map(|piece| {
                (field(piece, "logical"), field(piece, "length"), piece["state"].as_str().unwrap().into())
            })
            .collect()
    };
    let expect = |rows: &[(u64, u64, &str)]| -> Vec<(u64, u64, String)> {
        rows.iter().map(|&(logical, length, state)| (logical, length, state.into())).collect()
    };
    let without = map(&volume, "/holed", &[]);
    assert_eq!(states(&without), expect(&[(0, 65536, "written"), (81920, 16384, "unwritten")]));
    let with = map(&volume, "/holed", &["--holes"]);
    let rows =
        [(0, 65536, "written"), (65536, 16384, "hole"), (81920, 16384, "unwritten"), (98304, 32768, "hole")];
    assert_eq!(states(&with), expect(&rows));
    assert_eq!(with[1]["physical"], Value::Null);
    assert_eq!(map(&volume, "/empty", &[]), Vec::<Value>::new());

    let table = text([OsStr::new("map"), &at(&volume, "/holed")]);
    assert!(table.contains("File size of /holed is 131072 (32 block(s) of 4096 bytes)"), "{table}");
    assert!(table.contains("unwritten,last"), "{table}");
    assert!(
        table.trim_end().ends_with("extents found") || table.trim_end().ends_with("1 extent found"),
        "{table}"
    );
}

#[test]
fn map_draws() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let file = volume.scratch().file("map.svg");
    let drawn = text([OsStr::new("map"), &at(&volume, "/holed"), OsStr::new("--svg"), file.as_os_str()]);
    assert_eq!(drawn, "");
    let svg = std::fs::read_to_string(file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<g ").count(), 2);
    assert!(svg.contains("unwritten</title>"), "{svg}");
}

fn explain(volume: &Volume, device: &str, path: &str, more: &[&str]) -> Value {
    let mut args = vec!["explain".to_owned(), format!("{}{device}:{path}", volume.path().display())];
    args.extend(more.iter().map(|&word| word.to_owned()));
    args.push("--json".into());
    json(args)
}

#[test]
fn explain_overwrites_and_reads() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let first = map(&volume, "/big", &[])[0]["physical"].as_u64().unwrap();
    let read = explain(&volume, "", "/big", &["--read", "4k", "4k"]);
    assert_eq!((read["route"].as_str(), read["gate"].as_str()), (Some("simple-read"), Some("shared")));
    assert_eq!(read["requests"][0]["op"], "read");
    assert_eq!(read["requests"][0]["pos"], first + 4096);
    assert_eq!(read["requests"][0]["length"], 4096);
    assert_eq!(read["completion"], "synchronous");
    assert_eq!(explain(&volume, "", "/big", &["--read", "0", "4k", "--async"])["completion"], "asynchronous");
    assert_eq!(explain(&volume, "", "/big", &["--read", "1g", "4k"])["route"], "past-end");
    assert_eq!(explain(&volume, "", "/big", &["--read", "1", "1"])["route"], "bounced-read");
    let off = ["--read", "0", "4k", "--switches", "simple-read=off"];
    assert_eq!(explain(&volume, "", "/big", &off)["route"], "general-read");

    let write = explain(&volume, "", "/big", &["--write", "0", "4k"]);
    assert_eq!((write["route"].as_str(), write["journal"].as_str()), (Some("overwrite"), Some("none")));
    assert_eq!((write["durability"].as_str(), write["drain"].as_bool()), (Some("none"), Some(false)));
    let off = ["--write", "0", "4k", "--switches", "overwrite-no-transaction=off"];
    assert_eq!(explain(&volume, "", "/big", &off)["journal"], "handle");
}

#[test]
fn explain_durability() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let plain = explain(&volume, NO_FUA, "/big", &["--write", "0", "4k", "--dsync"]);
    assert!(advised(&plain, "FUA"), "{plain}");
    assert_eq!(plain["durability"], "datasync", "{plain}");
    assert_eq!(plain["requests"][1]["op"], "flush");
    assert_eq!(plain["requests"][0]["fua"], false);
    let sync = explain(&volume, "?cache=volatile", "/big", &["--write", "0", "4k", "--sync"]);
    assert_eq!(sync["durability"], "fsync");
}

/// A write behind the end zeroes the rest of the old last block.
#[test]
fn explain_tells_the_zeros_behind_the_old_end() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let answer = explain(&volume, "", "/hello", &["--write", "64k", "4k"]);
    let end = json([OsStr::new("stat"), &at(&volume, "/hello"), OsStr::new("--json")])["stx_size"].as_u64();
    let rest = 4096 - end.unwrap() % 4096;
    assert_eq!(answer["zero_edges"]["old_tail"], rest, "{answer}");
    assert_eq!(answer["zeroed"], 0, "{answer}");
    let told = answer["reasons"].to_string();
    assert!(told.contains(&format!("{rest} bytes past the old end of the file")), "{answer}");
}

fn advised(answer: &Value, word: &str) -> bool {
    answer["advice"].as_array().unwrap().iter().any(|line| line.as_str().unwrap().contains(word))
}

#[test]
fn explain_refusals_and_advice() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for (offset, word) in
        [("80k", "4 unwritten block(s)"), ("64k", "4 block(s) in holes"), ("128k", "4 block(s) in holes")]
    {
        let answer = explain(&volume, "", "/holed", &["--write", offset, "16k"]);
        assert_eq!(answer["route"], "allocate", "{answer}");
        assert!(answer["refused"].is_null(), "{answer}");
        assert!(advised(&answer, word) && advised(&answer, "prepare"), "{word}: {answer}");
        assert_eq!(answer["requests"], Value::Array(vec![]));
    }
    // What is sent is not known yet, so nothing is said about how.
    let read = explain(&volume, NO_FUA, "/sparse", &["--read", "1m", "7172k"]);
    assert!(advised(&read, "2 device requests"), "{read}");
    let answer = explain(&volume, NO_FUA, "/sparse", &["--write", "1m", "7172k", "--dsync"]);
    assert!(answer["refused"].is_null(), "{answer}");
    assert!(!advised(&answer, "device"), "{answer}");
    let human = text([
        OsStr::new("explain"),
        &at(&volume, "/big"),
        OsStr::new("--write"),
        OsStr::new("0"),
        OsStr::new("4k"),
    ]);
    assert!(
        human.starts_with("/big: write of 4096 bytes at byte 0\nplan: route overwrite, gate shared"),
        "{human}"
    );
    assert!(human.contains("device requests (sectors of 512 bytes: first+count):\n  W "), "{human}");
    assert!(human.contains("advice: none\n"), "{human}");
}

/// What the device was asked while `io` did one command on a file.
fn traced(volume: &Volume, device: &str, path: &str, command: &str) -> Vec<Value> {
    let log = volume.scratch().file("log");
    let place = format!("{}{device}:{path}", volume.path().display());
    let output = uext4([
        OsStr::new("trace"),
        OsStr::new("--json"),
        OsStr::new("--output"),
        log.as_os_str(),
        OsStr::new("--"),
        OsStr::new("io"),
        OsStr::new(&place),
        OsStr::new("-c"),
        OsStr::new(command),
    ]);
    assert!(output.status.success());
    let trace = std::fs::read_to_string(&log).unwrap();
    trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Explain lists exactly what is sent, in its order. Returns its answer.
#[track_caller]
fn assert_sent_as_promised(
    volume: &Volume,
    (device, path): (&str, &str),
    verb: &str,
    (offset, length): (&str, &str),
    dsync: bool,
) -> Value {
    let mut flags = vec![if verb == "read" { "--read" } else { "--write" }, offset, length];
    flags.extend(dsync.then_some("--dsync"));
    let command = format!("p{verb} -b 1m {}{offset} {length}", if dsync { "-V 1 -D " } else { "" });
    let answer = explain(volume, device, path, &flags);
    let of = |request: &Value| ["op", "pos", "length", "fua"].map(|key| request[key].clone());
    let promised: Vec<_> = answer["requests"].as_array().unwrap().iter().map(of).collect();
    let promised: Vec<_> = promised.into_iter().filter(|request| request[0] != "zero").collect();
    let extents = map(volume, path, &[]);
    let in_file = |line: &&Value| {
        let pos = line["pos"].as_u64().unwrap_or(0);
        line["op"] == "flush"
            || extents.iter().any(|extent| {
                let start = extent["physical"].as_u64().unwrap_or(0);
                start > 0 && (start..start + extent["length"].as_u64().unwrap()).contains(&pos)
            })
    };
    let lines = traced(volume, device, path, &command);
    // An opening for writing settles the device first.
    let mut settles = verb == "write";
    let own = |line: &&Value| !(line["op"] == "flush" && std::mem::take(&mut settles));
    let made = lines.iter().filter(|line| line["phase"] == "submit").filter(own);
    let sent: Vec<_> = made.filter(in_file).map(of).collect();
    // The times of what was written come home at the end, which takes flushes.
    let (sent, rest) = sent.split_at(promised.len().min(sent.len()));
    let home = rest.iter().all(|line| verb == "write" && line[0] == "flush");
    assert!(!promised.is_empty() && promised == sent && home, "{command}:\n{promised:?}\n{sent:?}\n{rest:?}");
    answer
}

/// Requests of any byte are rounded to whole logical blocks: explain lists exactly what is sent, in its order.
#[test]
fn what_explain_promises_of_bounced_requests_is_what_is_sent() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let end = (BIG as u64 - 100).to_string();
    for (device, path, verb, offset, length, dsync) in [
        ("", "/big", "read", "1", "1", false),
        ("", "/big", "read", "1000", "5000", false),
        // Whole blocks first, directly; the ragged end through memory.
        ("", "/big", "read", "0", "5000", false),
        ("", "/big", "read", "511", "600000", false),
        // Nothing is read behind the end of the file.
        ("", "/big", "read", end.as_str(), "100000", false),
        // Holes and unwritten blocks cost nothing.
        ("", "/holed", "read", "60000", "40001", false),
        ("", "/big", "write", "1", "1", false),
        ("", "/big", "write", "1000", "5000", false),
        ("", "/big", "write", "8192", "5000", false),
        ("", "/big", "write", "511", "600000", false),
        ("?cache=volatile&fua=off", "/big", "write", "1000", "600", true),
    ] {
        let promised = assert_sent_as_promised(&volume, (device, path), verb, (offset, length), dsync);
        assert!(promised["route"].as_str().unwrap().starts_with("bounced"), "{promised}");
    }
}

/// Nothing behind the device's block with the end of the file is read, and zeros are no requests.
#[test]
fn what_explain_promises_of_reads_at_the_end_and_of_holes_is_what_is_sent() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for (path, offset, length, requests) in [
        ("/hello", "0", "4096", 1),
        ("/hello", "0", "512", 1),
        ("/hello", "0", "65536", 1),
        ("/holed", "0", "131072", 1),
        ("/sparse", "1048576", "131072", 1),
    ] {
        let answer = assert_sent_as_promised(&volume, ("", path), "read", (offset, length), false);
        let reads = answer["requests"].as_array().unwrap().iter().filter(|request| request["op"] == "read");
        assert_eq!(reads.count(), requests, "{answer}");
        assert_eq!(answer["advice"], Value::Array(vec![]), "{answer}");
    }
}

/// A device that would get a flush.
const NO_FUA: &str = "?cache=volatile&fua=off";

/// Explain refuses what `io` refuses, for the same reason.
#[test]
fn explain_knows_files_and_volumes_that_are_not_written() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for (request, word) in [
        ("set_inode_field /big flags 0x80010", "immutable"),
        ("set_inode_field /big flags 0x80020", "append-only"),
        ("set_inode_field /big flags 0x180000", "fs-verity"),
        ("set_super_value last_orphan 7", "inode 7"),
    ] {
        let volume = volume();
        oracle::debugfs_write(volume.path(), request);
        if word == "fs-verity" {
            oracle::debugfs_write(volume.path(), "feature verity");
        }
        let place = at(&volume, "/big");
        let answer = explain(&volume, "", "/big", &["--write", "0", "4k"]);
        let refused = answer["refused"].as_str().unwrap_or_default();
        assert!(refused.contains(word), "{answer}");
        assert_eq!(answer["requests"], Value::Array(vec![]));
        let said = bad(1, [OsStr::new("io"), &place, OsStr::new("-c"), OsStr::new("pwrite 0 4k")]);
        assert!(said.contains(refused), "{said}\n{refused}");
        assert_eq!(explain(&volume, "", "/big", &["--read", "0", "4k"])["refused"], Value::Null);
        let durable = explain(&volume, NO_FUA, "/big", &["--write", "0", "4k", "--dsync"]);
        assert!(durable["refused"].is_string() && !advised(&durable, "FUA"), "{durable}");
    }
}

/// A queue bounces nothing.
#[test]
fn explain_knows_what_a_queue_refuses() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for request in [["--write", "1", "512"], ["--read", "512", "7"], ["--read", "9g", "1"]] {
        let [verb, offset, length] = request;
        let answer = explain(&volume, "", "/big", &[verb, offset, length, "--async"]);
        let refused = answer["refused"].as_str().unwrap_or_default();
        assert!(refused.contains("is not a multiple of 512"), "{answer}");
        assert_eq!((&answer["requests"], &answer["request_count"]), (&Value::Array(vec![]), &0.into()));
        let synchronous = explain(&volume, "", "/big", &request);
        assert_eq!(synchronous["refused"], Value::Null, "{synchronous}");
    }
}

/// A volume that an opening for writing refuses is not explained as if it were written.
#[test]
fn explain_knows_volumes_whose_damage_ends_an_opening_for_writing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for (word, block, byte) in [("group descriptor", "1", 30), ("journal", "bmap <8> 0", 0)] {
        let volume = volume();
        let block: u64 = match block.parse() {
            Ok(block) => block,
            Err(_) => debugfs(volume.path(), block).trim().parse().unwrap(),
        };
        let image = std::fs::OpenOptions::new().write(true).open(volume.path()).unwrap();
        // A checksum, and a magic number.
        std::os::unix::fs::FileExt::write_all_at(&image, &[0x5a; 2], block * 4096 + byte).unwrap();
        // Damage is told of on standard error.
        let explained = |words: &[&str]| -> Value {
            let place = at(&volume, "/big");
            let words = words.iter().map(OsStr::new).chain([OsStr::new("--json")]);
            let output = uext4([OsStr::new("explain"), &place].into_iter().chain(words));
            assert!(output.status.success(), "{}", oracle::text(&output));
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let answer = explained(&["--write", "0", "4k"]);
        let refused = answer["refused"].as_str().unwrap_or_else(|| panic!("{word}: {answer}"));
        let said =
            bad(1, [OsStr::new("io"), &at(&volume, "/big"), OsStr::new("-c"), OsStr::new("pwrite 0 4k")]);
        assert!(said.contains(refused) && refused.contains(word), "{word}: {said}\n{refused}");
        assert_eq!(answer["requests"], Value::Array(vec![]));
        assert_eq!(explained(&["--read", "0", "4k"])["refused"], Value::Null);
    }
}

#[test]
fn what_explain_promises_trace_shows() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for (flags, command) in [
        (&["--write", "8k", "4k"][..], "pwrite 8k 4k"),
        (&["--write", "8k", "4k", "--dsync"][..], "pwrite -V 1 -D 8k 4k"),
        (&["--read", "8k", "4k"][..], "pread 8k 4k"),
    ] {
        let promised = explain(&volume, "", "/big", flags);
        let lines = traced(&volume, "", "/big", command);
        for request in promised["requests"].as_array().unwrap() {
            let done = lines.iter().any(|line| {
                line["phase"] == "complete"
                    && ["op", "pos", "length", "fua"].iter().all(|&key| line[key] == request[key])
            });
            assert!(done, "{command}: {request} is not in\n{lines:?}");
        }
        // What goes to other places is the log, and the times that come home.
        let writes = |line: &&Value| line["op"] == "write" && line["pos"] == promised["requests"][0]["pos"];
        let sent = lines.iter().filter(|line| line["phase"] == "submit").filter(writes).count();
        let told = promised["requests"].as_array().unwrap().iter().filter(writes);
        assert_eq!(sent, told.count(), "{command}:\n{lines:?}");
    }
}

#[test]
fn explain_bad_usage() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let place = at(&volume, "/big");
    for words in [
        &["0", "4k"][..],
        &["--read", "--write", "0", "4k"],
        &["--read", "--dsync", "0", "4k"],
        &["--write", "--dsync", "--sync", "0", "4k"],
        &["--read", "0"],
        &["--read", "0", "0"],
        &["--read", "x", "4k"],
    ] {
        let mut args = vec![OsStr::new("explain"), &place];
        args.extend(words.iter().map(OsStr::new));
        bad(2, args);
    }
}
