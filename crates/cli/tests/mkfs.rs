//! `uext4 mkfs`.

use crate::common;

use common::{bad, good, text, uext4};
use serde_json::Value;
use std::ffi::OsStr;
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs};

const IDS: [&str; 4] =
    ["-U", "6e7f3c51-2b0a-4d1e-9c57-0f1a2b3c4d5e", "-E", "hash_seed=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"];

fn line<'a>(path: &'a std::path::Path, words: &[&'a str]) -> Vec<&'a OsStr> {
    let words = words.iter().map(|word| OsStr::new(*word));
    [OsStr::new("mkfs"), path.as_os_str()].into_iter().chain(words).collect()
}

#[test]
fn an_image_is_created_and_clean() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    for (number, words) in [
        &["64M"][..],
        &["1G", "--compat", "debian12"],
        &["64M", "-O", "bigalloc", "-b", "4k"],
        &["20M", "-O", "^extents,^64bit"],
        &["20M", "-O", "meta_bg,^resize_inode,^flex_bg"],
        &["20M", "-O", "inline_data,casefold,ea_inode,large_dir,sparse_super2"],
        &["20M", "-O", "^metadata_csum", "-I", "128"],
    ]
    .into_iter()
    .enumerate()
    {
        let path = scratch.file(format!("image-{number}"));
        let told = text(line(&path, words));
        assert!(told.contains("blocks of") && told.contains("UUID"), "{told}");
        e2fsck_clean(&path);
        let report = text([OsStr::new("check"), path.as_os_str()]);
        assert!(report.contains("clean"), "{words:?}: {report}");
        assert!(text([OsStr::new("info"), path.as_os_str()]).contains("clean"), "{words:?}");
    }
}

#[test]
fn json_tells_what_was_made() {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("image");
    let words = [&["64M", "--json", "-L", "data", "-N", "2000", "-m", "0"][..], &IDS].concat();
    let made: Value = serde_json::from_slice(&good(line(&path, &words))).unwrap();
    assert_eq!(made["label"], "data");
    assert_eq!(made["uuid"], IDS[1]);
    assert_eq!(made["created"], true);
    assert_eq!(made["block_size"], 1024);
    assert_eq!(made["size"], 64 << 20);
    assert_eq!(made["reserved_blocks"], 0);
    assert_eq!(made["journal_blocks"], 4096);
    assert_eq!(made["inodes"], 1984, "eight groups of 248, as mke2fs rounds");
    assert!(made["features"].as_array().unwrap().iter().any(|name| name == "orphan_file"));
    let stated: Value =
        serde_json::from_slice(&good([OsStr::new("df"), OsStr::new("--json"), path.as_os_str()])).unwrap();
    assert_eq!(stated["free"], made["free_blocks"], "{stated}");
}

#[test]
fn the_same_words_make_the_same_volume() {
    let scratch = Scratch::new(64 << 20);
    let paths = [scratch.file("one"), scratch.file("two")];
    for path in &paths {
        let mut command = common::command(line(path, &[&["16M"][..], &IDS].concat()));
        let output = command.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    assert!(std::fs::read(&paths[0]).unwrap() == std::fs::read(&paths[1]).unwrap());
    let third = scratch.file("third");
    let mut command = common::command(line(&third, &["16M"]));
    let output = command.env("SOURCE_DATE_EPOCH", "yesterday").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(!third.exists());
}

#[test]
fn what_is_there_stays_there() {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("image");
    let said = bad(1, line(&path, &[]));
    assert!(said.contains("a size would create it") && !path.exists(), "{said}");
    let said = bad(1, line(&path, &["16k"]));
    assert!(said.contains("too few") && !path.exists(), "what was created goes again: {said}");
    good(line(&path, &["16M", "-L", "precious"]));
    let before = std::fs::read(&path).unwrap();
    let said = bad(1, line(&path, &["-L", "other"]));
    assert!(said.contains("precious") && said.contains("--force"), "{said}");
    let said = bad(1, line(&path, &["17M", "-F"]));
    assert!(said.contains("too few"), "{said}");
    assert!(std::fs::read(&path).unwrap() == before);
    good(line(&path, &["-F", "-L", "other"]));
    assert!(text([OsStr::new("info"), path.as_os_str()]).contains("other"));
    let tiny = uext4(line(&scratch.file("tiny"), &["1M"]));
    assert!(tiny.status.success() && String::from_utf8_lossy(&tiny.stderr).contains("journal"), "{tiny:?}");
}

#[test]
fn kinds_quotas_and_groups_are_made() {
    needs!(Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    let scratch = Scratch::new(256 << 20);
    for (number, (words, told)) in [
        (&["32M", "-t", "ext2"][..], "Filesystem features:      ext_attr resize_inode dir_index"),
        (&["32M", "-t", "ext2", "-j"], "has_journal"),
        (&["32M", "-t", "ext3"], "has_journal"),
        (&["32M", "-T", "largefile"], "Block size:               4096"),
        (&["32M", "-g", "1024"], "Blocks per group:         1024"),
        (&["32M", "-G", "4"], "Flex block group size:    4"),
        (&["32M", "-O", "quota,project"], "Project quota inode:"),
        (&["32M", "-O", "quota", "-E", "quotatype=grpquota,discard"], "Group quota inode:        4"),
        (&["32M", "-O", "fast_commit", "-J", "size=4,fast_commit_size=256"], "Fast commit length:       256"),
        (&["32M", "-O", "encrypt", "--usage", "small"], "encrypt"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = scratch.file(format!("image-{number}"));
        good(line(&path, words));
        e2fsck_clean(&path);
        let dumped = uext4_testkit::oracle::dumpe2fs(&path, &["-h"]);
        assert!(dumped.contains(told), "{words:?}: {dumped}");
    }
}

/// As of mke2fs: a script learns the backups of a volume that is there, without a byte written.
#[test]
fn a_dry_run_writes_nothing() {
    needs!(Need::Tool("mke2fs"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("image");
    let told = text(line(&path, &["-n", "48M", "-b", "1024"]));
    assert!(told.contains("nothing is written") && told.contains("49152 blocks of 1024 bytes"), "{told}");
    assert!(told.contains("superblock also in blocks 8193 24577 40961"), "{told}");
    assert!(!path.exists());
    let said = bad(1, line(&path, &["-n"]));
    assert!(said.contains("a size would create it"), "{said}");
    good(line(&path, &["48M", "-L", "precious"]));
    let before = std::fs::read(&path).unwrap();
    let told: Value = serde_json::from_slice(&good(line(&path, &["--dry-run", "--json"]))).unwrap();
    assert_eq!(told["dry_run"], true);
    assert_eq!(told["created"], false);
    let mut command = uext4_testkit::oracle::command("mke2fs");
    let theirs = uext4_testkit::oracle::run(command.args(["-n", "-F", "-t", "ext4"]).arg(&path));
    let blocks = theirs.split("stored on blocks:").nth(1).unwrap_or_else(|| panic!("{theirs}"));
    let blocks: Vec<u64> =
        blocks.split([',', '\n', '\t', ' ']).filter_map(|number| number.parse().ok()).collect();
    assert_eq!(told["backups"], serde_json::json!(blocks), "{theirs}");
    assert!(std::fs::read(&path).unwrap() == before);
    // Decided as without it.
    assert!(bad(1, line(&path, &["-n", "64M"])).contains("too few"));
    assert!(bad(2, line(&path, &["-n", "-m", "51"])).contains("51"));
}

#[test]
fn quiet_says_nothing_but_warnings() {
    let scratch = Scratch::new(64 << 20);
    let done = uext4(line(&scratch.file("image"), &["-q", "32M"]));
    assert!(done.status.success() && done.stdout.is_empty() && done.stderr.is_empty(), "{done:?}");
    let tiny = uext4(line(&scratch.file("tiny"), &["--quiet", "1M"]));
    assert!(tiny.status.success() && tiny.stdout.is_empty(), "{tiny:?}");
    assert!(String::from_utf8_lossy(&tiny.stderr).contains("journal"), "{tiny:?}");
    bad(2, line(&scratch.file("other"), &["-q", "--json", "32M"]));
}

/// The volume begins behind the start of the file, which is as long as both need.
#[test]
fn an_offset_is_where_the_volume_begins() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let by_option = scratch.file("option");
    good(line(&by_option, &["32M", "-E", "offset=1048576"]));
    let by_name = scratch.file("name");
    let mut named = by_name.as_os_str().to_owned();
    named.push("?offset=1m");
    good(line(std::path::Path::new(&named), &["32M"]));
    for path in [&by_option, &by_name] {
        assert_eq!(path.metadata().unwrap().len(), 33 << 20);
        let mut device = path.as_os_str().to_owned();
        device.push("?offset=1m");
        assert!(text([OsStr::new("check"), &device]).contains("clean"));
        let part = scratch.file("part");
        std::fs::write(&part, &std::fs::read(path).unwrap()[1 << 20..]).unwrap();
        e2fsck_clean(&part);
    }
    let said = bad(2, line(std::path::Path::new(&named), &["-F", "-E", "offset=4096"]));
    assert!(said.contains("offset"), "{said}");
}

#[test]
fn options_of_mke2fs_that_are_missing_are_refused_by_name() {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("image");
    for (words, name) in [
        (&["-c"][..], "-c"),
        (&["-c", "-c"], "-c"),
        (&["-e", "panic"], "-e"),
        (&["-l", "list"], "-l"),
        (&["-M", "/mnt"], "-M"),
        (&["-o", "hurd"], "-o"),
        (&["-r", "0"], "-r"),
        (&["-S"], "-S"),
        (&["-v"], "-v"),
        (&["-z", "undo"], "-z"),
        (&["-D"], "-D"),
        (&["-K"], "-K"),
        (&["-R", "stride=4"], "-R"),
        (&["-J", "location=1"], "location"),
        (&["-E", "root_perms=700"], "root_perms"),
        (&["-E", "assume_storage_prezeroed=1"], "assume_storage_prezeroed"),
        (&["-T", "frobnicate"], "frobnicate"),
    ] {
        let said = bad(2, line(&path, &[&["32M"], words].concat()));
        assert!(said.contains(name) && !said.contains("unexpected"), "{words:?}: {said}");
        assert!(!path.exists(), "{words:?}");
    }
}
