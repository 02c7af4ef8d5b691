//! Fast commits on volumes whose files are mapped by block pointers, and in case-folded directories.

use crate::common;

use common::dirs::{CASEFOLD_FLAG, EXTENTS_FLAG, Recipe, in_dir};
use common::fast::{EXTENTS, FILE, ROOT, Records, fsck_clean, plant, raw_inode, tree, volume_with, writable};
use common::{Image, assert_unchanged, open_ro};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::LazyLock;
use uext4::{Error, State};
use uext4_testkit::{Need, needs};

fn tools() -> [Need; 2] {
    [Need::Tool("mke2fs"), Need::Tool("e2fsck")]
}

/// An unused block.
fn free(n: u64) -> u64 {
    8192 - 300 + n
}

fn pointers() -> Image {
    static BASE: LazyLock<Image> =
        LazyLock::new(|| volume_with("^metadata_csum,^extents,^64bit,fast_commit"));
    BASE.clone()
}

/// Single, double and triple indirect blocks come and go; a directory grows beyond its direct blocks.
#[test]
fn block_pointers_take_ranges_and_names() {
    needs!(tools()[0], tools()[1]);
    let mut image = pointers();
    let find = |path: &str| open_ro(pointers().device()).metadata(Path::new(path)).unwrap().ino.get();
    let (dir, file) = (find("/dir"), find("/dir/file-03"));
    let mut first = Records::default()
        .inode(500, &raw_inode(FILE, 1, 70_001 * 1024, 0))
        .add(500, 3, 1, free(0))
        .add(500, 10, 20, free(10))
        .add(500, 300, 2, free(40))
        .add(500, 266, 4, free(50))
        .add(500, 70_000, 1, free(60))
        .create(ROOT, 500, b"new");
    for n in 0..60 {
        let name = format!("{n:0>240}");
        first = first.link(dir, file, name.as_bytes());
    }
    let second =
        Records::default().delete(500, 280, 40).delete(500, 20, 3).unlink(ROOT, find("/hello"), b"hello");
    plant(&mut image, &[first, second]);
    let device = image.device();
    let seen = open_ro(device.clone());
    assert_eq!(seen.info().recovery.fast_commits_refused, None);
    let file = seen.open_file(Path::new("/new"), uext4::OpenOptions::new().read(true)).unwrap();
    let mapped: Vec<_> =
        file.map().map(Result::unwrap).filter(|piece| piece.state == State::Written).collect();
    let mapped: Vec<_> = mapped.iter().map(|run| (run.logical / 1024, run.length / 1024)).collect();
    assert_eq!(mapped, [(3, 1), (10, 10), (23, 7), (266, 4), (70_000, 1)]);
    let before = tree(&seen);
    assert_eq!(before.keys().filter(|name| name.starts_with(b"/dir/0")).count(), 60);
    assert!(!before.contains_key(&b"/hello"[..]));
    drop((file, seen));
    assert_unchanged(&image, &*device);
    drop(writable(device.clone()).unwrap());
    let after = Image::of(&*device);
    fsck_clean(&after);
    assert_eq!(tree(&open_ro(device)), before);
}

#[test]
fn what_block_pointers_cannot_hold_is_refused_by_name() {
    needs!(tools()[0]);
    let new = || Records::default().inode(500, &raw_inode(FILE, 1, 1024, 0)).create(ROOT, 500, b"new");
    let extents = raw_inode(FILE, 1, 1024, EXTENTS);
    let hello = open_ro(pointers().device()).metadata(Path::new("/hello")).unwrap().ino.get();
    let mut shared = pointers();
    // The only file of its size.
    let head = |part: &[u8]| part[..2] == FILE.to_le_bytes() && part[4..8] == 6000_u32.to_le_bytes();
    let inode = shared.bytes.windows(128).position(head).unwrap();
    // Its first and second pointer block are the same.
    let level = u32::try_from(free(99)).unwrap().to_le_bytes();
    shared.bytes[inode + 0x28 + 48..][..4].copy_from_slice(&level);
    shared.bytes[inode + 0x28 + 52..][..4].copy_from_slice(&level);
    for (image, records, text) in [
        (pointers(), new().add(500, 0, 0x8001, free(0)), "block pointers cannot map block 0"),
        (pointers(), new().add(500, 16_843_020, 1, free(0)), "block pointers cannot map block 16843020"),
        (pointers(), new().inode(500, &extents), "changes how the file is mapped"),
        (shared, Records::default().add(hello, 0, 1, free(0)), "the map of the file contains a cycle"),
    ] {
        let mut image = image;
        plant(&mut image, &[records]);
        let device = image.device();
        let volume = open_ro(device.clone());
        let why = volume.info().recovery.fast_commits_refused.unwrap();
        assert!(why.contains(text), "{why} instead of {text}");
        drop(volume);
        assert!(matches!(writable(device.clone()), Err(Error::FastCommit { .. })));
        assert_unchanged(&image, &*device);
    }
}

const FOLDED: &[&str] =
    &["-b", "1024", "-J", "size=2", "-O", "casefold,metadata_csum,64bit,^orphan_file,fast_commit"];

/// `/dir` is case-folded and has these names.
fn folded(names: u32, index: bool, extended: &[&str]) -> Image {
    let names: Vec<_> = (0..names).map(|n| format!("Straße number {n:04}")).collect();
    let flags = format!("sif /dir flags {:#x}", CASEFOLD_FLAG | EXTENTS_FLAG);
    Recipe { args: FOLDED, extended, debugfs: &[&flags], index, ..Recipe::default() }.make(&names)
}

fn find(image: &Image, name: &str) -> Result<u32, Error> {
    open_ro(image.device()).resolve(OsStr::from_bytes(&in_dir(name.as_bytes())), false).map(|ino| ino.get())
}

/// Linear directories, and a hash tree that must grow: every spelling leads to the recorded inode.
#[test]
fn case_folded_directories_take_names_and_lose_them() {
    needs!(tools()[0], tools()[1], Need::Tool("debugfs"));
    for (names, index) in [(5, false), (400, true)] {
        let mut image = folded(names, index, &[]);
        let dir = open_ro(image.device()).resolve("/dir", false).unwrap().get();
        let target = find(&image, "STRASSE NUMBER 0001").unwrap();
        let gone = find(&image, "STRASSE NUMBER 0002").unwrap();
        let mut first = Records::default();
        for n in 0..150 {
            let name = format!("{n:0>60} ÉTÉ");
            first =
                first.inode(900 + n, &raw_inode(FILE, 1, 0, EXTENTS)).create(dir, 900 + n, name.as_bytes());
        }
        // The kernel records a name as given, not as stored.
        let second = Records::default()
            .unlink(dir, gone, "strasse NUMBER 0002".as_bytes())
            .link(dir, target, b"Bad\xFFname")
            .link(dir, target, "STRASSE NUMBER 0001".as_bytes())
            .unlink(dir, 907, format!("{:0>60} été", 7).as_bytes());
        plant(&mut image, &[first, second]);
        let device = image.device();
        let seen = open_ro(device.clone());
        assert_eq!(seen.info().recovery.fast_commits_refused, None);
        let before = tree(&seen);
        drop(seen);
        assert_unchanged(&image, &*device);
        drop(writable(device.clone()).unwrap());
        let after = Image::of(&*device);
        fsck_clean(&after);
        assert_eq!(tree(&open_ro(device)), before);
        for n in (0..150).filter(|n| *n != 7) {
            assert_eq!(find(&after, &format!("{n:0>60} e\u{301}te\u{301}")).unwrap(), 900 + n);
        }
        assert!(matches!(find(&after, &format!("{:0>60} ÉTÉ", 7)), Err(Error::NotFound)));
        assert!(matches!(find(&after, "Straße number 0002"), Err(Error::NotFound)));
        assert_eq!(find(&after, "straße number 0001").unwrap(), target);
    }
}

#[test]
fn what_folded_names_contradict_is_refused_by_name() {
    needs!(tools()[0], Need::Tool("debugfs"));
    let plain = folded(5, false, &[]);
    let strict = folded(5, false, &["encoding=utf8-12.1", "encoding_flags=strict"]);
    let dir = open_ro(plain.device()).resolve("/dir", false).unwrap().get();
    let [one, two] = [1, 2].map(|n| find(&plain, &format!("STRASSE number {n:04}")).unwrap());
    let link = |name: &[u8]| Records::default().link(dir, one, name);
    let mut bare = plain.clone();
    bare.patch_superblock(|superblock| superblock[0x62] &= !2);
    let taken = format!("which is that of inode {two}");
    for (mut image, records, text) in [
        (plain.clone(), link("strasse NUMBER 0002".as_bytes()), &*taken),
        (strict, link(b"bad\xFFname"), "not UTF-8"),
        (bare, link(b"name"), "without the feature"),
    ] {
        plant(&mut image, &[records]);
        let device = image.device();
        let why = open_ro(device.clone()).info().recovery.fast_commits_refused.unwrap();
        assert!(why.contains(text), "{why} instead of {text}");
        assert!(matches!(writable(device.clone()), Err(Error::FastCommit { .. })));
        assert_unchanged(&image, &*device);
    }
}

/// Temporary files that get names: names that wait for their inodes are compared folded, too.
#[test]
fn names_that_wait_may_be_taken_back_by_another_spelling() {
    needs!(tools()[0], tools()[1], Need::Tool("debugfs"));
    let mut image = folded(5, false, &[]);
    let dir = open_ro(image.device()).resolve("/dir", false).unwrap().get();
    let first = Records::default()
        .link(dir, 900, b"Foo")
        .unlink(dir, 900, b"foo")
        .link(dir, 900, "B\u{e4}r".as_bytes())
        .inode(900, &raw_inode(FILE, 1, 0, EXTENTS));
    let second = Records::default().link(dir, 901, b"Gone").unlink(dir, 901, b"GONE");
    let third = Records::default().link(dir, 900, b"Last").inode(900, &raw_inode(FILE, 2, 0, EXTENTS));
    plant(&mut image, &[first, second, third]);
    let device = image.device();
    let info = open_ro(device.clone()).info().recovery;
    assert_eq!((info.fast_commits_refused.as_ref(), info.fast_commits().unwrap().commits), (None, 3));
    drop(writable(device.clone()).unwrap());
    let after = Image::of(&*device);
    fsck_clean(&after);
    assert_eq!((find(&after, "BA\u{308}R").unwrap(), find(&after, "LAST").unwrap()), (900, 900));
    assert!(["foo", "gone"].iter().all(|name| matches!(find(&after, name), Err(Error::NotFound))));
}
