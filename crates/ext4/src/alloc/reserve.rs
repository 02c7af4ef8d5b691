//! Blocks that are set aside: who fills a volume finds it full before they are touched.

use uext4_ondisk::ext4::{Incompat, Superblock};

/// Most clusters that Linux sets aside for converting unwritten extents when space runs out.
const CLUSTERS_MAX: u64 = 4096;
/// It sets aside one cluster in this many, or the number above if that is less.
const SHARE: u64 = 50;

/// Blocks that only root has in Linux, and those that its maps have (`ext4_has_free_clusters`).
pub(crate) fn set_aside(superblock: &Superblock) -> u64 {
    let geometry = &superblock.geometry;
    let cluster = u64::from(geometry.cluster_blocks());
    // For extents that are split when unwritten blocks are written; block maps have none.
    let for_maps = match superblock.features.incompat.contains(Incompat::EXTENTS) {
        true => (geometry.blocks_count() / cluster / SHARE).min(CLUSTERS_MAX) * cluster,
        false => 0,
    };
    superblock.reserved_blocks.saturating_add(for_maps)
}
