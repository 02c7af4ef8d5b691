//! Wrong words and wrong circumstances: one line on standard error, the right status, never a panic.

use crate::common;

use common::{at, bad, command, good, uext4, volume};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use uext4_testkit::{Need, Volume, VolumeBuilder, needs, oracle};

/// What is no command.
const UNKNOWN: [&str; 1] = ["frobnicate"];

/// `DEV` stands for the image.
fn words(volume: &Volume, line: &[&str]) -> Vec<OsString> {
    let image = volume.path().to_str().unwrap();
    line.iter().map(|word| word.replace("DEV", image).into()).collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of command lines")]
fn bad_usage_is_status_2() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for line in [
        &[][..],
        &["--no-such-flag"],
        &["frobnicate"],
        &["mkfs"],
        &["mkfs", "DEV:/hello"],
        &["mkfs", "DEV", "64"],
        &["mkfs", "DEV", "-O", "frobnicate"],
        &["mkfs", "DEV", "-n", "-O", "journal_dev"],
        &["mkfs", "DEV", "auto"],
        &["mkfs", "DEV", "--free", "1G"],
        &["mkfs", "DEV", "--free", "100%", "-d", "tree"],
        &["mkfs", "DEV", "-d", "tree", "--user-map", "1"],
        &["mkfs", "DEV", "--read-only"],
        &["mkfs", "DEV", "64M", "--size", "auto"],
        &["mkfs", "DEV", "-t", "xfs"],
        &["mkfs", "DEV", "-T", "frobnicate"],
        &["mkfs", "DEV", "-g", "100"],
        &["mkfs", "DEV", "-G", "3"],
        &["mkfs", "DEV", "-O", "^extent"],
        &["mkfs", "DEV", "-E", "quotatype=usr"],
        &["mkfs", "DEV", "-J", "device=/dev/x,size=4"],
        &["mkfs", "DEV", "-m", "51"],
        &["mkfs", "DEV", "-b", "1000"],
        &["mkfs", "DEV", "-I", "100"],
        &["mkfs", "DEV", "-U", "no-uuid"],
        &["mkfs", "DEV", "-L", "longer than sixteen"],
        &["mkfs", "DEV", "--compat", "debian11"],
        &["info"],
        &["info", "DEV:/hello"],
        &["info", "DEV", "DEV"],
        &["info", "DEV?colour=red"],
        &["info", "DEV?ro&ro"],
        &["info", "DEV?"],
        &["info", "DEV?partition=x"],
        &["info", "DEV?latency=5"],
        &["info", "DEV?cache=maybe"],
        &["info", "bogus:DEV"],
        &["info", "bogus://DEV"],
        &["info", "mem:lots"],
        &["info", "file://otherhost/x"],
        &["info", "DEV%zz"],
        &["info", ""],
        &["ls", "-z", "DEV"],
        &["ls", "-h", "-l"],
        &["ls", "--switches", "all=off", "DEV"],
        &["stat"],
        &["cat", "DEV"],
        &["cat"],
        &["cat", "--switches", "simple-read=maybe", "DEV:/hello"],
        &["cat", "--switches", "no-such-switch=off", "DEV:/hello"],
        &["cat", "--switches", "simple-read", "DEV:/hello"],
        &["map", "DEV"],
        &["map", "--svg", "x.svg", "--json", "DEV:/hello"],
        &["explain", "DEV:/hello", "--read"],
        &["explain", "DEV", "--read", "0", "1"],
        &["explain", "DEV:/hello", "--read", "-1", "1"],
        &["io", "DEV", "-c", "stat"],
        &["io", "DEV:/hello", "-c", "pwrite"],
        &["io", "DEV:/hello", "-c", "pread -R 0 1"],
        &["io", "DEV:/hello", "-c", "mmap 0 1"],
        &["trace"],
        &["trace", "--"],
        &["trace", "--", "frobnicate"],
        &["trace", "--", "trace", "--", "ls", "DEV"],
        &["cp", "DEV:/hello"],
        &["cp", "-r", "DEV:/dir"],
        &["find"],
        &["find", "DEV", "--size", "1T"],
        &["find", "DEV", "--type", "x"],
        &["find", "DEV", "--perm", "u+x"],
        &["find", "DEV", "--newermt", "yesterday"],
        &["find", "DEV", "--json", "--print0"],
        &["du", "DEV", "-s", "-a"],
        &["du", "DEV", "-s", "-d", "1"],
        &["df", "DEV:/dir"],
        &["cp", "one", "two"],
        &["cp", "bogus://x:/hello", "out"],
        &["completions", "tcsh"],
        &["completions"],
        &["man", "--json"],
    ] {
        let told = bad(2, words(&volume, line));
        let known = line.first().is_some_and(|name| !name.starts_with('-') && !UNKNOWN.contains(name));
        let start = if known { format!("uext4 {}: ", line[0]) } else { "uext4: ".into() };
        // Below a trace it is the inner command that complains, or cannot be told.
        let inner = line.starts_with(&["trace", "--"]) && line.len() > 2;
        let json = told.starts_with('{');
        assert!(json || inner || told.starts_with(&start) && told.len() > start.len(), "{line:?}: {told}");
    }
}

#[test]
fn failures_are_status_1() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for (line, reason) in [
        (&["info", "/no/such/image"][..], "No such file"),
        (&["info", "/dev/null"], ""),
        (&["info", "/"], ""),
        (&["info", "DEV?partition=1"], "partition 1"),
        (&["info", "DEV?offset=1g"], "outside"),
        (&["info", "DEV?offset=1m"], "not an ext2/3/4 volume"),
        (&["info", "mem:64k"], "not an ext2/3/4 volume: its first 64 KiB are zeros"),
        (&["check", "mem:64k"], "not an ext2/3/4 volume: its first 64 KiB are zeros"),
        (&["ls", "mem:1k"], "not an ext2/3/4 volume: it has 1024 bytes"),
        (&["info", "nbd://host.invalid/x"], "nbd"),
        (&["info", "nbd+unix:///x?socket=/no/such/socket"], "nbd"),
        (&["ls", "DEV:/none"], "no such file"),
        (&["ls", "DEV:/hello/x"], "not a directory"),
        (&["ls", "DEV:/hello/"], "not a directory"),
        (&["stat", "DEV:/dir/none/x"], "no such file"),
        (&["stat", "-L", "DEV:/dangling"], "no such file"),
        (&["cat", "DEV:/dir"], "is a directory"),
        (&["cat", "DEV:/fifo"], "not a regular file"),
        (&["cat", "DEV:/dangling"], "no such file"),
        (&["map", "DEV:/dir"], "is a directory"),
        (&["map", "DEV:/hello", "--svg", "/no/such/dir/x.svg"], "No such file"),
        (&["explain", "DEV:/dir", "--read", "0", "1"], "is a directory"),
        (&["io", "DEV:/none", "-c", "stat"], "no such file"),
        (&["io", "DEV?ro:/hello", "-c", "pwrite 0 1"], "read-only"),
        (&["io", "-r", "DEV:/hello", "-c", "pwrite 0 1"], "read-only"),
        (&["cp", "DEV:/hello", "/no/such/dir/x"], "No such file"),
        (&["cp", "DEV:/hello", "DEV:/hello"], "are the same file"),
        (&["cp", "-r", "DEV:/dir", "/no/such/dir/x"], "No such file"),
        (&["cp", "-r", "DEV:/none", "out"], "no such file"),
        (&["find", "DEV:/none"], "no such file"),
        (&["du", "DEV:/none"], "no such file"),
        (&["df", "/no/such/image"], "No such file"),
        (&["man", "--dir", "/no/such/dir"], "No such file"),
    ] {
        let told = bad(1, words(&volume, line));
        assert!(told.starts_with(&format!("uext4 {}: ", line[0])), "{told}");
        assert!(told.contains(reason), "{line:?}: {told}");
    }
}

#[test]
fn errors_in_json() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let error = |line: &[&str]| -> Value {
        let output = uext4(words(&volume, line));
        assert!(output.stdout.is_empty());
        serde_json::from_slice(&output.stderr)
            .unwrap_or_else(|error| panic!("{error}: {}", oracle::text(&output)))
    };
    let missing = error(&["cat", "--json", "DEV:/none"]);
    let keys: Vec<&String> = missing.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["block", "errno", "error", "inode", "path"]);
    assert_eq!(missing["errno"], libc::ENOENT);
    assert_eq!(missing["path"], format!("{}:/none", volume.path().display()));
    assert_eq!((&missing["block"], &missing["inode"]), (&Value::Null, &Value::Null));
    assert_eq!(error(&["frobnicate", "--json"])["errno"], libc::EINVAL);
    let foreign = error(&["df", "--json", "mem:64k"]);
    assert_eq!((&foreign["errno"], &foreign["path"]), (&Value::from(libc::EINVAL), &Value::from("mem:64k")));
    assert_eq!(foreign["error"], "not an ext2/3/4 volume: its first 64 KiB are zeros");
    assert_eq!(error(&["info", "--json", "DEV?x=y"])["errno"], libc::EINVAL);
    oracle::debugfs_write(volume.path(), "set_inode_field /hello checksum 0x12345678");
    let corrupt = error(&["cat", "--json", "DEV:/hello"]);
    assert_eq!(corrupt["errno"], 117);
    assert!(corrupt["inode"].is_u64(), "{corrupt}");
}

#[test]
fn an_unknown_feature_is_named() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(16 << 20).args(["-O", "^metadata_csum"]).build();
    let image = OpenOptions::new().read(true).write(true).open(volume.path()).unwrap();
    let mut word = [0; 4];
    image.read_exact_at(&mut word, 1024 + 0x60).unwrap();
    word[3] |= 0x80;
    image.write_all_at(&word, 1024 + 0x60).unwrap();
    let told = bad(1, [OsStr::new("ls"), volume.path().as_os_str()]);
    assert!(told.contains("FEATURE_I31"), "{told}");
}

#[test]
fn an_image_in_use_needs_force() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let place = at(&volume, "/hello");
    // An interactive session holds the image for writing until its input ends.
    let mut holder =
        command([OsStr::new("io"), &place]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 1];
    std::io::Write::write_all(holder.stdin.as_mut().unwrap(), b"stat\n").unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let told = bad(1, [OsStr::new("cat"), &place]);
    assert!(told.contains("in use by"), "{told}");
    let told =
        bad(1, [OsStr::new("io"), OsStr::new("--force"), &place, OsStr::new("-c"), OsStr::new("pwrite 0 1")]);
    assert!(told.contains("in use by"), "force is for readers: {told}");
    assert_eq!(good([OsStr::new("cat"), OsStr::new("--force"), &place]), b"world\n");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert_eq!(good([OsStr::new("cat"), &place]), b"world\n");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for line in [&["cat", "DEV:/big"][..], &["io", "DEV:/big", "-c", "pread -v 0 3m"]] {
        let mut child = command(words(&volume, line))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut some = [0; 16];
        child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line:?}");
        assert_eq!(output.status.code(), Some(0), "{line:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for line in [
        &["cat", "DEV:/hello"][..],
        &["ls", "DEV"],
        &["ls", "--json", "DEV"],
        &["info", "DEV"],
        &["stat", "--json", "DEV:/hello"],
        &["map", "DEV:/hello"],
        &["--help"],
        &["completions", "bash"],
        &["man"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command(words(&volume, line)).stdin(Stdio::null()).stdout(full).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line:?}: {told}");
        assert!(told.contains("standard output") && told.contains("No space left"), "{line:?}: {told}");
    }
}
