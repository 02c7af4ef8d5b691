//! The system zones: blocks that hold metadata at fixed places and can never be file data.
//!
//! These are superblock copies, group descriptors, bitmaps, inode tables and the journal. Every physical range is
//! checked against them once, when a mapping is published, so that a damaged or hostile extent tree cannot direct a
//! data write onto metadata (as the kernel's `block_validity`).

use uext4_ondisk::{BlockRange, Pblk};

/// Sorted, disjoint ranges of metadata blocks.
#[derive(Debug, Default)]
pub(crate) struct SystemZones {
    ranges: Vec<(u64, u64)>,
    blocks: u64,
    first: u64,
    /// [`SystemZones::add`] sorts when this many ranges are stored.
    sort_at: usize,
}

/// Fewer ranges are not worth sorting early.
const SORT_MIN: usize = 1 << 16;

impl SystemZones {
    /// Zones of a volume whose usable blocks are `volume`.
    pub(crate) fn new(volume: BlockRange) -> Self {
        SystemZones {
            ranges: Vec::new(),
            first: volume.first.get(),
            blocks: volume.end.get(),
            sort_at: SORT_MIN,
        }
    }

    /// Adds a range; call [`SystemZones::sort`] after the last one.
    pub(crate) fn add(&mut self, start: Pblk, count: u64) {
        let (start, end) = (start.get(), start.get().saturating_add(count));
        match self.ranges.last_mut() {
            // Neighbouring groups of a flex group are contiguous: most additions extend the last range.
            Some(last) if last.0 <= start && start <= last.1 => last.1 = last.1.max(end),
            _ if count > 0 => self.push((start, end)),
            _ => {}
        }
    }

    /// Sorts occasionally, so that scattered additions never take much more memory than their merged ranges.
    fn push(&mut self, range: (u64, u64)) {
        if self.ranges.len() >= self.sort_at {
            self.sort();
            self.sort_at = SORT_MIN.max(self.ranges.len() * 2);
        }
        self.ranges.push(range);
    }

    /// Sorts the ranges, and merges those that touch.
    pub(crate) fn sort(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, last| {
            let touches = next.0 <= last.1;
            if touches {
                last.1 = last.1.max(next.1);
            }
            touches
        });
        self.ranges.shrink_to_fit();
    }

    /// The zones that overlap `first` .. `end`.
    pub(crate) fn within(&self, first: u64, end: u64) -> &[(u64, u64)] {
        let from = self.ranges.partition_point(|range| range.1 <= first);
        let to = self.ranges.partition_point(|range| range.0 < end);
        self.ranges.get(from..to).unwrap_or_default()
    }

    /// Whether `count` blocks from `start` lie inside the volume and touch no metadata.
    pub(crate) fn allows(&self, start: u64, count: u64) -> bool {
        let Some(end) = start.checked_add(count) else { return false };
        if start < self.first || end > self.blocks {
            return false;
        }
        let behind = self.ranges.partition_point(|range| range.0 < end);
        behind == 0 || self.ranges[behind - 1].1 <= start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_additions_are_merged_on_the_way() {
        let mut zones = SystemZones::new(BlockRange { first: Pblk(1), end: Pblk(1 << 40) });
        // Even blocks ascending, then odd ones descending: none extends the range added last.
        let count = 3 * SORT_MIN as u64;
        (0..count).for_each(|n| zones.add(Pblk(2 * n + 2), 1));
        (0..count).rev().for_each(|n| zones.add(Pblk(2 * n + 3), 1));
        assert!(zones.ranges.capacity() <= 8 * SORT_MIN, "{}", zones.ranges.capacity());
        zones.sort();
        assert_eq!(zones.ranges, [(2, 2 * count + 2)]);
    }

    #[test]
    fn ranges_merge_and_every_touch_is_seen() {
        let mut zones = SystemZones::new(BlockRange { first: Pblk(1), end: Pblk(1000) });
        for (start, count) in [(500, 10), (1, 4), (5, 3), (505, 20), (900, 0)] {
            zones.add(Pblk(start), count);
        }
        zones.sort();
        assert_eq!(zones.ranges, [(1, 8), (500, 525)]);
        for (start, count, allowed) in [
            (8, 492, true),
            (8, 493, false),
            (7, 1, false),
            (0, 1, false),
            (525, 475, true),
            (525, 476, false),
            (510, 1, false),
            (400, 400, false),
            (u64::MAX, 2, false),
        ] {
            assert_eq!(zones.allows(start, count), allowed, "{start}+{count}");
            if let Some(end) = start.checked_add(count).filter(|end| start >= 1 && *end <= 1000) {
                assert_eq!(zones.within(start, end).is_empty(), allowed, "{start}+{count}");
            }
        }
    }
}
