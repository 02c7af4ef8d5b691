//! Maps that grow and shrink with the volume's own free space: an edit gets everything it needs or nothing, and never
//! changes more blocks than its credits.

use super::{assert_says, image, open};
use crate::alloc::Space;
use crate::alloc::group::{Changed, descriptor};
use crate::alloc::search::{Allocator, Run, Wish};
use crate::alloc::shared::FreeSpace;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::direct::Direct;
use crate::ground::journaled::Journaled;
use crate::ground::last_descriptor::LastDescriptor;
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use crate::map::edit;
use crate::{Error, Fallocate, Ino, OpenOptions, Result, Volume};
use std::cell::RefCell;
use std::collections::BTreeSet;
use uext4_ondisk::ext4::{
    Extent, ExtentIndex, InodeFlags, encode_extent_index, encode_extent_leaf, update_extent_checksum,
};
use uext4_ondisk::{Group, Lblk, Pblk};
use uext4_testkit::{Need, needs};

const INO: Ino = Ino(12);
/// Entries of a node in a block of 1 KiB, and blocks of each extent here.
const FULL: u32 = 84;
const LENGTH: u32 = 8;

/// Counts changed blocks.
struct Counting<'g> {
    direct: Direct<'g>,
    changed: RefCell<BTreeSet<u64>>,
    freed: u32,
}

impl<'g> Counting<'g> {
    fn new(ground: &'g Ground) -> Counting<'g> {
        Counting { direct: Direct(ground), changed: RefCell::default(), freed: 0 }
    }

    /// Blocks that would go to the log: the changed ones, and a revoke block.
    fn count(&self) -> u32 {
        self.changed.borrow().len() as u32 + u32::from(self.freed > 0)
    }
}

impl Blocks for Counting<'_> {
    fn ground(&self) -> &Ground {
        self.direct.ground()
    }

    fn last_descriptor(&self) -> Option<&LastDescriptor> {
        self.direct.last_descriptor()
    }

    fn look<T>(&self, block: Pblk, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.direct.look(block, look)
    }

    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.changed.borrow_mut().insert(block.get());
        self.direct.change(block, change)
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.changed.borrow_mut().insert(block.get());
        self.direct.fresh(block, fill)
    }

    fn freed(&mut self, block: Pblk) -> Result<()> {
        self.freed += 1;
        self.direct.freed(block)
    }
}

/// A volume of many small groups, and an inode with an empty map of this form.
fn bed(features: &str, flags: InodeFlags) -> (Volume, Draft) {
    let args = ["-b", "1024", "-g", "256", "-N", "512", "-G", "64", "-O", features];
    let volume = open(&image(24, &args));
    let mut draft = Draft::load(&Direct(volume.state()), Ino(11)).unwrap();
    (draft.ino, draft.disk.flags, draft.disk.mode) = (INO, flags, 0o100_644);
    draft.disk.blocks_raw = 1000;
    edit::start(&mut draft).unwrap();
    (volume, draft)
}

/// Takes all blocks, then frees some: each the first one taken in its group.
fn fill(ground: &Ground, left: usize) -> Vec<Pblk> {
    let mut allocator = Allocator::new(ground);
    let (mut of_group, mut groups) = (Vec::new(), BTreeSet::new());
    while let Ok(run) =
        allocator.allocate(&mut Direct(ground), &Wish { goal: Pblk(1), least: 1, most: 256, limit: u64::MAX })
    {
        let group = ground.superblock.geometry.group_of_block(run.first).unwrap().0;
        if groups.insert(group) {
            of_group.push(run.first);
        }
    }
    // Far apart, so that their descriptors lie in several blocks. The tests' data lies at 9000 to 12000.
    of_group.retain(|block| !(9000..12_000).contains(&block.get()));
    let apart = of_group.len() / left;
    let back: Vec<Pblk> = of_group.into_iter().rev().step_by(apart).take(left).collect();
    assert_eq!(back.len(), left);
    let runs: Vec<(Pblk, u64)> = back.iter().map(|block| (*block, 1)).collect();
    Allocator::new(ground).give_back(&mut Direct(ground), INO, &runs).unwrap();
    let mut allocator = Allocator::new(ground);
    allocator.release(0, u64::MAX);
    back
}

/// Blocks were found for pages that go home, but not for the map, or their write failed.
#[test]
fn what_pages_give_back_is_promised_to_them_again() {
    needs!(Need::Tool("mke2fs"));
    let (volume, _) = bed("^has_journal", InodeFlags::EXTENTS);
    let ground = volume.state();
    let (space, mut blocks) = (FreeSpace::new(ground), Direct(ground));
    let late = || space.reserved().late;
    let find = |blocks: &mut Direct<'_>, data_of| {
        let wish = Wish { goal: Pblk(5000), least: 1, most: 4, limit: u64::MAX };
        space.allocate(blocks, data_of, &wish, 0).unwrap()
    };
    let give_back = |blocks: &mut Direct<'_>, run: Run| {
        space.open().give_back(blocks, INO, &[(run.first, run.count)]).unwrap();
    };
    space.promise_late(ground, INO, 10, 0).unwrap();
    let early = find(&mut blocks, Some(INO));
    assert_eq!((early.count, late()), (4, 10), "no page goes home");
    space.go_home(INO, true);
    let run = find(&mut blocks, Some(INO));
    assert_eq!(late(), 6);
    give_back(&mut blocks, run);
    assert_eq!(late(), 10);
    give_back(&mut blocks, early);
    assert_eq!(late(), 10, "it had used up no promise");
    let run = find(&mut blocks, Some(INO));
    space.go_home(INO, false);
    space.go_home(INO, true);
    give_back(&mut blocks, run);
    assert_eq!(late(), 6, "those pages are home");
    space.end_late(INO);
    assert_eq!((late(), space.late_clusters(), space.reserved().promised), (0, 0, 0));
}

fn extent(logical: u32, length: u32, unwritten: bool) -> Extent {
    Extent { logical: Lblk(logical), length, physical: Pblk(9000), unwritten }
}

/// Two paths of full nodes through a tree of `depth` levels under a full root, whose leaves are adjacent: the last leaf
/// under the root's first entry and the first one under its second. Everything beside them is never read. Returns where
/// the second leaf begins.
fn ways(blocks: &mut Direct<'_>, allocator: &mut Allocator, draft: &mut Draft, depth: u16) -> u32 {
    let seed = draft.seed(blocks.ground());
    let mut store = |node: &mut Vec<u8>, blocks: &mut Direct<'_>| {
        seed.into_iter().for_each(|seed| update_extent_checksum(node, seed).unwrap());
        let place = allocator.take(blocks, INO, 1, u64::MAX).unwrap()[0];
        blocks.fresh(place, |bytes| bytes.copy_from_slice(node)).unwrap();
        place
    };
    let middle = 1 << 30;
    // No two of them can merge, and the outermost of both will be converted.
    let leaf = |first: u32, odd: u32, from: u32, to: u32| -> Vec<Extent> {
        (from..to).map(|at| extent(first + at * LENGTH, LENGTH, at % 2 == odd)).collect()
    };
    let before = middle - FULL * LENGTH;
    if depth == 0 {
        let both = [leaf(middle - 2 * LENGTH, 1, 0, 2), leaf(middle, 0, 0, 2)].concat();
        encode_extent_leaf(&mut draft.disk.i_block, 0, &both).unwrap();
        return middle;
    }
    let mut node = vec![0; 1024];
    encode_extent_leaf(&mut node, 0, &leaf(before, 1, 0, FULL)).unwrap();
    let (mut left, mut left_key) = (store(&mut node, blocks), before);
    encode_extent_leaf(&mut node, 0, &leaf(middle, 0, 0, FULL)).unwrap();
    let mut right = store(&mut node, blocks);
    let index = |logical: u32, child: Pblk| ExtentIndex { logical: Lblk(logical), child };
    for level in 1..depth {
        let nothing = Pblk(9000);
        let key = left_key - 2 * FULL;
        let mut indexes: Vec<_> = (1..FULL).map(|at| index(key + at, nothing)).collect();
        indexes.push(index(left_key, left));
        encode_extent_index(&mut node, level, 0, &indexes).unwrap();
        (left, left_key) = (store(&mut node, blocks), key + 1);
        let beside = (1..FULL).map(|at| index(middle + (1 << 20) * u32::from(level) + at, nothing));
        let indexes: Vec<_> = [index(middle, right)].into_iter().chain(beside).collect();
        encode_extent_index(&mut node, level, 0, &indexes).unwrap();
        right = store(&mut node, blocks);
    }
    let indexes = [
        index(left_key, left),
        index(middle, right),
        index(middle + (1 << 29), Pblk(9000)),
        index(middle + (1 << 29) + 1, Pblk(9000)),
    ];
    encode_extent_index(&mut draft.disk.i_block, depth, 0, &indexes).unwrap();
    middle
}

/// Every node on the path is full, and every free block is in a different group.
#[test]
fn credits_are_enough_for_the_worst_edit() {
    needs!(Need::Tool("mke2fs"));
    for depth in 0..=4 {
        for leaves in [1, 2] {
            let (volume, mut draft) = bed("metadata_csum,^has_journal,^resize_inode", InodeFlags::EXTENTS);
            let ground: &Ground = volume.state();
            let mut allocator = Allocator::new(ground);
            let middle = ways(&mut Direct(ground), &mut allocator, &mut draft, depth);
            fill(ground, 20);
            let mut blocks = Counting::new(ground);
            // The inside of the last extent, or of it and the first one after it.
            let range = if leaves == 1 { middle - 6..middle - 2 } else { middle - 4..middle + 4 };
            edit::convert(&mut blocks, &mut allocator, &mut draft, range, false).unwrap();
            draft.store(&mut blocks).unwrap();
            let estimate = credits::extents(ground, depth, leaves.min(u32::from(depth) + 1), 0);
            assert!(blocks.count() <= estimate, "depth {depth}: {} of {estimate}", blocks.count());
            // One more level, and each node of both paths twice.
            let nodes = 2 * u32::from(depth) * leaves + u32::from(depth > 0 || leaves == 2);
            let made = u32::from(depth) * leaves + 1;
            assert!(blocks.count() > nodes + made, "depth {depth}: {} is not the worst", blocks.count());
            assert_eq!(draft.disk.i_block[6], depth as u8 + 1);
        }
    }
    for (first, length, leaves) in
        [(11, 2, 1), (267, 2, 2), (12 + 256 + 65_536 - 1, 2, 2), (12 + 256 + 65_536, 1, 1), (0, 3000, 12)]
    {
        let (volume, mut draft) = bed("^extent,^64bit,^has_journal,^resize_inode", InodeFlags::empty());
        let ground: &Ground = volume.state();
        fill(ground, if leaves == 1 { 3 } else { 20 });
        let (mut allocator, mut blocks) = (Allocator::new(ground), Counting::new(ground));
        let extent = extent(first, length, false);
        edit::insert(&mut blocks, &mut allocator, &mut draft, extent).unwrap();
        draft.store(&mut blocks).unwrap();
        let estimate = credits::pointers(ground, leaves, 0);
        assert!(blocks.count() <= estimate, "{first}: {} of {estimate}", blocks.count());
        blocks.changed.borrow_mut().clear();
        edit::remove(&mut blocks, &mut allocator, &mut draft, 0..u32::MAX).unwrap();
        draft.store(&mut blocks).unwrap();
        assert!(blocks.count() <= estimate, "{first}: {} of {estimate}", blocks.count());
    }
}

/// An edit needs three blocks when there are two: it changed nothing, so nothing must be undone.
#[test]
fn a_full_volume_changes_nothing_and_aborts_no_journal() {
    needs!(Need::Tool("mke2fs"));
    let (volume, mut draft) = bed("metadata_csum,^resize_inode", InodeFlags::EXTENTS);
    let ground: &Ground = volume.state();
    let mut allocator = Allocator::new(ground);
    let middle = ways(&mut Direct(ground), &mut allocator, &mut draft, 2);
    fill(ground, 2);
    let credits = credits::extents(ground, 2, 1, 0);
    let contents = || -> Vec<u8> {
        let all = 0..ground.superblock.geometry.blocks_count();
        all.flat_map(|block| ground.cache.read(block).unwrap().to_vec()).collect()
    };
    let before = (contents(), draft.disk.clone());
    let convert = |allocator: &mut Allocator, draft: &mut Draft| {
        Journaled::run(ground, "a test", credits, |blocks| {
            edit::convert(blocks, allocator, draft, middle - 6..middle - 2, false)
        })
    };
    let full = convert(&mut allocator, &mut draft);
    assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
    assert!(before == (contents(), draft.disk.clone()), "something was changed");
    let journal = ground.journal.as_ref().unwrap();
    assert!(journal.aborted().is_none());
    // No blocks wait for a commit that freed them, either.
    assert_eq!(allocator.take(&mut Direct(ground), INO, 2, u64::MAX).unwrap().len(), 2);
}

/// Also if one extent lies in more groups than a step frees blocks in.
#[test]
fn blocks_in_many_groups_are_freed_in_steps() {
    needs!(Need::Tool("mke2fs"));
    for features in
        [&["-G", "64", "-O", "^resize_inode,sparse_super2"][..], &["-O", "^flex_bg,^resize_inode"]]
    {
        let args = [&["-b", "1024", "-g", "256", "-N", "512"], features].concat();
        let volume = open(&image(24, &args));
        let free = || {
            volume.sync_all().unwrap();
            volume.statfs().unwrap().free
        };
        let file = volume.open_file("/file", OpenOptions::new().write(true).create(true)).unwrap();
        let before = free();
        for punched in [true, false] {
            file.fallocate(Fallocate::Allocate, 0, 14 << 20).unwrap();
            assert!(free() <= before - 14 * 1024);
            if punched {
                file.fallocate(Fallocate::Punch, 0, 14 << 20).unwrap();
                assert_eq!((free(), file.metadata().blocks), (before, 0), "{features:?}");
            }
        }
        file.set_len(0).unwrap();
        assert_eq!((free(), file.metadata().blocks), (before, 0), "{features:?}");
    }
}

/// If one of several nodes cannot be freed, none is.
#[test]
fn blocks_are_given_back_together_or_not_at_all() {
    needs!(Need::Tool("mke2fs"));
    let (volume, mut draft) = bed("metadata_csum,^has_journal", InodeFlags::EXTENTS);
    let ground: &Ground = volume.state();
    let (mut allocator, mut blocks) = (Allocator::new(ground), Direct(ground));
    let near = ground.superblock.geometry.group_of_inode(INO).unwrap().0;
    let taken = allocator.take(&mut blocks, INO, 400, u64::MAX).unwrap();
    let groups: BTreeSet<Group> =
        taken.iter().map(|block| ground.superblock.geometry.group_of_block(*block).unwrap().0).collect();
    assert!(groups.len() > 1 && groups.contains(&near), "{groups:?}");
    let counts = |blocks: &Direct<'_>| -> u32 {
        groups.iter().map(|group| descriptor(blocks, *group).unwrap().free_clusters).sum()
    };
    let free = counts(&blocks);
    let last = *taken.last().unwrap();
    let runs: Vec<(Pblk, u64)> = taken.iter().chain([&last]).map(|block| (*block, 1)).collect();
    assert_says(allocator.give_back(&mut blocks, INO, &runs), "free already");
    assert_eq!(counts(&blocks), free, "some were given back");
    let below = last.get();
    let limited = allocator.take(&mut blocks, INO, 1 << 20, below);
    assert!(matches!(limited, Err(Error::NoSpace)) && counts(&blocks) == free, "{limited:?}");
    allocator.give_back(&mut blocks, INO, &runs[..400]).unwrap();
    assert_eq!(counts(&blocks), free + 400);
    // As after a commit: they are available again.
    taken.iter().for_each(|block| allocator.release(block.get(), 1));
    assert!(allocator.take(&mut blocks, INO, 1, below).unwrap()[0].get() < below);

    // The same with a map whose second leaf is already free.
    for block in 0..5 * FULL {
        let extent = extent(2 * block, 1, false);
        edit::insert(&mut blocks, &mut allocator, &mut draft, extent).unwrap();
    }
    let mut nodes = Vec::new();
    let mut note = |part| {
        nodes.extend(if let edit::Part::Node(node) = part { Some(node) } else { None });
        Ok(())
    };
    edit::walk(&blocks, &draft, &mut note).unwrap();
    let (group, index) = ground.superblock.geometry.group_of_block(nodes[2]).unwrap();
    let mut changed = Changed::of(&blocks, group).unwrap();
    changed.mark(ground, index..index + 1, false).unwrap();
    changed.store(&mut blocks).unwrap();
    let before = (draft.disk.clone(), descriptor(&blocks, group).unwrap().free_clusters);
    let gone = edit::remove(&mut blocks, &mut allocator, &mut draft, 0..u32::MAX);
    assert_says(gone, "free already");
    assert_eq!((draft.disk.clone(), descriptor(&blocks, group).unwrap().free_clusters), before);
}
