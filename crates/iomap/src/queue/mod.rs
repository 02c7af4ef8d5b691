//! The queue of one thread: attach files, submit reads and writes, reap completions.
//!
//! - `mod.rs`: the public face, and the lock that lets a drainer harvest an idle queue
//! - `slot.rs`: what is kept of a request; [`core`](self): all of a queue; `drive.rs`: completions;
//!   `durable.rs`: those that are to be durable
//! - `retry.rs`: requests that the device put off
//! - `general.rs`: reads of any shape; `overwrite.rs`: writes of any shape; `window.rs`: writes decided before
//! - the short paths are in their rooms: [`crate::simple_read`], [`crate::write_plan`]

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
use crate::gate::InodeGuard;
use crate::owner_lock::Owner;
use crate::pipeline::Mapping;
use crate::plan::{Durability, ReadFlags, WriteFlags};
pub use attach::FileSlot;
pub(crate) use core::{QueueCore, QueueState};
use slot::Kind;
pub(crate) use slot::{Label, Slot};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use uext4_blockdev::{Buffer, BufferPool, Process, QueueFacts, QueueOptions};

/// One finished request.
#[derive(Debug)]
pub struct Completion<E> {
    /// The tag it was submitted with.
    pub tag: u64,
    /// Bytes transferred (reads end at the end of the file), or why it failed as a whole. The error is boxed
    /// because thousands of completions without one pass through the processor's nearest cache.
    pub result: Result<usize, Box<E>>,
    /// The memory, given back.
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
/// [`Forked`](uext4_blockdev::Error::Forked). Dropping one there does nothing; what it holds goes with the child.
pub struct IoQueue<F: FileSystem> {
    process: Process,
    core: Owner<QueueState<F>>,
    /// Keeps the drainers' end alive as long as the handle.
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

    /// Refuses in a child process, before anything is locked: whoever holds a lock may not exist there.
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
    /// More than the pool's limit; with registered buffers required, memory that the device does not register.
    pub fn buffer(&self, length: usize) -> Result<Buffer, F::Error> {
        Ok(self.pool.take(length).map_err(Error::from)?)
    }

    /// Attaches a file: what its requests need is resolved once. The slot is valid for this queue only.
    pub fn attach(&mut self, file: &OpenFile<F>) -> Result<FileSlot, F::Error> {
        self.check_process()?;
        Ok(self.core.lock().attach(file))
    }

    /// Detaches a file. Requests in flight finish first, in their own time.
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
            // The device may refuse it, which the short way does not know.
            self.check_process()?;
            return self.core.lock().read_general(slot, pos, Payload::One(buffer), flags, tag);
        }
        let core = &mut *self.core.lock();
        match core.simple_read(slot, pos, buffer, tag) {
            Ok(()) => Ok(()),
            // Of a child process the device queue takes nothing, so it comes here.
            Err(_) if !self.process.is_here() => Err(Self::forked()),
            Err((_not_simple, buffer)) => core.read_general(slot, pos, Payload::One(buffer), flags, tag),
        }
    }

    /// Writes `buffer` at `pos`. Position and length are multiples of the device's logical block.
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

    /// Changes size or blocks of a file: `change` gets its gate, held alone, when nothing of it is in flight. Done when
    /// this returns; the outcome is delivered as a completion of no bytes. Requests of this queue get on meanwhile.
    pub fn change(
        &mut self,
        slot: FileSlot,
        tag: u64,
        change: impl FnOnce(&OpenFile<F>, InodeGuard<'_>) -> Result<(), F::Error>,
    ) -> Result<(), F::Error> {
        self.check_process()?;
        self.core.lock().change(slot, tag, change)
    }

    /// Sends what was queued.
    pub fn submit(&mut self) -> Result<usize, F::Error> {
        self.check_process()?;
        self.core.lock().submit()
    }

    /// Waits until `count` completions are there (or nothing is in flight) and delivers all that are. Submits
    /// first.
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

    /// Delivers the completions that are there, without waiting. Submits first. Commits and flushes that requests wait
    /// for run beside this call, on a thread that lives as long as there are any.
    pub fn poll(&mut self) -> Result<std::vec::Drain<'_, Completion<F::Error>>, F::Error> {
        self.check_process()?;
        self.core.lock().poll(&mut self.delivered)?;
        Ok(self.delivered.drain(..))
    }

    /// Requests submitted and not yet delivered. None in a child process, which is delivered nothing.
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
    /// Poll it, do not read from it. What needs no device request completes without a signal: reads behind the end of
    /// the file or of holes only, empty requests, copies of mapped memory. And what has to be made durable gets under
    /// way by a call only. So call [`IoQueue::poll`] once after submitting, before going to sleep on the descriptor.
    pub fn eventfd(&mut self) -> Result<Option<OwnedFd>, F::Error> {
        self.check_process()?;
        self.core.lock().eventfd()
    }
}

impl<F: FileSystem> Drop for IoQueue<F> {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // Nothing of it may be let go: that takes locks, and threads that held some at the fork are not here.
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
        change: impl FnOnce(&OpenFile<F>, InodeGuard<'_>) -> Result<(), F::Error>,
    ) -> Result<(), F::Error> {
        self.engine.fs.check_alive()?;
        let file = self.file(slot)?.file.clone();
        file.check_writable()?;
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        let held = file.state().gate.lock_exclusive(true, &mut || self.help());
        let result = change(&file, held).map(|()| 0);
        self.deliver_at_once(tag, result, Payload::None);
        Ok(())
    }

    /// Queues a sync of one file.
    fn sync(&mut self, slot: FileSlot, all: bool, tag: u64) -> Result<(), F::Error> {
        self.engine.fs.check_alive()?;
        let index = self.index(slot)?;
        let durability = if all { Durability::Fsync } else { Durability::Datasync };
        let number = self.take_slot(Slot::new(index, tag, Kind::Sync, durability, false))?;
        // Its work starts with the next drive: completion of earlier writes first, then one commit and flush
        // for all.
        self.to_sync.push(number);
        Ok(())
    }
}
