//! Bitmaps and counts of the groups that a replay touches, and the allocator for the replay's own blocks.
//!
//! Fast commits do not record bitmaps. So the replay marks free what the changed files occupied before, marks used what
//! they occupy afterwards, and recounts free blocks from the bitmaps. The result does not depend on what the records
//! did in between. Groups are processed one after the other, and unchanged bitmaps are dropped: a changed file may lie
//! in more groups than memory can hold bitmaps for.

use super::BlockRun;
use crate::alloc::Space;
use crate::alloc::bits::{bit, put_bit, put_bits, used_bits};
use crate::alloc::group::{
    Changed, SEARCH_WORK, block_bitmap, descriptor, inode_bitmap, place_of_inode, reach,
};
use crate::ground::blocks::Blocks;
use crate::ground::canvas::Canvas;
use crate::ground::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use uext4_ondisk::{Corrupt, CorruptKind, Group, Ino, Pblk};

/// A group that was read or changed.
struct Touched {
    changed: Changed,
    /// All clusters before this one are in use.
    searched: u32,
}

/// The groups.
#[derive(Default)]
pub(super) struct Groups {
    touched: BTreeMap<u32, Touched>,
    /// Blocks that records will map, which must not be allocated. Sorted, disjoint.
    reserved: Vec<BlockRun>,
    /// Blocks that were allocated here, and those of them that were freed again.
    allocated: BTreeSet<u64>,
    spare: Vec<u64>,
    /// Groups before this one have no free block.
    cursor: u32,
}

impl Groups {
    /// No group touched yet; `reserved` are the blocks that records will map.
    pub(super) fn new(mut reserved: Vec<BlockRun>) -> Groups {
        join(&mut reserved);
        Groups { reserved, ..Groups::default() }
    }

    fn is_reserved(&self, first: u64, count: u64) -> bool {
        let before = self.reserved.partition_point(|run| run.0 < first + count);
        before.checked_sub(1).is_some_and(|last| self.reserved[last].0 + self.reserved[last].1 > first)
    }

    fn touch(&mut self, blocks: &impl Blocks, group: Group) -> Result<&mut Touched> {
        match self.touched.entry(group.get()) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let descriptor = descriptor(blocks, group)?;
                let changed = Changed { group, descriptor, blocks: None, inodes: None };
                Ok(entry.insert(Touched { changed, searched: 0 }))
            }
        }
    }

    /// Allocates a free block near an inode and before block `limit`, and marks it used.
    fn allocate(&mut self, blocks: &impl Blocks, ino: Ino, limit: u64) -> Result<u64> {
        let geometry = &blocks.ground().superblock.geometry;
        let near = geometry.group_of_inode(ino).map_or(Group(0), |(group, _)| group);
        // Skip groups that reach past the limit.
        let end = |group: u32| geometry.group_first_block(Group(group + 1)).map(Pblk::get);
        let inside = |group: u32| end(group).unwrap_or(geometry.blocks_count()) <= limit;
        if near.get() >= self.cursor
            && inside(near.get())
            && let Some(block) = self.allocate_in(blocks, near)?
        {
            return Ok(block);
        }
        while self.cursor < geometry.group_count() && inside(self.cursor) {
            if let Some(block) = self.allocate_in(blocks, Group(self.cursor))? {
                return Ok(block);
            }
            self.cursor += 1;
        }
        Err(Error::NoSpace)
    }

    fn allocate_in(&mut self, blocks: &impl Blocks, group: Group) -> Result<Option<u64>> {
        let geometry = &blocks.ground().superblock.geometry;
        let (Some(start), Some(clusters)) =
            (geometry.group_first_block(group), geometry.group_clusters(group))
        else {
            return Ok(None);
        };
        let touched = self.touch(blocks, group)?;
        let searched = touched.searched;
        if searched >= clusters {
            return Ok(None);
        }
        let held = touched.changed.blocks.take();
        let is_held = held.is_some();
        let bitmap = match held {
            Some(bitmap) => bitmap,
            None => block_bitmap(blocks, group, &touched.changed.descriptor)?,
        };
        let size = u64::from(geometry.cluster_blocks());
        let mut looked_at = 0;
        let found = (searched..clusters).find(|index| {
            let block = start.get() + u64::from(*index) * size;
            looked_at += 1;
            if bit(&bitmap, *index) {
                return false;
            }
            looked_at += SEARCH_WORK;
            // The last cluster may reach past the end of the volume.
            !self.is_reserved(block, size) && blocks.ground().zones.allows(block, size)
        });
        blocks.work(looked_at)?;
        let touched = self.touch(blocks, group)?;
        touched.searched = found.unwrap_or(clusters);
        // Bitmaps of full groups are not kept: there may be very many of them.
        touched.changed.blocks = Some(bitmap).filter(|_| is_held || found.is_some());
        let Some(index) = found else { return Ok(None) };
        self.mark(blocks, group, index..index + 1, true)?;
        let block = start.get() + u64::from(index) * size;
        self.allocated.insert(block);
        Ok(Some(block))
    }

    fn mark(&mut self, blocks: &impl Blocks, group: Group, clusters: Range<u32>, used: bool) -> Result<()> {
        let touched = self.touch(blocks, group)?;
        let bitmap = match &mut touched.changed.blocks {
            Some(bitmap) => bitmap,
            empty => empty.insert(block_bitmap(blocks, group, &touched.changed.descriptor)?),
        };
        put_bits(bitmap, clusters, used);
        Ok(())
    }

    /// Whether an inode is marked used.
    pub(super) fn inode_used(&mut self, canvas: &Canvas<'_>, ino: Ino) -> Result<bool> {
        let (group, index) = place_of_inode(canvas, ino)?;
        let descriptor = self.touch(canvas, group)?.changed.descriptor;
        if index >= descriptor.initialised_inodes(&canvas.ground.superblock) {
            return Ok(false);
        }
        canvas.look(descriptor.inode_bitmap.get(), |bitmap| bit(bitmap, index))
    }

    /// Marks an inode used or free, and adds `directories` to the group's count of directories.
    pub(super) fn set_inode(
        &mut self,
        canvas: &mut Canvas<'_>,
        ino: Ino,
        used: bool,
        directories: i32,
    ) -> Result<()> {
        let (group, index) = place_of_inode(canvas, ino)?;
        let Changed { descriptor, inodes, .. } = &mut self.touch(canvas, group)?.changed;
        let bitmap = match inodes {
            Some(bitmap) => bitmap,
            empty => empty.insert(inode_bitmap(canvas, group, descriptor)?),
        };
        put_bit(bitmap, index, used);
        descriptor.used_dirs = descriptor.used_dirs.saturating_add_signed(directories);
        if used { reach(canvas, group, descriptor, index) } else { Ok(()) }
    }

    /// Marks `before` free, then `after` used, and updates the groups' descriptors. `after` is sorted and disjoint.
    ///
    /// # Errors
    /// [`Error::CorruptInode`] if a block of `after` is already in use.
    pub(super) fn store(
        &mut self,
        canvas: &mut Canvas<'_>,
        mut before: Vec<BlockRun>,
        after: &[(u64, u64, Ino)],
    ) -> Result<()> {
        before.extend(std::mem::take(&mut self.allocated).into_iter().map(|block| (block, 1)));
        join(&mut before);
        let mut groups: BTreeSet<u32> = self.touched.keys().copied().collect();
        for run in before.iter().copied().chain(after.iter().map(|run| (run.0, run.1))) {
            groups.extend(groups_of(canvas, run)?);
        }
        for group in groups.into_iter().map(Group) {
            self.touch(canvas, group)?;
            if let Some(mut touched) = self.touched.remove(&group.get()) {
                touched.remake_bitmap(canvas, group, &before, after)?;
                touched.changed.store(canvas)?;
            }
        }
        Ok(())
    }
}

impl Space for Groups {
    /// If there are too few blocks, the replay fails, so those allocated may stay so.
    fn take(&mut self, blocks: &mut impl Blocks, ino: Ino, count: usize, limit: u64) -> Result<Vec<Pblk>> {
        let mut next = || match self.spare.pop_if(|block| *block < limit) {
            Some(block) => Ok(Pblk(block)),
            None => self.allocate(blocks, ino, limit).map(Pblk),
        };
        (0..count).map(|_| next()).collect()
    }

    /// The end rebuilds the bitmaps, and frees what files had before. Only blocks allocated here may be reused: records
    /// may have given the others to a file.
    fn give_back(&mut self, _: &mut impl Blocks, _: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
        for (first, count) in runs {
            self.spare.extend(self.allocated.range(first.get()..first.get().saturating_add(*count)));
        }
        Ok(())
    }
}

/// Sorts runs, and merges those that overlap or touch.
fn join(runs: &mut Vec<BlockRun>) {
    runs.sort_unstable();
    runs.dedup_by(|next, last| {
        let touches = next.0 <= last.0 + last.1;
        if touches {
            last.1 = last.1.max(next.0 + next.1 - last.0);
        }
        touches
    });
}

/// The runs that overlap `blocks`, by binary search: a scan of all runs for every group could be too much work. `runs`
/// are sorted and disjoint.
fn within<'r, T>(runs: &'r [T], of: impl Fn(&T) -> BlockRun, blocks: &Range<u64>) -> &'r [T] {
    let end = |run: &T| of(run).0 + of(run).1;
    let from = runs.partition_point(|run| end(run) <= blocks.start);
    let to = runs.partition_point(|run| of(run).0 < blocks.end);
    runs.get(from..to).unwrap_or_default()
}

impl Touched {
    /// Builds the block bitmap after the replay from the volume's, in which blocks that the replay allocated are still
    /// free.
    fn remake_bitmap(
        &mut self,
        canvas: &Canvas<'_>,
        group: Group,
        before: &[BlockRun],
        after: &[(u64, u64, Ino)],
    ) -> Result<()> {
        self.changed.blocks = None;
        let geometry = &canvas.ground.superblock.geometry;
        let (Some(start), Some(count)) = (geometry.group_first_block(group), geometry.group_blocks(group))
        else {
            return Ok(());
        };
        let blocks = start.get()..start.get() + u64::from(count);
        let before = within(before, |run| *run, &blocks);
        let after = within(after, |run| (run.0, run.1), &blocks);
        if before.is_empty() && after.is_empty() {
            return Ok(());
        }
        let log = geometry.cluster_log();
        let part = |first: u64, count: u64| {
            let (from, to) = (first.max(blocks.start), (first + count).min(blocks.end));
            let index = |block: u64| ((block - blocks.start) >> log) as u32;
            (from < to).then(|| (from, index(from)..index(to - 1) + 1))
        };
        let home = block_bitmap(canvas, group, &self.changed.descriptor)?;
        let mut bitmap = home.clone();
        for (_, clusters) in before.iter().filter_map(|run| part(run.0, run.1)) {
            put_bits(&mut bitmap, clusters, false);
        }
        // Check all before marking any: several runs of a file may share a cluster.
        for (first, count, ino) in after {
            if let Some((block, clusters)) = part(*first, *count)
                && used_bits(&bitmap, clusters) > 0
            {
                let what = format!("fast commits give it blocks from {block} on that something else uses");
                return Err(Error::CorruptInode { ino: *ino, what });
            }
        }
        for (_, clusters) in after.iter().filter_map(|run| part(run.0, run.1)) {
            put_bits(&mut bitmap, clusters, true);
        }
        self.changed.blocks = Some(bitmap).filter(|bitmap| *bitmap != home);
        Ok(())
    }
}

/// The groups that a run lies in.
fn groups_of(canvas: &Canvas<'_>, (first, count): BlockRun) -> Result<std::ops::RangeInclusive<u32>> {
    let geometry = &canvas.ground.superblock.geometry;
    let outside = || Error::from(Corrupt::from(CorruptKind::BlockOutsideVolume("an extent")));
    let last = first.checked_add(count).and_then(|end| end.checked_sub(1)).ok_or_else(outside)?;
    let group =
        |block| geometry.group_of_block(Pblk(block)).map(|(group, _)| group.get()).ok_or_else(outside);
    Ok(group(first)?..=group(last)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_with_a_part_in_a_group_are_looked_at() {
        let mut random = 5_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..300 {
            let mut runs: Vec<BlockRun> = (0..next(12)).map(|_| (next(100), 1 + next(9))).collect();
            let mut marks = [false; 128];
            runs.iter().for_each(|run| marks[run.0 as usize..(run.0 + run.1) as usize].fill(true));
            join(&mut runs);
            assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
            for group in 0..16 {
                let blocks = group * 8..group * 8 + 8;
                let found = within(&runs, |run| *run, &blocks);
                let overlaps = |run: &&BlockRun| run.0 < blocks.end && run.0 + run.1 > blocks.start;
                assert!(found.iter().all(|run| overlaps(&run)), "{blocks:?} of {runs:?}: {found:?}");
                for block in blocks.clone() {
                    let inside = found.iter().any(|run| (run.0..run.0 + run.1).contains(&block));
                    assert_eq!(inside, marks[block as usize], "{block} of {runs:?}");
                }
            }
        }
    }
}
