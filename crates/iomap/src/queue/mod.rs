//! The queue of one thread: attach files, submit reads and writes, reap completions.
//!
//! - `mod.rs`: the public face, and the lock that lets a drainer harvest an idle queue
//! - `slot.rs`: the state of a request; [`core`](self): the state of a queue; `drive.rs`: completions; `durable.rs`:
//!   completions that need conversion or durability
//! - `retry.rs`: requests that the device asked to repeat
//! - `general.rs`: reads of any shape; `overwrite.rs`: writes of any shape; `window.rs`: writes that reuse a plan;
//!   `append.rs`: appends in flight beside one another
//! - the short paths are in their rooms: [`crate::simple_read`], [`crate::write_plan`]

mod append;
mod attach;
mod core;
mod drive;
mod durable;
mod general;
mod overwrite;
mod retry;
mod slot;
mod ticket;
mod window;

use crate::door::Payload;
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::owner_lock::Owner;
use crate::pipeline::Mapping;
use crate::plan::{Durability, ReadFlags, WriteFlags};
use crate::write_back::Sole;
pub use attach::FileSlot;
pub(crate) use core::{QueueCore, QueueState};
use slot::Kind;
pub(crate) use slot::{Label, Slot};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uext4_blockdev::{Buffer, BufferPool, Process, QueueFacts, QueueOptions};

/// One finished request.
#[derive(Debug)]
pub struct Completion<E> {
    /// The tag it was submitted with.
    pub tag: u64,
    /// Bytes transferred (reads end at the end of the file), or why it failed as a whole. The error is boxed to keep
    /// completions small: thousands without an error pass through the L1 cache.
    pub result: Result<usize, Box<E>>,
    /// The request's memory, returned.
    pub payload: Payload,
}

impl<E> Completion<E> {
    /// The buffer of a request with one buffer.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.payload.into_buffer()
    }
}

/// An I/O queue. One thread uses it; it may be moved to another between calls unless it is owner-driven.
///
/// Buffers belong to the queue from submission until their completion is reaped. Dropping the queue waits for
/// everything in flight.
///
/// A child process cannot use the queues it inherits: calls that return an error return
/// [`Forked`](uext4_blockdev::Error::Forked). Dropping one there does nothing; its resources are freed when the child
/// ends.
pub struct IoQueue<F: FileSystem> {
    process: Process,
    core: Owner<QueueState<F>>,
    /// Keeps the drainers' end alive while the handle exists.
    _harvested: Arc<QueueCore<F>>,
    facts: QueueFacts,
    pool: BufferPool,
    delivered: Vec<Completion<F::Error>>,
}

// Files count their requests in 16 bits.
const _: () = assert!(QueueOptions::DEPTH_MAX <= u16::MAX as u32);

impl<F: FileSystem> IoQueue<F> {
    /// A queue on the engine's device. `options.pool` is the memory of [`IoQueue::buffer`].
    pub fn new(engine: &Arc<Engine<F>>, options: QueueOptions, pool: BufferPool) -> Result<Self, F::Error> {
        let depth = options.depth;
        options.check_depth().map_err(Error::from)?;
        let process = Process::current().map_err(Error::from)?;
        let options = QueueOptions { pool: Some(pool.clone()), ..options };
        let queue = engine.device.queue(&options).map_err(Error::from)?;
        let core = QueueState::new(engine.clone(), queue, depth);
        let facts = core.facts();
        let (core, harvested) = QueueCore::new(core);
        engine.register(&harvested);
        let delivered = Vec::with_capacity(depth as usize);
        Ok(IoQueue { process, core, _harvested: harvested, facts, pool, delivered })
    }

    /// Fails in a child process, before anything is locked: the thread that holds a lock may not exist there.
    #[inline(always)]
    fn check_process(&self) -> Result<(), F::Error> {
        if self.process.is_here() { Ok(()) } else { Err(Self::forked()) }
    }

    #[cold]
    fn forked() -> F::Error {
        Error::from(uext4_blockdev::Error::Forked).into()
    }

    /// An aligned buffer of `length` bytes from the queue's memory, which grows on demand. Contents are unspecified.
    ///
    /// # Errors
    /// If the pool's limit is exceeded; with registered buffers required, if the device does not register the memory.
    pub fn buffer(&self, length: usize) -> Result<Buffer, F::Error> {
        Ok(self.pool.take(length).map_err(Error::from)?)
    }

    /// Attaches a file: what its requests need of it is resolved once. The slot is valid for this queue only.
    pub fn attach(&mut self, file: &OpenFile<F>) -> Result<FileSlot, F::Error> {
        self.check_process()?;
        Ok(self.core.lock().attach(file))
    }

    /// Detaches a file. Does not wait: requests in flight still complete, and then the file is released.
    pub fn detach(&mut self, slot: FileSlot) -> Result<(), F::Error> {
        self.check_process()?;
        Ok(self.core.lock().detach(slot)?)
    }

    /// Reads `buffer.len()` bytes at `pos`. Position and length are multiples of the device's logical block.
    #[inline]
    pub fn read(&mut self, slot: FileSlot, pos: u64, buffer: Buffer, tag: u64) -> Result<(), F::Error> {
        self.read_with(slot, pos, buffer, ReadFlags::empty(), tag)
    }

    /// As [`IoQueue::read`], with flags.
    #[inline]
    pub fn read_with(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: ReadFlags,
        tag: u64,
    ) -> Result<(), F::Error> {
        if flags.contains(ReadFlags::NOWAIT) {
            // The device may refuse a no-wait request, which the short path does not handle.
            self.check_process()?;
            return self.core.lock().read_general(slot, pos, Payload::One(buffer), flags, tag);
        }
        let core = &mut *self.core.lock();
        match core.simple_read(slot, pos, buffer, tag) {
            Ok(()) => Ok(()),
            // In a child process the device queue accepts nothing, so this is reached.
            Err(_) if !self.process.is_here() => Err(Self::forked()),
            Err((_not_simple, buffer)) => core.read_general(slot, pos, Payload::One(buffer), flags, tag),
        }
    }

    /// Writes `buffer` at `pos`. Position and length are multiples of the device's logical block.
    ///
    /// Whole blocks, each behind the last one, at the end of a file are in flight together. The size moves when they
    /// complete, in the order of the file. One that fails leaves zeros if later ones succeed.
    #[inline]
    pub fn write(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: WriteFlags,
        tag: u64,
    ) -> Result<(), F::Error> {
        let core = &mut *self.core.lock();
        match core.write_in_window(slot, pos, buffer, flags, tag) {
            Ok(()) => Ok(()),
            Err(_) if !self.process.is_here() => Err(Self::forked()),
            Err(buffer) => core.write_deciding(slot, pos, buffer, flags, tag),
        }
    }

    /// Reads into several buffers, one after another in the file. Each length is a multiple of the logical
    /// block.
    pub fn readv(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffers: Vec<Buffer>,
        tag: u64,
    ) -> Result<(), F::Error> {
        self.check_process()?;
        let mut core = self.core.lock();
        core.check_vector(&buffers)?;
        core.read_general(slot, pos, Payload::Many(buffers.into()), ReadFlags::empty(), tag)
    }

    /// Writes several buffers, one after another in the file. Each length is a multiple of the logical block.
    pub fn writev(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        tag: u64,
    ) -> Result<(), F::Error> {
        self.check_process()?;
        let mut core = self.core.lock();
        core.check_vector(&buffers)?;
        core.write(slot, pos, Payload::Many(buffers.into()), flags, tag, Mapping::Due)
    }

    /// As `fdatasync`: when it completes, every write of this file that completed before is durable.
    pub fn sync_data(&mut self, slot: FileSlot, tag: u64) -> Result<(), F::Error> {
        self.check_process()?;
        self.core.lock().sync(slot, false, tag)
    }

    /// As `fsync`.
    pub fn sync_all(&mut self, slot: FileSlot, tag: u64) -> Result<(), F::Error> {
        self.check_process()?;
        self.core.lock().sync(slot, true, tag)
    }

    /// Changes size or blocks of a file: `change` gets its gate, held exclusively and drained, without pages. The
    /// change is done when this returns; its outcome is delivered as a completion of 0 bytes. Other requests of this
    /// queue progress during the wait.
    pub fn change(
        &mut self,
        slot: FileSlot,
        tag: u64,
        change: impl FnOnce(&OpenFile<F>, Sole<'_>) -> Result<(), F::Error>,
    ) -> Result<(), F::Error> {
        self.check_process()?;
        self.core.lock().change(slot, tag, change)
    }

    /// Sends what was queued.
    pub fn submit(&mut self) -> Result<usize, F::Error> {
        self.check_process()?;
        self.core.lock().submit()
    }

    /// Submits, waits until `count` completions are available (or nothing is in flight) and delivers all that are.
    pub fn wait(&mut self, count: usize) -> Result<std::vec::Drain<'_, Completion<F::Error>>, F::Error> {
        self.check_process()?;
        self.core.lock().wait(count, &mut self.delivered)?;
        Ok(self.delivered.drain(..))
    }

    /// Waits at most `timeout` for one completion.
    pub fn wait_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<std::vec::Drain<'_, Completion<F::Error>>, F::Error> {
        self.check_process()?;
        self.core.lock().wait_timeout(timeout, &mut self.delivered)?;
        Ok(self.delivered.drain(..))
    }

    /// Submits, then delivers the completions available, without waiting. Commits and flushes that requests need run on
    /// another thread, which exists as long as there are any.
    pub fn poll(&mut self) -> Result<std::vec::Drain<'_, Completion<F::Error>>, F::Error> {
        self.check_process()?;
        self.core.lock().poll(&mut self.delivered)?;
        Ok(self.delivered.drain(..))
    }

    /// Requests submitted and not yet delivered. 0 in a child process, which never gets completions.
    pub fn pending(&mut self) -> usize {
        if self.process.is_here() { self.core.lock().pending() } else { 0 }
    }

    /// What the device granted: polling, registered memory, fallbacks.
    pub fn facts(&self) -> QueueFacts {
        let mut facts = self.facts.clone();
        facts.fallbacks.extend(self.pool.refused());
        facts
    }

    /// A descriptor that becomes readable when the device may have completed something, for an event loop.
    /// `None`: this device completes without one, call [`IoQueue::poll`].
    ///
    /// Poll it, do not read from it. Requests without a device request complete without a signal: reads past the end of
    /// the file or of holes only, empty requests, copies of mapped memory. Commits and flushes are started only by a
    /// call. So call [`IoQueue::poll`] once after submitting, before sleeping on the descriptor.
    pub fn eventfd(&mut self) -> Result<Option<OwnedFd>, F::Error> {
        self.check_process()?;
        self.core.lock().eventfd()
    }
}

impl<F: FileSystem> Drop for IoQueue<F> {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // Leak it: releasing it takes locks, and threads that held them at the fork do not exist here.
            std::mem::forget(self._harvested.clone());
            return;
        }
        self.core.lock().shut_down();
    }
}

impl<F: FileSystem> QueueState<F> {
    fn check_vector(&self, buffers: &[Buffer]) -> Result<(), Error> {
        let mut total = 0u64;
        for buffer in buffers {
            self.engine.check_direct(0, buffer.len() as u64)?;
            total += buffer.len() as u64;
        }
        if total > u64::from(u32::MAX) {
            return Err(Error::RangeTooLarge { pos: 0, length: total });
        }
        Ok(())
    }

    fn change(
        &mut self,
        slot: FileSlot,
        tag: u64,
        change: impl FnOnce(&OpenFile<F>, Sole<'_>) -> Result<(), F::Error>,
    ) -> Result<(), F::Error> {
        self.engine.fs.check_alive()?;
        let file = self.file(slot)?.file.clone();
        file.check_writable()?;
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        let engine = self.engine.clone();
        let held = engine.be_alone(&file, true, &mut || self.help())?;
        let result = change(&file, held).map(|()| 0);
        self.deliver_at_once(tag, result, Payload::None);
        Ok(())
    }

    /// Queues a sync of one file.
    fn sync(&mut self, slot: FileSlot, all: bool, tag: u64) -> Result<(), F::Error> {
        self.engine.fs.check_alive()?;
        let index = self.index(slot)?;
        let durability = if all { Durability::Fsync } else { Durability::Datasync };
        if self.file(slot)?.file.state().pages().is_some() {
            return self.sync_pages(slot, index, durability, tag);
        }
        let number = self.take_slot(Slot::new(index, tag, Kind::Sync, durability, false))?;
        // The sync starts with the next drive: earlier writes complete first, then one commit and flush for all.
        self.to_sync.push(number);
        Ok(())
    }

    /// The same of a file that had buffered requests: its pages go home first, before this returns.
    #[cold]
    fn sync_pages(
        &mut self,
        slot: FileSlot,
        index: usize,
        durability: Durability,
        tag: u64,
    ) -> Result<(), F::Error> {
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        let (engine, file) = (self.engine.clone(), self.file(slot)?.file.clone());
        let settled = engine.settle_sync(&file, &mut || self.help());
        // What the copy was told, this open file was told.
        let told = file.seen.load(Ordering::Relaxed);
        self.file(slot)?.file.seen.store(told, Ordering::Relaxed);
        match settled {
            Ok(()) => {
                let number = self.take_slot(Slot::new(index, tag, Kind::Sync, durability, false))?;
                self.to_sync.push(number);
            }
            Err(error) => self.deliver_at_once(tag, Err(error), Payload::None),
        }
        Ok(())
    }
}
