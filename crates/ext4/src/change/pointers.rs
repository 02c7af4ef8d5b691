//! Allocating blocks for the holes of a file with block pointers (ext2, ext3).
//!
//! Such a map has no unwritten state: every mapped block is data. So new blocks are zeroed on the device before they
//! are mapped, in the same handle. The commit of that handle begins after the zeros are complete, and its flush covers
//! them: a crash exposes holes or zeros, never the old contents of the blocks.
//!
//! No data may lie past the size on the volume. So a file that is about to get blocks there is an orphan until its size
//! is set: after a crash it is cut at its size.

use super::{Files, orphans};
use crate::alloc::Space;
use crate::alloc::search::Wish;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::map::edit::{self, Form};
use std::ops::Range;
use uext4_iomap::{Run, State};
use uext4_ondisk::ext4::{DIRECT_POINTERS, Extent};
use uext4_ondisk::{Lblk, Pblk};

/// A hole to fill, and the preferred place of its first block.
struct Hole {
    blocks: Range<u32>,
    goal: Pblk,
}

impl Files<'_> {
    /// Maps zeroed blocks for all holes among `blocks`, and publishes them as data. The caller holds the gate
    /// exclusively; blocks past the size may only be added between [`Files::begin_growth`] and [`Files::end_growth`].
    ///
    /// # Errors
    /// [`Error::NoSpace`] after waiting for commits that release freed blocks, [`Limit::Map`], [`Error::Corrupt`], and
    /// those of zeroing a block. Blocks allocated so far stay, and hold zeros.
    pub(super) fn allocate_zeroed(&self, inode: &Inode, blocks: Range<u64>) -> Result<()> {
        let limit = |block| u32::try_from(block).map_err(|_| Error::Limit(Limit::Map));
        let (mut at, end) = (limit(blocks.start)?, limit(blocks.end)?);
        while at < end {
            at = self.with_room(|| self.fill_zeroed(inode, at..end))?;
        }
        Ok(())
    }

    /// Fills the first hole, as far as one pointer block covers it. Returns the block to continue from.
    fn fill_zeroed(&self, inode: &Inode, range: Range<u32>) -> Result<u32> {
        Journaled::run(self.state, "allocate", credits::pointers(self.state, 1, 1), |blocks| {
            let mut edit = inode.edit(blocks)?;
            if inode.is_limited() && !self.space.goes_home(inode.ino()) {
                edit.obey_limits(blocks)?;
            }
            let mut map = inode.state.map.lock();
            let Some(hole) = self.next_hole(blocks, &edit, range.clone())? else { return Ok(Ok(range.end)) };
            let extent = match self.place_zeroed(blocks, &mut edit, &hole)? {
                Ok(extent) => extent,
                Err(refused) => return Ok(Err(refused)),
            };
            edit.store(blocks, Change::Data)?;
            let (first, length) = (extent.logical.get(), u64::from(extent.length));
            let run = Run { first, length, state: State::Written, physical: extent.physical.get() };
            map.add(u64::from(first), u64::from(first) + length, &[run])?;
            Ok(Ok(extent.logical_end().get()))
        })?
    }

    /// The first hole of a range, cut to what one pointer block covers.
    fn next_hole(&self, blocks: &impl Blocks, draft: &Draft, range: Range<u32>) -> Result<Option<Hole>> {
        let per = blocks.ground().superblock.geometry.block_size() / 4;
        let mut at = range.start;
        while at < range.end {
            let leaf = edit::leaf(blocks, draft, Lblk(at))?;
            if let Some(extent) = leaf.find(Lblk(at)) {
                at = extent.logical_end().get();
                continue;
            }
            let behind = leaf.extents.partition_point(|extent| extent.logical.get() < at);
            let next = leaf.extents.get(behind).map_or(leaf.window.end, |extent| extent.logical.get());
            let reach = match at.checked_sub(DIRECT_POINTERS) {
                None => DIRECT_POINTERS,
                Some(inside) => (at - inside % per).saturating_add(per),
            };
            let before = behind.checked_sub(1).map(|before| leaf.extents[before]);
            let goal = before.map_or_else(
                || self.home(draft.ino),
                |extent| Pblk(extent.physical.get() + u64::from(at - extent.logical.get())),
            );
            return Ok(Some(Hole { blocks: at..next.min(reach).min(range.end), goal }));
        }
        Ok(None)
    }

    /// Allocates blocks for a hole, or its beginning, zeroes and maps them. `Err` inside: nothing was changed.
    fn place_zeroed(
        &self,
        blocks: &mut impl Blocks,
        draft: &mut Draft,
        hole: &Hole,
    ) -> Result<Result<Extent>> {
        let is_refusal = Error::is_full;
        // Find damage in the map before anything is changed.
        let nodes = match edit::nodes(blocks, draft, std::slice::from_ref(&hole.blocks)) {
            Err(refused) if is_refusal(&refused) => return Ok(Err(refused)),
            nodes => nodes? as u64,
        };
        let most = u64::from(hole.blocks.end - hole.blocks.start);
        let wish = Wish { goal: hole.goal, least: 1, most, limit: Form::Pointers.reach() };
        let run = match self.space.allocate(blocks, Some(draft.ino), &wish, nodes) {
            Err(refused) if is_refusal(&refused) => return Ok(Err(refused)),
            run => run?,
        };
        let length = run.count.min(most) as u32;
        let extent =
            Extent { logical: Lblk(hole.blocks.start), length, physical: run.first, unwritten: false };
        let before = (draft.disk.blocks_raw, draft.disk.flags);
        let refused = match self.zero_blocks(run.first, run.count) {
            // Zeroing failed, and no metadata has changed except for these blocks.
            Err(error) => error,
            Ok(()) => {
                let counted = draft.count(blocks.ground(), i64::from(length));
                match counted.and_then(|()| edit::insert(blocks, &mut self.space.open(), draft, extent)) {
                    Ok(()) => return Ok(Ok(extent)),
                    Err(refused) if is_refusal(&refused) => refused,
                    Err(error) => return Err(error),
                }
            }
        };
        (draft.disk.blocks_raw, draft.disk.flags) = before;
        self.space.open().give_back(blocks, draft.ino, &[(run.first, run.count)])?;
        Ok(Err(refused))
    }

    /// Zeroes blocks on the device. They belong to this file, but are not mapped yet.
    fn zero_blocks(&self, first: Pblk, count: u64) -> Result<()> {
        let size = u64::from(self.state.superblock.geometry.block_size());
        self.state.cache.device().write_zeros(first.get() * size, count * size)?;
        self.state.written.add(count * size);
        Ok(())
    }

    /// Called before a file gets data past its size: from here on a crash cuts it at its size. The caller holds the
    /// gate exclusively.
    ///
    /// # Errors
    /// Those of the journal and of the orphan chain.
    pub(crate) fn begin_growth(&self, inode: &Inode) -> Result<()> {
        Journaled::run(self.state, "grow", orphans::CREDITS, |blocks| {
            // Wait for the editor lock: another thread may be removing the last name.
            let _turn = inode.edit(blocks)?;
            self.add_orphan(blocks, inode.ino())
        })
    }

    /// Ends what [`Files::begin_growth`] began: sets the size, or with `None` keeps it, if nothing lies past it.
    ///
    /// # Errors
    /// Those of the journal and of the orphan chain; [`Limit::Map`].
    pub(crate) fn end_growth(&self, inode: &Inode, size: Option<u64>) -> Result<()> {
        Journaled::run(self.state, "grow", orphans::CREDITS + 1, |blocks| {
            let mut edit = inode.edit(blocks)?;
            let grown = size.filter(|size| *size > edit.disk.size);
            if let Some(size) = grown {
                edit.set_size(blocks.ground(), size)?;
                edit.store(blocks, Change::Data)?;
            }
            // If it has lost its last name, it stays an orphan, to be freed.
            if edit.disk.links > 0 {
                self.remove_orphan(blocks, inode.ino())?;
            }
            if let Some(size) = grown {
                inode.state.set_size(size, size);
            }
            Ok(())
        })
    }
}
