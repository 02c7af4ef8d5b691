//! The commands that look, on layouts other than today's defaults.

use crate::common;

use common::{at, bad, good, json, pattern, text};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use uext4_testkit::{Need, Scratch, Volume, VolumeBuilder, debugfs, needs, oracle};

/// An ext2 volume of 1 KiB blocks: `/big` needs two levels of pointer blocks, `/holed` has every second block.
fn ext2() -> Volume {
    let source = Scratch::new(16 << 20);
    std::fs::write(source.file("big"), pattern(600_000)).unwrap();
    let holed = std::fs::File::create(source.file("holed")).unwrap();
    for block in 0..20 {
        holed.write_all_at(&pattern(1024), block * 2048).unwrap();
    }
    VolumeBuilder::new(16 << 20).kind("ext2").args(["-b", "1024"]).from_dir(source.path()).build()
}

#[test]
fn indirect_maps_are_shown_and_explained() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = ext2();
    let image = volume.path();
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/big")]), pattern(600_000));
    let map = json([OsStr::new("map"), &at(&volume, "/big"), OsStr::new("--json")]);
    let mut blocks = Vec::new();
    for piece in map.as_array().unwrap() {
        assert_eq!(piece["state"], "written");
        let (first, length) = (piece["physical"].as_u64().unwrap(), piece["length"].as_u64().unwrap());
        blocks.extend(first / 1024..(first + length) / 1024);
    }
    // debugfs lists the map's own blocks too, between the data.
    let listed = debugfs(image, "stat /big");
    let own = listed.matches("IND):").count();
    assert_eq!(own, 4, "one single, one double, two below it: {listed}");
    let all: Vec<u64> =
        debugfs(image, "blocks /big").split_whitespace().map(|block| block.parse().unwrap()).collect();
    assert_eq!((blocks.len(), all.len()), (586, 590));
    assert!(blocks.iter().all(|block| all.contains(block)));

    let holes =
        json([OsStr::new("map"), &at(&volume, "/holed"), OsStr::new("--json"), OsStr::new("--holes")]);
    let states: Vec<&Value> = holes.as_array().unwrap().iter().map(|piece| &piece["state"]).collect();
    assert!(states.len() == 39 && states.iter().step_by(2).all(|state| **state == "written"), "{states:?}");

    let explain = |path: &str, pos: &str| {
        text([
            OsStr::new("explain"),
            &at(&volume, path),
            OsStr::new("--write"),
            OsStr::new(pos),
            OsStr::new("1024"),
        ])
    };
    assert!(
        explain("/big", "400k").contains("all of it lies in written blocks"),
        "{}",
        explain("/big", "400k")
    );
    assert!(explain("/holed", "1024").contains("1024 in holes"), "{}", explain("/holed", "1024"));
    let stat = json([OsStr::new("stat"), &at(&volume, "/big"), OsStr::new("--json")]);
    assert_eq!((&stat["stx_size"], &stat["stx_blocks"]), (&600_000.into(), &(590 * 2).into()));
    assert!(text([OsStr::new("info"), image.as_os_str()]).contains("1024"));
}

#[test]
fn damage_and_encryption_are_told_with_their_place() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = ext2();
    let ino: u64 = word(&debugfs(volume.path(), "stat /big"), "Inode: ");
    oracle::debugfs_write(volume.path(), "sif /big block[IND] 99999");
    oracle::debugfs_write(volume.path(), "sif /holed flags 0x800");
    let line = bad(1, [OsStr::new("map"), &at(&volume, "/big"), OsStr::new("--json")]);
    let error: Value = serde_json::from_str(&line).unwrap();
    let told = (&error["errno"], &error["inode"], &error["block"]);
    assert_eq!(told, (&117.into(), &ino.into(), &99_999.into()), "{line}");
    let line = bad(1, [OsStr::new("cat"), &at(&volume, "/holed")]);
    assert!(line.contains("encrypted file"), "{line}");
    // What is known of them without their contents is still told.
    assert!(text([OsStr::new("stat"), &at(&volume, "/holed")]).contains("encrypt"));
}

fn word(text: &str, name: &str) -> u64 {
    text.split_once(name).unwrap().1.split_whitespace().next().unwrap().parse().unwrap()
}
