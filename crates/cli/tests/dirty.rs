//! A volume whose journal is not empty: what the commands show, and that looking writes nothing.

mod common;

use common::{at, bad, good, json, text};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use uext4_testkit::manifest::file_digest;
use uext4_testkit::{Need, Scratch, Volume, VolumeBuilder, debugfs, needs, oracle};

/// `/hello` says `old`, and `new` once the journal is replayed.
fn dirty() -> Volume {
    let source = Scratch::new(1 << 20);
    std::fs::write(source.file("hello"), "old\n").unwrap();
    let volume =
        VolumeBuilder::new(24 << 20).args(["-b", "1024", "-J", "size=1"]).from_dir(source.path()).build();
    let block = debugfs(volume.path(), "blocks /hello").trim().to_owned();
    let (data, script) = (source.file("data"), source.file("script"));
    let mut bytes = vec![0; 1024];
    bytes[..4].copy_from_slice(b"new\n");
    std::fs::write(&data, bytes).unwrap();
    std::fs::write(&script, format!("jo -c -v 3\njw -b {block} {}\njc\n", data.display())).unwrap();
    oracle::run(oracle::command("debugfs").args(["-w", "-f"]).arg(&script).arg(volume.path()));
    volume
}

#[test]
fn looking_shows_the_recovered_state_and_writes_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = dirty();
    let before = file_digest(volume.path());
    let device = volume.path().as_os_str();
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/hello")]), b"new\n");
    assert!(text([OsStr::new("ls"), &at(&volume, "/")]).contains("hello"));
    text([OsStr::new("stat"), &at(&volume, "/hello")]);
    let info = json([OsStr::new("info"), device, OsStr::new("--json")]);
    let recovery = &info["recovery"];
    assert_eq!(recovery["needed"], true);
    assert_eq!(recovery["usable"], true);
    assert_eq!(recovery["state"], "overlay");
    assert_eq!(recovery["log"]["transactions"], 1);
    assert_eq!(recovery["log"]["blocks"], 1);
    assert_eq!(recovery["log"]["ended"], "complete");
    assert_eq!(recovery["log"]["damaged"], false);
    let text = text([OsStr::new("info"), device]);
    assert!(text.contains("recovery:              needed"), "{text}");
    assert!(text.contains("journal replayed:      in memory, device unchanged: 1 transactions"), "{text}");
    assert_eq!(file_digest(volume.path()), before, "something was written");
}

#[test]
fn writing_replays_onto_the_device() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = dirty();
    good([OsStr::new("io"), &at(&volume, "/hello"), OsStr::new("-c"), OsStr::new("pwrite -q -S 0x4e 0 1")]);
    let info = json([OsStr::new("info"), volume.path().as_os_str(), OsStr::new("--json")]);
    assert_eq!((&info["recovery"]["needed"], &info["recovery"]["state"]), (&false.into(), &"clean".into()));
    assert_eq!(debugfs(volume.path(), "cat /hello"), "New\n");
    volume.assert_clean();
}

#[test]
fn a_damaged_journal_that_nobody_needs_is_told_and_leaves_reading() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let source = Scratch::new(1 << 20);
    std::fs::write(source.file("hello"), "here\n").unwrap();
    let volume = VolumeBuilder::new(24 << 20).args(["-b", "1024"]).from_dir(source.path()).build();
    let first = debugfs(volume.path(), "bmap <8> 0").trim().parse::<u64>().unwrap();
    std::fs::File::options()
        .write(true)
        .open(volume.path())
        .unwrap()
        .write_all_at(&[0; 4], first * 1024)
        .unwrap();
    let before = file_digest(volume.path());
    let device = volume.path().as_os_str();
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/hello")]), b"here\n");
    let info = json([OsStr::new("info"), device, OsStr::new("--json")]);
    assert!(info["journal"]["damage"].as_str().is_some_and(|text| text.contains("journal")), "{info}");
    let text = text([OsStr::new("info"), device]);
    assert!(text.contains("inode 8, damaged") && text.contains("the journal is damaged"), "{text}");
    let write = [OsStr::new("io"), &at(&volume, "/hello"), OsStr::new("-c"), OsStr::new("pwrite -q 0 1")];
    let refused = bad(1, write);
    assert!(refused.contains("journal"), "{refused}");
    assert_eq!(file_digest(volume.path()), before, "something was written");
}
