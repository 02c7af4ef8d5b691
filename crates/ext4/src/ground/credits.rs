//! Upper bounds of the blocks an edit changes: the credits its handle starts with.
//!
//! Modelled on Linux's `ext4_meta_trans_blocks`: an edit descends one path for each leaf of a map that it changes and
//! splits each node at most once; every block that it allocates or frees may lie in a group of its own. Revoke blocks
//! are counted wherever metadata blocks are freed.

use super::state::Ground;

/// The inode record's table block.
const INODE: u32 = 1;
/// Revokes that fit one block, at least.
const REVOKES: u32 = 100;
/// Levels of pointer blocks.
const POINTER_LEVELS: u32 = 3;
/// Levels of a hash tree of names, leaves included (`large_dir`).
const NAME_LEVELS: u32 = 4;

/// Bitmaps and descriptors of `touched` groups.
pub(crate) fn groups(ground: &Ground, touched: u32) -> u32 {
    let geometry = &ground.superblock.geometry;
    touched.min(geometry.group_count()).saturating_add(touched.min(geometry.descriptor_blocks()))
}

/// A map in which `nodes` are changed, allocated or freed, along with `runs` of data blocks.
fn map(ground: &Ground, nodes: u32, runs: u32) -> u32 {
    let revokes = 1 + nodes / REVOKES;
    nodes.saturating_add(groups(ground, nodes.saturating_add(runs))).saturating_add(INODE + revokes)
}

/// Mapping, unmapping or converting within `leaves` leaves of an extent tree. It has `depth` levels below its root, and
/// may get one more. `runs` of data blocks are allocated or freed with it.
pub(crate) fn extents(ground: &Ground, depth: u16, leaves: u32, runs: u32) -> u32 {
    map(ground, (2 * (u32::from(depth) + 1)).saturating_mul(leaves), runs)
}

/// The same for block pointers, which never split: a leaf is a block that points to data.
pub(crate) fn pointers(ground: &Ground, leaves: u32, runs: u32) -> u32 {
    map(ground, POINTER_LEVELS.saturating_mul(leaves), runs)
}

/// Adding, changing or removing a name of a directory whose map has `depth` levels: each node of its hash tree may
/// split, which takes a new block.
pub(crate) fn name(ground: &Ground, depth: u16) -> u32 {
    let nodes = 2 * (u32::from(depth).max(POINTER_LEVELS) + 1);
    (2 * NAME_LEVELS).saturating_add(map(ground, nodes, NAME_LEVELS))
}

/// Creating an entry of a quota file whose map has `depth` levels: header, tree, leaf, and its neighbours in a list.
pub(crate) fn quota_entry(ground: &Ground, depth: u16) -> u32 {
    8 + name(ground, depth)
}

/// Creating or freeing an inode.
pub(crate) fn inode(ground: &Ground) -> u32 {
    INODE + groups(ground, 1)
}
