//! Room 4, `simple-read`: the short path of reads.
//!
//! Fast route: a preset slot, one look-up, one device request; no allocation, no request object, no iteration. It
//! refuses ([`NotSimple`]) before any side effect, and the general route takes over. Plain route: the general iterator
//! with its request object ([`crate::queue`], `general.rs`; [`crate::sync_io`] for synchronous calls).
//!
//! Legal because the range lies in one written run inside the file's size, checked after this reader was counted in
//! flight. Unlike the kernel's version the range need not fit one block: one mapping is enough for one request.

use crate::counters::Counter;
use crate::door::{Part, Payload};
use crate::engine::Engine;
use crate::fs::FileSystem;
use crate::mapping::Range;
use crate::plan::Durability;
use crate::queue::{Core, FileSlot, SlotKind};
use crate::snapshot::MapSnapshot;
use uext4_blockdev::{Buffer, Op};

/// The read needs the general route; nothing has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSimple;

/// Longest simple read in bytes: one device request carries it.
pub const SIMPLE_READ_MAX: u64 = 1 << 30;

/// The device position of a simple read.
#[inline]
fn locate(map: &MapSnapshot, range: Range, size: u64, block_bits: u32) -> Result<u64, NotSimple> {
    if range.length == 0
        || range.length > SIMPLE_READ_MAX
        || range.pos >= size
        || range.length > size - range.pos
    {
        return Err(NotSimple);
    }
    map.find_written(range, block_bits).ok_or(NotSimple)
}

impl<F: FileSystem> Core<F> {
    /// Queues a simple read, or gives the buffer back untouched.
    #[inline]
    pub(crate) fn simple_read(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        tag: u64,
    ) -> Result<(), (NotSimple, Buffer)> {
        let length = buffer.len() as u64;
        let mask = u64::from(self.engine.geometry.logical_block) - 1;
        let misaligned = (pos | length) & mask != 0
            || buffer.address().addr().get() & (self.engine.geometry.memory_align as usize - 1) != 0;
        let Some(&number) = self.free.last() else {
            return Err((NotSimple, buffer));
        };
        let Ok(index) = self.index(slot) else {
            return Err((NotSimple, buffer));
        };
        let Some(attached) = &mut self.files[index] else {
            return Err((NotSimple, buffer));
        };
        if misaligned || !attached.file.readable || self.engine.fs.check_alive().is_err() {
            return Err((NotSimple, buffer));
        }
        let state = F::state(&attached.file.inode);
        if state.gate.enter(&attached.cell).is_err() {
            return Err((NotSimple, buffer));
        }
        attached.refresh();
        let state = F::state(&attached.file.inode);
        let range = Range { pos, length };
        let Ok(physical) = locate(&attached.map, range, state.size(), state.block_bits()) else {
            state.gate.leave(&attached.cell);
            state.gate.complete(&attached.cell);
            return Err((NotSimple, buffer));
        };
        self.door.store(number, Payload::One(buffer));
        let length = length as u32;
        let part =
            Part { op: Op::Read, fua: false, nowait: false, pos: physical, offset: 0, length, index: 0 };
        if self.door.push(number, part).is_err() {
            state.gate.leave(&attached.cell);
            state.gate.complete(&attached.cell);
            let Payload::One(buffer) = self.door.take(number) else { unreachable!("stored above") };
            return Err((NotSimple, buffer));
        }
        state.gate.leave(&attached.cell);
        self.free.pop();
        let kind = SlotKind::Single { pos: physical, length, durability: Durability::None, write: false };
        self.fill_slot(number, index, tag, kind);
        self.counters.bump(Counter::SimpleReads);
        self.counters.bump(Counter::DioCounted);
        Ok(())
    }
}

impl<F: FileSystem> Engine<F> {
    /// A simple read by the calling thread, which holds the gate and is counted in flight.
    #[inline]
    pub(crate) fn simple_read(
        &self,
        state: &crate::inode::InodeState,
        buf: &mut [u8],
        range: Range,
    ) -> Result<Result<usize, F::Error>, NotSimple> {
        let size = state.size();
        let physical = state.map.with(|map| locate(map, range, size, state.block_bits()))?;
        self.counters.bump(Counter::SimpleReads);
        let read = self.device.read_at(buf, physical).map_err(crate::error::Error::from);
        Ok(read.map(|()| buf.len()).map_err(F::Error::from))
    }
}
