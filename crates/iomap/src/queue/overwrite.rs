//! Queued writes: map, plan, execute. The executor asserts what the plan says; it does not decide.

use super::WriteFlags;
use super::attach::FileSlot;
use super::core::{Core, General};
use super::slot::{Kind, Label, Slot};
use crate::counters::Counter;
use crate::door::Payload;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::mapping::{Piece, Pieces, Range};
use crate::plan::{Completion, Durability, GateMode, JournalWork, Plan, Request, Route, Summary};
use crate::switches::{AllOn, Routing, Switches};
use crate::sync_io::Mapping;
use crate::write_plan::{plan_shared_overwrite, plan_write, shares_gate};
use uext4_blockdev::{Buffer, Op, Wait};

impl<F: FileSystem> Core<F> {
    /// Writes one buffer that no window covers.
    // Cold: what it needs shall not be kept in registers on the way of those that are covered. It is the plain route as
    // well, which pays some ten instructions for having looked for a window.
    #[cold]
    #[inline(never)]
    pub(super) fn write_deciding(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: WriteFlags,
        tag: u64,
    ) -> Result<(), F::Error> {
        if self.is_all_on(slot) {
            return self.write_one(slot, pos, buffer, flags, tag, AllOn);
        }
        let switches = self.file(slot)?.file.switches;
        self.write_one(slot, pos, buffer, flags, tag, switches)
    }

    /// Writes one buffer: if it is a shared overwrite of one piece it is sent here, else by [`Core::write`].
    #[inline]
    pub(super) fn write_one<R: Routing>(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: WriteFlags,
        tag: u64,
        routing: R,
    ) -> Result<(), F::Error> {
        let number = self.free.pop();
        let sent = match number {
            Some(number) => self.try_write_one(number, slot, pos, buffer, flags, tag, routing),
            None => Err(NotSent::Refused(buffer, Mapping::Due)),
        };
        let Err(not_sent) = sent else { return Ok(()) };
        self.free.extend(number);
        match not_sent {
            NotSent::Failed(error) => Err(error),
            NotSent::Refused(buffer, mapping) => {
                self.write(slot, pos, Payload::One(buffer), flags, tag, mapping, routing)
            }
        }
    }

    /// A shared overwrite of one piece in the free slot `number`. Refuses without any side effect.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "a request and its place, in registers")]
    fn try_write_one<R: Routing>(
        &mut self,
        number: u32,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: WriteFlags,
        tag: u64,
        routing: R,
    ) -> Result<(), NotSent<F::Error>> {
        let length = buffer.len() as u64;
        let address = buffer.address().addr().get() as u64;
        let misaligned = (pos | length) & self.position_mask | address & self.memory_mask;
        let Some(Some(attached)) = self.files.get_mut(slot.index as usize) else {
            return Err(NotSent::Refused(buffer, Mapping::Due));
        };
        let usable = attached.overwrites && attached.serial == slot.serial && misaligned == 0 && length != 0;
        if !usable || self.engine.fs.check_alive().is_err() {
            return Err(NotSent::Refused(buffer, Mapping::Due));
        }
        let Some(end) = pos.checked_add(length) else { return Err(NotSent::Refused(buffer, Mapping::Due)) };
        let range = Range { pos, length };
        debug_assert_eq!(range.end(), end);
        let request = Request { range, sync: flags.sync(), bounced: false, queued: true };
        let bits = F::state(&attached.file.inode).block_bits();
        // A look ahead, as in the synchronous way.
        if !shares_gate(&request, bits, routing)
            || F::state(&attached.file.inode).gate.enter(&attached.cell).is_err()
        {
            return Err(NotSent::Refused(buffer, Mapping::Due));
        }
        let handle = match self.engine.fs.start_mapping(routing, &**self.counters) {
            Ok(handle) => handle,
            Err(error) => return Err(attached.back_out_with(error)),
        };
        attached.refresh();
        let located = attached.find_written(range, bits);
        if let Some(handle) = handle
            && let Err(error) = self.engine.fs.stop_mapping(handle)
        {
            return Err(attached.back_out_with(error));
        }
        let Some(physical) = located else { return Err(attached.back_out(buffer)) };
        // The mapping first, then what the view shows: whoever sees a converted block must also see that its
        // conversion is not durable yet (`InodeState::set_datasync_tid`).
        let changes = F::state(&attached.file.inode).changes();
        let view = F::state(&attached.file.inode).view();
        let Some(durability) = plan_shared_overwrite(&request, &view, &self.engine.capabilities, routing)
        else {
            return Err(attached.back_out(buffer));
        };
        let label = Label::write(slot.index, durability);
        if routing.switches() == Switches::ON {
            attached.open_window(&view, changes, flags, label, self.memory_mask);
        }
        self.slots[number as usize] = Slot { tag, pos: physical, length: length as u32, label };
        attached.waiting += u16::from(label.kind() != Kind::Plain);
        let fua = durability == Durability::Fua;
        if let Err(buffer) = self.door.send(number, buffer, Op::Write, fua, physical) {
            self.slots[number as usize].label = Label::FREE;
            attached.waiting -= u16::from(label.kind() != Kind::Plain);
            return Err(attached.back_out(buffer));
        }
        F::state(&attached.file.inode).gate.leave(&attached.cell);
        self.count(&request, GateMode::Shared, durability, view.block_size(), routing);
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "a request, and what was found out about it")]
    pub(super) fn write<R: Routing>(
        &mut self,
        slot: FileSlot,
        pos: u64,
        payload: Payload,
        flags: WriteFlags,
        tag: u64,
        mapping: Mapping,
        routing: R,
    ) -> Result<(), F::Error> {
        self.engine.fs.check_alive()?;
        let range = self.engine.check_direct(pos, payload.len())?;
        let index = self.index(slot)?;
        self.check_memory(&payload)?;
        self.file(slot)?.file.check_writable()?;
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        if range.length == 0 {
            self.deliver_at_once(tag, Ok(0), payload);
            return Ok(());
        }
        if self.engine.capabilities.dax.is_some() {
            let file = self.file(slot)?.file.clone();
            let result = self.engine.write_payload(&file, &payload, range.pos, flags);
            self.deliver_at_once(tag, result, payload);
            return Ok(());
        }
        let request = Request { range, sync: flags.sync(), bounced: false, queued: true };
        let nowait = flags.contains(WriteFlags::NOWAIT);
        let bits = self.file(slot)?.file.state().block_bits();
        if !shares_gate(&request, bits, routing) {
            // By its shape alone it cannot share, so it does not try to.
            if nowait {
                return Err(Error::WouldBlock.into());
            }
            return self.write_exclusive(index, &request, payload, true, tag, mapping, routing);
        }
        if nowait {
            self.enter_nowait(index)?;
        } else {
            self.enter_waiting(index);
        }
        let mut pieces = Pieces::new();
        let decided = self.decide(index, &request, &mut pieces, mapping, routing);
        match decided {
            Ok(plan) if plan.gate == GateMode::Shared => {
                self.execute(index, &request, &plan, &mut pieces, payload, tag, routing)
            }
            Ok(plan) => {
                self.abandon(index);
                if nowait {
                    return Err(Error::WouldBlock.into());
                }
                self.write_exclusive(index, &request, payload, plan.drain, tag, Mapping::Started, routing)
            }
            Err(error) => {
                self.abandon(index);
                Err(error)
            }
        }
    }

    /// Maps, then views, then plans, under the gate. Refuses what needs allocation before anything is sent. `pieces`
    /// are the first of the request.
    fn decide<R: Routing>(
        &mut self,
        index: usize,
        request: &Request,
        pieces: &mut Pieces,
        mapping: Mapping,
        routing: R,
    ) -> Result<Plan, F::Error> {
        let fs = self.engine.fs.clone();
        let handle = match mapping {
            Mapping::Due => fs.start_mapping(routing, &**self.counters)?,
            Mapping::Started => None,
        };
        let mapped = self.summarize(index, request.range, pieces);
        if let Some(handle) = handle {
            fs.stop_mapping(handle)?;
        }
        let summary = mapped?;
        let Some(attached) = &self.files[index] else { return Err(Error::BadSlot.into()) };
        let view = attached.file.state().view();
        self.engine.refuse_allocation(request.range, &view, &summary)?;
        Ok(plan_write(request, &view, pieces, &self.engine.capabilities, routing))
    }

    /// What all pieces of `range` are made of. What is written stays so until the gate is left.
    fn summarize(&mut self, index: usize, range: Range, pieces: &mut Pieces) -> Result<Summary, F::Error> {
        if let Some(attached) = &mut self.files[index] {
            attached.refresh();
        }
        self.map_pieces(index, range, pieces)?;
        let mut summary = Summary::of(pieces);
        let mut pos = pieces.last().map_or(range.end(), Piece::end);
        let mut further = Pieces::new();
        while pos < range.end() {
            self.map_pieces(index, Range { pos, length: range.end() - pos }, &mut further)?;
            further.iter().for_each(|piece| summary.add(piece));
            pos = further.last().map_or(range.end(), Piece::end);
        }
        Ok(summary)
    }

    /// The gate is held (shared through this queue's cell, or exclusively with the cell raised): send, leave.
    /// The completion takes the request out of flight, whatever happens here.
    #[allow(clippy::too_many_arguments, reason = "what was decided, in parts that the caller keeps")]
    fn execute<R: Routing>(
        &mut self,
        index: usize,
        request: &Request,
        plan: &Plan,
        pieces: &mut Pieces,
        payload: Payload,
        tag: u64,
        routing: R,
    ) -> Result<(), F::Error> {
        debug_assert!(plan.route == Route::Overwrite && !request.bounced);
        debug_assert!(matches!(plan.journal, JournalWork::None | JournalWork::Handle));
        let number = match self.take_slot(Slot::new(index, tag, Kind::General, plan.durability, true)) {
            Ok(number) => number,
            Err(error) => {
                self.abandon(index);
                return Err(error.into());
            }
        };
        self.general[number as usize] = Some(Box::new(General::new(request.range.length)));
        self.door.store(number, payload);
        if let Some(attached) = &self.files[index] {
            let block_size = attached.file.state().view().block_size();
            self.count(request, plan.gate, plan.durability, block_size, routing);
        }
        let fua = plan.durability == Durability::Fua;
        self.push_range(number, index, request.range, pieces, Op::Write, fua);
        Ok(())
    }

    // Out of line, the request would have to be laid down in memory for it.
    #[inline(always)]
    fn count<R: Routing>(
        &self,
        request: &Request,
        gate: GateMode,
        durability: Durability,
        block_size: u64,
        routing: R,
    ) {
        if self.engine.needs_no_handle(routing) {
            self.counters.bump(Counter::OverwritesWithoutHandle);
        }
        if gate == GateMode::Shared && (request.range.pos | request.range.length) & (block_size - 1) != 0 {
            self.counters.bump(Counter::SharedSubblockWrites);
        }
        if durability == Durability::Fua {
            self.counters.bump(Counter::FuaWrites);
        }
        self.counters.bump(Counter::DioCounted);
    }

    fn enter_nowait(&mut self, index: usize) -> Result<(), F::Error> {
        let Some(attached) = &self.files[index] else { return Err(Error::BadSlot.into()) };
        let entered = attached.file.state().gate.enter(&attached.cell);
        entered.map_err(|_busy| Error::WouldBlock.into())
    }

    /// The plain route of sub-block writes: alone, after a drain, waiting for completion under the gate.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "a request, and what was found out about it")]
    fn write_exclusive<R: Routing>(
        &mut self,
        index: usize,
        request: &Request,
        payload: Payload,
        drain: bool,
        tag: u64,
        mapping: Mapping,
        routing: R,
    ) -> Result<(), F::Error> {
        let Some(attached) = &self.files[index] else { return Err(Error::BadSlot.into()) };
        let (inode, cell) = (attached.file.inode.clone(), attached.cell.clone());
        let gate = &F::state(&inode).gate;
        let guard = gate.lock_exclusive(drain, &mut || self.pump());
        // Everything may have changed while the gate was not held.
        let mut pieces = Pieces::new();
        let plan = self.decide(index, request, &mut pieces, mapping, routing)?;
        self.counters.bump(Counter::ExclusiveWrites);
        gate.raise_inside(&cell);
        let number = self.free.last().copied();
        self.execute(index, request, &plan, &mut pieces, payload, tag, routing)?;
        if let (Completion::Synchronous, Some(number)) = (plan.completion, number) {
            // A queue that cannot be driven any more says so at the owner's next call: this request was sent,
            // and its outcome is its completion.
            // Its commit and flush, if it needs them, come with the next drive, when the gate is open again.
            while self.door.outstanding(number) > 0 && self.reap(Wait::AtLeast(1)).is_ok() {}
        }
        drop(guard);
        Ok(())
    }
}

/// Why a write was not sent by the short way.
enum NotSent<E> {
    /// It needs the general way; nothing has happened but, perhaps, the journal's part in its mapping.
    Refused(Buffer, Mapping),
    /// It failed.
    Failed(E),
}

impl<F: FileSystem> super::Attached<F> {
    #[cold]
    fn back_out(&self, buffer: Buffer) -> NotSent<F::Error> {
        NotSent::Refused(self.retreat(buffer), Mapping::Started)
    }

    #[cold]
    fn back_out_with(&self, error: F::Error) -> NotSent<F::Error> {
        self.withdraw();
        NotSent::Failed(error)
    }
}
