//! Damaged groups, and blocks that must not be marked: a typed error each, and no block is changed.

use super::{assert_says, image, open};
use crate::alloc::Space;
use crate::alloc::group::{Changed, descriptor, mark, mark_inode, mark_used};
use crate::alloc::inode::{NewInode, free, make};
use crate::alloc::search::{Allocator, Wish};
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::journaled::Journaled;
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use crate::{Error, Ino, Result, Volume};
use uext4_ondisk::checksum::{CSUM_INIT, csum};
use uext4_ondisk::ext4::{GroupDescriptor, InodeFlags, Superblock, Timestamp};
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

/// The descriptor of a group as its block has it.
fn stored(ground: &Ground, group: Group) -> GroupDescriptor {
    let (block, offset) = ground.superblock.geometry.descriptor_position(group).unwrap();
    let bytes = ground.cache.read(block.get()).unwrap();
    GroupDescriptor::decode(&bytes[offset as usize..], group, &ground.superblock).unwrap()
}

/// Also if the groups change in turn, and again and again.
#[test]
fn the_descriptor_in_memory_is_that_of_its_block() {
    needs!(Need::Tool("mke2fs"));
    let volume = volume("metadata_csum");
    let ground: &Ground = volume.state();
    let blocks = &mut Direct(ground);
    let groups = [0, 1, 1, 2, 1, 0, 0].map(Group);
    for (turn, group) in (0..).zip(groups) {
        // Also more than a checksum is made from.
        let clusters = if turn % 2 == 0 { 1800 + 2 * turn..1802 + 2 * turn } else { 2000..6000 };
        let both = |used: bool, blocks: &mut Direct<'_>| {
            mark(blocks, group, clusters.clone(), used).unwrap();
            let now = stored(ground, group);
            assert_eq!(ground.last_descriptor.of(group), Some(now), "the one stored last");
            let bitmap = ground.cache.read(now.block_bitmap.get()).unwrap();
            now.verify_block_bitmap(&bitmap, group, &ground.superblock).unwrap();
            assert_eq!(descriptor(blocks, group).unwrap(), now);
            for other in groups.into_iter().filter(|other| *other != group) {
                assert_eq!(ground.last_descriptor.of(other), None);
                assert_eq!(descriptor(blocks, other).unwrap(), stored(ground, other));
                assert_eq!(ground.inode_table(other).unwrap(), stored(ground, other).inode_table);
            }
            assert_eq!(ground.inode_table(group).unwrap(), now.inode_table);
            now.free_clusters
        };
        let taken = both(true, blocks);
        assert_eq!(both(false, blocks), taken + clusters.len() as u32);
        assert_eq!(both(true, blocks), taken);
    }
}

/// The bitmap was changed, but its descriptor could not be: all changes end, and nobody sees a descriptor that is in no
/// block.
#[test]
fn a_descriptor_that_is_not_stored_is_not_kept() {
    needs!(Need::Tool("mke2fs"));
    let volume = open(&image(24, &["-b", "1024", "-g", "2048", "-O", "metadata_csum"]));
    let ground: &Ground = volume.state();
    let clusters = |at: u32| 1900 + at..1901 + at;
    let marks = |credits, at| {
        Journaled::run(ground, "a test", credits, |blocks| mark_used(blocks, GROUP, clusters(at)))
    };
    marks(2, 0).unwrap();
    let (before, free) = (stored(ground, GROUP), ground.totals.volume().free_clusters);
    assert_eq!(ground.last_descriptor.of(GROUP), Some(before));
    // Blocks that the transaction has changed cost no credits.
    ground.journal.as_ref().unwrap().commit_all().unwrap();
    assert_says(marks(0, 1), "no credit left");
    assert_eq!(
        (stored(ground, GROUP), ground.totals.volume().free_clusters),
        (before, free),
        "nothing changed"
    );
    assert!(ground.journal.as_ref().unwrap().aborted().is_none());
    assert_eq!(descriptor(&Direct(ground), GROUP).unwrap(), before);
    assert_says(marks(1, 1), "no credit left");
    assert!(ground.journal.as_ref().unwrap().aborted().is_some());
    assert_eq!(stored(ground, GROUP), before);
    assert_eq!(descriptor(&Direct(ground), GROUP).unwrap(), before, "as its block is");
    assert!(matches!(marks(2, 2), Err(Error::Aborted(_))));
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
    // One block alone is in the second group, or none.
    for (behind, length) in [(8, 9), (8, 8)] {
        marked(blocks, Group(1), last - behind..last).unwrap();
        let both =
            |blocks: &mut Direct<'_>| [1, 2].map(|at| descriptor(blocks, Group(at)).unwrap().free_clusters);
        let before = both(blocks);
        if length > behind {
            marked(blocks, Group(2), 0..1).unwrap();
        }
        let run = (Pblk(second.get() - u64::from(behind)), u64::from(length));
        Allocator::new(ground).give_back(blocks, Ino(12), &[run]).unwrap();
        assert_eq!(both(blocks), [before[0] + behind, before[1]]);
    }
}

/// The seed of checksums is kept in memory, with the UUID that it belongs to.
#[test]
fn the_seed_of_checksums_follows_the_uuid() {
    needs!(Need::Tool("mke2fs"));
    let volume = volume("metadata_csum,^metadata_csum_seed");
    let mut superblock = Superblock::clone(&volume.state().superblock);
    for _ in 0..2 {
        assert_eq!(superblock.checksum_seed(), csum(CSUM_INIT, &superblock.uuid));
        superblock.uuid[3] ^= 1;
    }
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
