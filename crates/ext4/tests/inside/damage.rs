//! Damaged groups, and blocks that must not be marked: a typed error each, and no block is changed.

use super::{assert_says, image, open};
use crate::alloc::Space;
use crate::alloc::group::{Changed, descriptor, mark_inode};
use crate::alloc::inode::{NewInode, free, make};
use crate::alloc::search::{Allocator, Wish};
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use crate::{Ino, Result, Volume};
use uext4_ondisk::ext4::{GroupDescriptor, InodeFlags, Timestamp};
use uext4_ondisk::{Group, Pblk};
use uext4_testkit::{Need, needs};

const NOW: Timestamp = Timestamp { seconds: 1_800_000_000, nanoseconds: 0 };
const DIRECTORY: NewInode = NewInode {
    mode: 0o040_755,
    uid: 0,
    gid: 0,
    flags: InodeFlags::empty(),
    generation: 1,
    links: 0,
    now: NOW,
    limited: false,
};
/// A group with an initialised bitmap, and some free blocks of it.
const GROUP: Group = Group(0);

fn volume(checksums: &str) -> Volume {
    open(&image(24, &["-b", "1024", "-N", "96", "-O", &format!("^has_journal,{checksums}")]))
}

/// All current contents of the volume.
fn contents(ground: &Ground) -> Vec<u8> {
    let blocks = 0..ground.superblock.geometry.blocks_count();
    blocks.flat_map(|block| ground.cache.read(block).unwrap().to_vec()).collect()
}

/// The operation fails with this text and changes nothing.
#[track_caller]
fn refuses<T>(ground: &Ground, text: &str, edit: impl FnOnce(&mut Direct<'_>) -> Result<T>) {
    let before = contents(ground);
    assert_says(edit(&mut Direct(ground)).map(drop), text);
    assert!(contents(ground) == before, "a block was changed");
}

/// Changes a group's descriptor and repairs its checksum. It and its bitmaps are dropped from memory, as each is
/// verified once per load.
pub(super) fn patch(ground: &Ground, group: Group, change: impl FnOnce(&mut GroupDescriptor)) {
    let mut blocks = Direct(ground);
    let mut changed = descriptor(&blocks, group).unwrap();
    change(&mut changed);
    let (block, offset) = ground.superblock.geometry.descriptor_position(group).unwrap();
    let encode = |bytes: &mut [u8]| changed.encode(&mut bytes[offset as usize..], group, &ground.superblock);
    blocks.change(block, encode).unwrap().unwrap();
    ground.last_descriptor.set(None);
    for bitmap in [changed.block_bitmap, changed.inode_bitmap] {
        spoil(ground, bitmap, |_| ());
    }
}

/// Damages a block on the device, and drops it from memory so that it is checked again.
fn spoil(ground: &Ground, block: Pblk, change: impl FnOnce(&mut [u8])) {
    Direct(ground).change(block, change).unwrap();
    ground.cache.sync().unwrap();
    ground.cache.forget(block.get()).unwrap();
}

fn free_block(ground: &Ground) -> Pblk {
    let mut allocator = Allocator::new(ground);
    let block = allocator.take(&mut Direct(ground), Ino(12), 1, u64::MAX).unwrap()[0];
    allocator.give_back(&mut Direct(ground), Ino(12), &[(block, 1)]).unwrap();
    block
}

/// Marks clusters used.
fn marked(blocks: &mut Direct<'_>, group: Group, clusters: std::ops::Range<u32>) -> Result<()> {
    let mut changed = Changed::of(blocks, group)?;
    changed.mark(blocks.ground(), clusters, true)?;
    changed.store(blocks)
}

fn take(blocks: &mut Direct<'_>) -> Result<Pblk> {
    Ok(Allocator::new(blocks.ground()).take(blocks, Ino(12), 1, u64::MAX)?[0])
}

fn new_inode(blocks: &mut Direct<'_>) -> Result<Draft> {
    let ino = Allocator::new(blocks.ground()).find_inode(blocks, GROUP)?;
    make(blocks, ino, &DIRECTORY)
}

#[test]
fn a_wrong_descriptor_checksum_ends_every_edit() {
    needs!(Need::Tool("mke2fs"));
    for checksums in ["metadata_csum", "^metadata_csum,uninit_bg"] {
        let volume = volume(checksums);
        let ground: &Ground = volume.state();
        let (block, offset) = ground.superblock.geometry.descriptor_position(GROUP).unwrap();
        Direct(ground).change(block, |bytes| bytes[offset as usize + 12] ^= 1).unwrap();
        refuses(ground, "group descriptor checksum", take);
        refuses(ground, "group descriptor checksum", new_inode);
        refuses(ground, "group descriptor checksum", |blocks| mark_inode(blocks, Ino(13), true, false));
    }
}

#[test]
fn a_wrong_bitmap_checksum_ends_the_edits_of_its_kind() {
    needs!(Need::Tool("mke2fs"));
    let volume = volume("metadata_csum");
    let ground: &Ground = volume.state();
    let places = descriptor(&Direct(ground), GROUP).unwrap();
    let (free, of) = (free_block(ground), Ino(12));
    spoil(ground, places.block_bitmap, |bytes| bytes[100] ^= 0x10);
    refuses(ground, "block bitmap checksum", take);
    refuses(ground, "block bitmap checksum", |blocks| {
        Allocator::new(ground).give_back(blocks, of, &[(free, 1)])
    });
    new_inode(&mut Direct(ground)).unwrap();
    spoil(ground, places.inode_bitmap, |bytes| bytes[2] ^= 0x10);
    refuses(ground, "inode bitmap checksum", new_inode);
}

#[test]
fn counts_that_contradict_their_bitmap_are_damage() {
    needs!(Need::Tool("mke2fs"));
    for checksums in ["metadata_csum", "^metadata_csum,^uninit_bg"] {
        let volume = volume(checksums);
        let ground: &Ground = volume.state();
        patch(ground, GROUP, |descriptor| descriptor.free_clusters += 1);
        refuses(ground, "`free_blocks_count`", take);
        patch(ground, GROUP, |descriptor| descriptor.free_clusters -= 1);
        let mut made = new_inode(&mut Direct(ground)).unwrap();
        patch(ground, GROUP, |descriptor| descriptor.free_inodes -= 1);
        refuses(ground, "`free_inodes_count`", new_inode);
        refuses(ground, "`free_inodes_count`", |blocks| free(blocks, &mut made, NOW));
        patch(ground, GROUP, |descriptor| {
            (descriptor.free_inodes, descriptor.used_dirs) = (descriptor.free_inodes + 1, 0)
        });
        refuses(ground, "`used_dirs_count`", |blocks| free(blocks, &mut made, NOW));
        patch(ground, GROUP, |descriptor| descriptor.used_dirs = 3);
        free(&mut Direct(ground), &mut made, NOW).unwrap();
    }
    // Without checksums a flipped bit shows in the count.
    let volume = volume("^metadata_csum,^uninit_bg");
    let ground: &Ground = volume.state();
    let places = descriptor(&Direct(ground), GROUP).unwrap();
    Direct(ground).change(places.block_bitmap, |bytes| bytes[900] ^= 1).unwrap();
    refuses(ground, "`free_blocks_count`", take);
}

#[test]
fn nothing_is_taken_or_given_back_twice() {
    needs!(Need::Tool("mke2fs"));
    let volume = volume("metadata_csum");
    let ground: &Ground = volume.state();
    let (free, of) = (free_block(ground), Ino(12));
    let back = |first: Pblk, count: u64| {
        move |blocks: &mut Direct<'_>| {
            Allocator::new(blocks.ground()).give_back(blocks, of, &[(first, count)])
        }
    };
    refuses(ground, "free already", back(free, 1));
    let wish = Wish { goal: free, least: 8, most: 8, limit: u64::MAX };
    let run = Allocator::new(ground).allocate(&mut Direct(ground), &wish).unwrap();
    // One of them is free, before or after the others.
    refuses(ground, "free already", back(run.first, 9));
    let (group, index) = ground.superblock.geometry.group_of_block(run.first).unwrap();
    for clusters in [index..index + 1, index + 7..index + 9] {
        refuses(ground, "in use", |blocks| marked(blocks, group, clusters));
    }
    let places = descriptor(&Direct(ground), GROUP).unwrap();
    refuses(ground, "metadata", back(places.inode_table, 1));
    refuses(ground, "metadata", back(places.block_bitmap, 1));
    let end = ground.superblock.geometry.blocks_count();
    for (first, count) in [(end, 1), (end - 1, 2), (0, 1), (u64::MAX, 1), (3000, 0)] {
        refuses(ground, "outside the volume", back(Pblk(first), count));
    }
    refuses(ground, "is in use", |blocks| make(blocks, Ino(11), &DIRECTORY));
    refuses(ground, "not in use", |blocks| mark_inode(blocks, Ino(50), false, false));
    refuses(ground, "number is out of range", |blocks| make(blocks, Ino(97), &DIRECTORY));
    let late = NewInode { now: Timestamp { seconds: 0, nanoseconds: u32::MAX }, ..DIRECTORY };
    refuses(ground, "does not fit", |blocks| make(blocks, Ino(50), &late));
}

#[test]
fn a_run_over_two_groups_is_given_back_whole_or_not_at_all() {
    needs!(Need::Tool("mke2fs"));
    let volume = volume("metadata_csum");
    let ground: &Ground = volume.state();
    let geometry = &ground.superblock.geometry;
    let (second, last) =
        (geometry.group_first_block(Group(2)).unwrap(), geometry.group_clusters(Group(1)).unwrap());
    let blocks = &mut Direct(ground);
    marked(blocks, Group(1), last - 8..last).unwrap();
    marked(blocks, Group(2), 0..8).unwrap();
    let bitmap = descriptor(blocks, Group(2)).unwrap().block_bitmap;
    let back = |blocks: &mut Direct<'_>| {
        Allocator::new(ground).give_back(blocks, Ino(12), &[(Pblk(second.get() - 8), 16)])
    };
    spoil(ground, bitmap, |bytes| bytes[500] ^= 1);
    refuses(ground, "block bitmap checksum", back);
    spoil(ground, bitmap, |bytes| bytes[500] ^= 1);
    back(blocks).unwrap();
}

/// Inodes of internal files cannot be freed, nor can records past the initialized part of the table.
#[test]
fn inodes_that_are_not_for_files_stay() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = open(&image(24, &["-b", "1024", "-N", "96", "-O", "metadata_csum,orphan_file"]));
    let ground: &Ground = volume.state();
    let orphans = ground.superblock.orphan_file_inode;
    assert!(orphans > 10);
    for ino in [Ino(2), Ino(7), Ino(8), Ino(orphans)] {
        refuses(ground, "an internal file", |blocks| mark_inode(blocks, ino, false, false));
    }
    let mut made = Vec::new();
    while let Ok(ino) = Allocator::new(ground).find_inode(&Direct(ground), GROUP) {
        if ground.superblock.geometry.group_of_inode(ino).unwrap().0 != GROUP {
            break;
        }
        made.push(make(&mut Direct(ground), ino, &DIRECTORY).unwrap().ino);
        if made.len() == 3 {
            break;
        }
    }
    // The last one is in use, but in a part of the table that is marked uninitialized.
    patch(ground, GROUP, |descriptor| descriptor.unused_inodes += 1);
    refuses(ground, "`itable_unused`", new_inode);
    refuses(ground, "`itable_unused`", |blocks| mark_inode(blocks, Ino(made[2].get() + 2), true, false));
    patch(ground, GROUP, |descriptor| descriptor.unused_inodes -= 1);
    patch(ground, GROUP, |descriptor| descriptor.used_dirs = u32::from(u16::MAX));
    refuses(ground, "`used_dirs_count`", new_inode);
}

/// Only the counts change: other fields of the superblock may have changed since it was read.
#[test]
fn counts_are_stored_into_the_superblock_as_it_is() {
    needs!(Need::Tool("mke2fs"));
    use crate::alloc::group::store_counts;
    use uext4_ondisk::ext4::Superblock;
    for block in ["1024", "4096"] {
        let volume = open(&image(24, &["-b", block, "-O", "^has_journal,metadata_csum"]));
        let ground: &Ground = volume.state();
        let (block, offset) = ground.superblock.geometry.superblock_position();
        let now = |blocks: &Direct<'_>| {
            let bytes = blocks.look(block, |bytes| bytes[offset as usize..][..1024].to_vec()).unwrap();
            Superblock::decode(&bytes).unwrap()
        };
        let blocks = &mut Direct(ground);
        let mut expected = now(blocks);
        expected.last_orphan = 12;
        blocks.change(block, |bytes| expected.encode(&mut bytes[offset as usize..])).unwrap().unwrap();
        take(blocks).unwrap();
        new_inode(blocks).unwrap();
        store_counts(blocks).unwrap();
        (expected.free_blocks, expected.free_inodes) = (expected.free_blocks - 1, expected.free_inodes - 1);
        // The field that keeps the checksum constant (`ground/seal.rs`).
        expected.snapshot.id = now(blocks).snapshot.id;
        assert_eq!(now(blocks), expected);
    }
}
