//! Discards free blocks on the device. Discarded blocks have undefined contents: they are never assumed to be zero.

use super::bits::free_runs;
use super::group::{descriptor, sound_block_bitmap};
use super::search::Allocator;
use crate::ground::direct::Direct;
use crate::ground::error::Result;
use crate::ground::state::Ground;
use std::ops::Range;
use uext4_ondisk::{Group, Pblk};

/// As [`super::shared::FreeSpace::trim_group`]; the caller holds the lock of `allocator`.
pub(super) fn group(
    allocator: &mut Allocator,
    ground: &Ground,
    group: Group,
    range: &Range<u64>,
    minimum: u64,
) -> Result<u64> {
    let (blocks, geometry) = (Direct(ground), &ground.superblock.geometry);
    let first = geometry.group_first_block(group).map_or(0, Pblk::get);
    let end = first + u64::from(geometry.group_blocks(group).unwrap_or(0));
    if end <= range.start || range.end <= first || descriptor(&blocks, group)?.free_clusters == 0 {
        return Ok(0);
    }
    let (_, mut bitmap) = sound_block_bitmap(&blocks, group)?;
    // System zones, blocks that wait for a commit, and a last cluster that reaches past the end of the volume.
    allocator.mask(ground, group, u64::MAX, &mut bitmap);
    let log = geometry.cluster_log();
    let mut discarded = 0;
    for run in free_runs(&bitmap, 0..geometry.group_clusters(group).unwrap_or(0)) {
        let start = (first + (u64::from(run.start) << log)).max(range.start);
        let end = (first + (u64::from(run.end) << log)).min(range.end).min(end);
        let length = end.saturating_sub(start);
        if length > 0 && length >= minimum {
            discard(ground, start, length)?;
            discarded += length;
        }
    }
    Ok(discarded)
}

fn discard(ground: &Ground, first: u64, blocks: u64) -> Result<()> {
    let size = u64::from(ground.superblock.geometry.block_size());
    Ok(ground.cache.device().discard(first * size, blocks * size)?)
}

/// Discards runs of blocks that a durable transaction freed and that are not available yet. Best effort: ignores errors
/// of the device.
pub(crate) fn discard_freed(ground: &Ground, runs: impl Iterator<Item = (u64, u64)>) {
    let mut runs: Vec<(u64, u64)> = runs.collect();
    runs.sort_unstable();
    let mut whole: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
    for (first, count) in runs {
        match whole.last_mut() {
            Some((start, length)) if *start + *length == first => *length += count,
            _ => whole.push((first, count)),
        }
    }
    for (first, count) in whole {
        let _best_effort = discard(ground, first, count);
    }
}
