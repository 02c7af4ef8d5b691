//! Marks written blocks unwritten: they read as zeros, and stay allocated.

use super::{Files, depth};
use crate::alloc::shared::Promise;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::edit::Change;
use crate::map::edit;
use std::ops::Range;
use uext4_iomap::gate::InodeGuard;
use uext4_ondisk::Lblk;

impl Files<'_> {
    /// Marks `blocks` unwritten, all of which are mapped, leaf by leaf, with a handle for each. The caller holds the
    /// gate exclusively, drained. `first` is the promise for the first leaf: without it nothing is changed.
    ///
    /// # Errors
    /// [`Error::NoSpace`] at a later leaf, after waiting for commits that release freed blocks. [`Error::Corrupt`],
    /// [`Error::Aborted`]. The part done so far reads as zeros.
    pub(crate) fn clear(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        blocks: Range<u64>,
        first: Promise,
    ) -> Result<()> {
        let limit = |block| u32::try_from(block).map_err(|_| Error::Limit(Limit::Map));
        let (start, end) = (limit(blocks.start)?, limit(blocks.end)?);
        self.end(inode, held, &(start..end))?;
        let mut at = self.clear_leaf(inode, start..end, &first)?;
        drop(first);
        while at < end {
            at = self.clear_leaf(inode, at..end, &self.promise_clear(inode)?)?;
        }
        Ok(())
    }

    /// Reserves the map blocks that one leaf with more entries may need: it may split, and so may every node above it.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; those of reading the groups.
    pub(crate) fn promise_clear(&self, inode: &Inode) -> Result<Promise> {
        // Splits happen at both ends of the range, and where an extent is too long to be unwritten.
        let nodes = 2 * (u64::from(self.depth(inode)) + 2) * edit::copies(self.state) as u64;
        self.with_room(|| self.space.promise(self.state, inode.ino(), nodes))
    }

    /// Returns the block to continue from.
    fn clear_leaf(&self, inode: &Inode, range: Range<u32>, _promise: &Promise) -> Result<u32> {
        let levels = self.depth(inode);
        Journaled::run(self.state, "clear blocks", self.credits(levels, 1, 0), |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(&edit.disk) > levels {
                return Ok(range.start);
            }
            let _map = inode.state.map.lock();
            let leaf = edit::leaf(blocks, &edit, Lblk(range.start))?;
            let part = range.start..range.end.min(leaf.window.end);
            let written = leaf.extents.iter().filter_map(|extent| edit::within(extent, &part));
            if written.into_iter().any(|extent| !extent.unwritten) {
                edit::convert(blocks, &mut self.space.promised(), &mut edit, part.clone(), true)?;
                edit.store(blocks, Change::Data)?;
                blocks.declare(inode.ino(), part.clone());
            }
            Ok(part.end)
        })
    }
}
