//! `truncate`, `fallocate`, `prepare` and `io -f`, as the tools of coreutils, util-linux and xfsprogs have it.

use crate::common::{at, bad, content, good, json, of, text, uext4, volume};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use uext4_testkit::{Need, Volume, needs, oracle};

/// Size, mode, user and group of a file of the volume.
fn look(volume: &Volume, path: &str) -> (u64, u64, u64, u64) {
    let stat = json([OsStr::new("stat"), "--json".as_ref(), &at(volume, path)]);
    let field = |name: &str| stat[name].as_u64().unwrap();
    (field("stx_size"), field("stx_mode") & 0o7777, field("stx_uid"), field("stx_gid"))
}

/// The same of a file of the host.
fn host(path: &Path) -> (u64, u64, u64, u64) {
    let found = std::fs::metadata(path).unwrap();
    (found.len(), u64::from(found.mode()) & 0o7777, found.uid().into(), found.gid().into())
}

fn run(words: &[&str], volume: &Volume, path: &str) -> Vec<OsString> {
    of(words, &[&at(volume, path)])
}

#[test]
fn sizes_come_out_as_with_truncate() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"), Need::Tool("truncate"));
    let volume = volume();
    let beside = volume.scratch().file("beside");
    let sizes = ["10000", "+5k", "-1K", "<9000", ">100KB", "/4096", "%3000", "<1m", ">1", "-1G", "+1MiB"];
    for size in sizes {
        good(run(&["truncate", "-s", size], &volume, "/new"));
        oracle::run(oracle::command("truncate").args(["-s", size]).arg(&beside));
        assert_eq!(look(&volume, "/new"), host(&beside), "after {size}");
    }
    for size in ["/0", "%0", "+-5", "x", "", "17E"] {
        bad(2, run(&["truncate", "-s", size], &volume, "/new"));
    }
    good(run(&["truncate", "--size=1.5M"], &volume, "/new"));
    assert_eq!(look(&volume, "/new").0, 3 << 19);
    good(of(&["truncate"], &[&at(&volume, "/other"), OsStr::new("+7")]));
    assert_eq!(look(&volume, "/other").0, 7);
    bad(2, run(&["truncate"], &volume, "/new"));
    bad(2, of(&["truncate"], &[&at(&volume, "/a"), &at(&volume, "/b")]));
    bad(1, run(&["truncate", "-s", "+16383P"], &volume, "/new"));
    volume.assert_clean();
}

#[test]
fn several_files_are_truncated_in_one_go() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let files = ["/hello", "/dir", "/one", "/no/two", "/three"].map(|path| at(&volume, path));
    let files: Vec<&OsStr> = files.iter().map(|file| &**file).collect();
    let output = uext4(of(&["truncate", "-s", "3", "--json"], &files));
    assert_eq!(output.status.code(), Some(1), "{}", oracle::text(&output));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.lines().count() == 2 && said.contains("/dir") && said.contains("/no/two"), "{said}");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 3);
    assert_eq!((&rows[2]["size"], &rows[2]["argument"]), (&3.into(), &files[4].to_str().unwrap().into()));
    assert_eq!(content(&volume, "/hello"), b"wor");
    volume.assert_clean();
}

#[test]
fn a_file_that_is_not_there_is_made_unless_that_is_ruled_out() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"), Need::Tool("fallocate"));
    let volume = volume();
    good(run(&["truncate", "-c", "-s", "5"], &volume, "/none"));
    bad(1, run(&["fallocate", "--no-create", "-l", "4k"], &volume, "/none"));
    bad(1, of(&["prepare", "-c"], &[&at(&volume, "/none"), OsStr::new("4k")]));
    bad(1, run(&["prepare"], &volume, "/none"));
    bad(1, run(&["io", "-c", "pwrite 0 4k"], &volume, "/none"));
    // Modes that need something there make nothing, as with fallocate(1).
    let beside = volume.scratch().file("beside");
    for mode in ["-n", "-p", "-z", "-c", "-i", "-zn", "-pn"] {
        bad(1, run(&["fallocate", mode, "-l", "4k"], &volume, "/none"));
        assert!(
            !oracle::command("fallocate").args([mode, "-l", "4k"]).arg(&beside).status().unwrap().success()
        );
        assert!(!beside.exists(), "{mode}");
    }
    bad(1, run(&["stat"], &volume, "/none"));
    good(run(&["fallocate", "-l", "1.5M"], &volume, "/fallocated"));
    oracle::run(oracle::command("fallocate").args(["-l", "1.5M"]).arg(&beside));
    let (size, mode, uid, gid) = host(&beside);
    // Its mode is 0644 less the umask; ours is that of a file of the shell.
    assert_eq!((size, uid, gid), (3 << 19, look(&volume, "/fallocated").2, look(&volume, "/fallocated").3));
    assert_eq!(look(&volume, "/fallocated").1 & 0o644, mode & 0o644);
    good(run(&["fallocate", "-x", "-o", "4KB", "-l", "100"], &volume, "/posix"));
    assert_eq!(look(&volume, "/posix").0, 4100);
    good(of(&["prepare"], &[&at(&volume, "/prepared"), OsStr::new("1.5M")]));
    assert_eq!(look(&volume, "/prepared").0, 3 << 19);
    let told = json(of(
        &["explain", "--write", "--json"],
        &[&at(&volume, "/prepared"), "0".as_ref(), "1.5M".as_ref()],
    ));
    assert_eq!(told["journal"], "none", "{told}");
    bad(1, run(&["truncate", "-s", "1"], &volume, "/no/such"));
    bad(1, run(&["truncate", "-s", "1"], &volume, "/dir"));
    volume.assert_clean();
}

#[test]
fn the_flags_of_fallocate() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    good(of(&["truncate"], &[&at(&volume, "/f"), OsStr::new("0")]));
    good(run(&["io", "-c", "pwrite -S 0x5a 0 100000"], &volume, "/f"));
    let mut model = vec![0x5a; 100_000];
    let said = text(run(&["fallocate", "-v", "--punch-hole", "-n", "-o", "4k", "-l", "8k"], &volume, "/f"));
    assert!(said.ends_with("/f: 8 KiB (8192 bytes) hole created.\n"), "{said}");
    model[4096..12288].fill(0);
    good(run(&["fallocate", "--zero-range", "-o", "20k", "-l", "100"], &volume, "/f"));
    model[20480..20580].fill(0);
    good(run(&["fallocate", "--collapse-range", "--offset", "24k", "--length", "4k"], &volume, "/f"));
    model.drain(24576..28672);
    good(run(&["fallocate", "--insert-range", "-o", "0", "-l", "4k"], &volume, "/f"));
    model.splice(0..0, vec![0; 4096]);
    assert!(content(&volume, "/f") == model);
    good(run(&["fallocate", "-k", "-l", "1m"], &volume, "/f"));
    assert_eq!(look(&volume, "/f").0, model.len() as u64);
    for words in [
        &["fallocate"][..],
        &["fallocate", "-o", "4k"],
        &["fallocate", "-p", "-z", "-l", "4k"],
        &["fallocate", "-x", "-d"],
        &["fallocate", "-n", "-i", "-l", "4k"],
        &["fallocate", "-n", "-x", "-l", "4k"],
    ] {
        bad(2, run(words, &volume, "/f"));
    }
    bad(2, of(&["fallocate"], &[&at(&volume, "/f"), OsStr::new("4k")]));
    bad(2, of(&["fallocate", "-l", "4k"], &[&at(&volume, "/f"), OsStr::new("4k"), OsStr::new("4k")]));
    bad(1, run(&["fallocate", "-l", "0"], &volume, "/f"));
    volume.assert_clean();
}

#[test]
fn blocks_of_zeros_become_holes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let source = volume.scratch().file("source");
    let mut bytes = crate::common::pattern(3 << 20);
    bytes.truncate((3 << 20) - 2000);
    for hole in [4096..8192, 1_040_000..1_060_000, (3 << 20) - 8192..(3 << 20) - 2000] {
        bytes[hole].fill(0);
    }
    std::fs::write(&source, &bytes).unwrap();
    good([OsStr::new("cp"), source.as_os_str(), &at(&volume, "/f")]);
    let before = json(run(&["stat", "--json"], &volume, "/f"))["stx_blocks"].as_u64().unwrap();
    let said = text(run(&["fallocate", "-v", "-d", "-o", "8k"], &volume, "/f"));
    // Four whole blocks in the middle (1040384 to 1056768), two at the end, the last with the end of the file.
    assert!(said.ends_with(": 24 KiB (24576 bytes) converted to sparse holes.\n"), "{said}");
    let said = text(run(&["fallocate", "-v", "-d"], &volume, "/f"));
    assert!(said.ends_with(": 4 KiB (4096 bytes) converted to sparse holes.\n"), "{said}");
    let after = json(run(&["stat", "--json"], &volume, "/f"))["stx_blocks"].as_u64().unwrap();
    assert!(content(&volume, "/f") == bytes);
    // A block of the extent tree may come.
    assert!(after <= before - 7 * 8 + 8, "{before} to {after}");
    volume.assert_clean();
}

#[test]
fn io_makes_and_empties_files_as_xfs_io_does() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    good(run(&["io", "-f", "-d", "-c", "pwrite -S 0x61 0 4k"], &volume, "/made"));
    assert_eq!(content(&volume, "/made"), [0x61; 4096]);
    assert_eq!(look(&volume, "/made").1 & !0o666, 0);
    // What is there stays as it is.
    good(run(&["io", "-fd", "-c", "pwrite -S 0x62 512 512"], &volume, "/made"));
    assert_eq!(content(&volume, "/made")[..513], [[0x61; 512].as_slice(), &[0x62]].concat());
    good(run(&["io", "-ft", "-c", "pwrite -S 0x63 0 1"], &volume, "/made"));
    assert_eq!(content(&volume, "/made"), b"c");
    good(run(&["io", "-c", "pwrite -A -S 0x64 -b 4k 0 8k"], &volume, "/made"));
    assert_eq!(content(&volume, "/made"), [0x64; 8192]);
    let refused = bad(1, run(&["io", "-c", "pwrite -A -b 3k 0 3k"], &volume, "/made"));
    assert!(refused.contains("power of two"), "{refused}");
    good(run(&["io", "-f", "-r", "-c", "stat"], &volume, "/read"));
    assert_eq!(look(&volume, "/read").0, 0);
    bad(2, run(&["io", "-t", "-r", "-c", "stat"], &volume, "/hello"));
    // Direct alone: what would be bounced is refused, and changes nothing.
    for call in ["pwrite 1 512", "pwrite 0 100", "pwrite -V 2 -b 100 0 200"] {
        good(run(&["io", "-c", call], &volume, "/holed"));
        let refused = bad(1, run(&["io", "-d", "-c", call], &volume, "/hello"));
        assert!(refused.contains("aligned") || refused.contains("multiple"), "{call}: {refused}");
    }
    bad(1, run(&["io", "-d", "-c", "pread 1 10"], &volume, "/big"));
    assert_eq!(content(&volume, "/hello"), b"world\n");
    volume.assert_clean();
}
