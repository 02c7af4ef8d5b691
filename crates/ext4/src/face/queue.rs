//! Asynchronous I/O: one queue per thread.

use crate::face::file::File;
use crate::face::quota::Limited;
use crate::face::shape::{Fallocate, fallocate};
use crate::face::volume::Volume;
use crate::ground::error::{Error, Result};
use crate::ground::options::QueueOptions;
use crate::seam::Ext4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use uext4_blockdev::{Buffer, BufferPool, QueueFacts};
use uext4_iomap::{Engine, FileSlot, RawQueue, ReadFlags, WriteFlags};

/// One finished request: its tag, bytes or error, and its buffers.
pub type Completion = uext4_iomap::Completion<Error>;

/// Completions returned by one call.
pub type Completions<'q> = std::vec::Drain<'q, Completion>;

/// An I/O queue of a volume. One thread uses it; it may move to another between calls unless it is owner-driven.
///
/// A buffer belongs to the queue from submission until its completion is taken. Dropping the queue waits for everything
/// in flight. A [`FileSlot`] names a file in the queue that gave it, and in no other.
pub struct IoQueue {
    inner: uext4_iomap::IoQueue<Ext4>,
    engine: Arc<Engine<Ext4>>,
    /// Of attached files that obey limits of quota: those stay in force.
    limited: Vec<(FileSlot, Arc<Limited>)>,
    // Must be the last field: the inodes it frees then have no user in the queue.
    _after: FreeLeft,
}

/// Frees unlinked files whose last user was this queue.
struct FreeLeft(Arc<Engine<Ext4>>);

impl Drop for FreeLeft {
    fn drop(&mut self) {
        // If freeing fails, it is retried later.
        let _waits = self.0.fs().files().free_left();
    }
}

impl Volume {
    /// A queue for one thread.
    pub fn queue(&self, options: QueueOptions) -> Result<IoQueue> {
        options.check()?;
        let pool = BufferPool::new(options.buffer_bytes)?;
        let inner = uext4_iomap::IoQueue::new(self.engine(), options.device, pool)?;
        let engine = self.engine().clone();
        Ok(IoQueue { inner, limited: Vec::new(), _after: FreeLeft(engine.clone()), engine })
    }

    /// A queue directly on the device, to measure what the file system costs. Writing through it can destroy the
    /// volume.
    pub fn raw_queue(&self, options: QueueOptions) -> Result<RawQueue> {
        options.check()?;
        let pool = BufferPool::new(options.buffer_bytes)?;
        Ok(RawQueue::new(self.device(), options.device, pool)?)
    }
}

impl IoQueue {
    /// Attaches a file to this queue.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the file belongs to another volume: its blocks are not on this queue's device.
    pub fn attach(&mut self, file: &File) -> Result<FileSlot> {
        if !file.is_of(&self.engine) {
            return Err(Error::Invalid("the file and the queue belong to different volumes".into()));
        }
        let slot = self.inner.attach(file.open_file())?;
        self.limited.extend(file.limited().map(|limited| (slot, limited.clone())));
        Ok(slot)
    }

    /// Detaches a file; its pending requests finish first.
    pub fn detach(&mut self, slot: FileSlot) -> Result<()> {
        self.inner.detach(slot)?;
        self.limited.retain(|(attached, _)| *attached != slot);
        // If freeing fails, it is retried later.
        let _waits = self.engine.fs().files().free_left();
        Ok(())
    }

    /// A buffer of `length` bytes in the queue's memory, aligned to 4096. Contents are unspecified.
    ///
    /// # Errors
    /// More memory in all than the larger of eight times [`QueueOptions::buffer_bytes`] and 256 MiB; with
    /// [`register_buffers`](QueueOptions::register_buffers) required, memory that the kernel does not register.
    pub fn buffer(&self, length: usize) -> Result<Buffer> {
        self.inner.buffer(length)
    }

    /// Reads `buffer.len()` bytes at byte `pos` of the file; both are multiples of the device's logical
    /// block.
    #[inline]
    pub fn read(&mut self, slot: FileSlot, pos: u64, buffer: Buffer, tag: u64) -> Result<()> {
        self.inner.read(slot, pos, buffer, tag)
    }

    /// As [`IoQueue::read`]. `NOWAIT` fails rather than waits ([`ReadFlags::NOWAIT`]).
    #[inline]
    pub fn read_with(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: ReadFlags,
        tag: u64,
    ) -> Result<()> {
        self.inner.read_with(slot, pos, buffer, flags, tag)
    }

    /// Writes `buffer` at byte `pos` of the file; both are multiples of the device's logical block.
    #[inline]
    pub fn write(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        flags: WriteFlags,
        tag: u64,
    ) -> Result<()> {
        self.inner.write(slot, pos, buffer, flags, tag)
    }

    /// Reads into several buffers that are consecutive in the file: with one device request for each run of blocks if
    /// the device takes several buffers (files and block devices), else with one for each buffer.
    pub fn readv(&mut self, slot: FileSlot, pos: u64, buffers: Vec<Buffer>, tag: u64) -> Result<()> {
        self.inner.readv(slot, pos, buffers, tag)
    }

    /// Writes several buffers that are consecutive in the file, as [`IoQueue::readv`] reads.
    pub fn writev(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        tag: u64,
    ) -> Result<()> {
        self.inner.writev(slot, pos, buffers, flags, tag)
    }

    /// `fdatasync` of the file; covers requests that completed before.
    pub fn sync_data(&mut self, slot: FileSlot, tag: u64) -> Result<()> {
        self.inner.sync_data(slot, tag)
    }

    /// `fsync` of the file; covers requests that completed before.
    pub fn sync_all(&mut self, slot: FileSlot, tag: u64) -> Result<()> {
        self.inner.sync_all(slot, tag)
    }

    /// Allocates zeroed blocks for the holes in the `length` bytes from `pos` on; the file grows to the end of the
    /// range ([`Fallocate::Allocate`]). It drains the file's requests first, and is done when it returns; its
    /// completion carries no bytes, or the errors of [`File::fallocate`].
    pub fn allocate(&mut self, slot: FileSlot, pos: u64, length: u64, tag: u64) -> Result<()> {
        self.fallocate(slot, Fallocate::Allocate, pos, length, tag)
    }

    /// As [`IoQueue::allocate`], but makes the range read as zeros and frees its whole blocks ([`Fallocate::Punch`]).
    pub fn discard(&mut self, slot: FileSlot, pos: u64, length: u64, tag: u64) -> Result<()> {
        self.fallocate(slot, Fallocate::Punch, pos, length, tag)
    }

    /// As [`IoQueue::allocate`], for every mode.
    pub fn fallocate(
        &mut self,
        slot: FileSlot,
        mode: Fallocate,
        pos: u64,
        length: u64,
        tag: u64,
    ) -> Result<()> {
        let engine = &self.engine;
        self.inner.change(slot, tag, |open, held| fallocate(engine, open, held, mode, pos, length))
    }

    /// Sends queued requests to the device.
    pub fn submit(&mut self) -> Result<usize> {
        self.inner.submit()
    }

    /// Waits for `count` completions (or all requests in flight) and returns every one available.
    pub fn wait(&mut self, count: usize) -> Result<Completions<'_>> {
        self.inner.wait(count)
    }

    /// Waits at most `timeout` for a completion.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Completions<'_>> {
        self.inner.wait_timeout(timeout)
    }

    /// Returns available completions without waiting.
    pub fn poll(&mut self) -> Result<Completions<'_>> {
        self.inner.poll()
    }

    /// Requests not yet delivered.
    pub fn pending(&mut self) -> usize {
        self.inner.pending()
    }

    /// Which of the options the kernel and device granted.
    pub fn facts(&self) -> QueueFacts {
        self.inner.facts()
    }

    /// A descriptor for event loops, if the device has one. It signals completions of the device only: requests without
    /// a device request (holes, mapped memory) complete without a signal. So [`poll`](IoQueue::poll) once after
    /// submitting, before the loop sleeps. Poll the descriptor, do not read from it.
    pub fn eventfd(&mut self) -> Result<Option<OwnedFd>> {
        self.inner.eventfd()
    }
}
