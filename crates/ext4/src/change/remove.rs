//! Freeing blocks of a file: past a new end, or in the middle.
//!
//! They are freed from the last one to the first, in steps of one handle each: the part within one leaf of the map, as
//! far as the credits of a handle allow. Each step leaves a consistent volume: the blocks it unmaps are freed in the
//! same transaction. A truncation lowers the size with each step, to the first block it unmapped, because nothing
//! written may lie past the size. So a crash in the middle of a long one leaves a file longer than requested, and whole
//! up to its end.
//!
//! Published mappings of the blocks are withdrawn before the first step, and stay so: the gate is held exclusively
//! until the last one.

use super::free::{METADATA, is_journaled};
use super::{Files, depth};
use crate::alloc::Space;
use crate::alloc::shared::{FreeSpace, Promise};
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::map::{self, edit};
use arrayvec::ArrayVec;
use std::ops::Range;
use uext4_iomap::gate::InodeGuard;
use uext4_iomap::snapshot::BLOCKS_END;
use uext4_iomap::{Found, State};
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::{Corrupt, CorruptKind, Lblk, Pblk};

/// Most groups in which one step frees blocks.
const GROUPS: u32 = 32;
/// Groups in which a step frees blocks.
type Touched = ArrayVec<u64, { GROUPS as usize }>;
/// The first number past all blocks of a map.
pub(super) const END: u32 = u32::MAX;

/// The result of a step.
enum Step {
    /// Blocks up to here remain.
    Left(u32),
    /// The tree has grown: the edit may change more blocks than the handle has credits for.
    Again,
    /// Nothing remains.
    Done,
}

/// The blocks that one step unmaps.
struct Last {
    blocks: Range<u32>,
    /// The extents there, at least one.
    extents: Vec<Extent>,
}

impl Last {
    /// The last blocks of these, at most this many.
    fn bounded(mut self, most: u32) -> Last {
        let mut left = most;
        let mut kept = Vec::new();
        for extent in self.extents.iter().rev() {
            let end = extent.logical_end().get();
            let part = end - left.min(extent.length)..end;
            kept.extend(edit::within(extent, &part));
            left -= part.end - part.start;
            if left == 0 {
                self.blocks.start = part.start;
                break;
            }
        }
        kept.reverse();
        self.extents = kept;
        self
    }
}

/// The blocks to free.
struct Removal {
    blocks: Range<u32>,
    /// The final size in bytes.
    size: Option<u64>,
    /// Whether the map blocks that it may need are promised.
    promised: bool,
}

impl Files<'_> {
    /// Lowers the size of a file, or keeps it, and frees all blocks past it. The last block is already zero past the
    /// size on the device. The caller holds the gate exclusively, drained.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Aborted`], those of the device. The blocks freed so far were the last ones, and the
    /// size lies before them.
    pub(crate) fn truncate(&self, inode: &Inode, held: &InodeGuard<'_>, size: u64) -> Result<()> {
        let first = size.div_ceil(1 << inode.state.block_bits());
        let first = u32::try_from(first).map_err(|_| Error::Limit(Limit::Map))?;
        let removal = Removal { blocks: first..END, size: Some(size), promised: false };
        self.take_away(inode, held, removal)
    }

    /// Unmaps and frees `blocks`. The caller holds the gate exclusively, and none of these blocks is in flight.
    /// `promise` is that of [`Files::promise_removal`].
    ///
    /// # Errors
    /// As of [`Files::truncate`]; [`Error::NoSpace`] without a promise, with nothing changed: unmapping the middle of
    /// an extent may take a map block.
    pub(crate) fn remove(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        blocks: Range<u64>,
        promise: Option<&Promise>,
    ) -> Result<()> {
        let limit = |block: u64| block.min(END.into()) as u32;
        let blocks = limit(blocks.start)..limit(blocks.end);
        self.take_away(inode, held, Removal { blocks, size: None, promised: promise.is_some() })
    }

    /// Reserves the map blocks that unmapping a range may need, if any. The gate is held exclusively.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; those of reading the map and the groups.
    pub(crate) fn promise_removal(&self, inode: &Inode, blocks: Range<u64>) -> Result<Option<Promise>> {
        let end = blocks.end.min(END.into()) as u32;
        if end == END || blocks.is_empty() {
            return Ok(None);
        }
        // Most punches divide an extent. Only where there is no room at once does it matter whether this one does.
        if let Some(promise) = self.try_promise(inode, blocks.clone()) {
            return Ok(Some(promise));
        }
        let body = Direct(self.state);
        let draft = Draft::load(&body, inode.ino())?;
        let extent = edit::last_leaf(&body, &draft, &(end - 1..end))?.find(Lblk(end - 1));
        // An extent that ends in the range, or is unmapped up to its end in one step, is not split.
        let is_divided = extent.is_some_and(|extent| {
            let most = match is_journaled(self.state, &draft) {
                true => METADATA,
                false => self.state.superblock.geometry.blocks_per_group().max(1),
            };
            let goes = u64::from(extent.logical.get()) >= blocks.start && extent.length <= most;
            extent.logical_end().get() > end && !goes
        });
        match is_divided {
            true => self.promise(inode, blocks).map(Some),
            false => Ok(None),
        }
    }

    /// Withdraws the published mapping of these blocks, and waits until nobody relies on it. Called before any of them
    /// is freed or moved.
    ///
    /// # Errors
    /// If the gate is not held exclusively.
    pub(super) fn end(&self, inode: &Inode, held: &InodeGuard<'_>, blocks: &Range<u32>) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let end = if blocks.end == END { BLOCKS_END } else { u64::from(blocks.end) };
        inode.pointer_places.forget();
        let mut map = inode.state.map.lock();
        Ok(inode.state.end(held, &mut map, blocks.start.into(), end, None)?)
    }

    fn take_away(&self, inode: &Inode, held: &InodeGuard<'_>, mut removal: Removal) -> Result<()> {
        self.end(inode, held, &removal.blocks)?;
        loop {
            match self.with_room(|| self.remove_last(inode, &removal))? {
                Step::Left(end) => removal.blocks.end = end,
                Step::Again => {}
                Step::Done => return Ok(()),
            }
        }
    }

    /// The work of one handle.
    fn remove_last(&self, inode: &Inode, removal: &Removal) -> Result<Step> {
        let levels = self.depth(inode);
        let (credits, groups) = self.removal_credits(inode.disk().uses_extents(), levels, 1);
        Journaled::run(self.state, "remove blocks", credits + 1, |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(&edit.disk) > levels {
                return Ok(Ok(Step::Again));
            }
            let map = inode.state.map.lock();
            let mut last = last_part(blocks, &edit, &removal.blocks, groups as usize)?;
            if is_journaled(self.state, &edit) {
                // The records of one revoke block.
                last = last.map(|last| last.bounded(METADATA));
            }
            let left = last.as_ref().map_or(removal.blocks.start, |last| last.blocks.start);
            if let Some(last) = &last
                && let Err(full) = self.free(blocks, &mut edit, last, removal.promised)?
            {
                return Ok(Err(full));
            }
            let size = removal.size.map(|size| match left > removal.blocks.start {
                true => size.max(edit.disk.size.min(u64::from(left) << inode.state.block_bits())),
                false => size,
            });
            if let Some(size) = size {
                edit.set_size(blocks.ground(), size)?;
            }
            if last.is_some() || size.is_some() {
                edit.store(blocks, Change::Data)?;
            }
            blocks.declare(inode.ino(), last.map_or(0..0, |last| last.blocks));
            drop(map);
            if let Some(size) = size {
                inode.state.set_size(size, size);
            }
            Ok(Ok(if left > removal.blocks.start { Step::Left(left) } else { Step::Done }))
        })?
    }

    /// Credits of a step that unmaps blocks of this many pointer leaves, or of one extent leaf; and in how many groups
    /// it may free blocks.
    pub(super) fn removal_credits(&self, extents: bool, levels: u16, leaves: u32) -> (u32, u32) {
        let most = self.state.max_credits();
        let credits = |groups| match extents {
            true => self.credits(levels, 1, groups),
            false => credits::pointers(self.state, leaves, groups),
        };
        let mut groups = GROUPS;
        while groups > 2 && credits(groups) > most {
            groups /= 2;
        }
        (credits(groups), groups)
    }

    /// Unmaps and frees. `Err` inside: there is no room for a map block, and nothing was changed.
    fn free(
        &self,
        blocks: &mut impl Blocks,
        draft: &mut Draft,
        last: &Last,
        promised: bool,
    ) -> Result<Result<()>> {
        check_back(self.space, blocks, draft, &last.extents)?;
        let mut space = if promised { self.space.promised() } else { self.space.open() };
        let unmapped = match edit::remove(blocks, &mut space, draft, last.blocks.clone()) {
            Err(full @ Error::NoSpace) => return Ok(Err(full)),
            other => other?,
        };
        if is_journaled(blocks.ground(), draft) {
            for extent in &unmapped {
                let first = extent.physical.get();
                (first..first + u64::from(extent.length)).try_for_each(|block| blocks.freed(Pblk(block)))?;
            }
        }
        let idle = edit::idle_clusters(blocks, draft, &unmapped)?;
        self.space.open().give_back(blocks, draft.ino, &idle)?;
        let geometry = &self.state.superblock.geometry;
        self.space.hold_parts(blocks, &edit::parts_of_kept_clusters(geometry, &unmapped, &idle))?;
        let size = u64::from(blocks.ground().superblock.geometry.cluster_blocks());
        let clusters: u64 = idle.iter().map(|(_, count)| count.div_ceil(size)).sum();
        draft.count(blocks.ground(), -(clusters as i64))?;
        Ok(Ok(()))
    }

    /// The holes among `blocks`, in order. Called with the gate held.
    ///
    /// # Errors
    /// Those of loading the map.
    pub(crate) fn holes(&self, inode: &Inode, blocks: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut holes: Vec<Range<u64>> = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let block = u32::try_from(at).map_err(|_| Error::Limit(Limit::Map))?;
            let found = match inode.state.map.find(block) {
                Found::Unknown => map::load(self.state, inode, at << inode.state.block_bits())?.find(block),
                known => known,
            };
            let Found::Known { state, blocks: count, .. } = found else {
                return Err(Error::MapUnstable(at << inode.state.block_bits()));
            };
            let end = at.saturating_add(count).min(blocks.end);
            match holes.last_mut() {
                _ if state != State::Hole => {}
                Some(last) if last.end == at => last.end = end,
                _ => holes.push(at..end),
            }
            at = end;
        }
        Ok(holes)
    }
}

/// The last mapped part of a range, cut to one leaf and to this many groups.
fn last_part(blocks: &impl Blocks, draft: &Draft, range: &Range<u32>, groups: usize) -> Result<Option<Last>> {
    let mut end = range.end;
    while end > range.start {
        let leaf = edit::last_leaf(blocks, draft, &(range.start..end))?;
        let part = leaf.window.start.max(range.start)..end;
        let mut extents = leaf.extents;
        extents.retain_mut(|extent| edit::within(extent, &part).map(|inside| *extent = inside).is_some());
        let (mut touched, mut cut) = (Touched::new(), part.start);
        for at in (0..extents.len()).rev() {
            let (kept, all) = fitting(blocks, &extents[at], &mut touched, groups);
            if !all {
                extents.drain(..at + usize::from(kept.is_none()));
                if let (Some(kept), Some(first)) = (kept, extents.first_mut()) {
                    *first = kept;
                }
                cut = extents.first().map_or(cut, |first| first.logical.get());
                break;
            }
        }
        if !extents.is_empty() {
            return Ok(Some(Last { blocks: cut..end, extents }));
        }
        end = part.start;
    }
    Ok(None)
}

/// The end of an extent that lies in this many groups, counting those already touched; and whether that is all of it.
fn fitting(
    blocks: &impl Blocks,
    extent: &Extent,
    touched: &mut Touched,
    groups: usize,
) -> (Option<Extent>, bool) {
    let geometry = &blocks.ground().superblock.geometry;
    let per = u64::from(geometry.blocks_per_group().max(1));
    let base = u64::from(geometry.first_data_block());
    let (first, last) = (extent.physical.get(), extent.physical.get() + u64::from(extent.length) - 1);
    let group = |block: u64| block.saturating_sub(base) / per;
    for number in (group(first)..=group(last)).rev() {
        if touched.contains(&number) {
            continue;
        }
        if touched.len() == groups.min(touched.capacity()) {
            // Start at the group after this one.
            let from = (number + 1) * per + base;
            let skipped = (from - first) as u32;
            let logical = Lblk(extent.logical.get() + skipped);
            let part = Extent { logical, length: extent.length - skipped, physical: Pblk(from), ..*extent };
            return (Some(part).filter(|_| from <= last), false);
        }
        touched.push(number);
    }
    (Some(*extent), true)
}

/// Checks that the blocks of these extents can be freed: they are marked used, and lie in their clusters correctly.
pub(super) fn check_back(
    space: &FreeSpace,
    blocks: &impl Blocks,
    draft: &Draft,
    extents: &[Extent],
) -> Result<()> {
    let geometry = &blocks.ground().superblock.geometry;
    let (size, base) = (u64::from(geometry.cluster_blocks()), u64::from(geometry.first_data_block()));
    let mut runs: Vec<(Pblk, u64)> = Vec::with_capacity(extents.len());
    let mut known = 0;
    for extent in extents {
        let (logical, length) = (u64::from(extent.logical.get()), u64::from(extent.length));
        let inside = logical % size;
        let physical = extent.physical.get();
        if physical.checked_sub(base).is_none_or(|physical| physical % size != inside) {
            let wrong = Corrupt::from(CorruptKind::ExtentPhysical).at_lblk(extent.logical);
            return Err(wrong.in_inode(draft.ino).into());
        }
        // Name a cluster only once if several extents lie in it.
        let first = (logical - inside).max(known);
        known = (logical + length).next_multiple_of(size);
        if first < known {
            let start = physical - inside + (first - (logical - inside));
            runs.push((Pblk(start), (known - first).min(geometry.blocks_count().saturating_sub(start))));
        }
    }
    if size == 1 {
        draft.counted(blocks.ground(), -(runs.iter().map(|(_, count)| *count as i64).sum::<i64>()))?;
    }
    space.check_give_back(blocks, draft.ino, &runs)
}
