//! Blocks get other places in the file: those behind a removed range move to the front, those behind an inserted hole
//! to the back.
//!
//! They are moved leaf by leaf of the map, each in a handle: the leaf keeps its block and says other places. So nothing
//! is ever mapped twice or free meanwhile, and no step takes a block of the volume, but for the one that divides an
//! extent where a hole is put in: that is promised before anything is changed. Every commit leaves a volume without
//! fault; a crash in the middle leaves a file of which a part has moved. It is as long then as before a removal, and as
//! after an insertion.

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

/// Where to.
#[derive(Clone, Copy)]
enum Way {
    Front(u32),
    Back(u32),
}

impl Way {
    /// The place of a block after the move.
    fn target(self, block: Lblk) -> Option<Lblk> {
        let moved = match self {
            Way::Front(by) => block.get().checked_sub(by),
            Way::Back(by) => block.get().checked_add(by),
        };
        moved.map(Lblk)
    }
}

impl Files<'_> {
    /// Takes `gap` out of a file, blocks and all: what lies behind it follows on what lies in front. The size becomes
    /// `size` bytes at the end. Whoever calls holds the gate alone, drained; the ends lie between clusters.
    ///
    /// # Errors
    /// [`Error::NoSpace`] before anything is changed; [`Error::Corrupt`], [`Error::Aborted`], with a part of it moved.
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

    /// Makes a hole at `gap`: what lies from its start on moves behind it. The size becomes `size` bytes first.
    /// Whoever calls holds the gate alone, drained; the ends lie between clusters.
    ///
    /// # Errors
    /// As of [`Files::collapse`]; [`Limit::Map`] if the last block cannot move so far, with nothing changed.
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
        // The leaf with it comes last: until then nobody else gets what that takes.
        let _promise = is_divided.then(|| self.promise(inode, gap.start..gap.start)).transpose()?;
        self.end(inode, held, &(range.start..END))?;
        self.put_size(inode, size)?;
        self.shift(inode, range.start..END, Way::Back(by))
    }

    /// Another size, of which the caller knows that nothing written lies behind it.
    fn put_size(&self, inode: &Inode, size: u64) -> Result<()> {
        Journaled::run(self.state, self.credits(0, 1, 0), |blocks| {
            let mut edit = inode.edit(blocks)?;
            edit.set_size(blocks.ground(), size)?;
            edit.store(blocks, Change::Data)?;
            inode.state.set_size(size, size);
            Ok(())
        })
    }

    /// Moves what is mapped among `left`.
    fn shift(&self, inode: &Inode, mut left: Range<u32>, way: Way) -> Result<()> {
        while left.start < left.end {
            left = self.shift_leaf(inode, left, way)?;
        }
        Ok(())
    }

    /// One handle's part. Returns what is left.
    fn shift_leaf(&self, inode: &Inode, mut left: Range<u32>, way: Way) -> Result<Range<u32>> {
        let levels = self.depth(inode);
        Journaled::run(self.state, self.credits(levels, 1, 0), |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(self.state, &edit.disk) > levels {
                return Ok(left);
            }
            let _map = inode.state.map.lock();
            // To the front the first one goes first, to the back the last one: there is room where it goes.
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
