//! Reserved blocks: a volume reports full before they are used.

use uext4_ondisk::ext4::{Incompat, Superblock};

/// Most clusters that Linux reserves for converting unwritten extents when space runs out.
const CLUSTERS_MAX: u64 = 4096;
/// It reserves one cluster in this many, or the number above if that is less.
const SHARE: u64 = 50;

/// Blocks that only root may use in Linux, and those reserved for maps (`ext4_has_free_clusters`).
pub(crate) fn set_aside(superblock: &Superblock) -> u64 {
    let geometry = &superblock.geometry;
    let cluster = u64::from(geometry.cluster_blocks());
    // For extents that split when unwritten blocks are written; block maps need none.
    let for_maps = match superblock.features.incompat.contains(Incompat::EXTENTS) {
        true => (geometry.blocks_count() / cluster / SHARE).min(CLUSTERS_MAX) * cluster,
        false => 0,
    };
    superblock.reserved_blocks.saturating_add(for_maps)
}
