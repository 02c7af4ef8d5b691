//! Where new blocks and inodes are looked for.
//!
//! The policy is a plain one: the group of the goal first, then those behind it, then from the first one on. It asks
//! descriptors for groups with room and bitmaps for runs, and keeps nothing but what must not be handed out yet.

use super::Space;
use super::bits::{free_runs, put_bits};
use super::group::{self, Changed, SEARCH_WORK, descriptor, sound_block_bitmap, sound_inode_bitmap};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use uext4_ondisk::{Corrupt, CorruptKind, Group, Ino, Pblk};

/// Blocks that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: Pblk,
    pub(crate) count: u64,
}

/// What is asked for. With clusters, whole ones are given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// Where the run would best begin.
    pub(crate) goal: Pblk,
    /// Blocks that it must have.
    pub(crate) least: u64,
    /// Blocks that it should have.
    pub(crate) most: u64,
    /// No block of it has this number or a higher one: what a map can name.
    pub(crate) limit: u64,
}

/// The free space of a volume.
pub(crate) struct Allocator {
    /// Whether what is given back waits for [`Allocator::release`]: with a journal it carries nothing else before the
    /// change that freed it is durable.
    holds: bool,
    /// What waits: first block and end of each run, disjoint.
    held: BTreeMap<u64, u64>,
    /// Blocks of all these runs.
    held_blocks: u64,
}

impl Allocator {
    /// For a volume with or without a journal.
    pub(crate) fn new(ground: &Ground) -> Allocator {
        Allocator { holds: ground.journal.is_some(), held: BTreeMap::new(), held_blocks: 0 }
    }

    /// What was given back among these blocks may be handed out again: the transaction that freed it is durable.
    pub(crate) fn release(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        let met = self.held.range(..end).rev().take_while(|run| *run.1 > first);
        for (from, to) in met.map(|(from, to)| (*from, *to)).collect::<Vec<_>>() {
            self.held.remove(&from);
            self.held_blocks -= end.min(to) - first.max(from);
            let rest = [(from, first.max(from)), (end.min(to), to)];
            self.held.extend(rest.into_iter().filter(|(from, to)| from < to));
        }
    }

    /// Blocks that were given back and wait.
    pub(crate) fn held_blocks(&self) -> u64 {
        self.held_blocks
    }

    /// A run of free blocks, marked used: the first one from the goal on that is as long as it should be. If there is
    /// none on the volume, the longest of the first group that has one as long as it must be.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Corrupt`] if a bitmap or descriptor that is looked at is damaged. Nothing was
    /// changed then. Those of the body.
    pub(crate) fn allocate(&mut self, blocks: &mut impl Blocks, wish: &Wish) -> Result<Run> {
        let geometry = &blocks.ground().superblock.geometry;
        let size = u64::from(geometry.cluster_blocks());
        let near = geometry.group_of_block(wish.goal).map_or(Group(0), |(group, _)| group);
        let least = wish.least.div_ceil(size).max(1);
        let most = wish.most.div_ceil(size).max(least);
        for (wanted, at_least) in [(most, most), (most, least)] {
            for group in around(blocks.ground(), near) {
                if u64::from(descriptor(blocks, group)?.free_clusters) < at_least {
                    continue;
                }
                let Some(clusters) = self.find(blocks, group, wish, wanted, at_least)? else { continue };
                let first = cluster_start(blocks.ground(), group, clusters.start);
                let run = Run { first, count: u64::from(clusters.end - clusters.start) * size };
                let mut found = Changed::of(blocks, group)?;
                found.mark(blocks.ground(), clusters, true)?;
                found.store(blocks)?;
                return Ok(run);
            }
            if least == most {
                break;
            }
        }
        Err(Error::NoSpace)
    }

    /// Clusters of a group that may be handed out: `wanted` of them, or the longest run if it has `least`.
    fn find(
        &self,
        blocks: &impl Blocks,
        group: Group,
        wish: &Wish,
        wanted: u64,
        least: u64,
    ) -> Result<Option<Range<u32>>> {
        let (_, mut bitmap) = sound_block_bitmap(blocks, group)?;
        blocks.work(bitmap.len() * SEARCH_WORK)?;
        let geometry = &blocks.ground().superblock.geometry;
        let (Some(start), Some(count)) = (geometry.group_first_block(group), geometry.group_clusters(group))
        else {
            return Ok(None);
        };
        self.mask(blocks.ground(), group, wish.limit, &mut bitmap);
        let goal = match geometry.group_of_block(wish.goal) {
            Some((near, index)) if near == group => index >> geometry.cluster_log(),
            _ => 0,
        };
        debug_assert!(goal <= count, "{start}: a goal is in its group");
        let length = |run: &Range<u32>| u64::from(run.end - run.start);
        let mut longest: Option<Range<u32>> = None;
        for run in free_runs(&bitmap, goal..count).chain(free_runs(&bitmap, 0..count)) {
            if length(&run) >= wanted {
                return Ok(Some(run.start..run.start + wanted as u32));
            }
            if longest.as_ref().is_none_or(|longest| length(longest) < length(&run)) {
                longest = Some(run);
            }
        }
        Ok(longest.filter(|run| length(run) >= least))
    }

    /// Marks in a copy of a group's bitmap what is free but not to be handed out: system zones, what waits, what is
    /// behind the limit, and a last cluster that goes on behind the volume.
    pub(super) fn mask(&self, ground: &Ground, group: Group, limit: u64, bitmap: &mut [u8]) {
        let geometry = &ground.superblock.geometry;
        let start = geometry.group_first_block(group).map_or(0, Pblk::get);
        let blocks = u64::from(geometry.group_blocks(group).unwrap_or(0));
        let (end, log) = (start + blocks, geometry.cluster_log());
        let whole = ((limit.min(end).saturating_sub(start)) >> log) as u32;
        put_bits(bitmap, whole..geometry.group_clusters(group).unwrap_or(0).max(whole), true);
        let held = self.held.range(..end).rev().map(|(first, end)| (*first, *end));
        let held = held.take_while(|run| run.1 > start);
        for (from, to) in ground.zones.within(start, end).iter().copied().chain(held) {
            let index = |block: u64| ((block.clamp(start, end) - start) >> log) as u32;
            put_bits(bitmap, index(from)..index(to.min(end) - 1) + 1, true);
        }
    }

    /// A free inode, of the group of `near` or one behind it. Marks nothing.
    ///
    /// # Errors
    /// As of [`Allocator::allocate`].
    pub(crate) fn find_inode(&self, blocks: &impl Blocks, near: Group) -> Result<Ino> {
        let geometry = &blocks.ground().superblock.geometry;
        let inodes = geometry.inodes_per_group();
        for group in around(blocks.ground(), near) {
            if descriptor(blocks, group)?.free_inodes == 0 {
                continue;
            }
            let (_, bitmap) = sound_inode_bitmap(blocks, group)?;
            blocks.work(bitmap.len())?;
            let before = group.get() * inodes;
            let reserved = geometry.first_inode().get().saturating_sub(1 + before);
            if let Some(run) = free_runs(&bitmap, reserved..inodes).next() {
                return Ok(Ino(before + run.start + 1));
            }
        }
        Err(Error::NoSpace)
    }
}

/// All groups: the one that is nearest, those behind it, and those before it.
fn around(ground: &Ground, near: Group) -> impl Iterator<Item = Group> + use<> {
    let count = ground.superblock.geometry.group_count();
    let near = near.get().min(count);
    (near..count).chain(0..near).map(Group)
}

/// The first block of a cluster of a group.
fn cluster_start(ground: &Ground, group: Group, cluster: u32) -> Pblk {
    let geometry = &ground.superblock.geometry;
    let start = geometry.group_first_block(group).map_or(0, Pblk::get);
    Pblk(start + u64::from(cluster) * u64::from(geometry.cluster_blocks()))
}

/// The clusters of each group that a run touches.
fn parts(ground: &Ground, first: Pblk, count: u64) -> Result<Vec<(Group, Range<u32>)>> {
    let geometry = &ground.superblock.geometry;
    let outside =
        || Error::from(Corrupt::from(CorruptKind::BlockOutsideVolume("a run of blocks")).at_block(first));
    let end = first.get().checked_add(count).filter(|_| count > 0).ok_or_else(outside)?;
    let log = geometry.cluster_log();
    let (mut parts, mut at) = (Vec::new(), first.get());
    while at < end {
        let (group, index) = geometry.group_of_block(Pblk(at)).ok_or_else(outside)?;
        let rest = u64::from(geometry.group_blocks(group).unwrap_or(0).saturating_sub(index));
        let taken = rest.min(end - at).max(1);
        parts.push((group, index >> log..((u64::from(index) + taken - 1) >> log) as u32 + 1));
        at += taken;
    }
    Ok(parts)
}

impl Space for Allocator {
    fn take(&mut self, blocks: &mut impl Blocks, ino: Ino, count: usize, limit: u64) -> Result<Vec<Pblk>> {
        let (near, _) = group::place_of_inode(blocks, ino)?;
        let (mut taken, mut changed) = (Vec::new(), Vec::new());
        for group in around(blocks.ground(), near) {
            if taken.len() == count {
                break;
            }
            if descriptor(blocks, group)?.free_clusters == 0 {
                continue;
            }
            let mut found = Changed::of(blocks, group)?;
            let mut bitmap = found.blocks.clone().unwrap_or_default();
            blocks.work(bitmap.len() * SEARCH_WORK)?;
            let ground = blocks.ground();
            let geometry = &ground.superblock.geometry;
            self.mask(ground, group, limit, &mut bitmap);
            let all = 0..geometry.group_clusters(group).unwrap_or(0);
            for cluster in free_runs(&bitmap, all).flatten().take(count - taken.len()) {
                found.mark(ground, cluster..cluster + 1, true)?;
                taken.push(cluster_start(ground, group, cluster));
            }
            changed.push(found);
        }
        if taken.len() < count {
            return Err(Error::NoSpace);
        }
        changed.into_iter().try_for_each(|group| group.store(blocks))?;
        Ok(taken)
    }

    fn give_back(&mut self, blocks: &mut impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
        let Returned { changed, held } = returned(blocks, ino, runs)?;
        changed.into_values().try_for_each(|group| group.store(blocks))?;
        if self.holds {
            held.iter().try_for_each(|(first, end)| blocks.free_later(Pblk(*first), end - first))?;
            self.held_blocks += held.iter().map(|(first, end)| end - first).sum::<u64>();
            self.held.extend(held);
        }
        Ok(())
    }
}

/// Groups as they are once runs were given back, and the blocks that are free then: first and end.
struct Returned {
    changed: BTreeMap<Group, Changed>,
    held: Vec<(u64, u64)>,
}

/// What giving back makes of the groups. One run that is wrong leaves them all as they were.
fn returned(blocks: &impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<Returned> {
    let of = |error| match error {
        Error::Corrupt(corrupt) => corrupt.in_inode(ino).into(),
        error => error,
    };
    let (mut changed, mut held) = (BTreeMap::<Group, Changed>::new(), Vec::new());
    for (first, count) in runs {
        for (group, clusters) in parts(blocks.ground(), *first, *count).map_err(of)? {
            let place = match changed.entry(group) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(Changed::of(blocks, group).map_err(of)?),
            };
            let block = |cluster| cluster_start(blocks.ground(), group, cluster).get();
            held.push((block(clusters.start), block(clusters.end)));
            place.mark(blocks.ground(), clusters, false).map_err(of)?;
        }
    }
    Ok(Returned { changed, held })
}

/// Whether runs of blocks of an inode could be given back: changes nothing.
///
/// # Errors
/// As of [`Space::give_back`].
pub(super) fn check_give_back(blocks: &impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
    returned(blocks, ino, runs).map(drop)
}
