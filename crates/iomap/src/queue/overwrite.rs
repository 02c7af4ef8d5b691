//! Queued writes: map, plan, execute. The executor asserts what the plan says; it does not decide.

use super::WriteFlags;
use super::attach::FileSlot;
use super::core::{Core, General, SlotKind};
use crate::counters::Counter;
use crate::door::{Part, Payload};
use crate::engine::check_progress;
use crate::error::Error;
use crate::fs::{FileSystem, MapMiss};
use crate::mapping::{PIECES_MAX, Piece, Pieces, Range};
use crate::plan::{Completion, Durability, GateMode, JournalWork, Plan, Request, Route, Summary};
use crate::switches::Routing;
use crate::write_plan::plan_write;
use uext4_blockdev::{Op, Wait};

impl<F: FileSystem> Core<F> {
    #[inline]
    pub(super) fn write<R: Routing>(
        &mut self,
        slot: FileSlot,
        pos: u64,
        payload: Payload,
        flags: WriteFlags,
        tag: u64,
        routing: R,
    ) -> Result<(), F::Error> {
        self.engine.fs.check_alive()?;
        let range = self.engine.check_direct(pos, payload.len())?;
        let index = self.index(slot)?;
        self.check_payload(&payload)?;
        self.file(slot)?.file.check_writable()?;
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        if range.length == 0 {
            self.deliver_at_once(tag, Ok(0), payload);
            return Ok(());
        }
        if self.engine.capabilities.dax.is_some() {
            return self.write_mapped(slot, payload, range, flags, tag);
        }
        let request = Request { range, sync: flags.sync(), bounced: false, queued: true };
        if flags.contains(WriteFlags::NOWAIT) {
            self.enter_nowait(index)?;
        } else {
            self.enter_waiting(index);
        }
        let mut pieces = Pieces::new();
        let plan = match self.decide(index, &request, routing, &mut pieces) {
            Ok(plan) => plan,
            Err(error) => {
                self.abandon(index);
                return Err(error);
            }
        };
        if plan.gate == GateMode::Exclusive {
            self.abandon(index);
            if flags.contains(WriteFlags::NOWAIT) {
                return Err(Error::WouldBlock.into());
            }
            return self.write_exclusive(slot, &request, payload, plan.drain, tag, routing);
        }
        self.execute(slot, &request, &plan, &pieces, payload, tag)
    }

    /// Maps and plans under the gate. Refuses what needs allocation before anything is sent.
    #[inline]
    fn decide<R: Routing>(
        &mut self,
        index: usize,
        request: &Request,
        routing: R,
        pieces: &mut Pieces,
    ) -> Result<Plan, F::Error> {
        let mut missed = None;
        loop {
            let Some(attached) = &mut self.files[index] else {
                return Err(Error::BadSlot.into());
            };
            attached.refresh();
            let state = F::state(&attached.file.inode);
            let bits = state.block_bits();
            let engine = &self.engine;
            let counters = &**self.counters;
            match engine.fs.map_for_write(&attached.map, bits, request.range, routing, pieces, counters) {
                Ok(()) => {
                    let view = state.view();
                    let plan = plan_write(request, &view, pieces, &engine.capabilities, routing);
                    let extends = request.range.end() > view.size;
                    if plan.route == Route::Allocate || pieces.len() == PIECES_MAX {
                        self.check_all_written(index, request.range, extends)?;
                    }
                    return Ok(plan);
                }
                Err(MapMiss::Failed(error)) => return Err(error),
                Err(MapMiss::Unknown(pos)) => {
                    check_progress(&mut missed, pos)?;
                    let inode = attached.file.inode.clone();
                    self.counters.bump(Counter::MapLoads);
                    self.engine.fs.load_map(&inode, pos)?;
                }
            }
        }
    }

    /// A request that is not a pure overwrite is refused here, with what it would need.
    #[cold]
    fn check_all_written(&mut self, index: usize, range: Range, extends: bool) -> Result<(), F::Error> {
        self.load_all(index, range)?;
        let Some(attached) = &self.files[index] else {
            return Err(Error::BadSlot.into());
        };
        let bits = attached.file.state().block_bits();
        let (mut unwritten, mut hole, mut pos) = (0, 0, range.pos);
        let mut pieces = Pieces::new();
        while pos < range.end() {
            pieces.clear();
            let rest = Range { pos, length: range.end() - pos };
            attached.map.pieces(rest, bits, &mut pieces).map_err(Error::MapUnknown)?;
            let summary = Summary::of(&pieces);
            unwritten += summary.unwritten;
            hole += summary.hole;
            pos = pieces.last().map_or(range.end(), Piece::end);
        }
        if unwritten + hole == 0 && !extends {
            return Ok(());
        }
        self.counters.bump(Counter::AllocationsRefused);
        Err(Error::NeedsAllocation { pos: range.pos, length: range.length, unwritten, hole, extends }.into())
    }

    /// The gate is held (shared through this queue's cell, or exclusively with the cell raised): send, leave.
    #[inline]
    fn execute(
        &mut self,
        slot: FileSlot,
        request: &Request,
        plan: &Plan,
        pieces: &Pieces,
        payload: Payload,
        tag: u64,
    ) -> Result<(), F::Error> {
        debug_assert!(plan.route == Route::Overwrite && !request.bounced);
        debug_assert!(matches!(plan.journal, JournalWork::None | JournalWork::Handle));
        let index = self.index(slot)?;
        let fua = plan.durability == Durability::Fua;
        self.count(request, plan, index);
        let single = match (&pieces[..], &payload) {
            ([piece], Payload::One(_)) if request.range.length <= 1 << 30 => Some(piece.physical),
            _ => None,
        };
        let Some(physical) = single else {
            return self.execute_general(slot, request, plan, payload, tag);
        };
        let length = request.range.length as u32;
        let kind = SlotKind::Single { pos: physical, length, durability: plan.durability, write: true };
        let number = self.take_slot(slot, tag, kind)?;
        self.door.store(number, payload);
        let part = Part { op: Op::Write, fua, nowait: false, pos: physical, offset: 0, length, index: 0 };
        while self.door.push(number, part).is_err() {
            self.drive(Wait::AtLeast(1))?;
        }
        if let Some(attached) = &self.files[index] {
            attached.file.state().gate.leave(&attached.cell);
        }
        Ok(())
    }

    fn execute_general(
        &mut self,
        slot: FileSlot,
        request: &Request,
        plan: &Plan,
        payload: Payload,
        tag: u64,
    ) -> Result<(), F::Error> {
        let general = General {
            parts: Vec::with_capacity(4),
            visible: request.range.length,
            zero: Vec::new(),
            error: None,
            sealed: false,
            durability: plan.durability,
            write: true,
        };
        let index = self.index(slot)?;
        let number = self.take_slot(slot, tag, SlotKind::General(Box::new(general)))?;
        self.door.store(number, payload);
        self.push_range(number, index, request.range, Op::Write, plan.durability == Durability::Fua);
        Ok(())
    }

    #[inline]
    fn count(&self, request: &Request, plan: &Plan, index: usize) {
        let Some(attached) = &self.files[index] else {
            return;
        };
        let block_mask = (1 << attached.file.state().block_bits()) - 1;
        if plan.gate == GateMode::Shared && (request.range.pos | request.range.length) & block_mask != 0 {
            self.counters.bump(Counter::SharedSubblockWrites);
        }
        if plan.durability == Durability::Fua {
            self.counters.bump(Counter::FuaWrites);
        }
        self.counters.bump(Counter::DioCounted);
        attached.file.state().gate.note_write(&attached.cell, crate::clock::coarse_now_ns());
    }

    fn enter_nowait(&mut self, index: usize) -> Result<(), F::Error> {
        let Some(attached) = &self.files[index] else {
            return Err(Error::BadSlot.into());
        };
        let entered = attached.file.state().gate.enter(&attached.cell);
        entered.map_err(|_busy| Error::WouldBlock.into())
    }

    /// The plain route of sub-block writes: alone, after a drain, waiting for completion under the gate.
    #[cold]
    fn write_exclusive<R: Routing>(
        &mut self,
        slot: FileSlot,
        request: &Request,
        payload: Payload,
        drain: bool,
        tag: u64,
        routing: R,
    ) -> Result<(), F::Error> {
        let index = self.index(slot)?;
        let inode = self.file(slot)?.file.inode.clone();
        let gate = &F::state(&inode).gate;
        let guard = gate.lock_exclusive(drain, &mut || self.pump());
        // Everything may have changed while the gate was not held.
        let mut pieces = Pieces::new();
        let plan = self.decide(index, request, routing, &mut pieces)?;
        self.counters.bump(Counter::ExclusiveWrites);
        if let Some(attached) = &self.files[index] {
            gate.raise_inside(&attached.cell);
        }
        let first_free = self.free.last().copied();
        self.execute(slot, request, &plan, &pieces, payload, tag)?;
        if let (Completion::Synchronous, Some(number)) = (plan.completion, first_free) {
            while self.door.outstanding(number) > 0 {
                self.drive(Wait::AtLeast(1))?;
            }
        }
        drop(guard);
        Ok(())
    }

    /// A write on mapped memory is a copy under the gate, done when this returns.
    fn write_mapped(
        &mut self,
        slot: FileSlot,
        payload: Payload,
        range: Range,
        flags: WriteFlags,
        tag: u64,
    ) -> Result<(), F::Error> {
        let file = self.file(slot)?.file.clone();
        let result = self.engine.write_payload(&file, &payload, range.pos, flags);
        self.deliver_at_once(tag, result, payload);
        Ok(())
    }
}
