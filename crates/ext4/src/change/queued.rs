//! Appends of queues: many claim their blocks one behind the other, and those that are complete share a handle.
//!
//! As in `append.rs`, the data goes to blocks that are free on the volume. But the gate is open meanwhile, so nothing
//! is published before the data is complete: the map shows a hole behind the size, and a crash or a failure leaves
//! nothing. The engine ends appends in the order of the file.

use super::append::Appending;
use super::{Files, depth};
use crate::alloc::claims::{Ask, RUNS};
use crate::alloc::search::Run;
use crate::alloc::shared::Promise;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::edit::Change;
use crate::map::edit;
use std::ops::Range;
use uext4_iomap::{Found, State};
use uext4_ondisk::ext4::{Extent, MAX_UNWRITTEN_LENGTH};
use uext4_ondisk::{Lblk, Pblk};

/// Blocks claimed for one append.
pub struct Queued {
    appending: Appending,
    /// For blocks of the map.
    _promise: Promise,
}

impl Queued {
    /// Where its blocks lie, in the order of the file.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.appending.claim.runs().iter()
    }

    fn blocks(&self) -> &Range<u64> {
        &self.appending.blocks
    }
}

/// Complete appends that one handle maps: blocks without a gap, in few extents.
#[derive(Default)]
struct Part {
    appends: Vec<Queued>,
    /// What they add to the map, and for each how many runs of the claims it consists of.
    extents: Vec<(Extent, usize)>,
}

impl Files<'_> {
    /// Claims blocks for a hole at the end of a file, behind those claimed by earlier appends, which end at block
    /// `after` of the device. The gate is held exclusively. `None` if the write must allocate in another way.
    ///
    /// # Errors
    /// Those of reading the map and the groups.
    pub(crate) fn queue_append(
        &self,
        inode: &Inode,
        blocks: Range<u64>,
        after: Option<Pblk>,
    ) -> Result<Option<Queued>> {
        let map = &inode.state.map;
        if !self.can_claim(inode, &blocks) {
            return Ok(None);
        }
        match map.find(blocks.start as u32) {
            Found::Known { state: State::Hole, blocks: count, .. } if count >= blocks.end - blocks.start => {}
            _ => return Ok(None),
        }
        let before = || match map.find((blocks.start as u32).checked_sub(1)?) {
            Found::Known { physical, state: State::Written | State::Unwritten, .. } => {
                Some(Pblk(physical + 1))
            }
            _ => None,
        };
        let ask = Ask {
            ino: inode.ino(),
            logical: blocks.start,
            count: blocks.end - blocks.start,
            goal: after.or_else(before).unwrap_or_else(|| self.home(inode.ino())),
            limit: edit::Form::Extents.reach(),
            apart: false,
        };
        let nodes = self.nodes_of_ends(inode, &blocks);
        let promise = match self.space.promise(self.state, inode.ino(), nodes) {
            Ok(promise) => promise,
            Err(Error::NoSpace) => return Ok(None),
            Err(error) => return Err(error),
        };
        let appending = self.ask(inode, blocks, &ask)?;
        Ok(appending.map(|appending| Queued { appending, _promise: promise }))
    }

    /// The data of appends is complete, and nothing before them is under way: maps their blocks as written and moves
    /// the size. `appends`, in the order of the file: the claim of each, none if there were unwritten blocks, and its
    /// end in bytes. `filled`: unwritten blocks to convert, of these appends and of other writes.
    ///
    /// # Errors
    /// As of [`Files::convert`]. What was not mapped is released, and the size does not cover it.
    pub(crate) fn end_appends(
        &self,
        inode: &Inode,
        appends: Vec<(Option<Queued>, u64)>,
        mut filled: &[Range<u64>],
    ) -> Result<()> {
        let block = 1 << inode.state.block_bits();
        let mut before = |end: u64| {
            let (first, rest) = filled.split_at(filled.partition_point(|blocks| blocks.start < end));
            filled = rest;
            first
        };
        let mut appends = appends.into_iter().peekable();
        while let Some((claim, mut end)) = appends.next() {
            let Some(claim) = claim else {
                while let Some((_, next)) = appends.next_if(|(claim, _)| claim.is_none()) {
                    end = next;
                }
                self.extend(inode, before(end.div_ceil(block)), end)?;
                continue;
            };
            let inside = before(claim.blocks().start);
            let mut part = Part::default();
            part.add(self, claim);
            while let Some((next, to)) =
                appends.next_if(|(next, _)| next.as_ref().is_some_and(|next| part.fits(self, next)))
            {
                next.into_iter().for_each(|next| part.add(self, next));
                end = to;
            }
            if !inside.is_empty() {
                self.convert(inode, inside)?;
            }
            while self.map_part(inode, &mut part, end)?.is_none() {}
        }
        match before(u64::MAX) {
            [] => Ok(()),
            rest => self.convert(inode, rest),
        }
    }

    /// The work of one handle. `None` if the tree has grown meanwhile.
    fn map_part(&self, inode: &Inode, part: &mut Part, end: u64) -> Result<Option<()>> {
        let levels = self.depth(inode);
        let count = part.extents.len() as u32;
        Journaled::run(self.state, "appends", self.credits(levels, count, count), |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(&edit.disk) > levels {
                return Ok(None);
            }
            let mut map = inode.state.map.lock();
            let [from, to] = part.ends();
            let size = end.max(edit.disk.size);
            // Find reasons to refuse before anything is changed.
            edit.count(blocks.ground(), i64::from(to - from))?;
            edit.set_size(blocks.ground(), size)?;
            if count > 1 {
                edit::nodes(blocks, &edit, &part.holes())?;
            }
            let mut claims = part.appends.iter_mut().map(|append| &mut append.appending.claim);
            let mut claim = claims.next();
            for (extent, runs) in &part.extents {
                edit::insert(blocks, &mut self.space.promised(), &mut edit, *extent)?;
                for _ in 0..*runs {
                    while claim.as_ref().is_some_and(|claim| claim.next().is_none()) {
                        claim = claims.next();
                    }
                    claim.as_mut().map(|claim| claim.take_next(blocks)).transpose()?;
                }
            }
            edit.store(blocks, Change::Data)?;
            blocks.declare(inode.ino(), from..to);
            // Before anybody can find them.
            inode.state.set_datasync_tid(blocks.tid().0);
            let runs: Vec<_> = part.extents.iter().map(|(extent, _)| published(extent)).collect();
            map.allocated(from.into(), to.into(), &runs)?;
            inode.state.set_size(size, size);
            Ok(Some(()))
        })
    }
}

fn published(extent: &Extent) -> uext4_iomap::Run {
    let Extent { logical, length, physical, .. } = *extent;
    uext4_iomap::Run {
        first: logical.get(),
        length: length.into(),
        state: State::Written,
        physical: physical.get(),
    }
}

impl Part {
    /// The first block of the file that they fill, and the one behind the last.
    fn ends(&self) -> [u32; 2] {
        let first = self.extents.first().map_or(0, |(extent, _)| extent.logical.get());
        [first, self.extents.last().map_or(0, |(extent, _)| extent.logical_end().get())]
    }

    fn holes(&self) -> Vec<Range<u32>> {
        self.extents.iter().map(|(extent, _)| extent.logical.get()..extent.logical_end().get()).collect()
    }

    /// Whether another append continues this part, and its handle has the credits.
    fn fits(&self, files: &Files<'_>, next: &Queued) -> bool {
        let mut extents = self.extents.clone();
        let [_, end] = self.ends();
        add_runs(files, &mut extents, next);
        u64::from(end) == next.blocks().start && extents.len() <= RUNS
    }

    fn add(&mut self, files: &Files<'_>, append: Queued) {
        add_runs(files, &mut self.extents, &append);
        self.appends.push(append);
    }
}

/// Adds the runs of a claim. Adjacent ones are one extent if they lie in one group: each extent changes one bitmap.
fn add_runs(files: &Files<'_>, extents: &mut Vec<(Extent, usize)>, append: &Queued) {
    let geometry = &files.state.superblock.geometry;
    let group = |block| geometry.group_of_block(block).map(|(group, _)| group);
    let mut logical = append.blocks().start as u32;
    for run in append.runs() {
        let length = run.count as u32;
        match extents.last_mut() {
            Some((last, runs))
                if last.physical.get() + u64::from(last.length) == run.first.get()
                    && group(last.physical) == group(run.first)
                    && last.length + length <= MAX_UNWRITTEN_LENGTH =>
            {
                last.length += length;
                *runs += 1;
            }
            _ => {
                let extent = Extent { logical: Lblk(logical), length, physical: run.first, unwritten: false };
                extents.push((extent, 1));
            }
        }
        logical += length;
    }
}
