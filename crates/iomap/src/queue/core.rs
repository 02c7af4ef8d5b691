//! The state of a queue behind its lock, and how its slots are taken and returned.

use super::attach::Attached;
use super::durable::{Signal, Syncing};
use super::retry::PutOff;
use super::slot::{Kind, Label, Landed, Slot};
use super::ticket::Ticket;
use super::{Completion, QueueFacts};
use crate::counters::CounterLine;
use crate::door::{Door, Payload};
use crate::engine::Engine;
use crate::error::Error;
use crate::flusher::SyncJob;
use crate::fs::FileSystem;
use crate::owner_lock::{Guest, Owner, owner_lock};
use crate::pipeline::Fresh;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::thread::ThreadId;
use uext4_blockdev::{DeviceQueue, Done, Queue, Wait};

/// State of a request with any number of parts.
pub(crate) struct General<F: FileSystem> {
    /// Device position, length and offset in the payload of each device request.
    pub(crate) parts: Vec<(u64, u32, u64)>,
    /// Bytes to report.
    pub(crate) visible: u64,
    /// Payload ranges (offset, length) to zero when all transfers are done: holes, unwritten blocks, bytes past the end
    /// of the file.
    pub(crate) zero: Vec<(u64, u64)>,
    /// First failure.
    pub(crate) error: Option<F::Error>,
    /// All parts were pushed.
    pub(crate) sealed: bool,
    /// Parts that have ended. The door's count of outstanding parts drops for a whole batch at once, before their
    /// results are examined.
    pub(crate) ended: usize,
    /// Blocks that it fills and that must be converted.
    pub(crate) fresh: Option<Fresh<F>>,
    /// Its device requests fail instead of waiting.
    pub(crate) nowait: bool,
    /// The conversion has started.
    pub(crate) converting: bool,
    /// It is an append in flight beside others, and ends in the order of the file.
    pub(crate) appends: bool,
    /// Dropped with the rest; that takes the request out of flight.
    pub(crate) ticket: Ticket<F>,
}

/// The general request of a slot, nearly always `None`.
pub(crate) type GeneralSlot<F> = Option<Box<General<F>>>;

impl<F: FileSystem> General<F> {
    /// A request that transfers `visible` bytes, of which nothing was pushed yet.
    pub(crate) fn new(visible: u64, fresh: Option<Fresh<F>>, ticket: Ticket<F>) -> Self {
        General {
            parts: Vec::with_capacity(4),
            visible,
            zero: Vec::new(),
            error: None,
            sealed: false,
            ended: 0,
            fresh,
            nowait: false,
            converting: false,
            appends: false,
            ticket,
        }
    }

    /// Whether every part was pushed and has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.sealed && self.ended == self.parts.len()
    }
}

/// The state of a queue, behind its lock. Fields that every request touches lie together: each copied block evicts the
/// L1 cache, and every line of these fields must then be fetched again.
#[repr(C)]
pub(crate) struct QueueState<F: FileSystem> {
    // Dropped before the files: the drop waits for the device, which still works on their blocks.
    pub(crate) door: Door,
    /// General requests, by slot. Dropped before the files: they are in flight through the files' cells.
    pub(crate) general: Box<[GeneralSlot<F>]>,
    pub(crate) files: Vec<Option<Attached<F>>>,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) free: Vec<u32>,
    pub(crate) ready: Vec<Completion<F::Error>>,
    pub(crate) counters: Arc<CachePadded<CounterLine>>,
    /// Bits that must be clear in positions and lengths, and in addresses.
    pub(crate) position_mask: u64,
    pub(crate) memory_mask: u64,
    /// Coarse real time of the last drive, used as the time of writes without reading the clock for each.
    pub(crate) now_ns: u64,
    /// The engine's file system, without an indirection through the engine.
    pub(crate) fs: Arc<F>,
    pub(crate) engine: Arc<Engine<F>>,
    // The following fields are used once per batch, or by requests of several parts.
    pub(crate) done: Vec<Done>,
    /// Slots whose transfers are done and that wait for the commit and flush of the whole batch.
    pub(crate) to_sync: Vec<u32>,
    /// The previous batch, whose commit and flush are running.
    pub(super) syncing: Option<Syncing<F::Error>>,
    /// Wakes an owner that sleeps on a descriptor, once one was requested.
    pub(super) signal: Option<Signal>,
    /// Device requests that were sent again: nearly always none.
    pub(super) put_off: PutOff,
    pub(crate) owner_driven: bool,
}

/// A queue as a drainer sees it: the guest's end of the lock, to try for a harvest. The handle has the owner's end.
pub(crate) struct QueueCore<F: FileSystem> {
    core: Guest<QueueState<F>>,
    /// The one thread that may drive the queue, if it is owner-driven.
    owner: Option<ThreadId>,
}

impl<F: FileSystem> QueueCore<F> {
    pub(crate) fn new(core: QueueState<F>) -> (Owner<QueueState<F>>, Arc<Self>) {
        let owner = core.owner_driven.then(|| std::thread::current().id());
        let (handle, guest) = owner_lock(core);
        (handle, Arc::new(QueueCore { core: guest, owner }))
    }

    /// Drives the queue for a waiting drainer, unless it is being driven right now: submits, reaps, and makes durable
    /// what is due. Returns whether the queue has requests pending and only its owner, another thread, may drive it.
    ///
    /// Commits and flushes run outside the queue's lock: an owner that polls must not wait for them. At most one batch
    /// is run: requests that complete during it are left to the next harvest or to the owner, because the drainer may
    /// already have what it waits for.
    pub(crate) fn harvest(&self) -> bool {
        if self.owner.is_some_and(|owner| owner != std::thread::current().id()) {
            return self.core.try_lock().is_none_or(|core| core.pending() > 0);
        }
        if let Some(job) = self.reap() {
            job.run();
            // If the owner is inside, it delivers the batch itself.
            if let Some(mut core) = self.core.try_lock() {
                core.deliver_synced();
            }
        }
        false
    }

    /// Reaps, then starts the next batch to make durable.
    fn reap(&self) -> Option<SyncJob<F>> {
        let mut core = self.core.try_lock()?;
        // A failure shows up at the owner's next call.
        let _shown_to_the_owner = core.reap(Wait::No);
        core.deliver_synced();
        core.start_sync()
    }
}

impl<F: FileSystem> QueueState<F> {
    pub(crate) fn new(engine: Arc<Engine<F>>, queue: Queue, depth: u32) -> Self {
        let facts = queue.facts();
        let geometry = engine.geometry;
        QueueState {
            door: Door::new(queue, depth),
            files: Vec::new(),
            put_off: PutOff::default(),
            slots: vec![Slot::FREE; depth as usize].into_boxed_slice(),
            general: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            ready: Vec::with_capacity(depth as usize),
            done: Vec::with_capacity(depth as usize),
            to_sync: Vec::with_capacity(depth as usize),
            syncing: None,
            signal: None,
            counters: engine.counters.register(),
            owner_driven: facts.owner_driven,
            now_ns: crate::clock::coarse_now_ns(),
            position_mask: u64::from(geometry.logical_block) - 1,
            memory_mask: u64::from(geometry.memory_align) - 1,
            fs: engine.fs.clone(),
            engine,
        }
    }

    /// Reserves a slot for a request.
    pub(crate) fn take_slot(&mut self, slot: Slot) -> Result<u32, Error> {
        let number = self.free.pop().ok_or(Error::QueueFull)?;
        self.fill_slot(number, slot);
        Ok(number)
    }

    /// Writes a reserved slot.
    #[inline]
    pub(crate) fn fill_slot(&mut self, number: u32, slot: Slot) {
        if let Some(attached) = &mut self.files[slot.label.file()] {
            attached.waiting += u16::from(slot.label.kind() != Kind::Plain);
        }
        self.slots[number as usize] = slot;
    }

    /// Delivers a finished request and frees its slot. The request was not counted in flight, or no longer is: a
    /// detached file is freed with the last of its requests, and must not be used after this call.
    #[inline]
    pub(crate) fn deliver(&mut self, number: u32, result: Result<usize, F::Error>) {
        let slot = &mut self.slots[number as usize];
        let (tag, file, kind) = (slot.tag, slot.label.file(), slot.label.kind());
        slot.label = Label::FREE;
        let payload = self.door.take(number);
        self.free.push(number);
        self.ready.push(Completion { tag, result: result.map_err(Box::new), payload });
        if let Some(attached) = &mut self.files[file] {
            attached.waiting -= u16::from(kind != Kind::Plain);
        }
        self.let_go(file);
    }

    /// Lowers a file's in-flight count by a run of delivered requests.
    pub(crate) fn lower_all(&mut self, landed: Landed) {
        if landed.count == 0 {
            return;
        }
        self.note_write(landed.label);
        self.complete(landed);
    }

    /// Takes requests out of flight, and counts their route unless that was done at submission.
    #[inline]
    fn complete(&mut self, landed: Landed) {
        if let Some(tally) = landed.label.tally() {
            self.counters.bump_all(tally, landed.count);
        }
        let Some(Some(attached)) = self.files.get_mut(landed.label.file()) else { return };
        F::state(&attached.file.inode).gate.complete_all(&attached.cell, landed.count);
        self.let_go(landed.label.file());
    }

    /// The transfers of a request are done: if it is a write, notes the time of this drive as the file's write time.
    /// Called once for each request, before it is made durable, so that `O_SYNC` covers the time too.
    #[inline]
    pub(super) fn note_write(&self, label: Label) {
        if let Some(attached) = self.files[label.file()].as_ref().filter(|_| label.writes()) {
            F::state(&attached.file.inode).gate.note_write(&attached.cell, self.now_ns);
        }
    }

    /// Takes a slot's request out of flight: its transfers and completion work are done.
    #[inline]
    pub(crate) fn lower(&mut self, number: u32) {
        let label = self.slots[number as usize].label;
        match self.general[number as usize].take() {
            Some(general) if general.appends => self.end_append(label.file()),
            Some(_) => {}
            None if label.kind() != Kind::Sync => self.complete(Landed { label, count: 1 }),
            None => {}
        }
    }

    /// Queues the completion of a request that never got a slot (nothing to transfer, or already done).
    pub(crate) fn deliver_at_once(&mut self, tag: u64, result: Result<usize, F::Error>, payload: Payload) {
        self.ready.push(Completion { tag, result: result.map_err(Box::new), payload });
    }

    pub(crate) fn pending(&self) -> usize {
        self.slots.len() - self.free.len() + self.ready.len()
    }

    pub(super) fn facts(&self) -> QueueFacts {
        self.door.facts()
    }
}

impl<F: FileSystem> Drop for QueueState<F> {
    fn drop(&mut self) {
        self.engine.counters.retire(&self.counters);
    }
}
