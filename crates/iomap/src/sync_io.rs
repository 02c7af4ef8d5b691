//! Synchronous direct reads and writes: the calling thread maps, transfers and completes under the gate.

use crate::counters::Counter;
use crate::door::Payload;
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::gate::InodeGuard;
use crate::inode::InodeState;
use crate::mapping::{Piece, Pieces, Range, State};
use crate::plan::{Durability, GateMode, Plan, Request, Route, Summary, View};
use crate::queue::WriteFlags;
use crate::switches::{AllOn, Routing};
use crate::write_plan::{plan_shared_overwrite, plan_write, shares_gate};
use uext4_blockdev::WriteDurability;

/// Whether the journal's part in the mapping of a write is still due. Each write has it once, however often it is
/// looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    Due,
    Started,
}

/// Refuses to send data to what is not a written block. The plan let only such pieces through, so this never refuses
/// unless mapping or file system are broken; then it keeps data from going where it must not.
#[inline(always)]
pub(crate) fn check_written(piece: &Piece) -> Result<(), Error> {
    if piece.state == State::Written { Ok(()) } else { Err(Error::NotWritten(piece.logical)) }
}

/// Why a write is not a pure overwrite, if it is not.
#[inline]
pub(crate) fn needs_allocation(range: Range, view: &View, summary: &Summary) -> Option<Error> {
    let extends = range.end() > view.size || range.end() > view.disk_size;
    if summary.all_written && !extends {
        return None;
    }
    let Summary { unwritten, hole, .. } = *summary;
    Some(Error::NeedsAllocation { pos: range.pos, length: range.length, unwritten, hole, extends })
}

impl<F: FileSystem> Engine<F> {
    /// Reads into `buf` from byte `pos`; returns the bytes read, fewer at the end of the file. Position,
    /// length and address obey the device's alignment; otherwise nothing is read (`Misaligned`).
    #[inline]
    pub fn read_at(&self, file: &OpenFile<F>, buf: &mut [u8], pos: u64) -> Result<usize, F::Error> {
        if file.is_all_on() {
            self.read_routed(file, buf, pos, AllOn)
        } else {
            self.read_routed(file, buf, pos, file.switches)
        }
    }

    /// Writes `buf` at byte `pos` over written blocks; returns `buf.len()`. Alignment as for
    /// [`Engine::read_at`]. Durable as `flags` ask when it returns.
    #[inline]
    pub fn write_at(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        pos: u64,
        flags: WriteFlags,
    ) -> Result<usize, F::Error> {
        if file.is_all_on() {
            self.write_routed(file, buf, pos, flags, AllOn)
        } else {
            self.write_routed(file, buf, pos, flags, file.switches)
        }
    }

    /// `fdatasync` (`all` = false) or `fsync`: completed writes of the file are durable when it returns.
    pub fn sync(&self, file: &OpenFile<F>, all: bool) -> Result<(), F::Error> {
        self.sync_many(&[file], all)
    }

    /// One commit and one flush for several files.
    pub fn sync_many(&self, files: &[&OpenFile<F>], all: bool) -> Result<(), F::Error> {
        self.check_process()?;
        self.fs.check_alive()?;
        let inodes: Vec<&F::Inode> = files.iter().map(|file| &*file.inode).collect();
        self.make_durable(&inodes, all)
    }

    #[inline(always)]
    fn read_routed<R: Routing>(
        &self,
        file: &OpenFile<F>,
        buf: &mut [u8],
        pos: u64,
        routing: R,
    ) -> Result<usize, F::Error> {
        file.check_readable()?;
        let range = self.check_direct(pos, buf.len() as u64)?;
        if range.length == 0 {
            return Ok(0);
        }
        self.check_address(buf.as_ptr())?;
        let state = file.state();
        if self.capabilities.dax.is_some() {
            // Not by `enter`: an outcome that may be an error has to be put together and taken apart again.
            let guard = match state.gate.try_lock_shared(false) {
                Ok(guard) => guard,
                Err(_busy) => self.enter_waiting(state, false)?,
            };
            return self.read_mapped(file, &guard, buf, range, routing);
        }
        let guard = match state.gate.try_lock_shared(true) {
            Ok(guard) => guard,
            Err(_busy) => self.enter_waiting(state, true)?,
        };
        if routing.switches().simple_read
            && let Ok(read) = self.simple_read(&guard, state, buf, range)
        {
            return read;
        }
        if range.pos >= state.size() {
            return Ok(0);
        }
        self.counters.bump_at(guard.slot(), Counter::GeneralReads);
        self.counters.bump_at(guard.slot(), Counter::DioCounted);
        self.read_pieces(file, &guard, buf, range, |_held, buf, physical| {
            Ok(self.device.read_at(buf, physical)?)
        })
    }

    /// Enters the gate, waiting while somebody holds it exclusively.
    #[inline(always)]
    pub(crate) fn enter<'g>(&self, state: &'g InodeState, counted: bool) -> Result<InodeGuard<'g>, Error> {
        match state.gate.try_lock_shared(counted) {
            Ok(guard) => Ok(guard),
            Err(_busy) => self.enter_waiting(state, counted),
        }
    }

    #[cold]
    fn enter_waiting<'g>(&self, state: &'g InodeState, counted: bool) -> Result<InodeGuard<'g>, Error> {
        // In a child process the thread that holds the gate may not exist.
        self.check_process()?;
        Ok(state.gate.lock_shared(counted, &mut self.pump()))
    }

    #[inline(always)]
    fn read_mapped<R: Routing>(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        buf: &mut [u8],
        range: Range,
        routing: R,
    ) -> Result<usize, F::Error> {
        if range.pos >= file.state().size() {
            return Ok(0);
        }
        self.counters.bump_at(guard.slot(), Counter::DaxCopies);
        if routing.switches().dax_no_dio_count {
            self.read_mapped_by(file, guard, buf, range, |held, buf, at| self.copy_out(held, buf, at))
        } else {
            self.counters.bump(Counter::DioCounted);
            self.read_mapped_by(file, guard, buf, range, |held, buf, at| self.copy_out_counted(held, buf, at))
        }
    }

    #[inline(always)]
    fn read_mapped_by(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        buf: &mut [u8],
        range: Range,
        copy: impl Fn(&InodeGuard<'_>, &mut [u8], u64) -> Result<(), Error>,
    ) -> Result<usize, F::Error> {
        let state = file.state();
        if range.end() <= state.size()
            && let Some(physical) = state.find_written(guard, range)
        {
            copy(guard, buf, physical)?;
            return Ok(buf.len());
        }
        self.read_pieces(file, guard, buf, range, copy)
    }

    /// Reads piece by piece: transfers what is written, zeroes the rest, stops at the end of the file.
    pub(crate) fn read_pieces(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        buf: &mut [u8],
        range: Range,
        transfer: impl Fn(&InodeGuard<'_>, &mut [u8], u64) -> Result<(), Error>,
    ) -> Result<usize, F::Error> {
        let visible = file.state().size().saturating_sub(range.pos).min(range.length) as usize;
        if visible == 0 {
            return Ok(0);
        }
        let block = self.geometry.logical_block as usize;
        let whole = Range { pos: range.pos, length: visible.next_multiple_of(block) as u64 };
        self.for_each_piece(file, whole, |piece| {
            let start = (piece.logical - range.pos) as usize;
            let part = &mut buf[start..start + piece.length as usize];
            match piece.state {
                State::Written => transfer(guard, part, piece.physical)?,
                State::Unwritten | State::Hole | State::Inline => part.fill(0),
            }
            Ok(())
        })?;
        // The rest of the last block is no part of the file.
        buf[visible..whole.length as usize].fill(0);
        Ok(visible)
    }

    /// Calls `each` for all pieces of `range`, in order, loading what is unknown.
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

    #[inline(always)]
    fn write_routed<R: Routing>(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        pos: u64,
        flags: WriteFlags,
        routing: R,
    ) -> Result<usize, F::Error> {
        self.fs.check_alive()?;
        file.check_writable()?;
        let range = self.check_direct(pos, buf.len() as u64)?;
        if range.length == 0 {
            return Ok(0);
        }
        self.check_address(buf.as_ptr())?;
        let request = Request { range, sync: flags.sync(), bounced: false, queued: false };
        let mut mapping = Mapping::Due;
        let written = if self.capabilities.dax.is_some() {
            self.overwrite_one::<R, true>(file, buf, &request, &mut mapping, routing)
        } else {
            self.overwrite_one::<R, false>(file, buf, &request, &mut mapping, routing)
        };
        if let Some(written) = written {
            return written;
        }
        self.write_general(file, buf, &request, flags.contains(WriteFlags::NOWAIT), mapping, routing)
    }

    /// A shared overwrite of one piece by the calling thread, into mapped memory or not. `None`: it needs the
    /// general way; nothing was written.
    #[inline(always)]
    fn overwrite_one<R: Routing, const MAPPED: bool>(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        request: &Request,
        mapping: &mut Mapping,
        routing: R,
    ) -> Option<Result<usize, F::Error>> {
        let state = file.state();
        // A look ahead, so that nothing is started for what cannot go this way. What counts is decided below.
        if !shares_gate(request, state.block_bits(), routing) {
            return None;
        }
        let guard = state.gate.try_lock_shared(!MAPPED).ok()?;
        // A thread beyond those with a line of their own takes the general way.
        let line = self.counters.owned_line(guard.slot())?;
        let handle = match self.fs.start_mapping(routing, line) {
            Ok(handle) => handle,
            Err(error) => return Some(Err(error)),
        };
        *mapping = Mapping::Started;
        let located = state.find_written(&guard, request.range);
        if let Some(handle) = handle
            && let Err(error) = self.fs.stop_mapping(handle)
        {
            return Some(Err(error));
        }
        let physical = located?;
        // The mapping first, then the view: whoever sees a converted block must also see that its conversion is
        // not durable yet (`InodeState::set_datasync_tid`).
        let durability = plan_shared_overwrite(request, &state.view(), &self.capabilities, routing)?;
        if self.needs_no_handle(routing) {
            line.bump(Counter::OverwritesWithoutHandle);
        }
        if (request.range.pos | request.range.length) & ((1 << state.block_bits()) - 1) != 0 {
            line.bump(Counter::SharedSubblockWrites);
        }
        guard.mark_written();
        let how = if durability == Durability::Fua {
            line.bump(Counter::FuaWrites);
            WriteDurability::Fua
        } else {
            WriteDurability::Cached
        };
        let written = if !MAPPED {
            line.bump(Counter::DioCounted);
            self.device.write_at(buf, physical, how).map_err(Error::from)
        } else if routing.switches().dax_no_dio_count {
            line.bump(Counter::DaxCopies);
            self.copy_in(&guard, buf, physical, how)
        } else {
            line.bump(Counter::DaxCopies);
            line.bump(Counter::DioCounted);
            self.copy_in_counted(&guard, buf, physical, how)
        };
        drop(guard);
        match (written, durability) {
            (Ok(()), Durability::None | Durability::Fua | Durability::WriteThrough) => Some(Ok(buf.len())),
            (Ok(()), _) => Some(self.make_durable_after(file, durability).map(|()| buf.len())),
            (Err(error), _) => Some(Err(self.write_failed(error, durability))),
        }
    }

    fn write_general<R: Routing>(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        request: &Request,
        nowait: bool,
        mut mapping: Mapping,
        routing: R,
    ) -> Result<usize, F::Error> {
        let state = file.state();
        let counted = self.capabilities.dax.is_none();
        let mut guard = if !shares_gate(request, state.block_bits(), routing) {
            // By its shape alone it cannot share, so it does not try to.
            if nowait {
                return Err(Error::WouldBlock.into());
            }
            self.check_process()?;
            state.gate.lock_exclusive(true, &mut self.pump())
        } else {
            match state.gate.try_lock_shared(counted) {
                Ok(guard) => guard,
                Err(_busy) if nowait => return Err(Error::WouldBlock.into()),
                Err(_busy) => self.enter(state, counted)?,
            }
        };
        let mut pieces = Pieces::new();
        let plan = loop {
            let plan = self.decide(file, &guard, request, mapping, routing, &mut pieces)?;
            if plan.gate == GateMode::Shared || guard.is_exclusive() {
                break plan;
            }
            mapping = Mapping::Started;
            drop(guard);
            if nowait {
                return Err(Error::WouldBlock.into());
            }
            self.check_process()?;
            // Everything may have changed while the gate was not held: decide again.
            guard = state.gate.lock_exclusive(plan.drain, &mut self.pump());
        };
        self.count_write(request, &plan, state, &guard, routing);
        self.transfer(file, &guard, buf, request, &plan, &pieces)?;
        drop(guard);
        self.complete_durability(file, &plan)?;
        Ok(buf.len())
    }

    /// Maps, then views, then plans; refuses what needs allocation. `pieces` are the first of the request.
    #[inline]
    pub(crate) fn decide<R: Routing>(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        request: &Request,
        mapping: Mapping,
        routing: R,
        pieces: &mut Pieces,
    ) -> Result<Plan, F::Error> {
        let state = file.state();
        let handle = match mapping {
            Mapping::Due => self.fs.start_mapping(routing, &self.counters)?,
            Mapping::Started => None,
        };
        pieces.clear();
        let range = request.range;
        let mapped = match state.find_written(guard, range) {
            Some(physical) => {
                pieces.push(Piece {
                    logical: range.pos,
                    physical,
                    length: range.length,
                    state: State::Written,
                });
                Ok(Summary::of(pieces))
            }
            None => self.summarize(file, range, pieces),
        };
        if let Some(handle) = handle {
            self.fs.stop_mapping(handle)?;
        }
        let summary = mapped?;
        let view = state.view();
        self.refuse_allocation(range, &view, &summary)?;
        Ok(plan_write(request, &view, pieces, &self.capabilities, routing))
    }

    /// What all pieces of `range` are made of; `pieces` become the first ones.
    #[cold]
    fn summarize(&self, file: &OpenFile<F>, range: Range, pieces: &mut Pieces) -> Result<Summary, F::Error> {
        self.load_pieces(file, range, pieces)?;
        let mut summary = Summary::of(pieces);
        let known = pieces.last().map_or(range.pos, Piece::end);
        let rest = Range { pos: known, length: range.end() - known };
        self.for_each_piece(file, rest, |piece| {
            summary.add(piece);
            Ok(())
        })?;
        Ok(summary)
    }

    /// Refuses a write that is not a pure overwrite, saying what it would need.
    #[inline]
    pub(crate) fn refuse_allocation(
        &self,
        range: Range,
        view: &View,
        summary: &Summary,
    ) -> Result<(), F::Error> {
        match needs_allocation(range, view, summary) {
            None => Ok(()),
            Some(error) => {
                self.counters.bump(Counter::AllocationsRefused);
                Err(error.into())
            }
        }
    }

    /// Whether an overwrite is mapped without a handle: the switch says so, or there is no journal.
    #[inline(always)]
    pub(crate) fn needs_no_handle<R: Routing>(&self, routing: R) -> bool {
        routing.switches().overwrite_no_transaction || !self.fs.has_journal()
    }

    /// Refuses a range that is not a pure overwrite. Call inside the gate.
    pub(crate) fn check_all_written(&self, file: &OpenFile<F>, range: Range) -> Result<(), F::Error> {
        let summary = self.summarize(file, range, &mut Pieces::new())?;
        self.refuse_allocation(range, &file.state().view(), &summary)
    }

    #[inline(always)]
    fn count_write<R: Routing>(
        &self,
        request: &Request,
        plan: &Plan,
        state: &InodeState,
        guard: &InodeGuard<'_>,
        routing: R,
    ) {
        let block_mask = (1 << state.block_bits()) - 1;
        let slot = guard.slot();
        if self.needs_no_handle(routing) {
            self.counters.bump_at(slot, Counter::OverwritesWithoutHandle);
        }
        if guard.is_exclusive() {
            self.counters.bump_at(slot, Counter::ExclusiveWrites);
        } else if (request.range.pos | request.range.length) & block_mask != 0 {
            self.counters.bump_at(slot, Counter::SharedSubblockWrites);
        }
        if plan.route == Route::DaxOverwrite {
            self.counters.bump_at(slot, Counter::DaxCopies);
        }
        if plan.counted {
            self.counters.bump_at(slot, Counter::DioCounted);
        }
        if plan.durability == Durability::Fua {
            self.counters.bump_at(slot, Counter::FuaWrites);
        }
        guard.mark_written();
    }

    /// Sends one contiguous part of a planned overwrite.
    #[inline(always)]
    fn transfer_piece(
        &self,
        guard: &InodeGuard<'_>,
        part: &[u8],
        physical: u64,
        plan: &Plan,
    ) -> Result<(), F::Error> {
        let durability = match plan.durability {
            Durability::Fua => WriteDurability::Fua,
            _ => WriteDurability::Cached,
        };
        let written = match (plan.route, plan.counted) {
            (Route::DaxOverwrite, false) => self.copy_in(guard, part, physical, durability),
            (Route::DaxOverwrite, true) => self.copy_in_counted(guard, part, physical, durability),
            _ => self.device.write_at(part, physical, durability).map_err(Error::from),
        };
        written.map_err(|error| self.write_failed(error, plan.durability))
    }

    /// Sends the data of a planned overwrite.
    fn transfer(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        buf: &[u8],
        request: &Request,
        plan: &Plan,
        pieces: &Pieces,
    ) -> Result<(), F::Error> {
        let write = |piece: &Piece| {
            check_written(piece)?;
            let start = (piece.logical - request.range.pos) as usize;
            self.transfer_piece(guard, &buf[start..start + piece.length as usize], piece.physical, plan)
        };
        for piece in pieces {
            write(piece)?;
        }
        match pieces.last() {
            Some(last) if last.end() < request.range.end() => {
                let rest = Range { pos: last.end(), length: request.range.end() - last.end() };
                self.for_each_piece(file, rest, write)
            }
            _ => Ok(()),
        }
    }

    /// A failed FUA write leaves nobody who would flush later: the volume is aborted.
    #[cold]
    fn write_failed(&self, error: Error, durability: Durability) -> F::Error {
        if durability == Durability::Fua { self.fatal(error) } else { error.into() }
    }

    /// The plain routes of durability, after the data is complete.
    #[inline]
    pub(crate) fn complete_durability(&self, file: &OpenFile<F>, plan: &Plan) -> Result<(), F::Error> {
        self.make_durable_after(file, plan.durability)
    }

    fn make_durable_after(&self, file: &OpenFile<F>, durability: Durability) -> Result<(), F::Error> {
        match durability {
            Durability::None | Durability::Fua | Durability::WriteThrough => Ok(()),
            Durability::Datasync => self.make_durable(&[&file.inode], false),
            Durability::Fsync => self.make_durable(&[&file.inode], true),
        }
    }

    /// A queued read on mapped memory: a copy, done when it returns.
    pub(crate) fn read_payload(
        &self,
        file: &OpenFile<F>,
        payload: &mut Payload,
        pos: u64,
    ) -> Result<usize, F::Error> {
        let mut total = 0;
        let buffers = match payload {
            Payload::None => &mut [][..],
            Payload::One(buffer) => std::slice::from_mut(buffer),
            Payload::Many(buffers) => &mut buffers[..],
        };
        for buffer in buffers {
            let read = self.read_at(file, buffer, pos + total as u64)?;
            total += read;
            if read < buffer.len() {
                break;
            }
        }
        Ok(total)
    }

    /// A queued write on mapped memory: a copy, done when it returns.
    pub(crate) fn write_payload(
        &self,
        file: &OpenFile<F>,
        payload: &Payload,
        pos: u64,
        flags: WriteFlags,
    ) -> Result<usize, F::Error> {
        let buffers = match payload {
            Payload::None => &[][..],
            Payload::One(buffer) => std::slice::from_ref(buffer),
            Payload::Many(buffers) => &buffers[..],
        };
        if buffers.len() > 1 {
            // A request fails as a whole or not at all: see first that all of it is a pure overwrite.
            self.check_overwrite(file, Range { pos, length: payload.len() })?;
        }
        let mut total = 0;
        for buffer in buffers {
            total += self.write_at(file, buffer, pos + total as u64, flags)?;
        }
        Ok(total)
    }
}
