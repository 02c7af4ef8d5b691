//! Files attached to a queue.

use super::append::Appends;
use super::core::QueueState;
use super::ticket::Hold;
use super::window::Window;
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::gate::Cell;
use crate::mapping::Range;
use crate::snapshot::ByteRun;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file attached to one queue. Every other queue of the process refuses it ([`Error::BadSlot`]): serials are unique
/// across all queues and repeat only after 2³² files were attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileSlot {
    pub(crate) index: u32,
    pub(crate) serial: u32,
}

/// What a request needs of its file, resolved once: this queue's own cell of the gate and the mapping last seen.
/// Everything but the map fits one cache line.
#[repr(C, align(64))]
pub(crate) struct Attached<F: FileSystem> {
    pub(crate) file: OpenFile<F>,
    /// The written run kept last, valid while the generation is unchanged.
    pub(crate) run: ByteRun,
    pub(crate) cell: Arc<CachePadded<Cell>>,
    pub(crate) generation: u64,
    /// 0 once the file is detached: no file has serial 0.
    pub(crate) serial: u32,
    /// Undelivered requests that are not plain: syncs are not counted in flight, and requests with a commit or several
    /// parts end later than their transfers. A queue's depth is at most 32768.
    pub(crate) waiting: u16,
    /// Reads may take the short path: open for reading, not mapped memory, the switch is on, no time of access is kept.
    pub(crate) simple: bool,
    /// Writes of one piece may take the short path: open for writing, not mapped memory.
    pub(crate) overwrites: bool,
    /// The overwrites that reuse an earlier plan.
    pub(super) window: Window,
    /// For general requests.
    pub(super) hold: Arc<Hold<F>>,
    /// Made by the first append.
    pub(super) appends: Option<Box<Appends>>,
}

impl<F: FileSystem> Drop for Attached<F> {
    fn drop(&mut self) {
        // Of a queue that died with appends in flight.
        F::state(&self.file.inode).clear_appender(self.appender());
        let gate = &F::state(&self.file.inode).gate;
        if self.cell.is_idle() {
            gate.unregister(&self.cell);
        } else {
            gate.unregister_dead(&self.cell);
        }
    }
}

impl<F: FileSystem> Attached<F> {
    /// Detached, with no request pending.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.serial == 0 && self.is_idle()
    }

    /// No request is pending. Plain requests count in flight until they are about to be delivered.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.cell.is_idle()
    }

    /// Drops kept mappings of an older generation. Call inside the gate: written blocks then stay written until the
    /// gate is left.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let generation = F::state(&self.file.inode).map.generation();
        if generation != self.generation {
            self.follow(generation);
        }
    }

    #[cold]
    fn follow(&mut self, generation: u64) {
        (self.generation, self.run) = (generation, ByteRun::EMPTY);
    }

    /// The device position of `range`, if it lies in one written run: first the run kept last, then the
    /// map.
    #[inline]
    pub(crate) fn find_written(&mut self, range: Range, block_bits: u32) -> Option<u64> {
        match self.run.locate(range) {
            Some(physical) => Some(physical),
            None => self.search_written(range, block_bits),
        }
    }

    #[inline(never)]
    fn search_written(&mut self, range: Range, block_bits: u32) -> Option<u64> {
        let run = &mut self.run;
        F::state(&self.file.inode).map.find_written(range, block_bits, |found| *run = found)
    }

    /// Withdraws a request of which nothing was sent: it leaves the gate and is no longer in flight. Returns its
    /// buffer.
    #[cold]
    pub(crate) fn withdraw<T>(&self, brought: T) -> T {
        let gate = &F::state(&self.file.inode).gate;
        gate.leave(&self.cell);
        gate.complete(&self.cell);
        brought
    }
}

/// A serial for a file being attached to any queue of the process. Never 0.
fn next_serial() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    loop {
        match NEXT.fetch_add(1, Ordering::Relaxed) {
            0 => {}
            serial => return serial,
        }
    }
}

impl<F: FileSystem> QueueState<F> {
    pub(super) fn attach(&mut self, file: &OpenFile<F>) -> FileSlot {
        let state = file.state();
        // Others may be waiting for requests in flight on this queue, which is locked.
        let cell = state.gate.register(&mut || self.help());
        let index = self.files.iter().position(Option::is_none).unwrap_or_else(|| {
            self.files.push(None);
            self.files.len() - 1
        });
        let serial = next_serial();
        // The short paths do not support priorities.
        let direct = self.engine.capabilities.dax.is_none() && file.priority.is_of_thread();
        let generation = state.map.generation();
        self.files[index] = Some(Attached {
            file: file.clone(),
            simple: direct && file.readable && file.switches.simple_read && !file.notes_access(),
            overwrites: direct && file.writable,
            run: ByteRun::EMPTY,
            cell: cell.clone(),
            generation,
            waiting: 0,
            serial,
            window: Window::CLOSED,
            hold: Arc::new(Hold { inode: file.inode.clone(), cell }),
            appends: None,
        });
        FileSlot { index: index as u32, serial }
    }

    pub(super) fn detach(&mut self, slot: FileSlot) -> Result<(), Error> {
        let index = self.index(slot)?;
        if let Some(attached) = &mut self.files[index] {
            attached.serial = 0;
        }
        self.let_go(index);
        Ok(())
    }

    /// Frees a detached file once no request of it is pending.
    pub(super) fn let_go(&mut self, index: usize) {
        let gone = self.files[index].as_ref().is_some_and(Attached::is_gone);
        if gone {
            self.files[index] = None;
        }
    }

    #[inline]
    pub(super) fn is_all_on(&self, slot: FileSlot) -> bool {
        matches!(self.files.get(slot.index as usize), Some(Some(file)) if file.file.is_all_on())
    }

    #[inline]
    pub(crate) fn index(&self, slot: FileSlot) -> Result<usize, Error> {
        match self.files.get(slot.index as usize) {
            Some(Some(file)) if file.serial == slot.serial && file.serial != 0 => Ok(slot.index as usize),
            _ => Err(Error::BadSlot),
        }
    }

    #[inline]
    pub(super) fn file(&self, slot: FileSlot) -> Result<&Attached<F>, Error> {
        match self.files.get(slot.index as usize) {
            Some(Some(file)) if file.serial == slot.serial && file.serial != 0 => Ok(file),
            _ => Err(Error::BadSlot),
        }
    }
}
