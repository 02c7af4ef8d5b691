//! Appending to a file: the data is written before its blocks are mapped, and one handle does all metadata changes.
//!
//! The data goes to claimed blocks ([`Claim`]): free on the volume, and reserved in memory. When it is complete, one
//! handle marks them used, maps them as written and sets the size. A crash before that, or a failed write, leaves the
//! file unchanged.
//!
//! This serves a write that fills one hole at the end of a file with extents. Every other write allocates first
//! (`allocate.rs`): its blocks are unwritten until the data is complete.

use super::{Files, depth};
use crate::alloc;
use crate::alloc::claims::{Ask, Claim, RUNS};
use crate::alloc::shared::Promise;
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::edit::Change;
use crate::map::{self, edit};
use std::ops::Range;
use std::sync::Arc;
use uext4_iomap::gate::InodeGuard;
use uext4_iomap::{Found, Run, State};
use uext4_ondisk::ext4::{Extent, MAX_UNWRITTEN_LENGTH};
use uext4_ondisk::{Lblk, Pblk};

/// Blocks past the end of a file that a write is about to fill.
pub(crate) struct Appending {
    pub(super) blocks: Range<u64>,
    pub(super) claim: Claim,
    /// For blocks of the map.
    _promise: Option<Promise>,
}

impl Appending {
    /// The logical blocks that each run of the claim will map.
    fn holes(&self) -> Vec<Range<u32>> {
        let mut at = self.blocks.start as u32;
        let hole = |run: &alloc::search::Run| {
            let first = at;
            at += run.count as u32;
            first..at
        };
        self.claim.runs().iter().map(hole).collect()
    }
}

impl Files<'_> {
    /// Claims blocks for a hole that reaches to the end of an extending write, and publishes them as unwritten so that
    /// the write finds them. The write starts at block `from`. The gate is held exclusively until [`Files::append`] or
    /// [`Files::drop_claim`]. `None` if the write must allocate in another way.
    ///
    /// # Errors
    /// Those of reading the map and the groups.
    pub(crate) fn claim(&self, inode: &Inode, from: u64, blocks: Range<u64>) -> Result<Option<Appending>> {
        let state = &inode.state;
        if !self.can_claim(inode, &blocks) {
            return Ok(None);
        }
        let first = blocks.start as u32;
        let size = state.size();
        let last = (size >> state.block_bits()) as u32;
        if !size.is_multiple_of(1 << state.block_bits()) && state.map.find(last) == Found::Unknown {
            // Load this now: loading it during the write could evict what is published here.
            map::load(self.state, inode, size)?;
        }
        let mut map = state.map.lock();
        match map.find(first) {
            Found::Known { state: State::Hole, blocks: count, .. } if count >= blocks.end - blocks.start => {}
            _ => return Ok(None),
        }
        // A hole before these blocks needs allocation too, and then the whole write allocates first.
        let mut at = from;
        while at < blocks.start {
            match map.find(at as u32) {
                Found::Known { state: State::Written | State::Unwritten, blocks: count, .. } => at += count,
                _ => return Ok(None),
            }
        }
        let goal = first.checked_sub(1).and_then(|last| match map.find(last) {
            Found::Known { physical, state: State::Written | State::Unwritten, .. } => {
                Some(Pblk(physical + 1))
            }
            _ => None,
        });
        let ask = Ask {
            ino: inode.ino(),
            logical: blocks.start,
            count: blocks.end - blocks.start,
            goal: goal.unwrap_or_else(|| self.home(inode.ino())),
            limit: edit::Form::Extents.reach(),
            apart: false,
        };
        let Some(appending) = self.ask(inode, blocks, &ask)? else { return Ok(None) };
        let published = |(hole, run): (Range<u32>, &alloc::search::Run)| Run {
            first: hole.start,
            length: run.count,
            state: State::Unwritten,
            physical: run.first.get(),
        };
        let runs: Vec<Run> =
            appending.holes().into_iter().zip(appending.claim.runs()).map(published).collect();
        map.allocated(appending.blocks.start, appending.blocks.end, &runs)?;
        Ok(Some(appending))
    }

    /// A file that was open for writing is closed: releases the blocks claimed for its next appends, unless others have
    /// it open.
    pub(crate) fn close_window(&self, inode: &Arc<Inode>) {
        // The other reference is the cache's.
        if Arc::strong_count(inode) <= 2 {
            self.space.close_window(inode.ino());
        }
    }

    /// Whether one handle suffices for the claim.
    pub(crate) fn can_claim(&self, inode: &Inode, blocks: &Range<u64>) -> bool {
        let runs = RUNS as u32;
        // Limits of quota are checked where blocks are allocated.
        !blocks.is_empty()
            && !inode.is_limited()
            && blocks.end - blocks.start <= u64::from(MAX_UNWRITTEN_LENGTH)
            && u32::try_from(blocks.end).is_ok()
            && self.state.superblock.geometry.cluster_blocks() == 1
            && inode.disk().uses_extents()
            && self.credits(self.depth(inode), runs, runs) <= self.state.max_credits()
    }

    /// `None` if there is no room: the other route waits for it.
    pub(super) fn ask(&self, inode: &Inode, blocks: Range<u64>, ask: &Ask) -> Result<Option<Appending>> {
        let body = Direct(self.state);
        let asked = self.space.claim(&body, ask).and_then(|claim| {
            // The conversion's promise covers the map blocks for one run.
            let more = claim.runs().len() as u64 - 1;
            let levels = u64::from(self.depth(inode)) + 2;
            let promise =
                (more > 0).then(|| self.space.promise(self.state, inode.ino(), more * levels)).transpose()?;
            Ok(Appending { blocks, claim, _promise: promise })
        });
        match asked {
            Ok(appending) => Ok(Some(appending)),
            Err(Error::NoSpace) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The data of a write is complete: maps its blocks as written, and sets the size to `size`. `filled`: all blocks
    /// to mark written, those of the claim and others.
    ///
    /// # Errors
    /// As of [`Files::convert`]; the claimed blocks are released then, and the size stays.
    pub(crate) fn append(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        mut appending: Appending,
        filled: &[Range<u64>],
        size: u64,
    ) -> Result<()> {
        let own = appending.blocks.clone();
        let before = filled.iter().filter(|blocks| blocks.start < own.start);
        let before = before.map(|blocks| blocks.start..blocks.end.min(own.start));
        let before: Vec<_> = before.filter(|blocks| is_fresh(inode, blocks)).collect();
        let done = match before.is_empty() {
            true => Ok(()),
            // These blocks already lie inside the size.
            false => self.convert(inode, &before),
        };
        let done = done.and_then(|()| {
            loop {
                if let Some(done) = self.take(inode, &mut appending, size).transpose() {
                    break done;
                }
            }
        });
        if done.is_err() {
            // Report the first failure.
            let _of_less_interest = self.drop_claim(inode, held, appending);
        }
        done
    }

    /// Releases the claim of a failed write.
    ///
    /// # Errors
    /// If the gate is not held exclusively.
    pub(crate) fn drop_claim(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        appending: Appending,
    ) -> Result<()> {
        let limit = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
        // Unpublish the blocks before anybody else may get them.
        self.end(inode, held, &(limit(appending.blocks.start)..limit(appending.blocks.end)))
    }

    /// `None` if the tree has grown meanwhile.
    fn take(&self, inode: &Inode, appending: &mut Appending, size: u64) -> Result<Option<()>> {
        let levels = self.depth(inode);
        let runs = appending.claim.runs().len();
        Journaled::run(self.state, "append", self.credits(levels, runs as u32, runs as u32), |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(&edit.disk) > levels {
                return Ok(None);
            }
            let mut map = inode.state.map.lock();
            // Find reasons to refuse before anything is changed.
            edit.count(blocks.ground(), appending.blocks.clone().count() as i64)?;
            edit.set_size(blocks.ground(), size)?;
            if runs > 1 {
                edit::nodes(blocks, &edit, &appending.holes())?;
            }
            for hole in appending.holes() {
                let Some(run) = appending.claim.next() else { break };
                let (logical, length) = (Lblk(hole.start), hole.end - hole.start);
                let extent = Extent { logical, length, physical: run.first, unwritten: false };
                edit::insert(blocks, &mut self.space.promised(), &mut edit, extent)?;
                appending.claim.take_next(blocks)?;
            }
            edit.store(blocks, Change::Data)?;
            blocks.declare(inode.ino(), appending.blocks.start as u32..appending.blocks.end as u32);
            inode.state.converted(&mut map, blocks.tid().0, std::slice::from_ref(&appending.blocks))?;
            inode.state.set_size(size, size);
            Ok(Some(()))
        })
    }
}

/// Whether some of these blocks may be unwritten.
fn is_fresh(inode: &Inode, blocks: &Range<u64>) -> bool {
    let mut at = blocks.start;
    while at < blocks.end {
        match u32::try_from(at).map(|at| inode.state.map.find(at)) {
            Ok(Found::Known { state: State::Written, blocks: count, .. }) => at += count,
            _ => return true,
        }
    }
    false
}
