//! A volume whose journal is not empty: what the commands show, and that looking writes nothing.

use crate::common;

use common::{at, bad, good, json, of, readers, text, uext4};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use uext4_ondisk::checksum::csum;
use uext4_ondisk::jbd2::{JournalIncompat, JournalSuperblock};
use uext4_testkit::manifest::file_digest;
use uext4_testkit::{Need, Scratch, Volume, VolumeBuilder, debugfs, needs, oracle};

/// A volume of blocks of 1 KiB in which `/hello` says this.
fn saying(hello: &str, options: &[&str]) -> Volume {
    let source = Scratch::new(1 << 20);
    std::fs::write(source.file("hello"), hello).unwrap();
    VolumeBuilder::new(24 << 20).args(["-b", "1024"]).args(options).from_dir(source.path()).build()
}

/// `/hello` says `old`, and `new` once the journal is replayed.
fn dirty() -> Volume {
    let volume = saying("old\n", &["-J", "size=1"]);
    log_new(&volume);
    volume
}

/// Puts a transaction into the empty journal, with which `/hello` says `new`.
fn log_new(volume: &Volume) {
    let block = debugfs(volume.path(), "blocks /hello").trim().to_owned();
    let (data, script) = (volume.scratch().file("data"), volume.scratch().file("script"));
    let mut bytes = vec![0; 1024];
    bytes[..4].copy_from_slice(b"new\n");
    std::fs::write(&data, bytes).unwrap();
    std::fs::write(&script, format!("jo -c -v 3\njw -b {block} {}\njc\n", data.display())).unwrap();
    oracle::run(oracle::command("debugfs").args(["-w", "-f"]).arg(&script).arg(volume.path()));
}

/// The image, and where a block of its journal lies.
fn log_block(volume: &Volume, number: u32) -> (std::fs::File, u64) {
    let block = debugfs(volume.path(), &format!("bmap <8> {number}")).trim().parse::<u64>().unwrap();
    let file = std::fs::File::options().read(true).write(true).open(volume.path()).unwrap();
    (file, block * 1024)
}

/// Overwrites the beginning of a block of the journal.
fn overwrite_log(volume: &Volume, number: u32, bytes: &[u8]) {
    let (file, place) = log_block(volume, number);
    file.write_all_at(bytes, place).unwrap();
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
    let volume = saying("here\n", &[]);
    overwrite_log(&volume, 0, &[0; 4]);
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
    // Behind the journal's superblock and the descriptor: the copy.
    overwrite_log(&volume, 2, b"bad");
    volume
}

#[test]
fn an_older_state_is_not_shown_without_a_word() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = damaged();
    let before = file_digest(volume.path());
    let device = volume.path().as_os_str().to_owned();
    for command in readers(&volume).into_iter().chain([of(&["df"], &[&device])]) {
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
    let output = uext4(of(&["stat", "--json"], &[&at(&volume, "/hello")]));
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

/// A record of a fast commit.
fn record(tag: u16, parts: &[&[u8]]) -> Vec<u8> {
    let value = parts.concat();
    [&tag.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), &value].concat()
}

/// A fast commit as a block, behind transaction `sequence - 1`. The first one has a head.
fn fast_commit(sequence: u32, first: bool, records: &[Vec<u8>]) -> Vec<u8> {
    let head = record(9, &[&[0; 4], &sequence.to_le_bytes()]);
    let mut block = if first { head } else { Vec::new() };
    block.extend(records.concat());
    // The tail has the length of all that is left, and a checksum of all before it.
    let rest = (1024 - block.len() - 4) as u16;
    block.extend([&8_u16.to_le_bytes()[..], &rest.to_le_bytes(), &sequence.to_le_bytes()].concat());
    let sum = csum(0, &block);
    block.extend(sum.to_le_bytes());
    block.resize(1024, 0);
    block
}

/// The volume of [`dirty`], and behind the transaction two fast commits: one that calls `/hello` `/renamed`, and one of
/// an inode that is not.
fn refused_fast_commit() -> Volume {
    let volume = saying("old\n", &["-J", "size=2", "-O", "metadata_csum,64bit,^orphan_file,fast_commit"]);
    log_new(&volume);
    let (file, place) = log_block(&volume, 0);
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, place).unwrap();
    let mut superblock = JournalSuperblock::decode(&bytes).unwrap();
    superblock.features.incompat |= JournalIncompat::FAST_COMMIT;
    superblock.fast_commit_blocks_raw = 64;
    superblock.encode(&mut bytes).unwrap();
    overwrite_log(&volume, 0, &bytes);
    let sequence = superblock.sequence + 1;
    let hello = debugfs(volume.path(), "stat /hello");
    let hello = hello.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap().to_le_bytes();
    let root = 2_u32.to_le_bytes();
    let rename = [record(4, &[&root, &hello, b"renamed"]), record(5, &[&root, &hello, b"hello"])];
    // Blocks taken away from a file.
    let nobody = [record(2, &[&(1_u32 << 20).to_le_bytes(), &[0; 4], &1_u32.to_le_bytes()])];
    let start = superblock.log_end() + 1;
    overwrite_log(&volume, start, &fast_commit(sequence, true, &rename));
    overwrite_log(&volume, start + 1, &fast_commit(sequence, false, &nobody));
    volume
}

#[test]
fn a_state_before_a_refused_fast_commit_is_not_shown_without_a_word() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = refused_fast_commit();
    let before = file_digest(volume.path());
    let (root, renamed) = (at(&volume, "/"), at(&volume, "/renamed"));
    for (command, place, shown) in [("cat", &renamed, "new\n"), ("ls", &root, "lost+found\nrenamed\n")] {
        let output = uext4([OsStr::new(command), place]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command}: {told}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), shown, "{command}");
        assert_eq!(told.lines().count(), 1, "{command}: {told}");
        assert!(told.starts_with(&format!("uext4 {command}: warning: ")), "{told}");
        for words in ["an older state is seen", "fast commits", "from number 2 on", "later changes are lost"]
        {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert!(told.contains("inode number is out of range"), "{told}");
    }
    let output = uext4([OsStr::new("ls"), OsStr::new("--json"), &root]);
    let told: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(told["warning"].as_str().is_some_and(|text| text.contains("from number 2 on")), "{told}");
    let write = [OsStr::new("io"), &renamed, OsStr::new("-c"), OsStr::new("pwrite -q 0 1")];
    assert!(bad(1, write).contains("fast commit"));
    assert_eq!(file_digest(volume.path()), before, "something was written");
}
