//! Overwrites that reuse the plan of an earlier one.
//!
//! [`plan_shared_overwrite`](crate::write_plan::plan_shared_overwrite) depends on the flags of a request, its written
//! run, the sizes, the mapping and the inode; the switches (all on) and the device never change. So the queue keeps the
//! plan with the file: the next request with the same flags only checks that the run covers it and that mapping and
//! inode are unchanged, that the gate is open and that the file system is alive.

use super::attach::{Attached, FileSlot};
use super::core::QueueState;
use super::slot::{Kind, Label, Slot};
use crate::fs::FileSystem;
use crate::plan::{Durability, View, WriteFlags};
use uext4_blockdev::{BUFFER_ALIGN, Buffer, Op};

/// A kept plan, and the requests that it covers.
#[derive(Debug)]
pub(super) struct Window {
    /// Number of bytes from `start` that lie in one written run, inside both sizes.
    start: u64,
    length: u64,
    /// Device position of `start`.
    physical: u64,
    /// Generation of the mapping, and change counter of the inode, when the plan was made.
    generation: u64,
    changes: u64,
    label: Label,
    fua: bool,
    block_mask: u32,
    flags: WriteFlags,
}

impl Window {
    /// A window that covers nothing.
    pub(super) const CLOSED: Window = Window {
        start: 0,
        length: 0,
        physical: 0,
        generation: 0,
        changes: 0,
        label: Label::FREE,
        fua: false,
        block_mask: 0,
        flags: WriteFlags::empty(),
    };

    /// The device position of `length` bytes at `pos`, if they are covered.
    #[inline(always)]
    fn locate(&self, pos: u64, length: u64) -> Option<u64> {
        // A position before the start wraps around and fails the check. An empty request is not covered.
        let offset = pos.wrapping_sub(self.start);
        if offset >= self.length || length.wrapping_sub(1) >= self.length - offset {
            return None;
        }
        Some(offset + self.physical)
    }

    /// Whether a write touches only a part of some file-system block. Device positions give the same answer as file
    /// positions.
    #[inline(always)]
    fn splits_block(&self, pos: u64, length: u64) -> bool {
        (pos | length) & u64::from(self.block_mask) != 0
    }
}

impl<F: FileSystem> Attached<F> {
    /// Keeps `label`, the plan of a request with `flags`. `view` was loaded after `changes`, both inside the gate. The
    /// window is the run kept last in the same mapping, nearly always the request's own. Otherwise the plan still
    /// holds: it depends only on the run being written and inside both sizes.
    #[inline(always)]
    pub(super) fn open_window(
        &mut self,
        view: &View,
        changes: u64,
        flags: WriteFlags,
        label: Label,
        memory_mask: u64,
    ) {
        if label.kind() != Kind::Plain || memory_mask >= BUFFER_ALIGN as u64 {
            return;
        }
        self.window = Window {
            start: self.run.start,
            length: self.run.end.min(view.size).min(view.disk_size.plain()).saturating_sub(self.run.start),
            physical: self.run.physical,
            generation: self.generation,
            changes,
            label: label.tallied(),
            fua: label.durability() == Durability::Fua,
            block_mask: (view.block_size() - 1) as u32,
            flags,
        };
    }
}

impl<F: FileSystem> QueueState<F> {
    /// Writes one buffer if a window covers it, or gives it back without any side effect.
    #[inline(always)]
    pub(super) fn write_in_window(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: WriteFlags,
        tag: u64,
    ) -> Result<(), Buffer> {
        let Some(Some(attached)) = self.files.get_mut(slot.index as usize) else { return Err(buffer) };
        let length = buffer.len() as u64;
        let window = &attached.window;
        let Some(physical) = window.locate(pos, length) else { return Err(buffer) };
        if flags != window.flags || slot.serial != attached.serial {
            return Err(buffer);
        }
        if (pos | length) & self.position_mask != 0 || self.fs.check_alive().is_err() {
            return Err(buffer);
        }
        let state = F::state(&attached.file.inode);
        if state.gate.enter_open(&attached.cell).is_err() {
            return Err(buffer);
        }
        if state.map.generation() != window.generation || state.changes() != window.changes {
            return Err(attached.withdraw(buffer));
        }
        let Some(number) = self.free.pop() else { return Err(attached.withdraw(buffer)) };
        let (label, fua) = (window.label.with_subblock(window.splits_block(pos, length)), window.fua);
        self.slots[number as usize] = Slot { tag, pos: physical, length: length as u32, label };
        // Everything but the gate is recorded first, so that little has to be saved across the call.
        match self.door.send(number, buffer, Op::Write, fua, physical) {
            Ok(()) => {
                F::state(&attached.file.inode).gate.leave(&attached.cell);
                Ok(())
            }
            Err(buffer) => Err(self.withdraw(number, buffer)),
        }
    }

    /// Withdraws a slot's request that the full device queue did not accept.
    #[cold]
    #[inline(never)]
    fn withdraw(&mut self, number: u32, buffer: Buffer) -> Buffer {
        self.free.push(number);
        let sent = &mut self.slots[number as usize];
        let file = sent.label.file();
        sent.label = Label::FREE;
        match self.files.get_mut(file) {
            Some(Some(attached)) => attached.withdraw(buffer),
            _ => buffer,
        }
    }
}
