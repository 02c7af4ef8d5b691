//! The path of all requests that do not take a short path: map, view, decide, then execute and complete.
//!
//! This file has what all executors share: the pieces of a range, the decision, the route counters, and the blocks that
//! a write takes before its data is sent and hands over for conversion afterwards. Synchronous calls are executed in
//! [`crate::sync_io`]'s `carry.rs`, a queue sends it in [`crate::queue`].

use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{Appended, Blocks, Count, FileSystem, OpenFile};
use crate::mapping::{MapKind, Piece, Pieces, Range, State};
use crate::pending::{Batch, PendingRange as Pending};
use crate::plan::{Durability, Finish, JournalWork, Plan, Request, Route, Summary, Sync, View, plan_read};
use crate::probes;
use crate::switches::Routing;
use crate::write_plan::{is_subblock, plan_write_of};
use std::collections::HashMap;
use std::sync::Arc;

/// Whether the journal handle around the mapping of a write is still due. It is started once per write, however often
/// the write is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    Due,
    Started,
}

/// Why a write is not a pure overwrite, if it is not.
pub(crate) fn needs_allocation(range: Range, view: &View, summary: &Summary) -> Option<Error> {
    let extends = view.is_extended_by(range);
    if summary.all_written && !extends {
        return None;
    }
    let Summary { unwritten, hole, .. } = *summary;
    Some(Error::NeedsAllocation { pos: range.pos, length: range.length, unwritten, hole, extends })
}

impl<F: FileSystem> Engine<F> {
    /// The first pieces (at most [`crate::PIECES_MAX`]) of `range` as they stand, for reports.
    pub fn map(&self, file: &OpenFile<F>, range: Range, pieces: &mut Pieces) -> Result<(), F::Error> {
        self.visit(file, || self.load_pieces(file, range, pieces))
    }

    /// Runs `look` inside the gate of a file, as a visit: the caller does not stay the gate's owner.
    pub(crate) fn visit<T>(
        &self,
        file: &OpenFile<F>,
        look: impl FnOnce() -> Result<T, F::Error>,
    ) -> Result<T, F::Error> {
        let inside = self.enter(file.state(), false)?;
        let seen = look();
        drop(inside);
        file.state().gate.end_visit();
        seen
    }

    /// Pieces of `range`, or its first ones if there are more than [`crate::PIECES_MAX`], loading unknown mappings.
    /// Call inside the gate: written blocks stay written until it is left.
    pub(crate) fn load_pieces(
        &self,
        file: &OpenFile<F>,
        range: Range,
        pieces: &mut Pieces,
    ) -> Result<(), F::Error> {
        let state = file.state();
        pieces.clear();
        if state.kind() == MapKind::Inline {
            return self.inline_pieces(file, range, pieces);
        }
        let bits = state.block_bits();
        let mut known = state.map.pieces(range, bits, pieces);
        while let Err(pos) = known {
            self.counters.bump(Counter::MapLoads);
            // Each load makes progress, however little of the map is kept in memory.
            let loaded = self.fs.map(&file.inode, pos)?;
            let rest = |pos| Range { pos, length: range.end() - pos };
            known = match loaded.pieces(rest(pos), bits, pieces) {
                Err(next) if next <= pos => return Err(Error::MapUnknown(pos).into()),
                // The loaded snapshot ends here; the published map may know more.
                Err(next) => state.map.pieces(rest(next), bits, pieces),
                Ok(()) => Ok(()),
            };
        }
        Ok(())
    }

    #[cold]
    fn inline_pieces(&self, file: &OpenFile<F>, range: Range, pieces: &mut Pieces) -> Result<(), F::Error> {
        let inside = self.fs.inline_piece(&file.inode)?;
        let split = inside.end().clamp(range.pos, range.end());
        if split > range.pos {
            let physical = inside.physical.saturating_add(range.pos);
            pieces.push(Piece { logical: range.pos, physical, length: split - range.pos, ..inside });
        }
        if range.end() > split {
            let length = range.end() - split;
            pieces.push(Piece { logical: split, physical: 0, length, state: State::Hole });
        }
        Ok(())
    }

    /// Calls `each` for all pieces of `range`, in order, loading unknown mappings.
    pub(crate) fn for_each_piece(
        &self,
        file: &OpenFile<F>,
        range: Range,
        mut each: impl FnMut(&Piece) -> Result<(), F::Error>,
    ) -> Result<(), F::Error> {
        let mut pieces = Pieces::new();
        let mut pos = range.pos;
        while pos < range.end() {
            self.load_pieces(file, Range { pos, length: range.end() - pos }, &mut pieces)?;
            for piece in &pieces {
                each(piece)?;
                pos = piece.end();
            }
        }
        Ok(())
    }

    /// Maps, then views, then plans a write, inside the gate. Before anything is sent, refuses writes that need a
    /// change the file system cannot make, and with `nowait` writes that would have to wait. The plan holds until the
    /// gate is left; the plan of an overwrite holds even if others convert blocks, since blocks only become written.
    pub(crate) fn decide(
        &self,
        file: &OpenFile<F>,
        request: &Request,
        mapping: &mut Mapping,
        nowait: bool,
    ) -> Result<Plan, F::Error> {
        self.decide_behind(file, request, mapping, nowait, |view| view)
    }

    /// The same for an append behind others that are in flight: `behind` moves the sizes of the view to their end.
    #[inline(always)]
    pub(crate) fn decide_behind(
        &self,
        file: &OpenFile<F>,
        request: &Request,
        mapping: &mut Mapping,
        nowait: bool,
        behind: impl FnOnce(View) -> View,
    ) -> Result<Plan, F::Error> {
        if nowait {
            self.check_known(file, request.range)?;
            self.check_no_handle(file)?;
        }
        let handle = match std::mem::replace(mapping, Mapping::Started) {
            Mapping::Due => self.fs.start_mapping(file.switches, &self.counters)?,
            Mapping::Started => None,
        };
        let mut summary = Summary::of(&[]);
        let mapped = self.for_each_piece(file, request.range, |piece| {
            summary.add(piece);
            Ok(())
        });
        if let Some(handle) = handle {
            self.fs.stop_mapping(handle)?;
        }
        mapped?;
        // Load the mapping before the view: a reader that sees a converted block must also see that its conversion is
        // not durable yet (`InodeState::set_datasync_tid`).
        let view = behind(file.view());
        if let Some(needs) = needs_allocation(request.range, &view, &summary)
            && let Err(refused) = self.fs.check_allocates(&file.inode, needs)
        {
            self.counters.bump(Counter::AllocationsRefused);
            return Err(refused);
        }
        let plan = plan_write_of(request, &view, &summary, &self.capabilities, file.switches);
        if nowait && plan.waits() {
            return Err(self.would_block().into());
        }
        if plan.drops_privileges {
            self.fs.check_privileges(&file.inode)?;
        }
        probes::plan(true, request.range, &plan);
        Ok(plan)
    }

    /// Keeps an append in flight only where the file system can claim its blocks.
    pub(crate) fn with_claims(&self, file: &OpenFile<F>, range: Range, mut plan: Plan) -> Plan {
        let bits = file.state().block_bits();
        if plan.journal == JournalWork::Extend
            && plan.finish == Finish::Asynchronous
            && !self.fs.queues_appends(&file.inode, range.pos >> bits..range.end() >> bits)
        {
            plan.make_exclusive();
        }
        plan
    }

    /// Views, plans and counts a read that is done piece by piece, inside the gate.
    pub(crate) fn decide_read(&self, file: &OpenFile<F>, range: Range, bounced: bool) -> Plan {
        let request = Request { range, sync: Sync::None, bounced, queued: false };
        let plan = plan_read(&request, &file.state().view(), &[], &self.capabilities, file.switches);
        match plan.route {
            Route::PastEnd => {}
            Route::InlineRead => self.counters.bump(Counter::InlineReads),
            Route::DaxRead => self.counters.bump(Counter::DaxCopies),
            Route::BouncedRead => self.counters.bump(Counter::Bounces),
            _ => self.counters.bump(Counter::GeneralReads),
        }
        if plan.counted {
            self.counters.bump(Counter::DioCounted);
        }
        probes::plan(false, range, &plan);
        plan
    }

    /// Counts the route of a write on the caller's line. `exclusive`: how it holds the gate.
    #[inline(always)]
    pub(crate) fn count_write<R: Routing>(
        &self,
        line: &impl Count,
        request: &Request,
        plan: &Plan,
        exclusive: bool,
        block_bits: u32,
        routing: R,
    ) {
        let overwrites = matches!(plan.journal, JournalWork::None | JournalWork::Handle);
        let plain = overwrites && !plan.drops_privileges;
        if plain && (routing.switches().overwrite_no_transaction || !self.fs.has_journal()) {
            line.bump(Counter::OverwritesWithoutHandle);
        }
        if exclusive {
            line.bump(Counter::ExclusiveWrites);
        } else if is_subblock(request, block_bits) {
            line.bump(Counter::SharedSubblockWrites);
        }
        if request.bounced {
            line.bump(Counter::Bounces);
        } else if matches!(plan.route, Route::DaxOverwrite | Route::DaxAllocate) {
            line.bump(Counter::DaxCopies);
        }
        if plan.counted {
            line.bump(Counter::DioCounted);
        }
        if plan.durability == Durability::Fua {
            line.bump(Counter::FuaWrites);
        }
    }

    /// Prepares a planned write before its data is sent: allocates its holes, and reserves the conversion of its
    /// unwritten blocks, if there are any.
    ///
    /// # Errors
    /// With `nowait`, [`Error::WouldBlock`] if that had to wait.
    pub(crate) fn take_blocks(
        &self,
        file: &OpenFile<F>,
        request: &Request,
        plan: &Plan,
        nowait: bool,
    ) -> Result<Option<Fresh<F>>, F::Error> {
        if matches!(plan.journal, JournalWork::None | JournalWork::Handle) {
            return Ok(None);
        }
        let bits = file.state().block_bits();
        let blocks = request.range.pos >> bits..((request.range.end() - 1) >> bits) + 1;
        // Pending first: from then on claimed blocks stay, whether this write finds them or claims them itself.
        let mut map = match nowait {
            true => file.state().map.try_lock().ok_or_else(|| self.would_block())?,
            false => file.state().map.lock(),
        };
        let pending = map.pending().add(blocks.clone());
        drop(map);
        let inode = file.inode.clone();
        let pending = Some(pending);
        let mut fresh = Fresh { inode, blocks, piece: None, pending, reserve: None, append: None };
        self.fill_holes(file, request, plan, nowait, &fresh.blocks)?;
        let mut holds = false;
        self.for_each_piece(file, request.range, |piece| {
            holds |= piece.state == State::Unwritten;
            fresh.piece = (piece.length == request.range.length).then_some(*piece);
            Ok(())
        })?;
        if !holds {
            return Ok(None);
        }
        let blocks = fresh.blocks.clone();
        fresh.reserve = match nowait {
            true => self.fs.try_reserve(&file.inode, blocks)?,
            false => Some(self.fs.reserve(&file.inode, blocks)?),
        };
        match fresh.reserve {
            Some(_) => Ok(Some(fresh)),
            None => Err(self.would_block().into()),
        }
    }

    /// Claims or allocates the holes of a write, which is among the pending ones.
    fn fill_holes(
        &self,
        file: &OpenFile<F>,
        request: &Request,
        plan: &Plan,
        nowait: bool,
        blocks: &Blocks,
    ) -> Result<(), F::Error> {
        // A plan without holes may be out of date: what it found claimed was released.
        let planned = matches!(plan.journal, JournalWork::Allocate | JournalWork::AllocateConvert);
        if !planned && !self.holds(file, &request.range, State::Hole)? {
            return Ok(());
        }
        if nowait {
            return Err(self.would_block().into());
        }
        self.counters.bump(Counter::Allocations);
        if plan.journal == JournalWork::Extend || !self.fs.claim(&file.inode, blocks)? {
            self.fs.allocate(&file.inode, blocks.clone())?;
        }
        Ok(())
    }

    /// Whether some of `range` is in this state.
    pub(crate) fn holds(&self, file: &OpenFile<F>, range: &Range, state: State) -> Result<bool, F::Error> {
        let mut holds = false;
        self.for_each_piece(file, *range, |piece| {
            holds |= piece.state == state;
            Ok(())
        })?;
        Ok(holds)
    }

    /// Converts the blocks that writes have filled, one handle per inode. Returns one result per write, in order.
    pub(crate) fn convert(&self, filled: Vec<Fresh<F>>) -> Vec<Result<(), F::Error>> {
        if filled.len() <= 1 {
            let count = filled.len();
            let mut filled = filled;
            return std::iter::repeat_n(self.convert_one(&mut filled), count).collect();
        }
        let mut groups: Vec<Vec<Fresh<F>>> = Vec::new();
        let mut known: HashMap<*const F::Inode, usize> = HashMap::new();
        let mut order = Vec::with_capacity(filled.len());
        for fresh in filled {
            let group = *known.entry(Arc::as_ptr(&fresh.inode)).or_insert(groups.len());
            if group == groups.len() {
                groups.push(Vec::new());
            }
            groups[group].push(fresh);
            order.push(group);
        }
        let results: Vec<_> = groups.iter_mut().map(|group| self.convert_one(group)).collect();
        order.into_iter().map(|group| results[group].clone()).collect()
    }

    /// Converts what writes of one inode have filled.
    pub(crate) fn convert_one(&self, group: &mut [Fresh<F>]) -> Result<(), F::Error> {
        let Some(mut filled) = Filled::of(group) else { return Ok(()) };
        let reserves = filled.take_reserves();
        let appends = std::mem::take(&mut filled.appends);
        if !filled.blocks().is_empty() {
            self.counters.bump(Counter::Conversions);
        }
        if appends.is_empty() {
            return self.fs.convert(&filled.inode, filled.blocks(), reserves);
        }
        self.counters.add(Counter::Extensions, appends.len() as u64);
        self.fs.append_end(&filled.inode, appends, filled.blocks(), reserves)
    }
}

/// Blocks that a write is about to fill: unwritten ones, registered as pending in the inode, with the reserve for their
/// conversion, or those claimed for an append. If dropped, they are not converted and read as zeros, and the claim is
/// released.
pub(crate) struct Fresh<F: FileSystem> {
    inode: Arc<F::Inode>,
    blocks: Blocks,
    /// Where all its data goes, if to one place. Pending blocks are not moved, so this holds as long as it.
    piece: Option<Piece>,
    /// `None` once handed over.
    pending: Option<Pending>,
    reserve: Option<F::Reserve>,
    /// It moves the size. `None` once handed over.
    append: Option<Appended<F>>,
}

impl<F: FileSystem> Fresh<F> {
    /// An append to file byte `end`: over unwritten blocks (`fresh`), or over claimed ones.
    pub(crate) fn append(
        inode: &Arc<F::Inode>,
        fresh: Option<Self>,
        claim: Option<F::Append>,
        end: u64,
    ) -> Self {
        let append = Some(Appended { claim, end });
        match fresh {
            Some(mut fresh) => {
                fresh.append = append;
                fresh
            }
            // Its blocks are not in the map: nothing is pending.
            None => Fresh {
                inode: inode.clone(),
                blocks: 0..0,
                piece: None,
                pending: None,
                reserve: None,
                append,
            },
        }
    }

    /// The place of all its data, if it is one.
    pub(crate) fn piece(&self) -> Option<Piece> {
        self.piece
    }
}

impl<F: FileSystem> Drop for Fresh<F> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            let mut map = F::state(&self.inode).map.lock();
            map.pending().withdraw(pending);
            F::unclaim(&self.inode, &mut map, &self.blocks);
        }
    }
}

/// Blocks of one inode whose data is complete, during their conversion. Dropping it removes them from the pending set.
pub(crate) struct Filled<F: FileSystem> {
    inode: Arc<F::Inode>,
    batch: Option<Batch>,
    reserves: Vec<F::Reserve>,
    appends: Vec<Appended<F>>,
}

impl<F: FileSystem> Filled<F> {
    /// Collects the blocks that writes of one inode have filled. `None` if there are none.
    pub(crate) fn of(group: &mut [Fresh<F>]) -> Option<Self> {
        let inode = group.first()?.inode.clone();
        let reserves = group.iter_mut().filter_map(|fresh| fresh.reserve.take()).collect();
        let appends = group.iter_mut().filter_map(|fresh| fresh.append.take()).collect();
        let mut writer = F::state(&inode).map.lock();
        for fresh in group {
            if let Some(pending) = fresh.pending.take() {
                writer.pending().complete(pending);
            }
        }
        // Under the same lock, so that no other thread takes them.
        let batch = writer.pending().take_batch();
        drop(writer);
        Some(Filled { inode, batch, reserves, appends })
    }

    pub(crate) fn take_reserves(&mut self) -> Vec<F::Reserve> {
        std::mem::take(&mut self.reserves)
    }

    pub(crate) fn blocks(&self) -> &[Blocks] {
        self.batch.as_ref().map_or(&[], Batch::ranges)
    }
}

impl<F: FileSystem> Drop for Filled<F> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            let mut map = F::state(&self.inode).map.lock();
            let blocks = map.pending().finish(batch);
            blocks.iter().for_each(|blocks| F::unclaim(&self.inode, &mut map, blocks));
        }
    }
}
