//! Blocks get other places in the file: those behind a removed range move to the front, those behind an inserted hole
//! to the back.
//!
//! They are moved extent by extent, a few in a handle: taken out of the map and put in again, so that nothing is ever
//! mapped twice or free meanwhile. Every commit leaves a volume without fault; a crash in the middle leaves a file of
//! which a part has moved. It is as long then as before a removal, and as after an insertion.

use super::remove::END;
use super::{Files, depth};
use crate::alloc::shared::Promise;
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

/// Extents that are moved in one handle at most.
const EXTENTS: u32 = 8;

/// What a step may do.
struct Moves {
    levels: u16,
    extents: u32,
    _promise: Promise,
}

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
    /// [`Error::NoSpace`] before anything is changed, or with a part of it moved; [`Error::Corrupt`],
    /// [`Error::Aborted`].
    pub(crate) fn collapse(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        gap: Range<u64>,
        size: u64,
    ) -> Result<()> {
        let range = block(gap.start)?..block(gap.end)?;
        let promise = self.promise_removal(inode, gap.clone())?;
        let first = self.moves(inode)?;
        self.remove(inode, held, gap, promise.as_ref())?;
        drop(promise);
        self.end(inode, held, &(range.start..END))?;
        self.shift(inode, range.end..END, Way::Front(range.end - range.start), first)?;
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
        // If the first step finds no room, the size is not to change.
        let first = self.moves(inode)?;
        self.end(inode, held, &(range.start..END))?;
        self.put_size(inode, size)?;
        self.shift(inode, range.start..END, Way::Back(by), first)
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

    /// How many extents the next step may move, and what putting them into the map again may take.
    fn moves(&self, inode: &Inode) -> Result<Moves> {
        let levels = self.depth(inode);
        let most = self.state.max_credits();
        let mut extents = EXTENTS;
        while extents > 1 && self.credits(levels, 2 * extents, 0) > most {
            extents /= 2;
        }
        let body = Direct(self.state);
        let nodes = (u64::from(levels) + 2) * edit::copies(self.state) as u64;
        let promise = |extents| self.space.promise(&body, u64::from(extents) * nodes);
        match promise(extents) {
            Ok(promise) => Ok(Moves { levels, extents, _promise: promise }),
            Err(Error::NoSpace) => {
                let promise = self.with_room(|| promise(1))?;
                Ok(Moves { levels, extents: 1, _promise: promise })
            }
            Err(error) => Err(error),
        }
    }

    /// Moves what is mapped among `left`.
    fn shift(&self, inode: &Inode, left: Range<u32>, way: Way, first: Moves) -> Result<()> {
        let mut left = self.shift_some(inode, left, way, first)?;
        while left.start < left.end {
            let moves = self.moves(inode)?;
            left = self.shift_some(inode, left, way, moves)?;
        }
        Ok(())
    }

    /// One handle's part. Returns what is left.
    fn shift_some(&self, inode: &Inode, left: Range<u32>, way: Way, moves: Moves) -> Result<Range<u32>> {
        let Moves { levels, extents: most, _promise } = moves;
        Journaled::run(self.state, self.credits(levels, 2 * most, 0), |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(self.state, &edit.disk) > levels {
                return Ok(left);
            }
            let _map = inode.state.map.lock();
            let (moved, left) = next(blocks, &edit, left, way, most as usize)?;
            let (Some(first), Some(last)) = (moved.first(), moved.last()) else { return Ok(left) };
            let all = first.logical.get()..last.logical_end().get();
            let targets = moved.iter().map(|extent| {
                let logical = way.target(extent.logical).ok_or(Error::Limit(Limit::Map))?;
                // What is wrong with the map there shows before anything is changed.
                edit::leaf(blocks, &edit, logical)?;
                Ok(Extent { logical, ..*extent })
            });
            let mut targets = targets.collect::<Result<Vec<Extent>>>()?;
            edit::remove(blocks, &mut self.space.promised(), &mut edit, all)?;
            if let Way::Back(_) = way {
                targets.reverse();
            }
            for extent in targets {
                edit::insert(blocks, &mut self.space.promised(), &mut edit, extent)?;
            }
            edit.store(blocks, Change::Data)?;
            Ok(left)
        })
    }
}

/// The extents that are to be moved next, in order, all of one leaf; and what is left behind them.
fn next(
    blocks: &impl Blocks,
    draft: &Draft,
    mut left: Range<u32>,
    way: Way,
    most: usize,
) -> Result<(Vec<Extent>, Range<u32>)> {
    while left.start < left.end {
        let near = match way {
            Way::Front(_) => left.start,
            Way::Back(_) => left.end - 1,
        };
        let leaf = edit::leaf(blocks, draft, Lblk(near))?;
        let mut found: Vec<Extent> =
            leaf.extents.iter().filter_map(|extent| edit::within(extent, &left)).collect();
        match way {
            Way::Front(_) => {
                found.truncate(most);
                left.start = found.last().map_or(leaf.window.end, |last| last.logical_end().get());
            }
            Way::Back(_) => {
                found.drain(..found.len().saturating_sub(most));
                left.end = found.first().map_or(leaf.window.start, |first| first.logical.get());
            }
        }
        if !found.is_empty() {
            return Ok((found, left));
        }
    }
    Ok((Vec::new(), left))
}

fn block(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::Limit(Limit::Map))
}
