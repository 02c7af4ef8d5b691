//! What a rename refuses, with nothing changed, and what users of replaced files and directories notice.

use crate::common;

use common::{Image, assert_unchanged, open_ro, open_rw, read_all, read_only, read_write};
use uext4::device::Device;
use uext4::{Error, InodeFlags, Limit, Node, RenameFlags, Result, Volume, WriteFlags};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

const PLAIN: RenameFlags = RenameFlags::empty();
const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;
const WHITEOUT: RenameFlags = RenameFlags::WHITEOUT;

/// A volume of 8 MiB with some directories and files, changed by requests to debugfs.
fn image(args: &[&str], requests: &[&str]) -> Image {
    let scratch = Scratch::new(16 << 20);
    let tree = scratch.file("tree");
    for directory in ["a/sub", "a/empty", "b/sub"] {
        std::fs::create_dir_all(tree.join(directory)).unwrap();
    }
    for file in ["a/f", "a/g", "b/f", "a/sub/inside"] {
        std::fs::write(tree.join(file), file.repeat(200)).unwrap();
    }
    let mut builder = VolumeBuilder::new(8 << 20).args(["-b", "1024"]).args(args.iter().copied());
    if args.contains(&"casefold") {
        builder = builder.extended("encoding=utf8");
    }
    let made = builder.from_dir(&tree).build();
    for request in requests {
        oracle::debugfs_write(made.path(), request);
    }
    Image::load(made.path())
}

fn clean(device: &dyn Device) {
    let scratch = Scratch::new(16 << 20);
    let path = scratch.file("volume.img");
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
}

/// The image of a volume that was opened for writing, closed, and opened again: only its times differ from before.
fn settled(image: &Image) -> Image {
    let device = image.device();
    open_rw(device.clone()).close().unwrap();
    Image::of(&*device).without_lifetime()
}

/// Each rename fails with its errno and text, and changes nothing.
#[track_caller]
fn refused(image: &Image, cases: &[(&str, &str, RenameFlags, i32, &str)]) {
    let before = settled(image);
    for (from, to, flags, errno, text) in cases {
        let device = image.device();
        let volume = open_rw(device.clone());
        let error = volume.rename_with(from, to, *flags).unwrap_err();
        assert_eq!(error.errno(), *errno, "{from} to {to}: {error}");
        assert!(error.to_string().contains(text), "{from} to {to}: {error}");
        volume.close().unwrap();
        assert_unchanged(&before, &*Image::of(&*device).without_lifetime().device());
    }
}

fn node(volume: &Volume, path: &str) -> Node {
    volume.node_at(path, true).unwrap()
}

#[test]
fn users_of_what_is_replaced_go_on() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&[], &[]).device();
    let volume = open_rw(device.clone());
    let free = volume.statfs().unwrap();
    let old = volume.open_file("/b/f", read_write()).unwrap();
    let before = volume.metadata("/a/f").unwrap();
    volume.rename("/a/f", "/b/f").unwrap();
    let after = volume.metadata("/b/f").unwrap();
    assert!(after.changed > before.changed && after.modified == before.modified);
    assert_eq!((after.ino, after.links), (before.ino, 1));
    // It can be read and written until its last user goes.
    assert_eq!(old.write_any_at(b"still", 300, WriteFlags::empty()).unwrap(), 5);
    assert_eq!(&read_all(&old)[300..306], b"stillf");
    assert_eq!(read_all(&volume.open_file("/b/f", read_only()).unwrap()), b"a/f".repeat(200));
    let ino = old.ino();
    drop(old);
    assert!(matches!(
        volume.open_inode(ino, read_only()),
        Err(Error::CorruptInode { .. } | Error::Corrupt(_))
    ));

    let (empty, sub) = (node(&volume, "/a/empty"), node(&volume, "/a/sub"));
    volume.rename("/a/sub", "/a/empty").unwrap();
    assert_eq!(node(&volume, "/a/empty").ino(), sub.ino());
    assert_eq!(empty.attributes().links, 0);
    // Nothing comes into a directory that has no name, or goes out of it.
    let root = volume.root().unwrap();
    for (from, to) in [(&root, &empty), (&empty, &root)] {
        assert!(matches!(from.rename("a", to, "x", PLAIN), Err(Error::NotFound)));
    }
    drop((empty, sub, root));
    volume.sync_all().unwrap();
    let now = volume.statfs().unwrap();
    assert_eq!((now.free_inodes, now.free), (free.free_inodes + 2, free.free + 2));
    volume.close().unwrap();
    clean(&*device);
}

#[test]
fn names_that_cannot_be_are_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = image(&[], &[]);
    let (device, other) = (image.device(), open_rw(image.device()));
    let volume = open_rw(device.clone());
    let (a, b) = (node(&volume, "/a"), node(&volume, "/b"));
    let errno = |done: Result<()>| done.unwrap_err().errno();
    for name in ["", ".", "..", "x/y", "x\0"] {
        assert_eq!(errno(a.rename(name, &b, "new", PLAIN)), libc::EINVAL, "{name}");
        assert_eq!(errno(a.rename("f", &b, name, PLAIN)), libc::EINVAL, "{name}");
    }
    assert_eq!(errno(a.rename("f", &b, "n".repeat(256), PLAIN)), libc::ENAMETOOLONG);
    assert_eq!(errno(a.rename("f", &node(&other, "/b"), "f", PLAIN)), libc::EXDEV);
    assert_eq!(errno(a.rename("f", &node(&volume, "/b/f"), "f", PLAIN)), libc::ENOTDIR);
    for (from, to, expected) in [
        ("", "/new", libc::ENOENT),
        ("/a", "", libc::ENOENT),
        ("/", "/new", libc::EBUSY),
        ("/a", "/", libc::EBUSY),
    ] {
        assert_eq!(errno(volume.rename(from, to)), expected, "{from} to {to}");
    }
    for flags in [EXCHANGE | WHITEOUT, EXCHANGE | RenameFlags::NOREPLACE, RenameFlags::from_bits_retain(8)] {
        assert_eq!(errno(a.rename("f", &b, "f", flags)), libc::EINVAL, "{flags:?}");
    }
    drop((a, b));
    volume.close().unwrap();
    clean(&*device);
    assert_eq!(errno(open_ro(device).rename("/a", "/new")), libc::EROFS);
}

/// Of a directory that passes on its project. The kernel here mounts no volume with projects for writing, so its rule
/// (`ext4_rename`, `ext4_cross_rename`) is written down here.
#[test]
fn inodes_of_another_project_do_not_come_into_a_directory_that_passes_on_its_own() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let set = [
        "set_inode_field /b flags 0x200800c8",
        "set_inode_field /b projid 5",
        "set_inode_field /b/f projid 5",
    ];
    let image = image(&["-O", "project"], &set);
    let text = "another project";
    refused(
        &image,
        &[
            ("/a/f", "/b/new", PLAIN, libc::EXDEV, text),
            ("/a/f", "/b/f", PLAIN, libc::EXDEV, text),
            ("/a/sub", "/b/new", PLAIN, libc::EXDEV, text),
            // `/b/sub` has no project. Not even another name in the same directory.
            ("/b/sub", "/b/new", PLAIN, libc::EXDEV, text),
            ("/a/f", "/b/f", EXCHANGE, libc::EXDEV, text),
            ("/b/f", "/a/f", EXCHANGE, libc::EXDEV, text),
        ],
    );
    let device = image.device();
    let volume = open_rw(device.clone());
    volume.rename("/b/f", "/b/g").unwrap();
    volume.rename("/b/g", "/a/new").unwrap();
    volume.rename("/a/new", "/b/f").unwrap();
    volume.rename_with("/b/f", "/a/new", WHITEOUT).unwrap();
    let whiteout = volume.symlink_metadata("/b/f").unwrap();
    // Of the directory's flags, `sync` is none that a device inherits.
    assert_eq!((whiteout.project, whiteout.flags), (5, InodeFlags::NODUMP | InodeFlags::NOATIME));
    volume.close().unwrap();
    clean(&*device);
}

#[test]
fn encrypted_directories_and_default_access_control_lists_are_refused_by_name() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let encrypted = image(&["-O", "encrypt"], &["set_inode_field /b/sub flags 0x80800"]);
    let text = "encrypted directory";
    refused(
        &encrypted,
        &[
            ("/a/f", "/b/sub/f", PLAIN, libc::EOPNOTSUPP, text),
            // Its `..` would move.
            ("/b/sub", "/a/new", PLAIN, libc::EOPNOTSUPP, text),
            ("/b/sub", "/a/f", EXCHANGE, libc::EOPNOTSUPP, text),
            ("/a/empty", "/b/sub", PLAIN, libc::EOPNOTSUPP, text),
        ],
    );
    let device = encrypted.device();
    let volume = open_rw(device);
    volume.rename("/b/sub", "/b/new").unwrap();
    volume.close().unwrap();
}

/// The link count of a directory with as many subdirectories as it can count. The count is not true here, so e2fsck
/// does not look at these volumes.
#[test]
fn a_directory_takes_no_more_subdirectories_than_it_can_count() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let set = ["set_inode_field /b links_count 65000"];
    let image_of = |features| image(&["-O", features], &set);
    let counted = image_of("^dir_nlink");
    refused(
        &counted,
        &[
            ("/a/sub", "/b/new", PLAIN, libc::EMLINK, "too many links"),
            ("/a/sub", "/b/f", EXCHANGE, libc::EMLINK, "too many links"),
            ("/b/f", "/a/sub", EXCHANGE, libc::EMLINK, "too many links"),
        ],
    );
    let volume = open_rw(counted.device());
    assert!(matches!(volume.rename("/a/sub", "/b/new"), Err(Error::Limit(Limit::Links))));
    // These bring none more.
    volume.rename("/a/empty", "/b/sub").unwrap();
    volume.rename("/b/sub", "/b/new").unwrap();
    assert_eq!(volume.metadata("/b").unwrap().links, 65000);
    volume.rename("/b/new", "/a/new").unwrap();
    assert_eq!(volume.metadata("/b").unwrap().links, 64999);
    volume.close().unwrap();
    // With the feature too, unless the directory has a hash tree, as in Linux.
    let linear = image_of("dir_nlink");
    refused(&linear, &[("/a/sub", "/b/new", PLAIN, libc::EMLINK, "too many links")]);
    let device = linear.device();
    let volume = open_rw(device.clone());
    for number in 0..8 {
        volume.open_file(format!("/b/{number:0200}"), read_write().create_new(true)).unwrap();
    }
    volume.rename("/a/sub", "/b/new").unwrap();
    assert_eq!(volume.metadata("/b").unwrap().links, 1);
    // From then on nobody counts.
    volume.rename("/a/empty", "/b/more").unwrap();
    volume.rename("/b/new", "/a/new").unwrap();
    assert_eq!(volume.metadata("/b").unwrap().links, 1);
}

/// The only place of these bytes at the beginning of a block.
fn block_with(image: &Image, bytes: &[u8]) -> usize {
    let mut found = (0..image.bytes.len()).step_by(1024).filter(|at| image.bytes[*at..].starts_with(bytes));
    let place = found.next().unwrap();
    assert_eq!(found.next(), None);
    place
}

#[test]
fn damage_is_found_before_anything_changes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let image_of = |requests: &[&str]| image(&["-O", "^metadata_csum,^has_journal"], requests);
    // The first record of `/a/sub` is `.`, the second `..`.
    let mut image = image_of(&[]);
    let ino = open_ro(image.device()).resolve("/a/sub", true).unwrap().get();
    let at = block_with(&image, &[&ino.to_le_bytes()[..], &[12, 0, 1, 2, b'.']].concat());
    image.bytes[at + 12..at + 16].copy_from_slice(&2_u32.to_le_bytes());
    let text = "its `..` does not lead to the directory it is in";
    refused(
        &image,
        &[
            ("/a/sub", "/b/new", PLAIN, 117, text),
            ("/a/sub", "/b/f", EXCHANGE, 117, text),
            ("/b/f", "/a/sub", EXCHANGE, 117, text),
        ],
    );
    // Within its parent nothing reads that.
    open_rw(image.device()).rename("/a/sub", "/a/new").unwrap();

    // A record after the one that is looked up is damaged.
    let mut image = image_of(&[]);
    let b = open_ro(image.device()).resolve("/b", true).unwrap().get();
    let block = block_with(&image, &[&b.to_le_bytes()[..], &[12, 0, 1, 2, b'.']].concat());
    image.bytes[block + 12 + 12 + 4] = 3;
    for (from, to, flags) in
        [("/b/f", "/a/new", PLAIN), ("/a/f", "/b/f", EXCHANGE), ("/a/f", "/b/new", PLAIN)]
    {
        let device = image.device();
        let volume = open_rw(device.clone());
        assert_eq!(volume.rename_with(from, to, flags).unwrap_err().errno(), 117, "{from} to {to}");
        // It was not aborted.
        volume.rename("/a/g", "/a/h").unwrap();
        volume.close().unwrap();
    }

    // What is replaced cannot be freed: its block is outside of the volume, or its link count is 0.
    for request in ["set_inode_field /b/f block[5] 99999999", "set_inode_field /b/f links_count 0"] {
        let image = image_of(&[request]);
        let volume = open_rw(image.device());
        assert_eq!(volume.rename("/a/f", "/b/f").unwrap_err().errno(), 117, "{request}");
        for directory in ["/a", "/b"] {
            let mut names = volume.read_dir(directory).unwrap().map(|entry| entry.unwrap().name);
            assert!(names.any(|name| name == b"f"), "{request}");
        }
        volume.rename("/a/g", "/a/h").unwrap();
        volume.close().unwrap();
    }
}

/// Fills a volume until there is no room for an inode (`empty` files) or a block.
fn fill(volume: &Volume, empty: bool) {
    for number in 0.. {
        let file = match volume.open_file(format!("/fill-{number}"), read_write().create_new(true)) {
            Err(Error::NoSpace) => return,
            file => file.unwrap(),
        };
        let mut piece = if empty { 0 } else { 1 << 20 };
        while piece >= 1024 {
            let at = file.size();
            match file.write_any_at(&vec![1; piece], at, WriteFlags::empty()) {
                Ok(_) => {}
                Err(Error::NoSpace) => piece /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        if !empty {
            return;
        }
    }
}

#[test]
fn a_full_volume_renames_what_needs_no_room() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for features in ["has_journal", "^has_journal"] {
        // No inode for a whiteout.
        let device = image(&["-N", "64", "-O", features], &[]).device();
        let volume = common::open_to_the_last(device.clone());
        fill(&volume, true);
        let full = volume.rename_with("/a/f", "/a/new", WHITEOUT);
        assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
        volume.rename("/a/f", "/b/f").unwrap();
        // What was replaced made room.
        volume.rename_with("/a/g", "/a/new", WHITEOUT).unwrap();
        volume.close().unwrap();
        clean(&*device);

        // No block for a name: the whiteout that was made already is freed again.
        let device = image(&["-O", features], &[]).device();
        let volume = common::open_to_the_last(device.clone());
        fill(&volume, false);
        let long = |number: u32| format!("/b/{number:0240}");
        let mut at = String::from("/a/f");
        for number in 0.. {
            let files = volume.statfs().unwrap().free_inodes;
            let flags = if number % 2 == 0 { PLAIN } else { WHITEOUT };
            match volume.rename_with(&at, long(number), flags) {
                Ok(()) => at = long(number),
                Err(Error::NoSpace) => {
                    let full = volume.rename_with(&at, long(number), WHITEOUT);
                    assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
                    assert_eq!(volume.statfs().unwrap().free_inodes, files);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
            assert!(number < 50);
        }
        assert_eq!(read_all(&volume.open_file(&at, read_only()).unwrap()), b"a/f".repeat(200));
        volume.rename(&at, "/b/f").unwrap();
        volume.close().unwrap();
        clean(&*device);
    }
}

/// A name in a case-folded directory is found in any spelling, and keeps its own when it is redirected.
#[test]
fn a_case_folded_directory_keeps_its_spelling() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let image = image(&["-O", "casefold"], &["set_inode_field /b/sub flags 0x40080000"]);
    let device = image.device();
    let volume = open_rw(device.clone());
    let spelt = |volume: &Volume| -> Vec<String> {
        let names =
            volume.read_dir("/b/sub").unwrap().map(|entry| String::from_utf8(entry.unwrap().name).unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    };
    volume.rename("/a/f", "/b/sub/Straße").unwrap();
    // The same file.
    volume.rename("/b/sub/Straße", "/b/sub/STRASSE").unwrap();
    assert_eq!(spelt(&volume), ["Straße"]);
    volume.rename("/a/g", "/b/sub/STRASSE").unwrap();
    assert_eq!(spelt(&volume), ["Straße"]);
    assert_eq!(read_all(&volume.open_file("/b/sub/strasse", read_only()).unwrap()), b"a/g".repeat(200));
    volume.rename_with("/b/sub/strasse", "/b/f", EXCHANGE).unwrap();
    volume.rename("/b/sub/strasSE", "/a/f").unwrap();
    assert!(spelt(&volume).is_empty());
    volume.close().unwrap();
    clean(&*device);
}
