//! The engine of one volume: device, counters, and the queues that a drainer may harvest.

use crate::counters::{Counter, Counters, Stats};
use crate::error::Error;
use crate::flush::FlushTickets;
use crate::flusher::Flusher;
use crate::fs::{FileSystem, Synced};
use crate::mapping::Range;
use crate::queue::QueueCore;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use uext4_blockdev::{BufferPool, Capabilities, Device, Geometry, Process};

/// Waiting longer than this for a queue that only its owner may drive is counted as a stall.
const STALL: Duration = Duration::from_secs(1);

/// Memory reserved for bounce buffers; it grows when more of them are in use at a time.
const BOUNCE_POOL: usize = 512 * 1024;

/// The direct-I/O engine of one volume.
#[repr(C)]
pub struct Engine<F: FileSystem> {
    // What every request reads comes first.
    /// Bits that must be clear in positions and lengths, and in addresses.
    position_mask: u64,
    memory_mask: usize,
    pub(crate) capabilities: Capabilities,
    pub(crate) fs: Arc<F>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) counters: Counters,
    pub(crate) geometry: Geometry,
    pub(crate) bounces: BufferPool,
    process: Process,
    flushes: FlushTickets,
    merges_flushes: bool,
    pub(crate) flusher: Flusher<F>,
    queues: Mutex<Vec<Weak<QueueCore<F>>>>,
}

impl<F: FileSystem> Engine<F> {
    /// An engine for `fs` on `device`.
    pub fn new(fs: Arc<F>, device: Arc<dyn Device>) -> Result<Self, Error> {
        Ok(Engine {
            fs,
            position_mask: u64::from(device.geometry().logical_block) - 1,
            memory_mask: device.geometry().memory_align as usize - 1,
            process: Process::current()?,
            geometry: device.geometry(),
            capabilities: device.capabilities(),
            merges_flushes: device.merges_flushes(),
            device,
            counters: Counters::default(),
            bounces: BufferPool::new(BOUNCE_POOL)?,
            flushes: FlushTickets::new(),
            flusher: Flusher::new(),
            queues: Mutex::new(Vec::new()),
        })
    }

    /// Refuses in a child process, before anything is waited for: what it waits for may not exist there. What waits
    /// for nothing need not ask: the device refuses.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        Ok(self.process.check()?)
    }

    /// The device all data requests go to.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<F> {
        &self.fs
    }

    /// All counters so far.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }

    pub(crate) fn register(&self, queue: &Arc<QueueCore<F>>) {
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    /// Drives every queue that nobody is driving right now, so that whoever waits for a drain does not depend on their
    /// owners. Returns whether some queue can only be driven by its owner.
    pub(crate) fn harvest(&self) -> bool {
        let queues: Vec<_> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        let mut owner_driven = false;
        for queue in queues {
            owner_driven |= queue.harvest();
        }
        owner_driven
    }

    /// What a synchronous call does while it waits: it helps those it may be waiting for.
    pub(crate) fn helper(&self) -> impl FnMut() + '_ {
        let started = Instant::now();
        let mut reported = false;
        move || {
            let owner_driven = self.harvest();
            if owner_driven && !reported && started.elapsed() > STALL {
                reported = true;
                self.counters.bump(Counter::DrainStalls);
            }
        }
    }

    /// Checks a direct request: alignment of position and length, and no end behind 2⁶³. An empty request is
    /// fine.
    #[inline(always)]
    pub(crate) fn check_direct(&self, pos: u64, length: u64) -> Result<Range, Error> {
        if (pos | length) & self.position_mask != 0 {
            return Err(self.misaligned(pos, length));
        }
        check_range(pos, length)
    }

    /// Checks a memory address against the device's alignment.
    #[inline(always)]
    pub(crate) fn check_address(&self, address: *const u8) -> Result<(), Error> {
        if address.addr() & self.memory_mask != 0 {
            return Ok(self.geometry.check_memory(address.addr())?);
        }
        Ok(())
    }

    #[cold]
    fn misaligned(&self, pos: u64, length: u64) -> Error {
        use uext4_blockdev::{Error as DeviceError, Misaligned};
        let align = self.geometry.logical_block;
        let (what, value) = if pos & (u64::from(align) - 1) != 0 {
            (Misaligned::Position, pos)
        } else {
            (Misaligned::Length, length)
        };
        DeviceError::Misaligned { what, value, align }.into()
    }

    /// One cache flush that starts after this call did, shared with whoever needs one at the same time. A failure
    /// aborts the volume.
    pub(crate) fn flush(&self) -> Result<(), F::Error> {
        if !self.capabilities.volatile_cache {
            return Ok(());
        }
        let flush = || {
            self.fs.check_alive()?;
            self.counters.bump(Counter::Flushes);
            self.device.flush().map_err(|error| self.fatal(error.into()))
        };
        if self.merges_flushes {
            return flush();
        }
        // Abort included: the system reports a write-back error to one flush only, and the next one would
        // succeed without having saved anything.
        self.flushes.covered(flush)
    }

    /// Commits what these inodes need, then flushes unless the commit did.
    pub(crate) fn make_durable(&self, batch: &[Synced<'_, F>]) -> Result<(), F::Error> {
        self.fs.check_alive()?;
        let flushed = self.fs.datasync(batch)?;
        if flushed { Ok(()) } else { self.flush() }
    }

    /// Aborts the volume for a failure after which durability cannot be promised.
    pub(crate) fn fatal(&self, error: Error) -> F::Error {
        self.fs.abort(error.clone());
        error.into()
    }
}

/// Refuses ranges that end behind 2⁶³ - 1.
#[inline(always)]
pub(crate) fn check_range(pos: u64, length: u64) -> Result<Range, Error> {
    const END_MAX: u64 = i64::MAX as u64;
    if length > END_MAX || pos > END_MAX - length {
        return Err(Error::RangeTooLarge { pos, length });
    }
    Ok(Range { pos, length })
}
