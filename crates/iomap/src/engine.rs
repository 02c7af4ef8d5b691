//! The engine of one volume: device, counters, and the queues that a drainer may harvest.

use crate::counters::{Counter, Counters, Stats};
use crate::error::Error;
use crate::flush::FlushTickets;
use crate::flusher::Flusher;
use crate::fs::{FileSystem, Synced};
use crate::mapping::Range;
use crate::queue::QueueCore;
use crate::write_back::PageMemory;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use uext4_blockdev::{BufferPool, Capabilities, Device, Geometry, Process, WriteDurability};

/// A longer wait for a queue that only its owner can drive counts as a stall.
const STALL: Duration = Duration::from_secs(1);

/// Initial size of the bounce-buffer pool; it grows when more are in use at once.
const BOUNCE_POOL: usize = 512 * 1024;

/// The direct-I/O engine of one volume.
#[repr(C)]
pub struct Engine<F: FileSystem> {
    // Fields read by every request come first.
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
    pub(crate) pages: PageMemory<F>,
}

impl<F: FileSystem> Engine<F> {
    /// An engine for `fs` on `device`, without pages: buffered requests go to the device at once.
    pub fn new(fs: Arc<F>, device: Arc<dyn Device>) -> Result<Self, Error> {
        Engine::with_pages(fs, device, 0)
    }

    /// The same with pages of at most `budget` bytes in memory.
    pub fn with_pages(fs: Arc<F>, device: Arc<dyn Device>, budget: u64) -> Result<Self, Error> {
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
            pages: PageMemory::new(budget),
        })
    }

    /// Fails in a forked child, before anything that could wait: the thread waited for may not exist there. Calls that
    /// never wait need no check: the device refuses.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        Ok(self.process.check()?)
    }

    /// The device for all data requests.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<F> {
        &self.fs
    }

    /// The counters themselves, for somebody who outlives or does not know the engine.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All counters so far.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }

    /// One write of the device, counted unless it is a copy into mapped memory.
    pub(crate) fn write_counted(&self, buf: &[u8], pos: u64, how: WriteDurability) -> Result<(), Error> {
        self.device.write_at(buf, pos, how)?;
        if self.capabilities.dax.is_none() {
            self.counters.add(Counter::BytesWritten, buf.len() as u64);
        }
        Ok(())
    }

    pub(crate) fn register(&self, queue: &Arc<QueueCore<F>>) {
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    /// Drives every queue that is not being driven right now, so that a drain does not depend on the queues' owners.
    /// Returns whether some queue can only be driven by its owner.
    pub(crate) fn harvest(&self) -> bool {
        let queues: Vec<_> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        let mut owner_driven = false;
        for queue in queues {
            owner_driven |= queue.harvest();
        }
        owner_driven
    }

    /// What a synchronous call runs while it waits: it drives the queues it may be waiting for.
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

    /// Checks a direct request: position and length must be aligned, and the end at most 2⁶³ - 1. An empty request
    /// passes.
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

    /// A cache flush that starts after this call does, shared with concurrent callers. A failure aborts the volume.
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
        // The abort runs inside the shared flush: the system reports a write-back error to one flush only, and the next
        // one would succeed although the data was lost.
        self.flushes.covered(flush)
    }

    /// Commits what these inodes need, then flushes unless the commit has done so.
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

/// Refuses ranges that end past 2⁶³ - 1.
#[inline(always)]
pub(crate) fn check_range(pos: u64, length: u64) -> Result<Range, Error> {
    const END_MAX: u64 = i64::MAX as u64;
    if length > END_MAX || pos > END_MAX - length {
        return Err(Error::RangeTooLarge { pos, length });
    }
    Ok(Range { pos, length })
}
