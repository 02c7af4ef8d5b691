//! All of a queue behind its lock, and how its slots are taken and given back.

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

/// What is kept of a request with any number of parts.
pub(crate) struct General<F: FileSystem> {
    /// Device position, length and offset in the payload of each device request.
    pub(crate) parts: Vec<(u64, u32, u64)>,
    /// Bytes to report.
    pub(crate) visible: u64,
    /// Payload ranges (offset, length) to zero when all transfers are over: holes, unwritten blocks, behind
    /// the end.
    pub(crate) zero: Vec<(u64, u64)>,
    /// First failure.
    pub(crate) error: Option<F::Error>,
    /// All parts were pushed.
    pub(crate) sealed: bool,
    /// Parts that have ended. The door's count of outstanding ones falls for a whole batch at once, before
    /// their results were looked at.
    pub(crate) ended: usize,
    /// Blocks that it fills, to be converted.
    pub(crate) fresh: Option<Fresh<F>>,
    /// Its device requests are refused rather than wait.
    pub(crate) nowait: bool,
    /// Somebody converts them.
    pub(crate) converting: bool,
    /// Dropped with the rest: then the request is in flight no more.
    pub(crate) ticket: Ticket<F>,
}

/// Of a slot: nearly always none.
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
            ticket,
        }
    }

    /// Whether every part was pushed and has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.sealed && self.ended == self.parts.len()
    }
}

/// All of a queue, behind its lock. What every request touches lies together: each copied block throws the
/// nearest cache's contents out, and each line of these fields has to come back.
#[repr(C)]
pub(crate) struct QueueState<F: FileSystem> {
    // Dropped before the files: it waits for the device, which works on their blocks.
    pub(crate) door: Door,
    /// General requests, by slot. Dropped before the files: it is in flight through their cells.
    pub(crate) general: Box<[GeneralSlot<F>]>,
    pub(crate) files: Vec<Option<Attached<F>>>,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) free: Vec<u32>,
    pub(crate) ready: Vec<Completion<F::Error>>,
    pub(crate) counters: Arc<CachePadded<CounterLine>>,
    /// Bits that must be clear in positions and lengths, and in addresses.
    pub(crate) position_mask: u64,
    pub(crate) memory_mask: u64,
    /// Coarse real time of the last drive: stamps writes without asking the clock for each.
    pub(crate) now_ns: u64,
    /// The engine's, without the way by it.
    pub(crate) fs: Arc<F>,
    pub(crate) engine: Arc<Engine<F>>,
    // What follows is looked at once for a batch, or for requests of several parts.
    pub(crate) done: Vec<Done>,
    /// Slots whose transfers are over and that wait for one commit and flush of the whole batch.
    pub(crate) to_sync: Vec<u32>,
    /// The batch before it, whose commit and flush somebody runs.
    pub(super) syncing: Option<Syncing<F::Error>>,
    /// What wakes an owner who sleeps on a descriptor, once one was asked for.
    pub(super) signal: Option<Signal>,
    /// Device requests that were sent again: nearly always none.
    pub(super) put_off: PutOff,
    pub(crate) owner_driven: bool,
}

/// A queue as a drainer sees it: it tries the lock for a harvest. The owner's end is in the handle.
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

    /// Drives the queue for a waiting drainer, if nobody drives it right now: submits, reaps, and makes durable what is
    /// due. Returns whether only another thread, its owner, may drive it, and it has requests pending.
    ///
    /// Commits and flushes run outside the queue's lock: an owner who polls must not wait for them. One batch of them
    /// at most: what lands meanwhile is left to the next harvest or to the owner, because the drainer may have
    /// what it waits for.
    pub(crate) fn harvest(&self) -> bool {
        if self.owner.is_some_and(|owner| owner != std::thread::current().id()) {
            return self.core.try_lock().is_none_or(|core| core.pending() > 0);
        }
        if let Some(job) = self.reap() {
            job.run();
            // An owner who is inside delivers the batch himself.
            if let Some(mut core) = self.core.try_lock() {
                core.deliver_synced();
            }
        }
        false
    }

    /// Reaps, and starts the next batch that is to be made durable.
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

    /// Delivers a finished request and frees its slot. The request was not counted in flight, or no longer is:
    /// a detached file goes with the last of its requests, and is not looked at again after this.
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

    /// Lowers the in-flight count of a file by requests that were delivered one after another.
    pub(crate) fn lower_all(&mut self, landed: Landed) {
        if landed.count == 0 {
            return;
        }
        self.note_write(landed.label);
        self.complete(landed);
    }

    /// Takes requests out of flight, and counts their route if that was not done when they were sent.
    #[inline]
    fn complete(&mut self, landed: Landed) {
        if let Some(tally) = landed.label.tally() {
            self.counters.bump_all(tally, landed.count);
        }
        let Some(Some(attached)) = self.files.get_mut(landed.label.file()) else { return };
        F::state(&attached.file.inode).gate.complete_all(&attached.cell, landed.count);
        self.let_go(landed.label.file());
    }

    /// The transfers of a request are over: if it is a write, its file changed at the time of this drive. Once for
    /// each, and before it is made durable, so that `O_SYNC` covers the time as well.
    #[inline]
    pub(super) fn note_write(&self, label: Label) {
        if let Some(attached) = self.files[label.file()].as_ref().filter(|_| label.writes()) {
            F::state(&attached.file.inode).gate.note_write(&attached.cell, self.now_ns);
        }
    }

    /// Takes a slot's request out of flight: its transfers and completion work are over.
    #[inline]
    pub(crate) fn lower(&mut self, number: u32) {
        let label = self.slots[number as usize].label;
        if self.general[number as usize].take().is_none() && label.kind() != Kind::Sync {
            self.complete(Landed { label, count: 1 });
        }
    }

    /// Queues a completion of a request that never got a slot (nothing to transfer, or done already).
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
