//! Puts blocks into a file in place of those that are there: what an atomic write ends with.
//!
//! The new blocks are claimed ([`Claim`]) and hold the data already. One handle marks them used, maps them, frees the
//! old ones and sets the size, so a crash leaves the file with all of the old bytes or all of the new ones. The old
//! blocks are not used again before that transaction is durable.

use super::remove::check_back;
use super::{Files, depth};
use crate::alloc::Space;
use crate::alloc::claims::{Ask, Claim};
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::inode::fields::journals_data;
use crate::map::edit;
use std::ops::Range;
use uext4_iomap::gate::InodeGuard;
use uext4_iomap::{Found, Run, State};
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::{Lblk, Pblk};

/// Blocks that hold the data of an atomic write, and which blocks of the file they are for.
pub struct Swap {
    blocks: Range<u32>,
    claim: Claim,
}

impl Swap {
    /// Where the blocks lie, in order: the first one and how many.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Pblk, u64)> + '_ {
        self.claim.runs().iter().map(|run| (run.first, run.count))
    }

    /// The extents that they will be.
    fn extents(&self) -> Vec<Extent> {
        let mut at = self.blocks.start;
        let extent = |(physical, count): (Pblk, u64)| {
            let extent = Extent { logical: Lblk(at), length: count as u32, physical, unwritten: false };
            at += extent.length;
            extent
        };
        self.places().map(extent).collect()
    }
}

/// What a file maps in a range.
struct Present {
    extents: Vec<Extent>,
    /// In how many leaves.
    leaves: u32,
}

impl Files<'_> {
    /// Claims blocks for an atomic write of `blocks`, in one run if there is one.
    ///
    /// # Errors
    /// [`Error::Incompatible`] if such a write of this file would not be atomic; [`Error::NoSpace`] after waiting for
    /// commits; those of the groups.
    pub(crate) fn swap_begin(&self, inode: &Inode, blocks: Range<u64>) -> Result<Swap> {
        self.check_swaps(inode)?;
        let limit = |block: u64| u32::try_from(block).map_err(|_| Error::Limit(Limit::Map));
        let wanted = limit(blocks.start)?..limit(blocks.end)?;
        let goal = match inode.state.map.find(wanted.start) {
            Found::Known { physical, state: State::Written | State::Unwritten, .. } => Pblk(physical),
            _ => self.home(inode.ino()),
        };
        let ask = Ask {
            ino: inode.ino(),
            logical: blocks.start,
            count: blocks.end - blocks.start,
            goal,
            limit: edit::Form::Extents.reach(),
            apart: true,
        };
        let claim = self.with_room(|| self.space.claim(&Direct(self.state), &ask))?;
        Ok(Swap { blocks: wanted, claim })
    }

    fn check_swaps(&self, inode: &Inode) -> Result<()> {
        let refuse = |feature: String| Err(Error::Incompatible { action: "write atomically", feature });
        self.check_allocates(inode)?;
        let superblock = &self.state.superblock;
        if self.state.journal.is_none() {
            return refuse("no journal, whose transactions atomic writes need".into());
        }
        if superblock.geometry.cluster_blocks() > 1 {
            return refuse("clusters (bigalloc)".into());
        }
        if journals_data(superblock, &inode.disk()) {
            return refuse(format!("journaled data (inode {})", inode.ino()));
        }
        if !self.maps_extents(inode) {
            return refuse(format!("a map without extents (inode {})", inode.ino()));
        }
        Ok(())
    }

    /// The data of an atomic write is complete: its blocks become those of the file. The caller holds the gate
    /// exclusively, drained.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::QuotaExceeded`], [`Error::Corrupt`], with nothing changed; [`Error::Invalid`] if
    /// more runs of blocks change than a transaction of this journal can hold; [`Error::Aborted`].
    pub(crate) fn swap_end(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        mut swap: Swap,
        size: Option<u64>,
    ) -> Result<()> {
        if let Some(size) = size {
            self.check_size(inode, size)?;
        }
        self.with_room(|| {
            loop {
                if let Some(done) = self.swap(inode, held, &mut swap, size).transpose() {
                    break done;
                }
            }
        })
    }

    /// `None` if the tree has changed meanwhile.
    fn swap(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        swap: &mut Swap,
        size: Option<u64>,
    ) -> Result<Option<()>> {
        let new = swap.extents();
        let draft = Draft::load(&Direct(self.state), inode.ino())?;
        let levels = depth(&draft.disk);
        let before = present(&Direct(self.state), &draft, &swap.blocks)?;
        // A leaf for each end that may split.
        let (leaves, runs) = (before.leaves + 1, (before.extents.len() + new.len()) as u32);
        let credits = self.credits(levels, leaves, runs);
        if credits > self.state.max_credits() {
            let what = format!("{runs} runs of blocks change, too many for a transaction of this journal");
            return Err(Error::Invalid(what));
        }
        let nodes = (new.len() as u64 + 2) * (u64::from(levels) + 2) * edit::copies(self.state) as u64;
        let _promise = self.space.promise(self.state, inode.ino(), nodes)?;
        Journaled::run(self.state, "swap blocks", credits, |blocks| {
            let mut edit = inode.edit(blocks)?;
            if inode.is_limited() {
                edit.obey_limits(blocks)?;
            }
            let mut map = inode.state.map.lock();
            let now = present(blocks, &edit, &swap.blocks)?;
            if depth(&edit.disk) > levels
                || now.leaves > before.leaves
                || now.extents.len() > before.extents.len()
            {
                return Ok(None);
            }
            // Find reasons to refuse before anything is changed.
            check_back(self.space, blocks, &edit, &now.extents)?;
            let old = now.extents.iter().map(|extent| i64::from(extent.length)).sum::<i64>();
            edit.count(blocks.ground(), i64::from(swap.blocks.end - swap.blocks.start) - old)?;
            if let Some(size) = size {
                edit.set_size(blocks.ground(), size)?;
            }
            inode.state.set_datasync_tid(blocks.tid().0);
            let (first, end) = (u64::from(swap.blocks.start), u64::from(swap.blocks.end));
            // Withdraw the mapping before the old blocks are freed, so that no reader finds them.
            inode.state.end(held, &mut map, first, end, None)?;
            let mut freed = Vec::new();
            for extent in &new {
                swap.claim.take_next(blocks)?;
                freed.extend(edit::replace(blocks, &mut self.space.promised(), &mut edit, *extent)?);
            }
            let freed: Vec<_> =
                freed.iter().map(|extent| (extent.physical, u64::from(extent.length))).collect();
            self.space.open().give_back(blocks, inode.ino(), &freed)?;
            edit.store(blocks, Change::Data)?;
            let published = |extent: &Extent| Run {
                first: extent.logical.get(),
                length: extent.length.into(),
                state: State::Written,
                physical: extent.physical.get(),
            };
            let runs: Vec<Run> = new.iter().map(published).collect();
            inode.state.end(held, &mut map, first, end, Some(&runs))?;
            drop(map);
            if let Some(size) = size {
                inode.state.set_size(size, size);
            }
            Ok(Some(()))
        })
    }
}

/// What a file maps in a range, in order.
fn present(blocks: &impl Blocks, draft: &Draft, range: &Range<u32>) -> Result<Present> {
    let mut present = Present { extents: Vec::new(), leaves: 0 };
    let mut at = range.start;
    while at < range.end {
        let leaf = edit::leaf(blocks, draft, Lblk(at))?;
        present.leaves += 1;
        let part = at..range.end.min(leaf.window.end.max(at + 1));
        present.extents.extend(leaf.extents.iter().filter_map(|extent| edit::within(extent, &part)));
        at = part.end;
    }
    Ok(present)
}
