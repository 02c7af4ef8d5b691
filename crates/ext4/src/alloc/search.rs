//! Where new blocks and inodes are looked for.
//!
//! The policy is a plain one: the group of the goal first, then those behind it, then from the first one on. It asks
//! descriptors for groups with room and bitmaps for runs, and keeps nothing but what must not be handed out yet.

use super::Space;
use super::bits::{free_runs, put_bits};
use super::group::{self, SEARCH_WORK, descriptor, marked, sound_block_bitmap, sound_inode_bitmap};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use std::collections::BTreeMap;
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
    /// Whether what is given back waits for [`Allocator::release`]: with a journal it must not carry anything else
    /// before the change that freed it is durable.
    holds: bool,
    /// What waits: first block and end of each run, disjoint.
    held: BTreeMap<u64, u64>,
}

impl Allocator {
    /// For a volume with or without a journal.
    pub(crate) fn new(ground: &Ground) -> Allocator {
        Allocator { holds: ground.journal.is_some(), held: BTreeMap::new() }
    }

    /// Everything that was given back so far may be handed out again: the transactions that freed it are durable.
    pub(crate) fn release(&mut self) {
        self.held.clear();
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
        let count = geometry.group_count();
        let near = geometry.group_of_block(wish.goal).map_or(0, |(group, _)| group.get());
        let least = wish.least.div_ceil(size).max(1);
        let most = wish.most.div_ceil(size).max(least);
        for (wanted, at_least) in [(most, most), (most, least)] {
            for group in (near..count).chain(0..near).map(Group) {
                if u64::from(descriptor(blocks, group)?.free_clusters) < at_least {
                    continue;
                }
                let Some(clusters) = self.find(blocks, group, wish, wanted, at_least)? else { continue };
                let geometry = &blocks.ground().superblock.geometry;
                let start = geometry.group_first_block(group).map_or(0, Pblk::get);
                let run = Run {
                    first: Pblk(start + u64::from(clusters.start) * size),
                    count: u64::from(clusters.end - clusters.start) * size,
                };
                marked(blocks, group, clusters, true)?.store(blocks)?;
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
    fn mask(&self, ground: &Ground, group: Group, limit: u64, bitmap: &mut [u8]) {
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
        let (count, inodes) = (geometry.group_count(), geometry.inodes_per_group());
        for group in (near.get()..count).chain(0..near.get().min(count)).map(Group) {
            if descriptor(blocks, group)?.free_inodes == 0 {
                continue;
            }
            let (_, bitmap) = sound_inode_bitmap(blocks, group)?;
            blocks.work(bitmap.len())?;
            let reserved = if group == Group(0) { geometry.first_inode().get() - 1 } else { 0 };
            if let Some(run) = free_runs(&bitmap, reserved..inodes).next() {
                return Ok(Ino(group.get() * inodes + run.start + 1));
            }
        }
        Err(Error::NoSpace)
    }
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
    fn take(&mut self, blocks: &mut impl Blocks, ino: Ino, limit: u64) -> Result<Pblk> {
        let (near, _) = group::place_of_inode(blocks, ino)?;
        let goal = blocks.ground().superblock.geometry.group_first_block(near).unwrap_or(Pblk(0));
        let wish = Wish { goal, least: 1, most: 1, limit };
        Ok(self.allocate(blocks, &wish)?.first)
    }

    fn give_back(&mut self, blocks: &mut impl Blocks, ino: Ino, first: Pblk, count: u64) -> Result<()> {
        let of = |error| match error {
            Error::Corrupt(corrupt) => corrupt.in_inode(ino).into(),
            error => error,
        };
        let parts = parts(blocks.ground(), first, count).map_err(of)?;
        // A run over several groups changes none of them if one is damaged.
        for (group, clusters) in parts.iter().skip(1) {
            marked(blocks, *group, clusters.clone(), false).map_err(of)?;
        }
        for (group, clusters) in parts {
            let geometry = &blocks.ground().superblock.geometry;
            let (size, start) = (u64::from(geometry.cluster_blocks()), geometry.group_first_block(group));
            let start = start.map_or(0, Pblk::get);
            marked(blocks, group, clusters.clone(), false).map_err(of)?.store(blocks)?;
            if self.holds {
                let block = |cluster: u32| start + u64::from(cluster) * size;
                self.held.insert(block(clusters.start), block(clusters.end));
            }
        }
        Ok(())
    }
}
