//! Synchronous direct reads and writes: the calling thread maps, transfers and completes under the gate.

use crate::carry::Flow;
use crate::counters::Counter;
use crate::door::Payload;
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile, Synced};
use crate::gate::InodeGuard;
use crate::inode::InodeState;
use crate::mapping::{MapKind, Piece, Range, State};
use crate::nowait::NOWAIT_MAX;
use crate::pipeline::Mapping;
use crate::plan::{Durability, Plan, ReadFlags, Request, Route, WriteFlags};
use crate::switches::{AllOn, Routing};
use crate::write_plan::{plan_shared_overwrite, shares_gate};
use uext4_blockdev::WriteDurability;

impl<F: FileSystem> Engine<F> {
    /// Reads into `buf` from byte `pos`; returns the bytes read, fewer at the end of the file. Position,
    /// length and address obey the device's alignment; otherwise nothing is read (`Misaligned`).
    #[inline]
    pub fn read_at(&self, file: &OpenFile<F>, buf: &mut [u8], pos: u64) -> Result<usize, F::Error> {
        if file.is_all_on() {
            self.read_routed(file, buf, pos, AllOn)
        } else {
            self.read_as_given(file, buf, pos)
        }
    }

    /// With the file's own switches and priority. Out of line, so that the usual path spills nothing.
    #[inline(never)]
    fn read_as_given(&self, file: &OpenFile<F>, buf: &mut [u8], pos: u64) -> Result<usize, F::Error> {
        self.note_access(file);
        let read = file.priority.around(|| self.read_routed(file, buf, pos, file.switches));
        read.map_err(Error::from)?
    }

    /// Tells the file system of a read, if it wants to know.
    pub(crate) fn note_access(&self, file: &OpenFile<F>) {
        if file.notes_access() && file.readable {
            self.fs.accessed(&file.inode);
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
            self.write_as_given(file, buf, pos, flags)
        }
    }

    /// As [`Engine::read_as_given`].
    #[inline(never)]
    fn write_as_given(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        pos: u64,
        flags: WriteFlags,
    ) -> Result<usize, F::Error> {
        let flags = file.flags_of(flags);
        let written = file.priority.around(|| self.write_routed(file, buf, pos, flags, file.switches));
        written.map_err(Error::from)?
    }

    /// `fdatasync` (`all` = false) or `fsync`: completed writes of the file are durable when it returns.
    pub fn sync(&self, file: &OpenFile<F>, all: bool) -> Result<(), F::Error> {
        self.sync_many(&[file], all)
    }

    /// One commit and one flush for several files.
    pub fn sync_many(&self, files: &[&OpenFile<F>], all: bool) -> Result<(), F::Error> {
        self.check_process()?;
        self.fs.check_alive()?;
        let mut late = Ok(());
        for file in files {
            late = late.and(self.settle_sync(file, &mut self.helper()));
        }
        let batch: Vec<_> = files.iter().map(|file| Synced { inode: &*file.inode, all }).collect();
        self.make_durable(&batch)?;
        late
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
            // Not through `enter`: its `Result` would have to be built and taken apart again.
            let guard = match state.gate.try_lock_shared(false) {
                Ok(guard) => guard,
                Err(_busy) => self.enter_waiting(state, false)?,
            };
            if range.end() <= state.size()
                && let Some(physical) = state.find_written(&guard, range)
            {
                return self.copy_one(&guard, buf, physical, routing);
            }
            return self.read_general(file, &guard, buf, range);
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
        self.read_not_simple(file, guard, buf, range)
    }

    /// A read that does not take the short path, perhaps of a file with pages.
    // Out of line, so that the short paths spill nothing for it.
    #[inline(never)]
    fn read_not_simple<'f>(
        &self,
        file: &'f OpenFile<F>,
        mut guard: InodeGuard<'f>,
        buf: &mut [u8],
        range: Range,
    ) -> Result<usize, F::Error> {
        loop {
            if !file.state().is_cached() {
                return self.read_general(file, &guard, buf, range);
            }
            drop(guard);
            if let Some(read) = self.read_over_pages(file, buf, range.pos)? {
                return Ok(read);
            }
            guard = self.enter(file.state(), true)?;
        }
    }

    /// Enters the gate, waiting while it is held exclusively.
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
        Ok(state.gate.lock_shared(counted, &mut self.helper()))
    }

    /// Reads one run of mapped memory.
    #[inline(always)]
    fn copy_one<R: Routing>(
        &self,
        guard: &InodeGuard<'_>,
        buf: &mut [u8],
        physical: u64,
        routing: R,
    ) -> Result<usize, F::Error> {
        self.counters.bump_at(guard.slot(), Counter::DaxCopies);
        let counted = !routing.switches().dax_no_dio_count;
        if counted {
            self.counters.bump(Counter::DioCounted);
        }
        self.copy_out(guard, buf, physical, counted)?;
        Ok(buf.len())
    }

    fn read_general(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        buf: &mut [u8],
        range: Range,
    ) -> Result<usize, F::Error> {
        let plan = self.decide_read(file, range, false);
        self.read_pieces(file, guard, &plan, buf, range)
    }

    /// Reads piece by piece: transfers written pieces, zeroes the rest, stops at the end of the file.
    pub(crate) fn read_pieces(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        plan: &Plan,
        buf: &mut [u8],
        range: Range,
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
            match (plan.route, plan.counted) {
                (Route::DaxRead, true) if piece.state == State::Written => {
                    Ok(self.copy_out(guard, part, piece.physical, true)?)
                }
                _ => self.read_piece(file, piece, part),
            }
        })?;
        // The rest of the last block is not part of the file.
        buf[visible..whole.length as usize].fill(0);
        Ok(visible)
    }

    /// Reads all of a piece.
    pub(crate) fn read_piece(
        &self,
        file: &OpenFile<F>,
        piece: &Piece,
        part: &mut [u8],
    ) -> Result<(), F::Error> {
        match piece.state {
            State::Written if file.state().kind() == MapKind::Journaled => {
                self.fs.read_inline(&file.inode, part, piece.logical)?;
            }
            State::Written => self.device.read_at(part, piece.physical).map_err(Error::from)?,
            State::Inline => self.fs.read_inline(&file.inode, part, piece.logical)?,
            State::Unwritten | State::Hole => part.fill(0),
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
        if flags.contains(WriteFlags::NOWAIT) && !routing.switches().overwrite_no_transaction {
            self.check_no_handle(file)?;
        }
        let mut mapping = Mapping::Due;
        let written = if self.capabilities.dax.is_some() {
            self.overwrite_one::<R, true>(file, buf, &request, &mut mapping, routing, false)
        } else {
            let nowait = flags.contains(WriteFlags::NOWAIT) && range.length <= NOWAIT_MAX;
            self.overwrite_one::<R, false>(file, buf, &request, &mut mapping, routing, nowait)
        };
        if let Some(written) = written {
            return written;
        }
        self.write_waiting(file, &[buf], &request, flags, mapping)
    }

    /// A shared overwrite of one piece by the calling thread, into mapped memory or not. `None`: it needs the general
    /// path; nothing was written.
    #[inline(always)]
    fn overwrite_one<R: Routing, const MAPPED: bool>(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        request: &Request,
        mapping: &mut Mapping,
        routing: R,
        nowait: bool,
    ) -> Option<Result<usize, F::Error>> {
        let state = file.state();
        // An early check, so that nothing is started for a write that cannot take this path. The plan below decides.
        if request.range.end() > state.size() || !shares_gate(request, state.block_bits(), routing) {
            return None;
        }
        // Not with `?`: it moves the guard with a load that cannot be forwarded from the guard's stores and so waits
        // for the copy of the previous write.
        let Ok(guard) = state.gate.try_lock_shared(!MAPPED) else { return None };
        // A thread without its own line takes the general path.
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
        // Load the mapping before the view: a reader that sees a converted block must also see that its conversion is
        // not durable yet (`InodeState::set_datasync_tid`).
        let plan = plan_shared_overwrite(request, &state.view(), &self.capabilities, routing)?;
        // `MAPPED` is known at compile time, so the device need not be checked.
        let (route, counted) = match MAPPED {
            true => (Route::DaxOverwrite, !routing.switches().dax_no_dio_count),
            false => (Route::Overwrite, true),
        };
        let (plan, durability) = (Plan { route, counted, ..plan }, plan.durability);
        self.count_write(line, request, &plan, false, state.block_bits(), routing);
        guard.mark_written();
        let how = if durability == Durability::Fua { WriteDurability::Fua } else { WriteDurability::Cached };
        let written = match MAPPED {
            true => self.copy_in(&guard, buf, physical, how, counted),
            false if nowait => self.write_nowait(buf, physical, how),
            false => self.device.write_at(buf, physical, how).map_err(Error::from),
        };
        guard.leave();
        if !MAPPED && written.is_ok() {
            line.add(Counter::BytesWritten, buf.len() as u64);
        }
        match (written, durability) {
            (Ok(()), Durability::None | Durability::Fua | Durability::WriteThrough) => Some(Ok(buf.len())),
            (Ok(()), _) => Some(self.make_durable_after(file, durability).map(|()| buf.len())),
            (Err(Error::WouldBlock), _) => Some(Err(Error::WouldBlock.into())),
            (Err(error), _) => Some(Err(self.write_failed(error, durability))),
        }
    }

    /// The general path of a write that the caller waits for.
    // Out of line, so that the short path spills nothing for it.
    #[inline(never)]
    pub(crate) fn write_waiting(
        &self,
        file: &OpenFile<F>,
        data: &[&[u8]],
        request: &Request,
        flags: WriteFlags,
        mapping: Mapping,
    ) -> Result<usize, F::Error> {
        let nowait = flags.contains(WriteFlags::NOWAIT);
        let flow = Flow { exclusive: false, nowait, mapping, settled: false, home: None };
        let request = &Request { sync: file.flags_of(flags).sync(), ..*request };
        let (outcome, durability) = self.carry_out(file, data, request, flow, &mut self.helper())?;
        outcome?;
        self.make_durable_after(file, durability)?;
        Ok(request.range.length as usize)
    }

    /// No flush follows a FUA write that could report its failure: the volume is aborted.
    #[cold]
    pub(crate) fn write_failed(&self, error: Error, durability: Durability) -> F::Error {
        if durability == Durability::Fua { self.fatal(error) } else { error.into() }
    }

    /// The plain durability routes, after the data is complete.
    // Out of line, as above.
    #[inline(never)]
    pub(crate) fn make_durable_after(
        &self,
        file: &OpenFile<F>,
        durability: Durability,
    ) -> Result<(), F::Error> {
        let all = match durability {
            Durability::None | Durability::Fua | Durability::WriteThrough => return Ok(()),
            Durability::Datasync => false,
            Durability::Fsync => true,
        };
        self.make_durable(&[Synced { inode: &file.inode, all }])
    }

    /// A queued read of mapped memory, inline data or pages: a copy, done on return.
    pub(crate) fn read_payload(
        &self,
        file: &OpenFile<F>,
        payload: &mut Payload,
        pos: u64,
        flags: ReadFlags,
    ) -> Result<usize, F::Error> {
        let range = Range { pos, length: payload.len() };
        let buffers = match payload {
            Payload::None => return Ok(0),
            Payload::One(buffer) => return self.read_at_with(file, buffer, pos, flags),
            Payload::Many(buffers) => &mut buffers[..],
        };
        let guard = self.enter(file.state(), self.capabilities.dax.is_none())?;
        let mut total = 0;
        if file.state().is_cached() {
            drop(guard);
            for buffer in buffers {
                total += self.read_at(file, buffer, pos + total as u64)?;
            }
            return Ok(total);
        }
        let plan = self.decide_read(file, range, false);
        for buffer in buffers {
            let part = Range { pos: pos + total as u64, length: buffer.len() as u64 };
            total += self.read_pieces(file, &guard, &plan, buffer, part)?;
        }
        Ok(total)
    }

    /// A queued write to mapped memory: a copy, done on return.
    pub(crate) fn write_payload(
        &self,
        file: &OpenFile<F>,
        payload: &Payload,
        pos: u64,
        flags: WriteFlags,
    ) -> Result<usize, F::Error> {
        if let Payload::One(buffer) = payload {
            return self.write_at(file, buffer, pos, flags);
        }
        let range = Range { pos, length: payload.len() };
        let request = Request { range, sync: flags.sync(), bounced: false, queued: false };
        self.write_waiting(file, &payload.parts(), &request, flags, Mapping::Due)
    }
}
