//! The face of a device: geometry, capabilities, synchronous calls.

use crate::{Error, Misaligned, Queue, QueueOptions, Result};
use std::fmt;

/// Sizes and alignment rules, fixed while the device is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Usable size in bytes.
    pub size: u64,
    /// Smallest addressable unit in bytes, a power of two of at least 512. Positions and lengths are multiples of it.
    pub logical_block: u32,
    /// Every memory address of a transfer is a multiple of this (bytes, power of two, 1 = any).
    pub memory_align: u32,
}

impl Geometry {
    /// Checks position, length and range of a transfer. Error → nothing may be sent.
    #[inline]
    pub fn check(&self, pos: u64, length: u64) -> Result<()> {
        let mask = u64::from(self.logical_block) - 1;
        if (pos | length) & mask != 0 || length == 0 || length > self.size || pos > self.size - length {
            return Err(self.explain(pos, length));
        }
        Ok(())
    }

    /// Checks a memory address against [`Geometry::memory_align`].
    #[inline]
    pub fn check_memory(&self, address: usize) -> Result<()> {
        if address & (self.memory_align as usize - 1) != 0 {
            return Err(Error::Misaligned {
                what: Misaligned::Memory,
                value: address as u64,
                align: self.memory_align,
            });
        }
        Ok(())
    }

    #[cold]
    fn explain(&self, pos: u64, length: u64) -> Error {
        let mask = u64::from(self.logical_block) - 1;
        let misaligned = |what, value| Error::Misaligned { what, value, align: self.logical_block };
        if pos & mask != 0 {
            misaligned(Misaligned::Position, pos)
        } else if length & mask != 0 || length == 0 {
            misaligned(Misaligned::Length, length)
        } else {
            Error::OutOfRange { pos, length, size: self.size }
        }
    }
}

/// How a mapped (DAX) device makes bytes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaxKind {
    /// `MAP_SYNC` on fsdax: cache-line write-back plus fence is durable; tears at 8 bytes.
    MapSync,
    /// Ordinary mapping: `msync` is durable.
    Msync,
}

/// What the device can do, after masks were applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// A volatile write cache stands between a completed plain write and the medium: a flush is needed.
    pub volatile_cache: bool,
    /// A single write can be made durable without a flush ([`WriteDurability::Fua`], [`crate::Request::fua`]).
    pub fua: bool,
    /// Submission does not punt to worker threads.
    pub nowait: bool,
    /// Discards are passed down.
    pub discard: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// Mapped memory: synchronous calls are plain copies.
    pub dax: Option<DaxKind>,
}

impl Capabilities {
    /// Whether a completed FUA write (or, without a volatile cache, any completed write) is durable by itself.
    #[inline]
    pub fn durable_without_flush(&self) -> bool {
        self.fua || !self.volatile_cache
    }
}

/// Durability asked of one synchronous write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteDurability {
    /// Durable after the next flush.
    #[default]
    Cached,
    /// Durable when the call returns, this write only (FUA). Only legal if [`Capabilities::fua`].
    Fua,
}

/// Who else may use the device while it is open, for `info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Opened exclusively (`O_EXCL` or an image lock).
    Exclusive,
    /// Opened read-only beside other readers.
    SharedRead,
    /// Opened read-only although somebody may write (`--force`).
    Forced,
    /// Private memory.
    Private,
}

/// Who carries out queued requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driving {
    /// io_uring, as many at once as the device has tags.
    Ring,
    /// io_uring, which hands each to a worker thread: the device has no NOWAIT, and takes its time.
    Workers,
    /// The call that submits them: the device has no NOWAIT and is done when the call returns (tmpfs, zram), or there
    /// is no ring.
    Inline,
    /// An engine in this process.
    Engine,
}

/// What `info` says about a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Engine name as in the device grammar: `file`, `sync`, `dax`, `nvme`, `mem`, `null`.
    pub engine: &'static str,
    /// Path or other locator.
    pub locator: String,
    /// Layers outside the engine, innermost first.
    pub layers: Vec<String>,
    /// Who else may use it.
    pub sharing: Sharing,
    /// Who carries out queued requests.
    pub driving: Driving,
    /// Requests that the device takes at once, where the kernel tells. Queues keep what is more to themselves.
    pub tags: Option<u32>,
    /// Facts worth telling: fallbacks taken, missing NOWAIT, msync instead of MAP_SYNC, …
    pub notes: Vec<String>,
}

/// A block device. Calls may come from any thread; they block until done.
///
/// Every implementation checks range and alignment itself ([`Geometry::check`], [`Geometry::check_memory`]) before a
/// transfer starts, so that a wrong caller gets a typed error and nothing else.
///
/// A child process that inherits a device or a queue can drop it, which has no effect on the parent. Every other call
/// is refused with [`Error::Forked`], but on engines in private memory, of which the child has a copy.
pub trait Device: Send + Sync + fmt::Debug {
    /// Sizes and alignment.
    fn geometry(&self) -> Geometry;
    /// What it can do.
    fn capabilities(&self) -> Capabilities;
    /// For `info`.
    fn describe(&self) -> Description;
    /// Fills `buf` from byte `pos`.
    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()>;
    /// Writes `buf` at byte `pos`.
    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()>;
    /// As [`Device::read_at`], but fails with `EAGAIN` ([`Error::Io`]) rather than wait until the device can take the
    /// request, if it can tell ([`Capabilities::nowait`]). A transfer that the kernel divides, because it is longer
    /// than the device takes at once, fails so each time.
    fn read_nowait(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.read_at(buf, pos)
    }
    /// As [`Device::write_at`] in the same way: after `EAGAIN` nothing was written. A write with FUA may wait.
    fn write_nowait(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.write_at(buf, pos, durability)
    }
    /// Makes every completed write durable. A no-op success without a volatile cache.
    fn flush(&self) -> Result<()>;
    /// Writes `buf` at byte `pos`, durable when the call returns: this write at least. Without FUA that is a write and
    /// a flush, which some devices do in one request.
    fn write_durable(&self, buf: &[u8], pos: u64) -> Result<()> {
        if self.capabilities().fua {
            return self.write_at(buf, pos, WriteDurability::Fua);
        }
        self.write_and_flush(buf, pos)
    }
    /// Writes `buf` at byte `pos`, then makes every completed write durable, this one among them. Some devices do both
    /// in one request.
    fn write_and_flush(&self, buf: &[u8], pos: u64) -> Result<()> {
        self.write_at(buf, pos, WriteDurability::Cached)?;
        self.flush()
    }
    /// Makes durable whatever was written before this device was opened, by others and through other doors: it may
    /// still lie in the host's page cache, or depend on changes of the host's file system, even where writes of this
    /// device's own need no flush. Call it once before anything is promised durable.
    fn settle(&self) -> Result<()> {
        self.flush()
    }
    /// Whether concurrent flushes share the device's work by themselves, and each caller learns of a failure. Then
    /// nobody above has to arrange for either.
    fn merges_flushes(&self) -> bool {
        false
    }
    /// Tells the device that a range is unused. Contents are undefined afterwards.
    fn discard(&self, pos: u64, length: u64) -> Result<()>;
    /// Whether these bytes are known to read as zeros without a look at them: a hole of a file. `false` means "not
    /// known". What was discarded is never known.
    fn reads_zeros(&self, _pos: u64, _length: u64) -> bool {
        false
    }
    /// A request queue for one thread.
    fn queue(&self, options: &QueueOptions) -> Result<Queue>;
}
