//! Volumes with damaged group descriptors, and volumes that cannot be opened at all: what the commands tell.

use crate::common;

use common::{at, bad, json, of, readers, text, uext4, volume};
use std::fs::File;
use std::os::unix::fs::FileExt;
use uext4_testkit::manifest::file_digest;
use uext4_testkit::{Need, Volume, debugfs, needs, oracle};

/// Block size of the volume, in which the descriptors begin right behind the superblock.
fn descriptors_at(volume: &Volume) -> u64 {
    let size: u64 = oracle::superblock_field(volume.path(), "Block size").parse().unwrap();
    if size == 1024 { 2048 } else { size }
}

#[test]
fn every_command_warns_of_damaged_descriptors_and_reads() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("dumpe2fs"));
    let volume = volume();
    let place = descriptors_at(&volume);
    let file = File::options().read(true).write(true).open(volume.path()).unwrap();
    let mut word = [0; 2];
    file.read_exact_at(&mut word, place + 30).unwrap();
    file.write_all_at(&[word[0] ^ 1, word[1]], place + 30).unwrap();
    let before = file_digest(volume.path());
    let (device, root) = (volume.path().as_os_str().to_owned(), at(&volume, "/"));
    for command in readers(&volume) {
        let output = uext4(&command);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command:?}: {told}");
        let warnings: Vec<&str> = told.lines().filter(|line| line.contains("warning: ")).collect();
        assert_eq!(warnings.len(), 1, "{command:?}: {told}");
        assert!(warnings[0].contains("1 group descriptor is damaged (first: group 0, "), "{told}");
        assert!(warnings[0].contains("may read wrong"), "{told}");
        if command[0] == "cat" {
            assert_eq!(output.stdout, b"world\nworld\n");
        }
    }
    let output = uext4(of(&["ls", "--json"], &[&root]));
    let told: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(told["warning"].as_str().is_some_and(|text| text.contains("group descriptor")), "{told}");
    // Nothing vouches for free counts.
    let output = uext4(of(&["df"], &[&device]));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len(), told.lines().count()), (Some(1), 0, 2), "{told}");
    assert!(
        told.ends_with("corrupt volume: group 0, block 1: group descriptor checksum is wrong\n"),
        "{told}"
    );

    let info = json(of(&["info", "--json"], &[&device]));
    let damage = &info["damaged_descriptors"];
    assert_eq!((&damage["groups"], &damage["impossible"]), (&1.into(), &0.into()), "{info}");
    assert_eq!((&damage["first_group"], &info["recovery"]["usable"]), (&0.into(), &true.into()));
    assert!(damage["first"].as_str().is_some_and(|text| text.contains("checksum")), "{damage}");
    let said = text(of(&["info"], &[&device]));
    assert!(said.contains("1 group descriptor is damaged"), "{said}");
    let refused = bad(1, of(&["io", "-c", "pwrite -q 0 1"], &[&at(&volume, "/hello")]));
    assert!(
        refused.contains("group descriptor checksum is wrong") && refused.contains("group 0"),
        "{refused}"
    );
    // What has a place for it on standard output says it there.
    let output = uext4(of(&["check"], &[&device]));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("error ")).count(), 1, "{said}");
    assert!(said.contains("error group.checksum: "), "{said}");
    assert_eq!(file_digest(volume.path()), before, "something was written");
}

#[test]
fn sound_descriptors_are_no_news() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let info = json(of(&["info", "--json"], &[volume.path().as_os_str()]));
    assert_eq!(info["damaged_descriptors"], serde_json::Value::Null);
    assert_eq!(uext4(of(&["ls"], &[volume.path().as_os_str()])).stderr, b"");
}

/// The superblock is all that can be seen, and it is shown together with the reason.
#[test]
fn info_shows_the_superblock_of_a_volume_that_cannot_be_opened() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("dumpe2fs"));
    type Damage = fn(&Volume);
    let damages: [(&str, Damage); 4] = [
        ("journal magic", |volume| {
            let first = debugfs(volume.path(), "bmap <8> 0").trim().parse::<u64>().unwrap();
            let size: u64 = oracle::superblock_field(volume.path(), "Block size").parse().unwrap();
            oracle::debugfs_write(volume.path(), "feature needs_recovery");
            File::options()
                .write(true)
                .open(volume.path())
                .unwrap()
                .write_all_at(&[0; 4], first * size)
                .unwrap();
        }),
        ("inode 8", |volume| {
            oracle::debugfs_write(volume.path(), "feature needs_recovery");
            oracle::debugfs_write(volume.path(), "set_inode_field <8> size 0x1000000000");
        }),
        ("group 0", |volume| {
            oracle::debugfs_write(volume.path(), "feature needs_recovery");
            oracle::debugfs_write(volume.path(), "set_bg 0 inode_table 0x7fffffff");
        }),
        ("device", |volume| {
            File::options().write(true).open(volume.path()).unwrap().set_len(1 << 20).unwrap();
        }),
    ];
    for (reason, damage) in damages {
        let volume = volume();
        damage(&volume);
        let device = volume.path().as_os_str();
        let refused = bad(1, of(&["ls"], &[device]));
        assert!(refused.contains(reason), "{reason}: {refused}");
        let info = json(of(&["info", "--json"], &[device]));
        assert_eq!((&info["label"], &info["recovery"]["usable"]), (&"cli-test".into(), &false.into()));
        let said = info["recovery"]["reason"].as_str().unwrap();
        assert!(said.contains(reason), "{said}");
        let said = text(of(&["info"], &[device]));
        assert!(said.contains("cli-test") && said.contains("not usable:"), "{said}");
    }
    // Without one there is nothing to show.
    let volume = volume();
    File::options().write(true).open(volume.path()).unwrap().write_all_at(&[0; 2], 1024 + 0x38).unwrap();
    assert!(bad(1, of(&["info"], &[volume.path().as_os_str()])).contains("not an ext2/3/4 volume"));
}
