//! Requests of any shape: several pieces, several buffers, holes, the end of the file.
//!
//! This is the general iterator with its request object: map up to [`PIECES_MAX`] pieces, turn them into
//! device requests or zeros, go on behind them.

use super::attach::FileSlot;
use super::core::{Core, General};
use super::slot::{Kind, Slot};
use crate::counters::Counter;
use crate::door::{Part, Payload};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::mapping::{Piece, Pieces, Range, State};
use crate::plan::Durability;
use uext4_blockdev::{Op, Wait};

/// Longest device request: below the kernel's limit of 2 GiB - 4 KiB for one transfer.
const PART_MAX: u64 = 1 << 30;

impl<F: FileSystem> Core<F> {
    pub(super) fn read_general(
        &mut self,
        slot: FileSlot,
        pos: u64,
        mut payload: Payload,
        tag: u64,
    ) -> Result<(), F::Error> {
        let range = self.engine.check_direct(pos, payload.len())?;
        let index = self.index(slot)?;
        self.check_memory(&payload)?;
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        self.file(slot)?.file.check_readable()?;
        if self.engine.capabilities.dax.is_some() {
            let file = self.file(slot)?.file.clone();
            let result = self.engine.read_payload(&file, &mut payload, pos);
            self.deliver_at_once(tag, result, payload);
            return Ok(());
        }
        self.enter_waiting(index);
        self.attached(index)?.refresh();
        let visible = self.attached(index)?.file.state().size().saturating_sub(pos).min(range.length);
        if visible == 0 {
            self.abandon(index);
            self.deliver_at_once(tag, Ok(0), payload);
            return Ok(());
        }
        // Only whole device blocks are transferred; what they hold behind the end of the file is zeroed.
        let block = u64::from(self.engine.geometry.logical_block);
        let transferred = Range { pos, length: visible.next_multiple_of(block) };
        let mut pieces = Pieces::new();
        if let Err(error) = self.map_pieces(index, transferred, &mut pieces) {
            self.abandon(index);
            return Err(error);
        }
        let number = self.take_slot(Slot::new(index, tag, Kind::General, Durability::None, false))?;
        self.general[number as usize] = Some(Box::new(General::new(visible)));
        self.door.store(number, payload);
        self.counters.bump(Counter::GeneralReads);
        self.counters.bump(Counter::DioCounted);
        if transferred.length > visible {
            self.general(number).zero.push((visible, transferred.length - visible));
        }
        self.push_range(number, index, transferred, &mut pieces, Op::Read, false);
        Ok(())
    }

    fn attached(&mut self, index: usize) -> Result<&mut super::Attached<F>, Error> {
        self.files[index].as_mut().ok_or(Error::BadSlot)
    }

    pub(super) fn check_memory(&self, payload: &Payload) -> Result<(), Error> {
        let geometry = &self.engine.geometry;
        match payload {
            Payload::None => {}
            Payload::One(buffer) => geometry.check_memory(buffer.address().addr().get())?,
            Payload::Many(buffers) => {
                for buffer in buffers.iter() {
                    geometry.check_memory(buffer.address().addr().get())?;
                }
            }
        }
        Ok(())
    }

    /// Enters the gate through this queue's cell, driving this queue and harvesting others while it is
    /// closed.
    pub(super) fn enter_waiting(&mut self, index: usize) {
        // Nobody holds the gate, nearly always: then nothing is cloned, on the plain routes as on the fast ones.
        if let Some(attached) = &self.files[index]
            && F::state(&attached.file.inode).gate.enter(&attached.cell).is_ok()
        {
            return;
        }
        loop {
            let Some(attached) = &self.files[index] else {
                return;
            };
            let (inode, cell) = (attached.file.inode.clone(), attached.cell.clone());
            let gate = &F::state(&inode).gate;
            if gate.enter(&cell).is_ok() {
                return;
            }
            gate.wait_open(&mut || self.pump());
        }
    }

    /// Keeps completions flowing while this thread waits for a gate or a drain: its own queue's and idle
    /// ones'.
    pub(super) fn pump(&mut self) {
        self.drive_quietly();
        self.engine.harvest();
    }

    /// Leaves the gate and takes the request out of flight again: nothing was sent.
    pub(super) fn abandon(&mut self, index: usize) {
        if let Some(attached) = &self.files[index] {
            let gate = &attached.file.state().gate;
            gate.leave(&attached.cell);
            gate.complete(&attached.cell);
        }
    }

    /// The first pieces of a range, by the map as it is now; what that does not know is loaded. Call inside the gate:
    /// what is written stays so until it is left.
    pub(super) fn map_pieces(
        &mut self,
        index: usize,
        range: Range,
        pieces: &mut Pieces,
    ) -> Result<(), F::Error> {
        let attached = self.attached(index)?;
        let state = attached.file.state();
        pieces.clear();
        let mut known = state.map.pieces(range, state.block_bits(), pieces);
        while let Err(pos) = known {
            let inode = self.attached(index)?.file.inode.clone();
            self.counters.bump(Counter::MapLoads);
            known = self.engine.load_more(&inode, range, pos, pieces)?;
        }
        Ok(())
    }

    /// State of a general request that still has parts to push, so that it cannot have finished.
    fn general(&mut self, number: u32) -> &mut General<F::Error> {
        self.general[number as usize]
            .get_or_insert_with(|| unreachable!("an unsealed request does not finish"))
    }

    /// Sends all of `range`, whose mapping begins with `pieces`; payload byte 0 is `range.pos`. Leaves the gate.
    pub(super) fn push_range(
        &mut self,
        number: u32,
        index: usize,
        range: Range,
        pieces: &mut Pieces,
        op: Op,
        fua: bool,
    ) {
        let mut pos = range.pos;
        loop {
            for piece in &*pieces {
                self.push_piece(number, piece, piece.logical - range.pos, op, fua);
                pos = piece.end();
            }
            if pos >= range.end() {
                break;
            }
            let rest = Range { pos, length: range.end() - pos };
            if let Err(error) = self.map_pieces(index, rest, pieces) {
                self.general(number).error.get_or_insert(error);
                break;
            }
        }
        self.general(number).sealed = true;
        let over = self.general(number).is_over();
        if let Some(attached) = &self.files[index] {
            attached.file.state().gate.leave(&attached.cell);
        }
        if over {
            self.finish_general(number);
        }
    }

    fn push_piece(&mut self, number: u32, piece: &Piece, offset: u64, op: Op, fua: bool) {
        if piece.state != State::Written {
            if op == Op::Read {
                self.general(number).zero.push((offset, piece.length));
            } else {
                // The plan let only written pieces through. Should that ever fail, the write must not seem done.
                self.general(number).error.get_or_insert(Error::NotWritten(piece.logical).into());
            }
            return;
        }
        let mut sent = 0;
        while sent < piece.length {
            let room = self.door.contiguous(number, offset + sent);
            let length = room.min(piece.length - sent).min(PART_MAX) as u32;
            let pos = piece.physical + sent;
            let parts = &mut self.general(number).parts;
            let index = parts.len() as u32;
            parts.push((pos, length, offset + sent));
            let part = Part { op, fua, nowait: false, pos, offset: offset + sent, length, index };
            while self.door.push(number, part).is_err() {
                // The device queue is full of our own requests: they complete without any lock that we hold.
                // Their commits and flushes come later: this thread is inside the gate.
                if let Err(error) = self.reap(Wait::AtLeast(1)) {
                    let general = self.general(number);
                    general.error.get_or_insert(error);
                    // It was never sent and will not be reaped.
                    general.ended += 1;
                    return;
                }
            }
            sent += u64::from(length);
        }
    }
}
