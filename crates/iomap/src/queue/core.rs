//! Slots of a queue: where a request lives between submission and delivery.

use super::attach::{Attached, FileSlot};
use super::{Completion, QueueFacts};
use crate::counters::CounterLine;
use crate::door::{Door, Payload};
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::plan::Durability;
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uext4_blockdev::{DeviceQueue, Done, Queue};

/// What kind of request a slot holds.
#[derive(Debug)]
pub(crate) enum SlotKind {
    /// Nothing.
    Free,
    /// One device request that transfers all bytes: simple reads and overwrites of one piece.
    Single {
        /// First byte on the device, for errors.
        pos: u64,
        /// Bytes.
        length: u32,
        /// Work at completion.
        durability: Durability,
        /// Whether it writes.
        write: bool,
    },
    /// Any number of device requests.
    General(Box<General>),
    /// A sync of the file.
    Sync {
        /// `fsync` rather than `fdatasync`.
        all: bool,
    },
}

/// State of a request with any number of parts.
#[derive(Debug)]
pub(crate) struct General {
    /// Device position and length of each device request.
    pub(crate) parts: Vec<(u64, u32)>,
    /// Bytes to report.
    pub(crate) visible: u64,
    /// Payload ranges (offset, length) to zero when all transfers are over: holes, unwritten blocks, behind the end.
    pub(crate) zero: Vec<(u64, u64)>,
    /// First failure.
    pub(crate) error: Option<Error>,
    /// All parts were pushed.
    pub(crate) sealed: bool,
    pub(crate) durability: Durability,
    pub(crate) write: bool,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) tag: u64,
    pub(crate) file: u32,
    pub(crate) kind: SlotKind,
}

/// All of a queue, behind its lock.
pub(crate) struct Core<F: FileSystem> {
    pub(crate) engine: Arc<Engine<F>>,
    pub(crate) door: Door,
    pub(crate) files: Vec<Option<Attached<F>>>,
    pub(crate) serial: u32,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) free: Vec<u32>,
    pub(crate) ready: Vec<Completion<F::Error>>,
    pub(crate) done: Vec<Done>,
    /// Slots whose transfers are over and that wait for one commit and flush of the whole batch.
    pub(crate) to_sync: Vec<u32>,
    pub(crate) counters: Arc<CachePadded<CounterLine>>,
    pub(crate) owner_driven: bool,
}

/// A queue behind a lock that its owner takes for each call and a drainer tries for a harvest.
pub(crate) struct QueueCore<F: FileSystem> {
    core: Mutex<Core<F>>,
    owner_driven: bool,
}

impl<F: FileSystem> QueueCore<F> {
    pub(crate) fn new(core: Core<F>) -> Arc<Self> {
        let owner_driven = core.owner_driven;
        Arc::new(QueueCore { core: Mutex::new(core), owner_driven })
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core<F>> {
        self.core.lock()
    }

    /// Submits and reaps for a waiting drainer, if nobody drives the queue right now. Returns whether only the owner
    /// may drive it and it has requests pending.
    pub(crate) fn harvest(&self) -> bool {
        if self.owner_driven {
            return self.core.try_lock().is_none_or(|core| core.pending() > 0);
        }
        if let Some(mut core) = self.core.try_lock() {
            core.drive_quietly();
        }
        false
    }
}

impl<F: FileSystem> Core<F> {
    pub(crate) fn new(engine: Arc<Engine<F>>, queue: Queue, depth: u32) -> Self {
        let facts = queue.facts();
        let slot = |_| Slot { tag: 0, file: 0, kind: SlotKind::Free };
        Core {
            door: Door::new(queue, depth),
            files: Vec::new(),
            serial: 0,
            slots: (0..depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            ready: Vec::with_capacity(depth as usize),
            done: Vec::with_capacity(depth as usize),
            to_sync: Vec::with_capacity(depth as usize),
            counters: engine.counters.register(),
            owner_driven: facts.owner_driven,
            engine,
        }
    }

    /// Reserves a slot for a request of an attached file.
    #[inline]
    pub(crate) fn take_slot(&mut self, file: FileSlot, tag: u64, kind: SlotKind) -> Result<u32, Error> {
        let file = self.index(file)?;
        let number = self.free.pop().ok_or(Error::QueueFull)?;
        self.fill_slot(number, file, tag, kind);
        Ok(number)
    }

    /// Writes a reserved slot.
    #[inline]
    pub(crate) fn fill_slot(&mut self, number: u32, file: usize, tag: u64, kind: SlotKind) {
        self.slots[number as usize] = Slot { tag, file: file as u32, kind };
        if let Some(attached) = &mut self.files[file] {
            attached.pending += 1;
        }
    }

    /// Delivers a finished request and frees its slot. The request was not counted in flight, or no longer is.
    #[inline]
    pub(crate) fn deliver(&mut self, number: u32, result: Result<usize, F::Error>) {
        let slot = &mut self.slots[number as usize];
        let (tag, file) = (slot.tag, slot.file as usize);
        slot.kind = SlotKind::Free;
        let payload = self.door.take(number);
        self.free.push(number);
        self.ready.push(Completion { tag, result, payload });
        if let Some(attached) = &mut self.files[file] {
            attached.pending -= 1;
        }
        self.let_go(file);
    }

    /// Lowers the in-flight count of a slot's file: its transfers and completion work are over.
    #[inline]
    pub(crate) fn lower(&self, number: u32) {
        let file = self.slots[number as usize].file as usize;
        if let Some(attached) = &self.files[file] {
            attached.file.state().gate.complete(&attached.cell);
        }
    }

    /// Queues a completion of a request that never got a slot (nothing to transfer, or done already).
    pub(crate) fn deliver_at_once(&mut self, tag: u64, result: Result<usize, F::Error>, payload: Payload) {
        self.ready.push(Completion { tag, result, payload });
    }

    pub(crate) fn pending(&self) -> usize {
        self.slots.len() - self.free.len() + self.ready.len()
    }

    pub(super) fn facts(&self) -> QueueFacts {
        self.door.facts()
    }

    pub(super) fn eventfd(&mut self) -> Result<Option<OwnedFd>, F::Error> {
        let Some(fd) = self.door.event_fd().map_err(Error::from)? else {
            return Ok(None);
        };
        let owned = fd.try_clone_to_owned().map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(5);
            Error::from(uext4_blockdev::Error::Io { op: "eventfd", pos: 0, length: 0, errno })
        })?;
        Ok(Some(owned))
    }
}

impl<F: FileSystem> Drop for Core<F> {
    fn drop(&mut self) {
        self.engine.counters.retire(&self.counters);
    }
}
