//! Indirect block maps (ext2, ext3, and inodes of ext4 without the extents flag): the walk from the inode's
//! numbers to the pointer block that covers a logical block.
//!
//! A look-up descends at most three levels, so it ends whatever the blocks contain. To bound a *whole* map takes more:
//! if one pointer block could be reached at two places of a file, it could stand for billions of blocks on a small
//! volume. No sound map has such a block, so each one is remembered with its place.

use super::LeafRuns;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use crate::inode::{Ext4State, Inode};
use std::sync::atomic::Ordering;
use uext4_iomap::snapshot::BLOCKS_END;
use uext4_iomap::{Run, State};
use uext4_ondisk::ext4::{DIRECT_POINTERS, IndirectLayout, IndirectPath, MAX_INDIRECT_DEPTH, PointerBlock};
use uext4_ondisk::{Corrupt, CorruptKind, Lblk, Pblk};

/// The layout of indirect maps on this volume.
pub(super) fn layout(state: &Ext4State) -> IndirectLayout {
    IndirectLayout::new(state.superblock.geometry.block_size())
}

/// The window of logical blocks around `block` that one look-up of the map covers.
pub(super) fn find_window(state: &Ext4State, inode: &Inode, block: Lblk) -> Result<LeafRuns> {
    let layout = layout(state);
    let Some(path) = layout.path(block) else {
        return Ok(LeafRuns { first: layout.blocks(), end: BLOCKS_END, runs: Vec::new() });
    };
    let disk = inode.disk();
    let i_block = &disk.i_block;
    let root = PointerBlock::root(i_block);
    let left = state.nodes_left.load(Ordering::Acquire);
    let mut walk = Walk { state, inode, block, path, left, met: Vec::with_capacity(6) };
    walk.met.extend((0..MAX_INDIRECT_DEPTH).filter_map(|level| root.get(DIRECT_POINTERS + level)));
    if path.depth() == 0 {
        return walk.leaf(&PointerBlock::direct(i_block), path.window(0));
    }
    let Some(mut child) = root.get(path.root_index()) else {
        let (first, end) = path.window(path.depth());
        return Ok(LeafRuns { first, end, runs: Vec::new() });
    };
    for level in (1..=path.depth()).rev() {
        walk.enter(child, level)?;
        let buffer = state.cache.read(child.get())?;
        let pointers = PointerBlock::new(&buffer, layout).map_err(|corrupt| walk.place(corrupt, child))?;
        if level == 1 {
            return walk.leaf(&pointers, path.window(1));
        }
        match pointers.get(path.index(level)) {
            Some(next) => child = next,
            None => {
                let (first, end) = path.window_of(level, pointers.gap(path.index(level)));
                return Ok(LeafRuns { first, end, runs: Vec::new() });
            }
        }
    }
    // Unreachable: level 1 returns.
    Err(state.corrupt_inode(inode.ino(), "an indirect map without a last level"))
}

struct Walk<'a> {
    state: &'a Ext4State,
    inode: &'a Inode,
    block: Lblk,
    path: IndirectPath,
    /// See [`Ground::nodes_left`].
    left: u64,
    /// Pointer blocks known to this walk: the inode's, and those on the path. None of them may hold data.
    met: Vec<Pblk>,
}

impl Walk<'_> {
    fn place(&self, corrupt: Corrupt, block: Pblk) -> Error {
        corrupt.in_inode(self.inode.ino()).at_lblk(self.block).at_block(block).into()
    }

    /// Checks a pointer block before it is read.
    fn enter(&mut self, block: Pblk, level: u32) -> Result<()> {
        check_zones(self.state, block, 1, "a block of the indirect map")
            .map_err(|corrupt| self.place(corrupt, block))?;
        let place = (level, self.path.window(level).0);
        let is_root = level == self.path.depth();
        if (!is_root && self.met.contains(&block))
            || !self.inode.pointer_places.agrees(block, place, self.left)
        {
            return Err(self.place(CorruptKind::Cycle("the indirect map").into(), block));
        }
        self.met.push(block);
        Ok(())
    }

    /// The runs of a block that points to data blocks, checked against the system zones: after this, data may be
    /// written there.
    fn leaf(&self, pointers: &PointerBlock<'_>, window: (u64, u64)) -> Result<LeafRuns> {
        let mut runs = Vec::new();
        for run in pointers.runs(window) {
            let length = u64::from(run.length);
            let fault = |corrupt: Corrupt| -> Error {
                corrupt.in_inode(self.inode.ino()).at_lblk(run.logical).at_block(run.physical).into()
            };
            check_zones(self.state, run.physical, length, "the indirect map").map_err(fault)?;
            let own = |block: &Pblk| block.distance_from(run.physical).is_some_and(|offset| offset < length);
            if self.met.iter().any(own) {
                return Err(fault(CorruptKind::Cycle("the indirect map").into()));
            }
            let (first, physical) = (run.logical.get(), run.physical.get());
            runs.push(Run { first, length, state: State::Written, physical });
        }
        Ok(LeafRuns { first: window.0, end: window.1, runs })
    }
}

/// Refuses blocks that a map cannot use: outside the volume, or in the system zones.
pub(super) fn check_zones(
    ground: &Ground,
    start: Pblk,
    count: u64,
    what: &'static str,
) -> std::result::Result<(), Corrupt> {
    if ground.zones.allows(start.get(), count) {
        return Ok(());
    }
    let inside = ground.superblock.geometry.usable_blocks().contains(start, count);
    Err(if inside { CorruptKind::SystemZone } else { CorruptKind::BlockOutsideVolume(what) }.into())
}
