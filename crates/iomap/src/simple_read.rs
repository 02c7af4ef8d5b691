//! Room 4, `simple-read`: the short path of reads.
//!
//! Fast route: a preset slot, one look-up, one device request; no allocation, no request object, no
//! iteration. It refuses ([`NotSimple`]) before any side effect, and the general route takes over. Plain
//! route: the general iterator with its request object ([`crate::queue`], `general.rs`; [`crate::sync_io`]
//! for synchronous calls).
//!
//! Safe because the range lies in one written run inside the file's size, checked after this reader was counted in
//! flight. Unlike the kernel's version the range need not fit one block: one mapping is enough for one request.

use crate::counters::Counter;
use crate::engine::Engine;
use crate::fs::FileSystem;
use crate::gate::InodeGuard;
use crate::inode::InodeState;
use crate::mapping::Range;
use crate::queue::{FileSlot, Label, QueueState, Slot};
use uext4_blockdev::{Buffer, Op};

/// The read needs the general route; nothing has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSimple;

impl<F: FileSystem> QueueState<F> {
    /// Queues a simple read, or returns the buffer untouched.
    #[inline]
    pub(crate) fn simple_read(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        tag: u64,
    ) -> Result<(), (NotSimple, Buffer)> {
        let Some(number) = self.free.pop() else { return Err((NotSimple, buffer)) };
        let sent = self.simple_read_in(number, slot, pos, buffer, tag);
        if sent.is_err() {
            self.free.push(number);
        }
        sent
    }

    /// The same in the free slot `number`.
    #[inline]
    fn simple_read_in(
        &mut self,
        number: u32,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        tag: u64,
    ) -> Result<(), (NotSimple, Buffer)> {
        let length = buffer.len() as u64;
        let address = buffer.address().addr().get() as u64;
        let misaligned = (pos | length) & self.position_mask | address & self.memory_mask;
        let Some(Some(attached)) = self.files.get_mut(slot.index as usize) else {
            return Err((NotSimple, buffer));
        };
        let usable = attached.simple && attached.serial == slot.serial && misaligned == 0 && length != 0;
        if !usable {
            return Err((NotSimple, buffer));
        }
        if F::state(&attached.file.inode).gate.enter_open(&attached.cell).is_err() {
            return Err((NotSimple, buffer));
        }
        attached.refresh();
        let (size, bits) =
            (F::state(&attached.file.inode).reach(), F::state(&attached.file.inode).block_bits());
        let inside = pos < size && length <= size - pos;
        let located = if inside { attached.find_written(Range { pos, length }, bits) } else { None };
        let Some(physical) = located else { return Err((NotSimple, attached.withdraw(buffer))) };
        self.slots[number as usize] =
            Slot { tag, pos: physical, length: length as u32, label: Label::read(slot.index) };
        // Everything is recorded first, so that nothing has to be saved across the call.
        match self.door.send(number, buffer, Op::Read, false, physical) {
            Ok(()) => {
                F::state(&attached.file.inode).gate.leave(&attached.cell);
                Ok(())
            }
            Err(buffer) => {
                self.slots[number as usize].label = Label::FREE;
                Err((NotSimple, attached.withdraw(buffer)))
            }
        }
    }
}

impl<F: FileSystem> Engine<F> {
    /// A simple read by the calling thread, which holds the gate and is counted in flight.
    #[inline]
    pub(crate) fn simple_read(
        &self,
        guard: &InodeGuard<'_>,
        state: &InodeState,
        buf: &mut [u8],
        range: Range,
    ) -> Result<Result<usize, F::Error>, NotSimple> {
        if range.end() > state.reach() {
            return Err(NotSimple);
        }
        let physical = state.find_written(guard, range).ok_or(NotSimple)?;
        self.counters.bump_at(guard.slot(), Counter::SimpleReads);
        self.counters.bump_at(guard.slot(), Counter::DioCounted);
        let read = self.device.read_at(buf, physical).map_err(crate::error::Error::from);
        Ok(read.map(|()| buf.len()).map_err(F::Error::from))
    }
}
