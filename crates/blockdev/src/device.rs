//! The device interface: geometry, capabilities, synchronous calls.

use crate::{Cost, Error, Misaligned, Op, Queue, QueueOptions, Result, Scratch};
use std::fmt;
use std::sync::LazyLock;

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
    /// Checks position, length and range of a transfer. After an error nothing may be sent.
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

    /// Checks a synchronous transfer of this memory at byte `pos`. After an error nothing may be sent.
    #[inline]
    pub fn check_transfer(&self, buf: &[u8], pos: u64) -> Result<()> {
        self.check(pos, buf.len() as u64)?;
        self.check_memory(buf.as_ptr() as usize)
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

/// What the device can do, after masks are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// A completed plain write may still be in a volatile write cache: only a flush makes it durable.
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

    /// Refuses writes and discards to a device opened read-only.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}

/// Durability requested for one synchronous write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteDurability {
    /// Durable after the next flush.
    #[default]
    Cached,
    /// This write, and only this one, is durable when the call returns (FUA). Only legal if [`Capabilities::fua`].
    Fua,
}

/// Who else may use the device while it is open, for `info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Opened exclusively (`O_EXCL` or an image lock).
    Exclusive,
    /// Opened read-only beside other readers.
    SharedRead,
    /// Opened read-only although another process may write (`--force`).
    Forced,
    /// Private memory.
    Private,
    /// The device has no lock that keeps others away: only the volume can have one (multi-mount protection).
    Unlocked,
}

/// What executes queued requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driving {
    /// io_uring, with as many requests at once as the device has tags.
    Ring,
    /// io_uring, which hands each request to a worker thread: the device has no NOWAIT, and its requests block.
    Workers,
    /// The submitting call itself: the device has no NOWAIT and completes requests synchronously (tmpfs, zram), or
    /// there is no ring.
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
    /// What executes queued requests.
    pub driving: Driving,
    /// Requests that the device takes at once, where the kernel reports it. Queues hold back any excess.
    pub tags: Option<u32>,
    /// Notable facts: fallbacks taken, missing NOWAIT, msync instead of MAP_SYNC, …
    pub notes: Vec<String>,
}

/// A block device. Calls may come from any thread; they block until done.
///
/// Every implementation checks range and alignment itself ([`Geometry::check`], [`Geometry::check_memory`]) before a
/// transfer starts, so that a bad request gets a typed error and transfers nothing.
///
/// A child process that inherits a device or a queue can drop it, which has no effect on the parent. Every other call
/// fails with [`Error::Forked`], except on engines in private memory, of which the child has a copy.
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
    /// As [`Device::read_at`], but fails with `EAGAIN` ([`Error::Io`]) instead of waiting until the device can take the
    /// request, where the device supports that ([`Capabilities::nowait`]). A transfer longer than the device takes in
    /// one request, which the kernel would split, always fails this way.
    fn read_nowait(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.read_at(buf, pos)
    }
    /// The same for [`Device::write_at`]: after `EAGAIN` nothing was written. A FUA write may still wait.
    fn write_nowait(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.write_at(buf, pos, durability)
    }
    /// Makes every completed write durable. A no-op success without a volatile cache.
    fn flush(&self) -> Result<()>;
    /// Writes `buf` at byte `pos`; at least this write is durable when the call returns. Without FUA that takes a write
    /// and a flush, which some devices do in one request.
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
    /// The largest write in bytes that a loss of power never tears ([`Device::write_atomic`]). 0: none is promised.
    fn atomic_max(&self) -> u64 {
        0
    }
    /// As [`Device::write_at`], and a loss of power leaves all of the bytes or none. Its length is a power of two of at
    /// most [`Device::atomic_max`], and its position a multiple of that.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not promise it for this write: nothing was written.
    fn write_atomic(&self, _buf: &[u8], _pos: u64, _durability: WriteDurability) -> Result<()> {
        Err(Error::Unsupported("a write that is never torn".into()))
    }
    /// Makes durable what was written before this device was opened, by other processes or by other means: it may still
    /// be in the host's page cache, or depend on unwritten metadata of the host's file system, even where writes
    /// through this device need no flush. Call it once before promising durability.
    fn settle(&self) -> Result<()> {
        self.flush()
    }
    /// Whether the device itself merges concurrent flushes and reports a failure to every caller. If so, the layers
    /// above need do neither.
    fn merges_flushes(&self) -> bool {
        false
    }
    /// Makes a range read as zeros, as writes of zeros would: durable after the next flush, and the space that the
    /// range has on the device stays its own. Some devices do it in few requests without data.
    ///
    /// # Errors
    /// As of [`Device::write_at`]; then any part of the range may be zeros.
    fn write_zeros(&self, pos: u64, length: u64) -> Result<()> {
        write_zeros(self, pos, length)
    }
    /// Tells the device that a range is unused. Contents are undefined afterwards.
    fn discard(&self, pos: u64, length: u64) -> Result<()>;
    /// Whether these bytes are known to read as zeros without reading them: a hole in a file. `false` means "not
    /// known". A discarded range may be "not known" too.
    fn reads_zeros(&self, _pos: u64, _length: u64) -> bool {
        false
    }
    /// What a request costs besides itself, as things stand now, for `explain` and `trace`. `None`: nothing, or it is
    /// not known. It may read tables of an image, and changes nothing.
    fn cost(&self, _op: Op, _pos: u64, _length: u64) -> Option<Cost> {
        None
    }
    /// A request queue for one thread.
    fn queue(&self, options: &QueueOptions) -> Result<Queue>;
}

/// Writes zeros over a range: [`Device::write_zeros`] of a device that has no other way.
///
/// # Errors
/// As of [`Device::write_zeros`].
pub fn write_zeros<D: Device + ?Sized>(device: &D, pos: u64, length: u64) -> Result<()> {
    /// Bytes of a write.
    const STEP: usize = 1 << 20;
    /// Only read, so the system gives it no memory of its own.
    static ZEROS: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(STEP));
    // Once for the whole range, so that a bad one transfers nothing.
    device.geometry().check(pos, length)?;
    for start in (0..length).step_by(STEP) {
        let part = (length - start).min(STEP as u64) as usize;
        device.write_at(&ZEROS[..part], pos + start, WriteDurability::Cached)?;
    }
    Ok(())
}

/// A file as a device of nearly endless size, whose length is known and can grow.
pub trait Store: Device {
    /// Bytes that it has now.
    ///
    /// # Errors
    /// [`Error::Open`] if the system refuses to tell.
    fn length(&self) -> Result<u64>;

    /// Makes it at least this long. The new bytes read as zeros.
    ///
    /// # Errors
    /// [`Error::Open`] if the system refuses, with `ENOSPC` for a block device that is too small.
    fn grow(&self, length: u64) -> Result<()>;

    /// Fills `buf` from byte `pos` as far as the file reaches, and returns how many bytes that is. Alignment as of
    /// [`Device::read_at`].
    ///
    /// # Errors
    /// As of [`Device::read_at`].
    fn read_upto(&self, buf: &mut [u8], pos: u64) -> Result<usize>;
}
