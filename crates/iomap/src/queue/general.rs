//! Requests of any shape: several pieces, several buffers, holes, the end of the file.
//!
//! This is the general iterator with its request object: map up to [`PIECES_MAX`] pieces, turn them into device
//! requests or zeros, continue after them.

use super::attach::FileSlot;
use super::core::{General, QueueState};
use super::slot::{Kind, Slot};
use super::ticket::Ticket;
use crate::counters::Counter;
use crate::door::{Part, Payload};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::inode::InodeState;
use crate::mapping::{Piece, Pieces, Range, State};
use crate::nowait::NOWAIT_MAX;
use crate::plan::{Durability, Plan, ReadFlags};
use uext4_blockdev::{Buffer, Op, Priority, Wait};

/// Longest device request: below the kernel's limit of 2 GiB - 4 KiB for one transfer.
const PART_MAX: u64 = 1 << 30;

/// Whether reads of a file are copies: of what the file system holds, or of pages.
fn is_copied(state: &InodeState) -> bool {
    state.kind().is_held() || state.is_cached()
}

impl<F: FileSystem> QueueState<F> {
    pub(super) fn read_general(
        &mut self,
        slot: FileSlot,
        pos: u64,
        payload: Payload,
        flags: ReadFlags,
        tag: u64,
    ) -> Result<(), F::Error> {
        let nowait = flags.contains(ReadFlags::NOWAIT);
        let range = self.engine.check_direct(pos, payload.len())?;
        let index = self.index(slot)?;
        self.check_memory(&payload)?;
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        self.file(slot)?.file.check_readable()?;
        self.engine.note_access(&self.file(slot)?.file);
        let copies = self.engine.capabilities.dax.is_some();
        if copies || is_copied(self.file(slot)?.file.state()) {
            return self.read_copied(slot, pos, payload, flags, tag);
        }
        let ticket = self.enter(index, nowait)?;
        if is_copied(self.file(slot)?.file.state()) {
            // Since the look above.
            drop(ticket);
            return self.read_copied(slot, pos, payload, flags, tag);
        }
        let file = &self.file(slot)?.file;
        if nowait {
            self.engine.check_visible_known(file, range)?;
        }
        let visible = file.state().size().saturating_sub(pos).min(range.length);
        if visible == 0 {
            drop(ticket);
            self.deliver_at_once(tag, Ok(0), payload);
            return Ok(());
        }
        // Only whole device blocks are transferred; bytes past the end of the file are zeroed.
        let block = u64::from(self.engine.geometry.logical_block);
        let transferred = Range { pos, length: visible.next_multiple_of(block) };
        let mut pieces = Pieces::new();
        self.engine.load_pieces(file, transferred, &mut pieces)?;
        let number = self.take_slot(Slot::new(index, tag, Kind::General, Durability::None, false))?;
        self.counters.bump(Counter::GeneralReads);
        self.counters.bump(Counter::DioCounted);
        let mut general = General::new(visible, None, ticket);
        general.nowait = nowait;
        if transferred.length > visible {
            general.zero.push((visible, transferred.length - visible));
        }
        self.push_all(number, general, payload, transferred, &mut pieces, None);
        Ok(())
    }

    /// A read that is a copy, done on return.
    fn read_copied(
        &mut self,
        slot: FileSlot,
        pos: u64,
        mut payload: Payload,
        flags: ReadFlags,
        tag: u64,
    ) -> Result<(), F::Error> {
        let file = self.file(slot)?.file.clone();
        let result = self.engine.read_payload(&file, &mut payload, pos, flags);
        self.deliver_at_once(tag, result, payload);
        Ok(())
    }

    pub(super) fn check_memory(&self, payload: &Payload) -> Result<(), Error> {
        let check = |buffer: &Buffer| self.engine.geometry.check_memory(buffer.address().addr().get());
        Ok(payload.buffers().iter().try_for_each(check)?)
    }

    /// Enters the gate, driving this queue and harvesting others while it is closed, unless `nowait`.
    pub(super) fn enter(&mut self, index: usize, nowait: bool) -> Result<Ticket<F>, Error> {
        loop {
            let Some(attached) = &self.files[index] else { return Err(Error::BadSlot) };
            match Ticket::enter(&attached.hold) {
                Ok(ticket) => return Ok(ticket),
                Err(_busy) if nowait => return Err(self.engine.would_block()),
                Err(_busy) => {
                    let inode = attached.file.inode.clone();
                    F::state(&inode).gate.wait_open(&mut || self.help());
                }
            }
        }
    }

    /// Keeps completions flowing while this thread waits for a gate or a drain: those of its own queue and of idle
    /// queues.
    pub(super) fn help(&mut self) {
        self.drive_quietly();
        self.engine.harvest();
    }

    /// A general request that still has parts to push, so it cannot have finished.
    fn general(&mut self, number: u32) -> &mut General<F> {
        self.general[number as usize]
            .get_or_insert_with(|| unreachable!("an unsealed request does not finish"))
    }

    /// Sends all of `range`, whose mapping begins with `pieces`, by the plan of a write (a read has none); payload byte
    /// 0 is `range.pos`. Leaves the gate. The completion takes the request out of flight even if pushing fails.
    pub(super) fn push_all(
        &mut self,
        number: u32,
        general: General<F>,
        payload: Payload,
        range: Range,
        pieces: &mut Pieces,
        write: Option<&Plan>,
    ) {
        self.general[number as usize] = Some(Box::new(general));
        self.door.store(number, payload);
        let index = self.slots[number as usize].label.file();
        let mut pos = range.pos;
        loop {
            for piece in &*pieces {
                self.push_piece(number, piece, piece.logical - range.pos, write);
                pos = piece.end();
            }
            let Some(attached) = self.files[index].as_ref().filter(|_| pos < range.end()) else { break };
            let rest = Range { pos, length: range.end() - pos };
            if let Err(error) = self.engine.load_pieces(&attached.file, rest, pieces) {
                self.general(number).error.get_or_insert(error);
                break;
            }
        }
        let general = self.general(number);
        general.sealed = true;
        general.ticket.leave_gate();
        if general.is_over() {
            self.finish_general(number);
        }
    }

    /// I/O priority of the file behind a slot's request.
    pub(super) fn priority(&self, number: u32) -> Priority {
        let file = &self.files[self.slots[number as usize].label.file()];
        file.as_ref().map_or(Priority::OF_THREAD, |attached| attached.file.priority)
    }

    fn push_piece(&mut self, number: u32, piece: &Piece, offset: u64, write: Option<&Plan>) {
        let place = match write {
            Some(plan) => plan.place(piece).map_err(F::Error::from),
            None if piece.state == State::Written => Ok(piece.physical),
            None => {
                self.general(number).zero.push((offset, piece.length));
                return;
            }
        };
        let physical = match place {
            Ok(physical) => physical,
            Err(error) => {
                self.general(number).error.get_or_insert(error);
                return;
            }
        };
        let op = if write.is_some() { Op::Write } else { Op::Read };
        let fua = write.is_some_and(|plan| plan.durability == Durability::Fua);
        let priority = self.priority(number);
        let mut sent = 0;
        while sent < piece.length {
            let room = self.door.reach(number, offset + sent);
            let length = room.min(piece.length - sent).min(PART_MAX) as u32;
            let pos = physical + sent;
            let parts = &mut self.general(number).parts;
            let index = parts.len() as u32;
            parts.push((pos, length, offset + sent));
            let nowait = self.general(number).nowait && u64::from(length) <= NOWAIT_MAX;
            let part = Part { op, fua, nowait, priority, pos, offset: offset + sent, length, index };
            while self.door.push(number, part).is_err() {
                // The device queue is full of our own requests, which complete without any lock that we hold. Their
                // conversion and durability come later, since this thread is inside the gate.
                if let Err(error) = self.reap(Wait::AtLeast(1)) {
                    let general = self.general(number);
                    general.error.get_or_insert(error);
                    // This part was never sent and will not be reaped.
                    general.ended += 1;
                    return;
                }
            }
            sent += u64::from(length);
        }
    }
}
