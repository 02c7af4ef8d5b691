//! A volume whose journal is not empty: what the commands show, and that looking writes nothing.

mod common;

use common::{at, bad, good, json, text, uext4};
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

/// The volume of [`dirty`] whose one transaction is damaged: `/hello` says `old` for ever.
fn damaged() -> Volume {
    let volume = dirty();
    let first = debugfs(volume.path(), "bmap <8> 0").trim().parse::<u64>().unwrap();
    let file = std::fs::File::options().write(true).open(volume.path()).unwrap();
    // Behind the journal's superblock and the descriptor: the copy.
    file.write_all_at(b"bad", (first + 2) * 1024).unwrap();
    volume
}

#[test]
fn an_older_state_is_not_shown_without_a_word() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = damaged();
    let before = file_digest(volume.path());
    let (device, hello) = (volume.path().as_os_str().to_owned(), at(&volume, "/hello"));
    let copy = volume.scratch().file("copies");
    std::fs::create_dir(&copy).unwrap();
    let (root, copy) = (at(&volume, "/"), copy.into_os_string());
    let of = |words: &[&str], arguments: &[&OsStr]| -> Vec<std::ffi::OsString> {
        words.iter().map(OsStr::new).chain(arguments.iter().copied()).map(OsStr::to_owned).collect()
    };
    for command in [
        of(&["cat"], &[&hello, &hello]),
        of(&["ls", "-l"], &[&root]),
        of(&["cp"], &[&hello, &hello, &copy]),
        of(&["cp", "-r"], &[&root, &copy]),
        of(&["find"], &[&root]),
        of(&["du"], &[&root]),
        of(&["df"], &[&device]),
        of(&["stat"], &[&hello]),
        of(&["map"], &[&hello]),
        of(&["xattr"], &[&hello]),
        of(&["io", "-c", "pread 0 4", "-r"], &[&hello]),
        of(&["explain"], &[&hello, OsStr::new("--read"), OsStr::new("0"), OsStr::new("4")]),
        of(&["trace", "--", "cat"], &[&hello]),
    ] {
        let output = uext4(&command);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command:?}: {told}");
        let warnings: Vec<&str> = told.lines().filter(|line| line.contains("warning: ")).collect();
        assert_eq!(warnings.len(), 1, "{command:?}: {told}");
        assert!(warnings[0].starts_with("uext4 ") && warnings[0].contains("older state"), "{told}");
        assert!(warnings[0].contains("transaction ") && warnings[0].contains("log block 2"), "{told}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("older state"), "{command:?}");
        if command[0] == "cat" {
            assert_eq!(output.stdout, b"old\nold\n");
        }
    }
    let output = uext4(of(&["stat", "--json"], &[&hello]));
    let told: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(told["warning"].as_str().is_some_and(|text| text.contains("older state")), "{told}");
    assert_eq!(told["path"].as_str(), device.to_str());
    // What has a place for it on standard output says it there, and nowhere else.
    let said = text(of(&["info"], &[&device]));
    assert!(said.contains("later changes are lost: transaction "), "{said}");
    let output = uext4(of(&["check"], &[&device]));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0), "{said}");
    assert!(said.contains("error journal.log: block ") && said.contains(": damaged: "), "{said}");
    assert_eq!(file_digest(volume.path()), before, "something was written");
}
