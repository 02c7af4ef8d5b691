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
    let said = bad(2, line(&path, &["-F", "-O", "quota"]));
    assert!(said.contains("quota"), "{said}");
    assert!(std::fs::read(&path).unwrap() == before);
    good(line(&path, &["-F", "-L", "other"]));
    assert!(text([OsStr::new("info"), path.as_os_str()]).contains("other"));
    let tiny = uext4(line(&scratch.file("tiny"), &["1M"]));
    assert!(tiny.status.success() && String::from_utf8_lossy(&tiny.stderr).contains("journal"), "{tiny:?}");
}

/// The volume begins behind the start of the file, which is as long as both need.
#[test]
fn an_offset_is_where_the_volume_begins() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let path = scratch.file("image");
    let mut named = path.as_os_str().to_owned();
    named.push("?offset=1m");
    good(line(std::path::Path::new(&named), &["32M"]));
    assert_eq!(path.metadata().unwrap().len(), 33 << 20);
    assert!(text([OsStr::new("check"), &named]).contains("clean"));
    let part = scratch.file("part");
    std::fs::write(&part, &std::fs::read(&path).unwrap()[1 << 20..]).unwrap();
    e2fsck_clean(&part);
}
