//! The blocks taken so far, as runs: a new volume has few runs, whatever its size.

use std::collections::{BTreeMap, BTreeSet};
use uext4_ondisk::Group;
use uext4_ondisk::ext4::Geometry;

/// The space of a volume that is being laid out.
pub(super) struct Space {
    /// Taken runs: first block to the first block after the run. No two of them touch.
    runs: BTreeMap<u64, u64>,
    geometry: Geometry,
    /// Allocation unit in blocks: one block, or a cluster after [`Space::in_clusters`].
    grain: u64,
    /// Groups in which more was taken than the geometry implies.
    touched: BTreeSet<u32>,
}

impl Space {
    pub(super) fn new(geometry: Geometry) -> Space {
        Space { runs: BTreeMap::new(), geometry, grain: 1, touched: BTreeSet::new() }
    }

    fn first(&self) -> u64 {
        u64::from(self.geometry.first_data_block())
    }

    fn end(&self) -> u64 {
        self.geometry.blocks_count()
    }

    /// The end of the taken run that overlaps `[start, start + count)`, if any.
    fn met(&self, start: u64, count: u64) -> Option<u64> {
        let (_, &end) = self.runs.range(..start + count).next_back()?;
        (end > start).then_some(end)
    }

    /// Takes blocks whose location follows from the geometry.
    pub(super) fn take(&mut self, start: u64, count: u64) {
        if count == 0 {
            return;
        }
        let (mut start, mut end) = (start, start + count);
        while let Some((&first, &behind)) =
            self.runs.range(..=end).next_back().filter(|(_, behind)| **behind >= start)
        {
            self.runs.remove(&first);
            (start, end) = (start.min(first), end.max(behind));
        }
        self.runs.insert(start, end);
    }

    /// Takes whole clusters for a structure placed by search. The bitmaps of their groups no longer follow from the
    /// geometry.
    pub(super) fn place(&mut self, start: u64, count: u64) {
        let (low, high) = (start / self.grain * self.grain, (start + count).next_multiple_of(self.grain));
        self.take(low, high - low);
        let per_group = u64::from(self.geometry.blocks_per_group()).max(1);
        let last = (start + count - 1).saturating_sub(self.first()) / per_group;
        for group in start.saturating_sub(self.first()) / per_group..=last {
            self.touched.insert(group as u32);
        }
    }

    /// Takes whole clusters from now on; partly taken clusters become taken.
    pub(super) fn in_clusters(&mut self) {
        self.grain = u64::from(self.geometry.cluster_blocks());
        let grain = self.grain;
        for (start, end) in std::mem::take(&mut self.runs) {
            let low = start / grain * grain;
            self.take(low, end.next_multiple_of(grain) - low);
        }
    }

    /// The first free run of `count` blocks that starts at or after `start` and before `finish`. Blocks before the
    /// first group are unused.
    pub(super) fn search(&self, start: u64, finish: u64, count: u64) -> Option<u64> {
        let mut at = start.max(self.first());
        loop {
            if at + count > self.end() {
                return None;
            }
            match self.met(at, count) {
                None => return Some(at),
                Some(end) if end < finish => at = end,
                Some(_) => return None,
            }
        }
    }

    /// The first free run at or after `goal`, or else from the volume's start: at most `most` blocks.
    pub(super) fn run(&self, goal: u64, most: u64) -> Option<(u64, u64)> {
        let goal = (goal / self.grain * self.grain).max(self.first());
        self.run_from(goal, most).or_else(|| self.run_from(self.first(), most))
    }

    /// The next free run at or after a block, up to the last whole cluster of the volume.
    pub(super) fn next_free(&self, from: u64) -> Option<(u64, u64)> {
        self.run_from(from.max(self.first()), u64::MAX)
    }

    fn run_from(&self, goal: u64, most: u64) -> Option<(u64, u64)> {
        let mut at = goal;
        while let Some(end) = self.met(at, 1) {
            at = end;
        }
        // A partial cluster at the end of the volume is not used.
        let end = self.end() / self.grain * self.grain;
        let next = self.runs.range(at..).next().map_or(end, |(&start, _)| start).min(end);
        (at < next).then(|| (at, most.min(next - at)))
    }

    /// Whether these blocks are free.
    pub(super) fn is_free(&self, start: u64, count: u64) -> bool {
        start >= self.first() && start + count <= self.end() && self.met(start, count).is_none()
    }

    /// Number of taken blocks.
    pub(super) fn taken(&self) -> u64 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }

    /// The taken runs in a group, counted from its start, in clusters.
    pub(super) fn in_group(&self, group: Group) -> Vec<(u32, u32)> {
        let Some(start) = self.geometry.group_first_block(group).map(|block| block.get()) else {
            return Vec::new();
        };
        let end = start + u64::from(self.geometry.group_blocks(group).unwrap_or(0));
        let grain = self.grain;
        let before = self.runs.range(..start).next_back();
        let met = before.into_iter().chain(self.runs.range(start..end));
        let cut = met.map(|(&first, &behind)| (first.max(start), behind.min(end.next_multiple_of(grain))));
        cut.filter(|(first, behind)| first < behind)
            .map(|(first, behind)| {
                (((first - start) / grain) as u32, (behind - start).div_ceil(grain) as u32)
            })
            .collect()
    }

    /// Free clusters of a group.
    pub(super) fn free_in(&self, group: Group) -> u32 {
        let all = self.geometry.group_clusters(group).unwrap_or(0);
        let taken: u32 =
            self.in_group(group).iter().map(|(start, end)| end.min(&all) - start.min(&all)).sum();
        all - taken
    }

    /// Whether more was taken in a group than the geometry implies.
    pub(super) fn is_touched(&self, group: Group) -> bool {
        self.touched.contains(&group.get())
    }
}
