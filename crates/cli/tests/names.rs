//! Commands that make and remove files.

use crate::common;

use common::{at, bad, good, text, volume};
use std::ffi::OsStr;
use std::os::unix::fs::{FileExt, PermissionsExt};
use uext4_testkit::{Need, Scratch, needs, oracle};

#[test]
fn files_go_into_a_volume_and_are_removed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = volume();
    let scratch = Scratch::new(16 << 20);
    let (one, two) = (scratch.file("one"), scratch.file("two"));
    std::fs::write(&one, common::pattern(100_001)).unwrap();
    std::fs::set_permissions(&one, std::fs::Permissions::from_mode(0o4640)).unwrap();
    let sparse = std::fs::File::create(&two).unwrap();
    sparse.write_all_at(b"middle", 1 << 20).unwrap();
    sparse.set_len(3 << 20).unwrap();
    let root = at(&volume, "/");
    good([OsStr::new("cp"), one.as_os_str(), two.as_os_str(), &root]);
    oracle::e2fsck_clean(volume.path());
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/one")]), common::pattern(100_001));
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/two")]), std::fs::read(&two).unwrap());
    let said = text([OsStr::new("stat"), &at(&volume, "/one")]);
    assert!(said.contains("0640"), "{said}");
    let blocks = oracle::debugfs(volume.path(), "stat /two");
    assert!(blocks.contains("Blockcount: 16") || blocks.contains("Blockcount: 8"), "{blocks}");
    // Under another name, and over what is there.
    good([OsStr::new("cp"), one.as_os_str(), &at(&volume, "/other")]);
    good([OsStr::new("cp"), two.as_os_str(), &at(&volume, "/other")]);
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/other")]), std::fs::read(&two).unwrap());
    good([OsStr::new("rm"), &at(&volume, "/one"), &at(&volume, "/two")]);
    oracle::e2fsck_clean(volume.path());
    let said = bad(1, [OsStr::new("rm"), &at(&volume, "/one")]);
    assert!(said.contains("no such file"), "{said}");
    good([OsStr::new("rm"), OsStr::new("-f"), &at(&volume, "/one"), &at(&volume, "/other")]);
    let said = bad(1, [OsStr::new("rm"), &root]);
    assert!(said.contains("is a directory"), "{said}");
    oracle::e2fsck_clean(volume.path());
}

#[test]
fn a_copy_that_does_not_fit_leaves_the_file_that_is_there() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let volume = volume();
    let scratch = Scratch::new(96 << 20);
    let long = scratch.file("long");
    let old = good([OsStr::new("cat"), &at(&volume, "/hello")]);
    std::fs::write(&long, vec![b'x'; std::fs::metadata(volume.path()).unwrap().len() as usize]).unwrap();
    for flags in [&[][..], &["--in-place"]] {
        let args = [&["cp"], flags].concat().into_iter().map(OsStr::new);
        let said = bad(1, args.chain([long.as_os_str(), &at(&volume, "/hello")]));
        assert!(said.contains("no space left"), "{said}");
        assert_eq!(said.contains("--in-place needs no room for both"), flags.is_empty(), "{said}");
        assert_eq!(good([OsStr::new("cat"), &at(&volume, "/hello")]), old, "{flags:?}");
        oracle::e2fsck_clean(volume.path());
    }
    std::fs::write(&long, "short").unwrap();
    let inode = |path: &str| text([OsStr::new("stat"), &at(&volume, path)]);
    let before = inode("/hello");
    good([OsStr::new("cp"), OsStr::new("--in-place"), long.as_os_str(), &at(&volume, "/hello")]);
    let number = |said: &str| {
        said.split("Inode: ").nth(1).map(|rest| rest.split_whitespace().next().map(str::to_owned))
    };
    assert_eq!(number(&inode("/hello")), number(&before));
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/hello")]), b"short");
    oracle::e2fsck_clean(volume.path());
    let said = bad(2, [OsStr::new("cp"), OsStr::new("--in-place"), &at(&volume, "/hello"), long.as_os_str()]);
    assert!(said.contains("into a volume"), "{said}");
}

#[test]
fn a_copy_that_does_not_fit_leaves_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let volume = volume();
    let scratch = Scratch::new(1 << 20);
    let long = scratch.file("long");
    let size = std::fs::metadata(volume.path()).unwrap().len();
    let free = text([OsStr::new("df"), volume.path().as_os_str()]);
    // A device of zeroes would do, but is no regular file.
    let host = std::fs::File::create(volume.path().with_extension("long")).unwrap();
    host.set_len(size).unwrap();
    for pos in (0..size).step_by(4096) {
        host.write_all_at(b"x", pos).unwrap();
    }
    std::fs::rename(volume.path().with_extension("long"), &long)
        .or_else(|_| std::fs::copy(volume.path().with_extension("long"), &long).map(drop))
        .unwrap();
    let said = bad(1, [OsStr::new("cp"), long.as_os_str(), &at(&volume, "/long")]);
    assert!(said.contains("no space left"), "{said}");
    assert_eq!(text([OsStr::new("df"), volume.path().as_os_str()]), free);
    oracle::e2fsck_clean(volume.path());
    let said = bad(1, [OsStr::new("cp"), OsStr::new("-a"), long.as_os_str(), &at(&volume, "/long")]);
    assert!(said.contains("no space left"), "{said}");
    assert_eq!(text([OsStr::new("df"), volume.path().as_os_str()]), free);
    oracle::e2fsck_clean(volume.path());
    let said = bad(2, [OsStr::new("cp"), volume.path().as_os_str(), &at(&volume, "/self")]);
    assert!(said.contains("is the device itself"), "{said}");
}
