//! Moving blocks within a file: down over a collapsed range, up past an inserted hole.
//!
//! They are moved leaf by leaf of the map, each in a handle: the leaf keeps its block, and its extents get other
//! logical numbers. So nothing is ever mapped twice or free in between, and no step allocates a block, except where
//! inserting a hole splits an extent: that is promised before anything is changed. Every commit leaves a consistent
//! volume; a crash in the middle leaves a file of which a part has moved. Until a collapse ends it has its old size; an
//! insertion sets the new size first.

use super::remove::END;
use super::{Files, depth};
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::map::edit;
use std::ops::Range;
use uext4_iomap::gate::InodeGuard;
use uext4_ondisk::Lblk;
use uext4_ondisk::ext4::Extent;

/// The direction and distance.
#[derive(Clone, Copy)]
enum Way {
    Front(u32),
    Back(u32),
}

impl Way {
    /// The logical number of a block after the move.
    fn target(self, block: Lblk) -> Option<Lblk> {
        let moved = match self {
            Way::Front(by) => block.get().checked_sub(by),
            Way::Back(by) => block.get().checked_add(by),
        };
        moved.map(Lblk)
    }
}

impl Files<'_> {
    /// Removes `gap` from a file, with its blocks, and moves later blocks down. Sets the size to `size` bytes at the
    /// end. The caller holds the gate exclusively, drained; the ends lie on cluster boundaries.
    ///
    /// # Errors
    /// [`Error::NoSpace`] before anything is changed; [`Error::Corrupt`], [`Error::Aborted`], with a part moved.
    pub(crate) fn collapse(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        gap: Range<u64>,
        size: u64,
    ) -> Result<()> {
        let range = block(gap.start)?..block(gap.end)?;
        let promise = self.promise_removal(inode, gap.clone())?;
        self.remove(inode, held, gap, promise.as_ref())?;
        drop(promise);
        self.end(inode, held, &(range.start..END))?;
        self.shift(inode, range.end..END, Way::Front(range.end - range.start))?;
        self.put_size(inode, size)
    }

    /// Inserts a hole at `gap`, and moves blocks from its start on up past it. Sets the size to `size` bytes first. The
    /// caller holds the gate exclusively, drained; the ends lie on cluster boundaries.
    ///
    /// # Errors
    /// As of [`Files::collapse`]; [`Limit::Map`] if the last block cannot move that far, with nothing changed.
    pub(crate) fn insert(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        gap: Range<u64>,
        size: u64,
    ) -> Result<()> {
        let range = block(gap.start)?..block(gap.end)?;
        let by = range.end - range.start;
        let body = Direct(self.state);
        let draft = Draft::load(&body, inode.ino())?;
        let last = edit::leaf(&body, &draft, Lblk(END - 1))?.extents.last().map(Extent::logical_end);
        if last.is_some_and(|last| last.get().checked_add(by).is_none()) {
            return Err(Error::Limit(Limit::Map));
        }
        let around = edit::leaf(&body, &draft, Lblk(range.start))?.find(Lblk(range.start));
        let is_divided = around.is_some_and(|extent| extent.logical.get() < range.start);
        // The leaf to split comes last: the promise keeps room for it until then.
        let _promise = is_divided.then(|| self.promise(inode, gap.start..gap.start)).transpose()?;
        self.end(inode, held, &(range.start..END))?;
        self.put_size(inode, size)?;
        self.shift(inode, range.start..END, Way::Back(by))
    }

    /// Sets the size; the caller knows that nothing written lies past it.
    fn put_size(&self, inode: &Inode, size: u64) -> Result<()> {
        Journaled::run(self.state, "shift blocks", self.credits(0, 1, 0), |blocks| {
            let mut edit = inode.edit(blocks)?;
            edit.set_size(blocks.ground(), size)?;
            edit.store(blocks, Change::Data)?;
            inode.state.set_size(size, size);
            Ok(())
        })
    }

    /// Moves the mapped blocks among `left`.
    fn shift(&self, inode: &Inode, mut left: Range<u32>, way: Way) -> Result<()> {
        while left.start < left.end {
            left = self.shift_leaf(inode, left, way)?;
        }
        Ok(())
    }

    /// The work of one handle. Returns what remains.
    fn shift_leaf(&self, inode: &Inode, mut left: Range<u32>, way: Way) -> Result<Range<u32>> {
        let levels = self.depth(inode);
        Journaled::run(self.state, "shift blocks", self.credits(levels, 1, 0), |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(&edit.disk) > levels {
                return Ok(left);
            }
            let _map = inode.state.map.lock();
            // Moving down starts with the first leaf, moving up with the last: their targets are free.
            let near = match way {
                Way::Front(_) => Lblk(left.start),
                Way::Back(_) => Lblk(left.end - 1),
            };
            let leaf = edit::leaf(blocks, &edit, near)?;
            if leaf.extents.iter().any(|extent| edit::within(extent, &left).is_some()) {
                let target = |block| way.target(block);
                edit::shift(blocks, &mut self.space.promised(), &mut edit, near, left.start, target)?;
                edit.store(blocks, Change::Data)?;
            }
            match way {
                Way::Front(_) => left.start = leaf.window.end,
                Way::Back(_) => left.end = leaf.window.start.max(left.start),
            }
            Ok(left)
        })
    }
}

fn block(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::Limit(Limit::Map))
}
