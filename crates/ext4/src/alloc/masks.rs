//! Bitmaps of the clusters that are free on the volume but unavailable: freed and not committed, or claimed.
//!
//! A search of a group would walk all such runs in it. If there are many, the search builds a bitmap of them instead,
//! and every later change of the runs updates the bitmap. A bitmap is a cache: it can be dropped at any time, because
//! the runs hold the same information.

use super::bits::{put_bits, used_bits};
use std::collections::BTreeMap;
use uext4_ondisk::ext4::Geometry;
use uext4_ondisk::{Group, Pblk};

/// Most bytes of all bitmaps. One bitmap is kept even if it is larger.
const MOST: usize = 4 << 20;
/// A group gets a bitmap if it has more than one run per this many bytes of bitmap: then the runs take as much memory.
const RUN_BYTES: usize = 64;

/// A cache of bitmaps by group.
#[derive(Debug, Default)]
pub(super) struct Masks {
    of: BTreeMap<u32, Mask>,
    bytes: usize,
}

#[derive(Debug)]
struct Mask {
    bitmap: Box<[u8]>,
    /// Set bits.
    clusters: u32,
}

impl Masks {
    /// Whether to build a bitmap of this many bytes for a group with this many runs.
    pub(super) fn are_worth_it(runs: usize, bytes: usize) -> bool {
        runs > bytes / RUN_BYTES
    }

    /// The bitmap of a group, if there is one.
    pub(super) fn get(&self, group: Group) -> Option<&[u8]> {
        self.of.get(&group.get()).map(|mask| &*mask.bitmap)
    }

    /// Stores the bitmap of a group. No bit past its last cluster is set.
    pub(super) fn keep(&mut self, group: Group, bitmap: Box<[u8]>) {
        let clusters = used_bits(&bitmap, 0..bitmap.len() as u32 * 8);
        self.bytes += bitmap.len();
        self.of.insert(group.get(), Mask { bitmap, clusters });
        while self.bytes > MOST && self.of.len() > 1 {
            let first = self.of.first_key_value().map(|(first, _)| *first);
            let last = self.of.last_key_value().map(|(last, _)| *last);
            // Keep the one that was just built.
            if let Some(other) = first.filter(|first| *first != group.get()).or(last) {
                self.drop_one(other);
            }
        }
    }

    fn drop_one(&mut self, group: u32) {
        if let Some(mask) = self.of.remove(&group) {
            self.bytes -= mask.bitmap.len();
        }
    }

    /// Makes the blocks `[first, end)`, whole clusters, unavailable (`kept`) or available.
    pub(super) fn put(&mut self, geometry: &Geometry, first: u64, end: u64, kept: bool) {
        if self.of.is_empty() || first >= end {
            return;
        }
        let group = |block| geometry.group_of_block(Pblk(block)).map(|(group, _)| group.get());
        // The last cluster of the volume may reach past its end.
        let last = group(end - 1).unwrap_or(u32::MAX);
        let Some(touched) = group(first) else { return };
        let mut idle = Vec::new();
        for (number, mask) in self.of.range_mut(touched..=last) {
            let start = geometry.group_first_block(Group(*number)).map_or(0, Pblk::get);
            let count = geometry.group_clusters(Group(*number)).unwrap_or(0);
            let log = geometry.cluster_log();
            // Releasing half a cluster would release the other half too.
            debug_assert!(first.saturating_sub(start).is_multiple_of(1 << log), "not at a cluster: {first}");
            let from = (first.saturating_sub(start) >> log).min(count.into()) as u32;
            let to = (end.saturating_sub(start).div_ceil(1 << log)).min(count.into()) as u32;
            let before = used_bits(&mask.bitmap, from..to);
            put_bits(&mut mask.bitmap, from..to, kept);
            mask.clusters = mask.clusters - before + if kept { to - from } else { 0 };
            if mask.clusters == 0 {
                idle.push(*number);
            }
        }
        idle.into_iter().for_each(|group| self.drop_one(group));
    }
}
