//! Marks unwritten blocks written when their data is complete, and sets the size.

use super::{Files, depth};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::claims::Due;
use crate::inode::draft::Draft;
use crate::inode::edit::{Change, Edit};
use crate::map::edit::{self, Converted};
use std::ops::Range;

/// Most map leaves changed in one handle: it must fit into the smallest log.
const LEAVES: u32 = 32;
/// Most ranges considered in one handle.
const RANGES: usize = 1024;

/// Ranges to convert, and the part still to do.
struct Work<'r> {
    ranges: &'r [Range<u64>],
    /// Where the first remaining range starts.
    from: u64,
    /// The final size in bytes.
    size: Option<u64>,
}

impl Work<'_> {
    /// The next range.
    fn next(&self) -> Option<Range<u64>> {
        self.ranges.first().map(|range| self.from.max(range.start)..range.end)
    }

    /// The ranges that remain.
    fn left(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let left = self.ranges.iter().take(RANGES);
        left.map(|range| self.from.max(range.start)..range.end)
    }

    /// Records that everything up to a block is done.
    fn done_to(&mut self, to: u64) {
        let done = self.ranges.partition_point(|range| range.end <= to);
        self.ranges = &self.ranges[done..];
        self.from = to;
    }
}

impl Files<'_> {
    /// Marks the unwritten blocks among `blocks` written, and publishes them. Written blocks stay so. Each handle
    /// changes as many leaves of the map as its credits allow; usually one handle suffices.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Aborted`], those of the device. Blocks that were not converted do not read as
    /// written.
    pub(crate) fn convert(&self, inode: &Inode, blocks: &[Range<u64>]) -> Result<()> {
        self.finish(inode, blocks, None)
    }

    /// The same, and sets the size to `size`: in the same handle, or range by range if it takes several. The caller
    /// holds the gate exclusively.
    ///
    /// # Errors
    /// As of [`Files::convert`]; [`Limit::Map`] for an impossible size. The size never covers blocks that are still
    /// unwritten.
    pub(crate) fn extend(&self, inode: &Inode, blocks: &[Range<u64>], size: u64) -> Result<()> {
        self.finish(inode, blocks, Some(size))
    }

    fn finish(&self, inode: &Inode, ranges: &[Range<u64>], size: Option<u64>) -> Result<()> {
        let mut work = Work { ranges, from: 0, size };
        let claims = inode.claims.count();
        let mut leaves = u32::try_from(ranges.len().max(claims)).unwrap_or(LEAVES).clamp(1, LEAVES);
        // A claim is in a group of its own, at worst.
        let runs = |leaves| if claims > 0 { leaves } else { 0 };
        while !work.ranges.is_empty() || work.size.is_some() {
            let levels = self.depth(inode);
            let most = self.state.max_credits();
            while leaves > 1 && self.credits(levels, leaves, runs(leaves)) > most {
                leaves /= 2;
            }
            self.part(inode, &mut work, levels, (leaves, runs(leaves)))?;
        }
        Ok(())
    }

    /// The work of one handle.
    fn part(
        &self,
        inode: &Inode,
        work: &mut Work<'_>,
        levels: u16,
        (leaves, runs): (u32, u32),
    ) -> Result<()> {
        Journaled::run(self.state, "convert", self.credits(levels, leaves, runs), |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(&edit.disk) > levels {
                return Ok(());
            }
            let mut map = inode.state.map.lock();
            let before = (edit.disk.i_block, edit.disk.blocks_raw, edit.disk.flags);
            let due = inode.claims.due(work.left(), runs as usize);
            let Some(Converted { done, changed }) = self.change_some(blocks, &mut edit, work, due, leaves)?
            else {
                return Ok(());
            };
            if let Some(last) = done.last() {
                work.done_to(u64::from(last.end));
            }
            let reached = match (work.size, work.next()) {
                (Some(size), None) => Some(size),
                // All data before the next range is complete.
                (Some(size), Some(next)) => Some(size.min(next.start << inode.state.block_bits())),
                (None, _) => None,
            };
            let grown = reached.filter(|size| *size > edit.disk.size);
            if let Some(size) = grown {
                edit.set_size(blocks.ground(), size)?;
            }
            // If the record itself is unchanged, do not store it: times are written along with other changes.
            if grown.is_some() || before != (edit.disk.i_block, edit.disk.blocks_raw, edit.disk.flags) {
                edit.store(blocks, Change::Data)?;
            }
            let (first, end) =
                (done.first().map_or(0, |part| part.start), done.last().map_or(0, |part| part.end));
            blocks.declare(inode.ino(), first..end);
            if changed > 0 {
                let done: Vec<_> = done.iter().map(|part| part.start.into()..part.end.into()).collect();
                inode.state.converted(&mut map, blocks.tid().0, &done)?;
            }
            if let Some(size) = grown {
                inode.state.set_size(size, size);
            }
            if work.next().is_none() {
                work.size = None;
            }
            Ok(())
        })
    }

    /// Maps what was claimed for the next ranges, or converts them. `None`: the ranges are to be looked at again.
    fn change_some(
        &self,
        blocks: &mut Journaled<'_>,
        edit: &mut Edit<'_>,
        work: &Work<'_>,
        due: Due,
        leaves: u32,
    ) -> Result<Option<Converted>> {
        let inode = edit.inode();
        match due {
            Due::NothingBefore(end) => self.convert_some(blocks, edit, work, end, leaves).map(Some),
            Due::Filled { mut ranges, firsts } => {
                let mapped = self.map_claims(blocks, inode, edit, &firsts, false)?;
                if let Some(first) = firsts.get(mapped) {
                    ranges.retain(|range| range.start < *first);
                    ranges.last_mut().into_iter().for_each(|last| last.end = last.end.min(*first));
                }
                Ok(Some(Converted { done: ranges, changed: mapped as u32 }))
            }
            Due::Meeting { firsts, end } => {
                self.map_claims(blocks, inode, edit, &firsts, true)?;
                edit.store(blocks, Change::Data)?;
                blocks.declare(inode.ino(), firsts.first().copied().unwrap_or(end)..end);
                Ok(None)
            }
        }
    }

    /// Converts as many of the next ranges as one edit may, or has room for: those that start before block `end`.
    fn convert_some(
        &self,
        blocks: &mut impl Blocks,
        draft: &mut Draft,
        work: &Work<'_>,
        end: u64,
        mut most: u32,
    ) -> Result<Converted> {
        let next = work.left().take_while(|range| range.start < end);
        let next = next.map(|range| Ok(block(range.start)?..block(range.end)?));
        let ranges = next.collect::<Result<Vec<Range<u32>>>>()?;
        loop {
            match edit::convert_some(blocks, &mut self.space.promised(), draft, &ranges, most) {
                // Fewer ranges may need no block; if even one finds no room, that is an error.
                Err(Error::NoSpace) if most > 1 => most /= 2,
                other => return other,
            }
        }
    }
}

fn block(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::Limit(Limit::Map))
}
