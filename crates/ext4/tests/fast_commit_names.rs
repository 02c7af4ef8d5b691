//! Effects of fast commits on directories: the owners of blocks afterwards, and how they grow.

use crate::common;

use common::fast::{
    DIRECTORY, EXTENTS, FILE, ROOT, Records, fsck_clean, plant_into, raw_inode, tree, volume_with, writable,
};
use common::{Image, assert_same_bytes, open_ro};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

const NEW: u32 = 100;
const PLAIN: &str = "^metadata_csum,64bit,^orphan_file,fast_commit";

/// A volume after its fast commits are replayed.
fn recovered(mut image: Image, commits: &[Records]) -> Image {
    plant_into(&mut image, 400, commits);
    let device = image.device();
    assert_eq!(open_ro(device.clone()).info().recovery.fast_commits_refused, None);
    drop(writable(device.clone()).unwrap());
    let image = Image::of(&*device);
    fsck_clean(&image);
    image
}

/// Why fast commits cannot be replayed on a volume.
fn refusal(mut image: Image, records: Records) -> String {
    plant_into(&mut image, 400, &[records]);
    open_ro(image.device()).info().recovery.fast_commits_refused.unwrap()
}

fn ino(image: &Image, path: &str) -> u32 {
    open_ro(image.device()).metadata(path).unwrap().ino.get()
}

/// A block of 1 KiB.
fn block(image: &Image, number: u32) -> &[u8] {
    &image.bytes[number as usize * 1024..][..1024]
}

/// The location of an inode's record on a volume of one group.
fn place(image: &Image, ino: u32) -> usize {
    let word = |at: usize| u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap()) as usize;
    let size = usize::from(u16::from_le_bytes([image.bytes[1024 + 0x58], image.bytes[1024 + 0x59]]));
    word(2048 + 8) * 1024 + (ino as usize - 1) * size
}

/// The block of the first extent of an inode.
fn first_block(image: &Image, ino: u32) -> u32 {
    let extent = &image.bytes[place(image, ino) + 0x28 + 12..][..12];
    u32::from_le_bytes(extent[8..12].try_into().unwrap())
}

/// Names are removed from a directory, it is deleted, and its block holds data of a file, which the changed directory
/// block must not overwrite.
#[test]
fn a_changed_block_of_a_removed_directory_is_not_written() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let before = volume_with(PLAIN);
    let (dir, file) = (ino(&before, "/dir"), ino(&before, "/hello"));
    let at = first_block(&before, dir);
    let mut records = Records::default();
    for n in 0..20 {
        let name = format!("file-{n:02}");
        records = records.unlink(dir, ino(&before, &format!("/dir/{name}")), name.as_bytes());
    }
    let records = records.unlink(ROOT, dir, b"dir").add(file, 0, 1, at.into());
    let after = recovered(before.clone(), &[records]);
    assert_same_bytes(block(&before, at), block(&after, at));
}

/// Two files share an attribute block. Both are deleted, the first of which decrements its reference count, and then it
/// holds data of a third file.
#[test]
fn a_block_of_attributes_that_nobody_shares_any_more_is_not_written() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let source = Scratch::new(1 << 20);
    for name in ["one", "two", "three"] {
        std::fs::write(source.file(name), "contents\n").unwrap();
    }
    let volume = VolumeBuilder::new(8 << 20)
        .args(["-b", "1024", "-I", "128", "-J", "size=2", "-O", PLAIN])
        .from_dir(source.path())
        .build();
    oracle::debugfs_write(volume.path(), "ea_set /one user.name value");
    let mut before = Image::load(volume.path());
    let [one, two, three] = ["/one", "/two", "/three"].map(|path| ino(&before, path));
    let (from, to) = (place(&before, one), place(&before, two));
    let shared = u32::from_le_bytes(before.bytes[from + 0x68..][..4].try_into().unwrap());
    for field in [0x1c..0x20, 0x68..0x6c] {
        before.bytes.copy_within(from + field.start..from + field.end, to + field.start);
    }
    before.bytes[shared as usize * 1024 + 4] = 2;
    fsck_clean(&before);
    let records = Records::default().unlink(ROOT, one, b"one").unlink(ROOT, two, b"two");
    let after = recovered(before.clone(), &[records.add(three, 0, 1, shared.into())]);
    assert_same_bytes(block(&before, shared), block(&after, shared));
}

/// The blocks of a directory share clusters, in order.
#[test]
fn directories_of_several_blocks_grow_by_clusters() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let name = |n: u32| format!("a name that takes some room, number {n:04}").into_bytes();
    for index in ["dir_index", "^dir_index"] {
        let before = volume_with(&format!("{PLAIN},bigalloc,{index}"));
        let dir = ino(&before, "/dir");
        let mut records = Records::default();
        for n in 0..150 {
            records = records.inode(NEW + n, &raw_inode(FILE, 1, 0, EXTENTS)).create(dir, NEW + n, &name(n));
        }
        let after = recovered(before, &[records]);
        let names = tree(&open_ro(after.device()));
        assert_eq!(names.keys().filter(|name| name.starts_with(b"/dir/a name")).count(), 150);
    }
}

/// More rounds than there are free blocks.
#[test]
fn blocks_of_directories_that_come_and_go_are_taken_again() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let source = Scratch::new(4 << 20);
    std::fs::write(source.file("large"), vec![1; 3_100_000]).unwrap();
    let volume = VolumeBuilder::new(6 << 20)
        .args(["-b", "1024", "-N", "600", "-J", "size=2", "-O", PLAIN])
        .from_dir(source.path())
        .build();
    let before = Image::load(volume.path());
    assert!(open_ro(before.device()).statfs().unwrap().free < 1000);
    let record = raw_inode(DIRECTORY, 2, 1024, EXTENTS);
    let round = |records: Records, _| {
        records.inode(NEW, &record).create(ROOT, NEW, b"here").unlink(ROOT, NEW, b"here")
    };
    recovered(before, &[(0..1500).fold(Records::default(), round)]);
}

/// A directory is created, grows a tree, is emptied and deleted; a file reuses its number. All in one log.
#[test]
fn the_number_of_a_directory_that_came_and_went_is_a_files() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for features in ["", ",bigalloc", ",^dir_index", ",^extents,^64bit"] {
        let before = volume_with(&format!("{PLAIN}{features}"));
        let flags = if features.contains("^extents") { 0 } else { EXTENTS };
        let file = ino(&before, "/hello");
        let name = |n: u32| format!("{n:0>200}").into_bytes();
        let made =
            Records::default().inode(NEW, &raw_inode(DIRECTORY, 2, 1024, flags)).create(ROOT, NEW, b"d");
        let mut first = (0..60).fold(made, |records, n| records.link(NEW, file, &name(n)));
        first = (0..60).fold(first, |records, n| records.unlink(NEW, file, &name(n)));
        let first = first.unlink(ROOT, NEW, b"d");
        let new = |records: Records| {
            let file = records.inode(NEW, &raw_inode(FILE, 1, 3072, flags)).add(NEW, 0, 3, 7904);
            file.create(ROOT, NEW, b"f")
        };
        for commits in [vec![new(first.clone())], vec![first, new(Records::default())]] {
            let after = recovered(before.clone(), &commits);
            let names = tree(&open_ro(after.device()));
            assert!(names.contains_key(&b"/f"[..]) && !names.contains_key(&b"/d"[..]));
            assert_eq!(ino(&after, "/f"), NEW);
        }
    }
}

/// A file replaces another, as after `rename`: it takes the name of the other, which then has none.
#[test]
fn a_name_may_go_over_another() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let before = volume_with(PLAIN);
    let [dir, from, to] = ["/dir", "/dir/file-03", "/hello"].map(|path| ino(&before, path));
    let records = Records::default().unlink(ROOT, to, b"hello").link(ROOT, from, b"hello");
    let after = recovered(before, &[records.unlink(dir, from, b"file-03")]);
    assert_eq!(ino(&after, "/hello"), from);
    assert!(!tree(&open_ro(after.device())).contains_key(&b"/dir/file-03"[..]));
}

/// A name added to a directory that was removed leads nowhere.
#[test]
fn names_into_a_removed_directory_are_ignored() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let before = volume_with(PLAIN);
    let file = ino(&before, "/hello");
    let made = Records::default().inode(NEW, &raw_inode(DIRECTORY, 2, 1024, EXTENTS)).create(ROOT, NEW, b"d");
    let after = recovered(before, &[made, Records::default().unlink(ROOT, NEW, b"d").link(NEW, file, b"x")]);
    assert_eq!(open_ro(after.device()).metadata("/hello").unwrap().links, 1);
}

#[test]
fn a_file_has_no_more_links_than_can_be_counted() {
    needs!(Need::Tool("mke2fs"));
    let mut before = volume_with(PLAIN);
    let file = ino(&before, "/hello");
    let at = place(&before, file) + 0x1a;
    before.bytes[at..at + 2].copy_from_slice(&65_000_u16.to_le_bytes());
    let why = refusal(before, Records::default().link(ROOT, file, b"x"));
    assert!(why.contains("more links than it can have"), "{why}");
}

#[test]
fn a_directory_is_created_once() {
    needs!(Need::Tool("mke2fs"));
    for second in [b"x", b"y"] {
        let made = Records::default().inode(NEW, &raw_inode(DIRECTORY, 2, 1024, EXTENTS));
        let twice = made.create(ROOT, NEW, b"x").create(ROOT, NEW, second);
        let why = refusal(volume_with(PLAIN), twice);
        assert!(why.contains("creates a directory twice"), "{why}");
    }
}

#[test]
fn a_cluster_is_one_files() {
    needs!(Need::Tool("mke2fs"));
    let before = volume_with(&format!("{PLAIN},bigalloc"));
    let [one, two] = ["/hello", "/dir/file-03"].map(|path| ino(&before, path));
    let why = refusal(before, Records::default().add(one, 16, 1, 7904).add(two, 1, 1, 7905));
    assert!(why.contains("to it and to inode"), "{why}");
}

/// Names and ranges wait only for their own inode, as a whole, and only within their fast commit.
#[test]
fn names_and_ranges_wait_for_their_inode() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let before = volume_with(PLAIN);
    let gone = Records::default().add(NEW, 3, 1, 7900).add(NEW + 1, 4, 1, 7901);
    let waits = Records::default().link(ROOT, NEW, b"w").unlink(ROOT, NEW + 1, b"w");
    let waits = waits.add(NEW, 0, 1, 7910).add(NEW, 5, 1, 7920);
    let after = recovered(before, &[gone, waits.inode(NEW, &raw_inode(FILE, 1, 6144, EXTENTS))]);
    let found = open_ro(after.device()).metadata("/w").unwrap();
    assert_eq!((found.ino.get(), found.blocks), (NEW, 4));
}

/// The record of hello, with one byte changed.
fn other_hello(image: &Image, at: usize) -> (u32, Vec<u8>) {
    let file = ino(image, "/hello");
    let place = place(image, file);
    let mut record = image.bytes[place..place + 160].to_vec();
    record[at] ^= 1;
    (file, record)
}

/// Another creation time means another file; another generation may have been set by hand.
#[test]
fn a_file_without_a_name_goes_on_only_if_it_is_the_same() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let before = volume_with(PLAIN);
    let (file, record) = other_hello(&before, 0x90);
    let removed = Records::default().unlink(ROOT, file, b"hello");
    let made = removed.clone().inode(file, &record).create(ROOT, file, b"new");
    let after = recovered(before.clone(), &[made]);
    assert_eq!(open_ro(after.device()).metadata("/new").unwrap().blocks, 0);
    let (file, record) = other_hello(&before, 0x64);
    let why = refusal(before, removed.inode(file, &record).create(ROOT, file, b"new"));
    assert!(why.contains("the generation of a file without a name"), "{why}");
}

#[test]
fn a_file_with_attributes_in_inodes_is_not_deleted() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for size in ["128", "256"] {
        let source = Scratch::new(1 << 20);
        std::fs::write(source.file("one"), "contents\n").unwrap();
        let value = Scratch::new(1 << 20);
        std::fs::write(value.file("value"), "v".repeat(5000)).unwrap();
        let features = format!("{PLAIN},ea_inode");
        let volume = VolumeBuilder::new(8 << 20)
            .args(["-b", "1024", "-I", size, "-J", "size=2", "-O", &features])
            .from_dir(source.path())
            .build();
        let request = format!("ea_set -f {} /one user.name", value.file("value").display());
        oracle::debugfs_write(volume.path(), &request);
        let image = Image::load(volume.path());
        let one = ino(&image, "/one");
        let why = refusal(image, Records::default().unlink(ROOT, one, b"one"));
        assert!(why.contains("attributes in inodes"), "{size}: {why}");
    }
}

/// New blocks of directories avoid blocks that records map, earlier or later, whether free or a removed directory's.
#[test]
fn directories_grow_clear_of_what_records_map() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let before = volume_with(PLAIN);
    let file = ino(&before, "/hello");
    let record = raw_inode(DIRECTORY, 2, 1024, EXTENTS);
    let made = Records::default().inode(NEW, &record).create(ROOT, NEW, b"new");
    let taken = first_block(&recovered(before.clone(), std::slice::from_ref(&made)), NEW);
    let after = recovered(before.clone(), &[made.add(file, 0, 1, taken.into())]);
    assert_ne!(first_block(&after, NEW), taken);

    let dir = ino(&before, "/dir");
    let had = first_block(&before, dir);
    let mut records = Records::default();
    for n in 0..20 {
        let name = format!("file-{n:02}");
        records = records.unlink(dir, ino(&before, &format!("/dir/{name}")), name.as_bytes());
    }
    let again = records.unlink(ROOT, dir, b"dir").inode(dir, &record).create(ROOT, dir, b"again");
    let after = recovered(before, &[again.add(file, 0, 1, had.into())]);
    assert_ne!(first_block(&after, dir), had);
}

/// One name is too long for the inode, and is the last change of the directory.
#[test]
fn a_directory_that_leaves_its_inode_has_its_block() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let source = Scratch::new(20 << 20);
    std::fs::create_dir(source.file("dir")).unwrap();
    std::fs::write(source.file("dir/one"), "contents\n").unwrap();
    let volume = VolumeBuilder::new(8 << 20)
        .args(["-b", "1024", "-I", "256", "-J", "size=2", "-O", &format!("{PLAIN},inline_data")])
        .from_dir(source.path())
        .build();
    // The same name, in another attribute class.
    oracle::debugfs_write(volume.path(), "ea_set /dir user.data value");
    let before = Image::load(volume.path());
    let [dir, one] = ["/dir", "/dir/one"].map(|path| ino(&before, path));
    assert_eq!(open_ro(before.device()).metadata("/dir").unwrap().blocks, 0);
    let after = recovered(before, &[Records::default().link(dir, one, &[b'l'; 255])]);
    assert_eq!(open_ro(after.device()).metadata("/dir").unwrap().blocks, 2);
    assert_eq!(after.bytes[place(&after, dir) + 0x22] & 8, 8, "extents");
    after.save(&source.file("after.img"));
    let attributes = uext4_testkit::debugfs(&source.file("after.img"), "ea_list /dir");
    assert!(attributes.contains("user.data (5) = \"value\""), "{attributes}");
    assert!(!attributes.contains("system.data"), "{attributes}");
}

/// On a hostile volume two directories share their blocks.
#[test]
fn a_block_is_one_directorys() {
    needs!(Need::Tool("mke2fs"));
    let mut image = volume_with(PLAIN);
    let [dir, file] = ["/dir", "/hello"].map(|path| ino(&image, path));
    let roots = first_block(&image, ROOT);
    let at = place(&image, dir) + 0x28 + 12 + 8;
    image.bytes[at..at + 4].copy_from_slice(&roots.to_le_bytes());
    let why = refusal(image, Records::default().link(ROOT, file, b"x").link(dir, file, b"y"));
    assert!(why.contains("of its map or directory is also inode 2's"), "{why}");
}

/// An inode in use without a name is left to orphan processing, with or without records of it.
#[test]
fn an_orphan_stays() {
    needs!(Need::Tool("mke2fs"));
    let mut image = volume_with(PLAIN);
    let file = ino(&image, "/hello");
    let at = place(&image, file);
    image.bytes[at + 0x1a..at + 0x1c].fill(0);
    let record = image.bytes[at..at + 160].to_vec();
    plant_into(&mut image, 400, &[Records::default().inode(file, &record)]);
    let device = image.device();
    assert_eq!(open_ro(device.clone()).info().recovery.fast_commits_refused, None);
    drop(writable(device.clone()).unwrap());
    let after = Image::of(&*device);
    assert_same_bytes(&record[..2], &after.bytes[at..at + 2]);
}
