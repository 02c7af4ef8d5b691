//! How many blocks an edit changes at most: the credits that its handle starts with.
//!
//! After Linux's `ext4_meta_trans_blocks`, for what the editors do: an edit goes down one path for each leaf of a map
//! that it changes, divides each node of it once at most, and every block that it takes or gives back may lie in a
//! group of its own. Revoke blocks are counted wherever metadata blocks are given back.

use super::state::Ground;

/// The record in its table.
const INODE: u32 = 1;
/// Blocks that a block of revokes tells of, at least.
const REVOKES: u32 = 100;
/// Levels of pointer blocks.
const POINTER_LEVELS: u32 = 3;
/// Levels of a hash tree of names, leaves included (`large_dir`).
const NAME_LEVELS: u32 = 4;

/// Bitmaps and descriptors, where so many groups are touched.
pub(crate) fn groups(ground: &Ground, touched: u32) -> u32 {
    let geometry = &ground.superblock.geometry;
    touched.min(geometry.group_count()).saturating_add(touched.min(geometry.descriptor_blocks()))
}

/// A map of which `nodes` are changed, made or given back, and `runs` of data that are taken or given back.
fn map(ground: &Ground, nodes: u32, runs: u32) -> u32 {
    let revokes = 1 + nodes / REVOKES;
    nodes.saturating_add(groups(ground, nodes.saturating_add(runs))).saturating_add(INODE + revokes)
}

/// Mapping, unmapping or converting what `leaves` leaves of an extent tree tell about. It has `depth` levels below its
/// root, and may get one more. `runs` of data are taken or given back with it.
pub(crate) fn extents(ground: &Ground, depth: u16, leaves: u32, runs: u32) -> u32 {
    map(ground, (2 * (u32::from(depth) + 1)).saturating_mul(leaves), runs)
}

/// The same with block pointers, which divide nothing: a leaf is a block that names data.
pub(crate) fn pointers(ground: &Ground, leaves: u32, runs: u32) -> u32 {
    map(ground, POINTER_LEVELS.saturating_mul(leaves), runs)
}

/// Adding, changing or removing a name of a directory whose map has `depth` levels: each node of its hash tree may be
/// divided, which takes a new block.
pub(crate) fn name(ground: &Ground, depth: u16) -> u32 {
    let nodes = 2 * (u32::from(depth).max(POINTER_LEVELS) + 1);
    (2 * NAME_LEVELS).saturating_add(map(ground, nodes, NAME_LEVELS))
}

/// Making or freeing an inode.
pub(crate) fn inode(ground: &Ground) -> u32 {
    INODE + groups(ground, 1)
}
