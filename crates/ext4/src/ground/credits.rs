//! How many blocks an edit changes at most: the credits that its handle starts with.
//!
//! A start after Linux's `ext4_meta_trans_blocks`, for what the editors do: an edit goes down one path of a map,
//! divides each node of it once at most, and every block that it takes or gives back may lie in a group of its own. A
//! revoke block is counted wherever metadata blocks are given back.

use super::state::Ground;

/// The record in its table.
const INODE: u32 = 1;
/// A block of revokes.
const REVOKES: u32 = 1;
/// Levels of pointer blocks.
const POINTER_LEVELS: u32 = 3;
/// Levels of a hash tree of names, leaves included (`large_dir`).
const NAME_LEVELS: u32 = 4;

/// Bitmaps and descriptors, where so many groups are touched.
pub(crate) fn groups(ground: &Ground, touched: u32) -> u32 {
    let geometry = &ground.superblock.geometry;
    touched.min(geometry.group_count()).saturating_add(touched.min(geometry.descriptor_blocks()))
}

/// A map whose paths have `levels` nodes below the inode, for `pieces` runs of blocks that follow one another in the
/// file.
fn map(ground: &Ground, levels: u32, pieces: u32) -> u32 {
    let nodes = levels.saturating_mul(pieces.saturating_add(1));
    nodes.saturating_add(groups(ground, nodes.saturating_add(pieces))).saturating_add(INODE + REVOKES)
}

/// Mapping, unmapping or converting `pieces` runs of blocks in an extent tree of `depth` levels below its root, which
/// may get one more.
pub(crate) fn extents(ground: &Ground, depth: u16, pieces: u32) -> u32 {
    map(ground, u32::from(depth) + 1, pieces)
}

/// The same with block pointers.
pub(crate) fn pointers(ground: &Ground, pieces: u32) -> u32 {
    map(ground, POINTER_LEVELS, pieces)
}

/// Adding, changing or removing a name of a directory whose map has `depth` levels: each node of its hash tree may be
/// divided, which takes a new block.
pub(crate) fn name(ground: &Ground, depth: u16) -> u32 {
    (2 * NAME_LEVELS).saturating_add(map(ground, u32::from(depth).max(POINTER_LEVELS) + 1, NAME_LEVELS))
}

/// Making or freeing an inode.
pub(crate) fn inode(ground: &Ground) -> u32 {
    INODE + groups(ground, 1)
}
