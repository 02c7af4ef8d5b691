//! Effects of fast commits on maps of files: the owners of nodes afterwards, and the block counts.

use crate::common;

use common::fast::{
    EXTENTS, FILE, ROOT, Records, fsck_clean, plant, plant_into, raw_inode, volume_with, writable,
};
use common::{Image, assert_same_bytes, open_ro};
use uext4_testkit::{Need, VolumeBuilder, needs};

const NEW: u32 = 500;
/// Its size in bytes, however much of it is mapped.
const SIZE: u32 = 119 * 1024;

/// An unused block.
fn free(n: u64) -> u64 {
    8192 - 300 + n
}

/// A volume with blocks of 4 KiB, and inode [`NEW`] of it: five single blocks in a tree with one leaf.
fn large() -> Image {
    let built = VolumeBuilder::new(32 << 20)
        .args(["-b", "4096", "-J", "size=5", "-O", "^metadata_csum,64bit,^orphan_file,fast_commit"])
        .build();
    let mut records = Records::default().inode(NEW, &raw_inode(FILE, 1, SIZE, EXTENTS));
    for n in 0..5 {
        records = records.add(NEW, n * 2, 1, free(u64::from(n) * 2));
    }
    recovered(Image::load(built.path()), &[records.create(ROOT, NEW, b"new")])
}

/// A volume without checksums, and inode [`NEW`] of it, `/new`: 60 single blocks in a tree with one leaf.
fn base() -> Image {
    let mut records = Records::default().inode(NEW, &raw_inode(FILE, 1, SIZE, EXTENTS));
    for n in 0..60 {
        records = records.add(NEW, n * 2, 1, free(u64::from(n) * 2));
    }
    recovered(
        volume_with("^metadata_csum,64bit,^orphan_file,fast_commit"),
        &[records.create(ROOT, NEW, b"new")],
    )
}

/// A volume after its fast commits are replayed.
fn recovered(mut image: Image, commits: &[Records]) -> Image {
    plant(&mut image, commits);
    let device = image.device();
    assert_eq!(open_ro(device.clone()).info().recovery.fast_commits_refused, None);
    drop(writable(device.clone()).unwrap());
    let image = Image::of(&*device);
    fsck_clean(&image);
    image
}

/// The location of the record of [`NEW`].
fn place(image: &Image) -> usize {
    let word = |at: usize| u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap()) as usize;
    let size = usize::from(u16::from_le_bytes([image.bytes[1024 + 0x58], image.bytes[1024 + 0x59]]));
    let block = 1024 << word(1024 + 0x18);
    word(block.max(2048) + 8) * block + (NEW as usize - 1) * size
}

/// The only leaf of [`NEW`].
fn leaf(image: &Image) -> u32 {
    let root = &image.bytes[place(image) + 0x28..][..60];
    assert_eq!((root[2], root[6]), (1, 1), "one leaf");
    u32::from_le_bytes(root[16..20].try_into().unwrap())
}

/// A leaf is changed, then its file is deleted or loses all its blocks, then the leaf's block holds data of another
/// file: the changed leaf must not overwrite that.
#[test]
fn a_node_that_is_none_any_more_is_not_written() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let before = base();
    let node = u64::from(leaf(&before));
    let file = open_ro(before.device()).metadata("/dir/file-03").unwrap().ino.get();
    let changed = || Records::default().delete(NEW, 10, 1);
    for records in [changed().unlink(ROOT, NEW, b"new"), changed().delete(NEW, 0, 1 << 30)] {
        let after = recovered(before.clone(), &[records.add(file, 0, 1, node)]);
        let block = node as usize * 1024..(node as usize + 1) * 1024;
        assert_same_bytes(&before.bytes[block.clone()], &after.bytes[block]);
    }
}

/// A node that comes and goes takes the same block each time: there are more rounds than free blocks.
#[test]
fn blocks_that_a_replay_took_and_returned_are_taken_again() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut records = Records::default().inode(NEW, &raw_inode(FILE, 1, SIZE, EXTENTS));
    for n in 0..4 {
        records = records.add(NEW, n * 2, 1, free(u64::from(n) * 2));
    }
    for _ in 0..8192 {
        records = records.add(NEW, 100, 1, free(100)).delete(NEW, 100, 1);
    }
    let mut image = volume_with("metadata_csum,64bit,^orphan_file,fast_commit");
    plant_into(&mut image, 400, &[records.create(ROOT, NEW, b"new")]);
    let device = image.device();
    assert_eq!(open_ro(device.clone()).info().recovery.fast_commits_refused, None);
    drop(writable(device.clone()).unwrap());
    fsck_clean(&Image::of(&*device));
}

/// A file whose count is too low is recounted, whatever happens to its map.
#[test]
fn space_that_was_counted_wrong_is_counted_right() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for records in [Records::default().delete(NEW, 0, 1 << 30), Records::default().delete(NEW, 10, 1)] {
        let mut image = base();
        let at = place(&image) + 0x1c;
        image.bytes[at..at + 4].fill(0);
        recovered(image, &[records]);
    }
}

/// A record that changes the unit of the block count: the map continues in the new unit.
#[test]
fn space_is_counted_in_the_unit_of_the_record() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    const HUGE_FILE: u32 = 0x40000;
    let huge = Records::default().inode(NEW, &raw_inode(FILE, 1, SIZE, EXTENTS | HUGE_FILE));
    let image = recovered(large(), &[huge.add(NEW, 10, 1, free(10))]);
    let blocks = |image: &Image| {
        let at = place(image) + 0x1c;
        u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap())
    };
    assert_eq!(blocks(&image), 6 + 1, "in blocks, the leaf among them");
    // Back to units of 512 bytes: less than one block, if they were blocks. Without the leaf none is left.
    let plain = Records::default().inode(NEW, &raw_inode(FILE, 1, SIZE, EXTENTS));
    assert_eq!(blocks(&recovered(image, &[plain.delete(NEW, 0, 1 << 30)])), 0);
}
