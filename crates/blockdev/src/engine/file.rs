//! Image files and block devices with direct I/O: the device behind `file:` and `sync:`.
//!
//! Synchronous calls are `pread`/`pwrite`, and `pwritev2` with flags. `file:` and `sync:` differ in three points only:
//!
//! - **The queue** of `file:` is io_uring. If the kernel refuses io_uring, if the device is faster without it
//!   ([`Driving::Inline`]), and always for `sync:`, requests run in the call that submits them; the queue's facts say
//!   so.
//! - **FUA on block devices** is one ring request with `RWF_DSYNC` in `file:`, that is, exactly one FUA write.
//!   `sync:` reports no FUA, because `pwritev2(RWF_DSYNC)` flushes the whole cache as well.
//! - **Synchronous writes to block devices** are ring requests in `file:` where that is cheaper
//!   ([`probe::plugs_writes`]).
//!
//! The second point is a property of the kernel: a *synchronous* DSYNC write to a block device is followed by an fsync
//! of the device (`generic_write_sync`), an asynchronous one is not. Files are different: the file system implements
//! their `RWF_DSYNC` write, which is what a user of the file wants.

use super::attempt::{Attempt, CALL_MAX, errno_of, io_error, write_in_parts};
use super::budget::Budget;
use super::lazy_pool::LazyPool;
use super::probe::{self, Probed};
use super::ring::{self, RingTarget};
use super::sync_queue::{SyncQueue, discard, retry, zero_blocks};
use super::uring::UringQueue;
use super::write_ring::WriteRing;
use crate::own::{self, Claim};
use crate::{
    Ask, Capabilities, Description, Device, Driving, Error, Geometry, Op, Process, Queue, QueueOptions,
    Result, Store, WriteDurability, probes, sys, write_zeros,
};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Most rings for synchronous writes of one device. Further threads wait for a free one.
const WRITE_RINGS: usize = 32;

/// Longest write, in bytes, that uses a ring because that is cheaper. For longer ones the transfer dominates the cost.
const RINGED_MAX: usize = 64 << 10;

/// The engine that runs queued requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileEngine {
    /// `file:`
    Uring,
    /// `sync:`
    Sync,
}

/// An image file or block device.
pub(crate) struct FileDevice {
    process: Process,
    file: Arc<OwnedFd>,
    engine: FileEngine,
    block: bool,
    geometry: Geometry,
    capabilities: Capabilities,
    description: Description,
    /// How many requests all queues may have in the disk together.
    budget: Option<Arc<Budget>>,
    /// One-request rings for synchronous writes to a block device, one thread each at a time: for durable writes if it
    /// has a volatile cache or FUA, and for all short writes if that is cheaper.
    write_rings: Option<LazyPool<Box<WriteRing>>>,
    /// Short writes go through `write_rings`.
    rings_writes: bool,
    /// A durable request through `write_rings` flushes the whole cache.
    fua_flushes: bool,
    /// Lengths in bytes of the writes that a loss of power never tears.
    atomic: RangeInclusive<u64>,
}

impl std::fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileDevice")
            .field("description", &self.description)
            .field("geometry", &self.geometry)
            .field("capabilities", &self.capabilities)
            .finish_non_exhaustive()
    }
}

impl FileDevice {
    /// Opens, claims and probes a path. `force` as in [`crate::OpenOptions`].
    pub(crate) fn open(path: &Path, engine: FileEngine, write: bool, force: bool) -> Result<Self> {
        let claimed = own::claim(Claim { path, write, force, direct: true })?;
        let Probed { geometry, capabilities, fua_flushes, driving, tags, notes } =
            probe::probe(&claimed, path, write)?;
        let driving = if engine == FileEngine::Sync { Driving::Inline } else { driving };
        let mut description = Description {
            engine: if engine == FileEngine::Uring { "file" } else { "sync" },
            locator: path.display().to_string(),
            layers: Vec::new(),
            sharing: claimed.sharing,
            driving,
            tags: tags.as_ref().map(|(_, tags)| tags.all()),
            notes,
        };
        let process = Process::current()?;
        let budget = tags.map(|(disk, tags)| Budget::of_disk(disk, tags));
        let block = claimed.is_block();
        let file = Arc::new(claimed.file);
        let atomic = probe::atomic_writes(file.as_fd());
        if *atomic.end() > 0 {
            let (least, most) = atomic.clone().into_inner();
            description.notes.push(format!("writes of {least} to {most} bytes are never torn"));
        }
        let mut device = FileDevice {
            process,
            file,
            engine,
            block,
            geometry,
            capabilities,
            description,
            budget,
            write_rings: None,
            rings_writes: false,
            fua_flushes,
            atomic,
        };
        if block && (capabilities.fua || capabilities.volatile_cache) {
            device.prepare_fua();
        }
        if block && driving == Driving::Ring && !capabilities.read_only && probe::plugs_writes() {
            device.ring_writes();
        }
        Ok(device)
    }

    /// For a block device with FUA: keeps the capability only if single FUA writes can be sent. A device with a cache
    /// and no FUA takes such a request too: the block layer adds a flush after it.
    fn prepare_fua(&mut self) {
        let notes = &mut self.description.notes;
        if self.engine == FileEngine::Sync {
            if self.capabilities.fua {
                notes.push("no FUA: a synchronous DSYNC write would flush the whole cache".into());
            }
            self.capabilities.fua = false;
            return;
        }
        if self.capabilities.read_only {
            return;
        }
        if let Err(error) = self.make_write_rings()
            && std::mem::take(&mut self.capabilities.fua)
        {
            self.description.notes.push(format!("no FUA without io_uring: {error}"));
        }
    }

    /// Sends short synchronous writes through rings from now on, if the kernel provides any.
    fn ring_writes(&mut self) {
        match self.make_write_rings() {
            Ok(()) => self.rings_writes = true,
            Err(error) => {
                self.description.notes.push(format!("short synchronous writes are plain calls: {error}"));
            }
        }
    }

    fn make_write_rings(&mut self) -> Result<()> {
        if self.write_rings.is_none() {
            let first = WriteRing::new(&self.ring_target())?;
            self.write_rings = Some(LazyPool::new(first, WRITE_RINGS));
        }
        Ok(())
    }

    fn ring_target(&self) -> RingTarget {
        RingTarget {
            file: self.file.clone(),
            block: self.block,
            size: self.geometry.size,
            logical_block: self.geometry.logical_block,
            volatile_cache: self.capabilities.volatile_cache,
            nowait: self.capabilities.nowait,
            budget: self.budget.clone(),
        }
    }

    fn check(&self, buf: &[u8], pos: u64) -> Result<()> {
        self.process.check()?;
        self.geometry.check_transfer(buf, pos)
    }

    /// Repeats `call(done)` until `length` bytes are transferred. A transfer that stops early without an error has hit
    /// the end of the file or medium: EIO.
    fn transfer(
        &self,
        op: Op,
        pos: u64,
        length: usize,
        mut call: impl FnMut(std::ops::Range<usize>) -> io::Result<usize>,
    ) -> Result<()> {
        let mut done = 0;
        while done < length {
            let range = done..length.min(done + CALL_MAX);
            let result = retry(|| call(range.clone()));
            match result {
                Ok(count) if count > 0 => done += count,
                Ok(_) => return Err(io_error(op, pos, length as u64, libc::EIO)),
                Err(error) => return Err(io_error(op, pos, length as u64, errno_of(&error))),
            }
        }
        Ok(())
    }

    fn read(&self, buf: &mut [u8], pos: u64, flags: i32) -> Result<()> {
        self.check(buf, pos)?;
        probes::around(Op::Read, pos, buf.len() as u64, false, || {
            self.transfer(Op::Read, pos, buf.len(), |range| {
                let at = pos + range.start as u64;
                sys::read(self.file.as_fd(), &mut buf[range], at, flags)
            })
        })
    }

    /// Sends a checked write on its path: ring, `pwrite` or `pwritev2`.
    fn write_routed(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let mut flags = 0;
        // Without a volatile cache every completed write is durable, so a plain one suffices.
        if durability == WriteDurability::Fua && self.capabilities.volatile_cache {
            if !self.capabilities.fua {
                return Err(Error::Unsupported("a FUA write to a device without FUA".into()));
            }
            if let Some(rings) = &self.write_rings {
                return self.write_fua(buf, pos, rings);
            }
            flags = libc::RWF_DSYNC;
        } else if self.rings_writes
            && buf.len() <= RINGED_MAX
            && let Some(rings) = &self.write_rings
            // If no ring is available now, a plain call does the same.
            && let Ok(written) = self.write_ringed(buf, pos, false, rings)
        {
            return written;
        }
        self.transfer(Op::Write, pos, buf.len(), |range| {
            let at = pos + range.start as u64;
            sys::write(self.file.as_fd(), &buf[range], at, flags)
        })
    }

    /// Writes through a ring that this thread uses exclusively, and returns the outcome. The outer error means that no
    /// ring was available and nothing was written.
    fn write_ringed(
        &self,
        buf: &[u8],
        pos: u64,
        fua: bool,
        rings: &LazyPool<Box<WriteRing>>,
    ) -> io::Result<Result<()>> {
        let make = || {
            let ring = WriteRing::new(&self.ring_target());
            ring.map_err(|error| io::Error::from_raw_os_error(error.errno()))
        };
        self.write_by(buf, pos, fua, rings, make)
    }

    /// The same; `make` creates a ring.
    fn write_by(
        &self,
        buf: &[u8],
        pos: u64,
        fua: bool,
        rings: &LazyPool<Box<WriteRing>>,
        make: impl Fn() -> io::Result<Box<WriteRing>>,
    ) -> io::Result<Result<()>> {
        write_in_parts(buf, pos, |part, at| {
            let mut sent = false;
            let result = rings.with(&make, |ring| {
                sent = true;
                ring.run(part, at, fua)
            });
            match result {
                Err(error) if !sent => Attempt::NoRing(error),
                other => Attempt::Made(other),
            }
        })
    }

    /// A write that is durable when it returns, through a ring.
    fn write_fua(&self, buf: &[u8], pos: u64, rings: &LazyPool<Box<WriteRing>>) -> Result<()> {
        let written = self.write_ringed(buf, pos, true, rings);
        written.unwrap_or_else(|no_ring| Err(io_error(Op::Write, pos, buf.len() as u64, errno_of(&no_ring))))
    }
}

impl FileDevice {
    /// The same as a store: its size is what a file may have, not what this one has.
    pub(crate) fn growing(mut self) -> Self {
        if !self.block {
            let block = u64::from(self.geometry.logical_block);
            self.geometry.size = i64::MAX as u64 / block * block;
        }
        self
    }

    fn refused(&self, action: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        let path = self.description.locator.clone();
        move |errno| Error::Open { path: path.clone(), action, errno: errno.raw_os_error() }
    }
}

impl Store for FileDevice {
    fn length(&self) -> Result<u64> {
        self.process.check()?;
        if self.block {
            return Ok(self.geometry.size);
        }
        let stat = rustix::fs::fstat(&self.file).map_err(self.refused("stat"))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn grow(&self, length: u64) -> Result<()> {
        self.capabilities.check_writable()?;
        match self.length()? {
            now if now >= length => Ok(()),
            _ if self.block => Err(self.refused("grow")(rustix::io::Errno::NOSPC)),
            _ => rustix::fs::ftruncate(&self.file, length).map_err(self.refused("grow")),
        }
    }

    fn read_upto(&self, buf: &mut [u8], pos: u64) -> Result<usize> {
        self.process.check()?;
        Geometry { size: u64::MAX, ..self.geometry }.check_transfer(buf, pos)?;
        let length = buf.len();
        let failed = |error: io::Error| io_error(Op::Read, pos, length as u64, errno_of(&error));
        let mut done = 0;
        while done < length {
            let upto = length.min(done + CALL_MAX);
            let part = done..upto;
            let count = retry(|| sys::read(self.file.as_fd(), &mut buf[part.clone()], pos + done as u64, 0));
            match count {
                Ok(count) => done += count,
                Err(error) => return Err(failed(error)),
            }
            // Short: that is where it ends. A read from there would not be aligned.
            if done < upto {
                break;
            }
        }
        Ok(done)
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.read(buf, pos, 0)
    }

    fn read_nowait(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.read(buf, pos, if self.capabilities.nowait { libc::RWF_NOWAIT } else { 0 })
    }

    fn write_nowait(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        if !self.capabilities.nowait || durability == WriteDurability::Fua {
            return self.write_at(buf, pos, durability);
        }
        self.capabilities.check_writable()?;
        self.check(buf, pos)?;
        probes::around(Op::Write, pos, buf.len() as u64, false, || {
            self.transfer(Op::Write, pos, buf.len(), |range| {
                // A transfer that has begun may wait.
                let flags = if range.start == 0 { libc::RWF_NOWAIT } else { 0 };
                let at = pos + range.start as u64;
                sys::write(self.file.as_fd(), &buf[range], at, flags)
            })
        })
    }

    /// # Errors
    /// [`Error::Unsupported`] for a FUA write to a device with a volatile cache and no FUA.
    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.capabilities.check_writable()?;
        self.check(buf, pos)?;
        let fua = durability == WriteDurability::Fua;
        probes::around(Op::Write, pos, buf.len() as u64, fua, || self.write_routed(buf, pos, durability))
    }

    fn atomic_max(&self) -> u64 {
        *self.atomic.end()
    }

    fn write_atomic(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.capabilities.check_writable()?;
        self.check(buf, pos)?;
        let length = buf.len() as u64;
        let fits = length.is_power_of_two() && pos.is_multiple_of(length) && self.atomic.contains(&length);
        let refused = || Error::Unsupported(format!("an atomic write of {length} bytes at {pos}"));
        if !fits {
            return Err(refused());
        }
        let fua = durability == WriteDurability::Fua;
        let durable = if fua && self.capabilities.volatile_cache { libc::RWF_DSYNC } else { 0 };
        probes::around(Op::Write, pos, length, fua, || {
            let write = || sys::write(self.file.as_fd(), buf, pos, libc::RWF_ATOMIC | durable);
            match retry(write) {
                Ok(written) if written == buf.len() => Ok(()),
                // A partition may begin at an odd place of its disk; a file may not lie in one piece.
                Err(error) if matches!(errno_of(&error), libc::EINVAL | libc::EOPNOTSUPP) => Err(refused()),
                Ok(_) => Err(io_error(Op::Write, pos, length, libc::EIO)),
                Err(error) => Err(io_error(Op::Write, pos, length, errno_of(&error))),
            }
        })
    }

    /// One request on a block device, with FUA or without: the block layer (`block/blk-flush.c`) sends a flush after a
    /// FUA write to a device that has no FUA, and the caller wakes up once. A flush from here would be another request.
    fn write_durable(&self, buf: &[u8], pos: u64) -> Result<()> {
        if let Some(rings) = self.write_rings.as_ref().filter(|_| self.capabilities.volatile_cache) {
            self.capabilities.check_writable()?;
            self.check(buf, pos)?;
            let write = || self.write_fua(buf, pos, rings);
            return probes::around(Op::Write, pos, buf.len() as u64, true, write);
        }
        if self.capabilities.fua {
            return self.write_at(buf, pos, WriteDurability::Fua);
        }
        self.write_and_flush(buf, pos)
    }

    fn write_and_flush(&self, buf: &[u8], pos: u64) -> Result<()> {
        if self.fua_flushes && self.write_rings.is_some() {
            return self.write_durable(buf, pos);
        }
        self.write_at(buf, pos, WriteDurability::Cached)?;
        self.flush()
    }

    fn flush(&self) -> Result<()> {
        self.process.check()?;
        if !self.capabilities.volatile_cache {
            return Ok(());
        }
        self.settle()
    }

    /// The block layer merges the flushes of a block device and answers each caller. A file's page cache reports an
    /// error to one caller only, and a host file system may put direct writes there; a block device's page cache never
    /// holds direct writes.
    fn merges_flushes(&self) -> bool {
        self.block
    }

    fn settle(&self) -> Result<()> {
        probes::around(Op::Flush, 0, 0, false, || {
            retry(|| Ok(rustix::fs::fdatasync(&self.file)?))
                .map_err(|error| io_error(Op::Flush, 0, 0, errno_of(&error)))
        })
    }

    /// Files get zeros: a zeroed range of a host file system is unwritten, and each later write would convert it.
    fn write_zeros(&self, pos: u64, length: u64) -> Result<()> {
        if !self.block {
            return write_zeros(self, pos, length);
        }
        self.process.check()?;
        self.capabilities.check_writable()?;
        self.geometry.check(pos, length)?;
        probes::around(Op::Write, pos, length, false, || {
            zero_blocks(self.file.as_fd(), pos, length)
                .map_err(|error| io_error(Op::Write, pos, length, errno_of(&error)))
        })
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.process.check()?;
        self.capabilities.check_writable()?;
        self.geometry.check(pos, length)?;
        probes::around(Op::Discard, pos, length, false, || {
            discard(self.file.as_fd(), self.block, pos, length)
                .map_err(|error| io_error(Op::Discard, pos, length, errno_of(&error)))
        })
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        if self.block || self.process.check().is_err() {
            return false;
        }
        // Moving the descriptor's own position is harmless: every transfer passes its own position.
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(pos)) {
            Ok(data) => data >= pos.saturating_add(length),
            // No data from there to the file's end.
            Err(rustix::io::Errno::NXIO) => pos.saturating_add(length) <= self.geometry.size,
            Err(_) => false,
        }
    }

    /// # Errors
    /// [`Error::Unsupported`] for a refused feature that was required. A kernel without io_uring is a fallback reported
    /// in [`crate::QueueFacts`] unless a feature of the ring was required.
    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        self.process.check()?;
        let asked = [
            options.iopoll,
            options.sqpoll,
            options.register_file,
            options.register_buffers,
            options.register_ring,
        ];
        let required = asked.contains(&Ask::Require);
        let tried = [options.iopoll, options.sqpoll, options.register_ring].contains(&Ask::Try);
        let mut fallbacks = Vec::new();
        match self.engine {
            FileEngine::Uring if self.description.driving == Driving::Inline && !required => {
                if tried {
                    fallbacks
                        .push("this device is faster without a ring: requests run when submitted".into());
                }
            }
            FileEngine::Uring => match UringQueue::new(self.ring_target(), options) {
                Err(error) if ring::is_unavailable(&error) && !required => {
                    fallbacks.push(format!("requests run when submitted: {error}"));
                }
                other => return other.map(Queue::Uring),
            },
            FileEngine::Sync if required => {
                return Err(Error::Unsupported("`sync:` has no ring to poll or register with".into()));
            }
            FileEngine::Sync if tried => {
                fallbacks.push("`sync:` has no ring: requests run when submitted".into());
            }
            FileEngine::Sync => {}
        }
        Ok(Queue::Other(Box::new(SyncQueue::new(self.process, self.ring_target(), options, fallbacks)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_testkit::{LoopDevice, LoopOptions, Need, Scratch, needs};

    /// Flushes that a block device has completed (Documentation/block/stat.rst, field 16).
    fn flushes(device: &LoopDevice) -> u64 {
        device.attribute("stat").split_whitespace().nth(15).map_or(0, |field| field.parse().unwrap())
    }

    /// A loop device with a cache, and how `file:` opens it.
    fn on_loop() -> (Scratch, LoopDevice, FileDevice) {
        let scratch = Scratch::new(8 << 20);
        let image = scratch.sparse_file("image", 4 << 20);
        let node = LoopDevice::attach(&image, LoopOptions { direct_io: true, ..LoopOptions::default() });
        let device = FileDevice::open(node.path(), FileEngine::Uring, true, false).unwrap();
        (scratch, node, device)
    }

    /// The reason for the FUA ring: one request through it costs a loop device (which has no FUA, so the block layer
    /// adds a flush) one flush. `pwritev2(RWF_DSYNC)` costs one more.
    #[test]
    fn root_a_synchronous_fua_write_is_one_request() {
        needs!(Need::Loop);
        let (_scratch, node, mut device) = on_loop();
        device.capabilities.fua = true;
        device.prepare_fua();
        assert!(device.capabilities.fua && device.write_rings.is_some());

        let pool = crate::BufferPool::new(4096).unwrap();
        let mut buf = pool.take(4096).unwrap();
        for round in 0..8u8 {
            buf.fill(round);
            let before = flushes(&node);
            device.write_at(&buf, u64::from(round) * 4096, WriteDurability::Fua).unwrap();
            assert_eq!(flushes(&node) - before, 1, "through the ring");
            let before = flushes(&node);
            assert_eq!(sys::write(device.file.as_fd(), &buf, 0, libc::RWF_DSYNC).unwrap(), 4096);
            assert_eq!(flushes(&node) - before, 2, "pwritev2");
        }
        device.capabilities.fua = false;
        assert!(device.write_at(&buf, 0, WriteDurability::Fua).is_err(), "the device has no FUA");
        let before = flushes(&node);
        device.write_durable(&buf, 0).unwrap();
        assert_eq!(flushes(&node) - before, 1, "a durable write");
        assert!(device.fua_flushes, "a loop device has no FUA and a request queue");
        let before = flushes(&node);
        device.write_and_flush(&buf, 0).unwrap();
        assert_eq!(flushes(&node) - before, 1, "a write, then a flush");
        let mut back = pool.take(4096).unwrap();
        device.read_at(&mut back, 7 * 4096).unwrap();
        assert!(back.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn root_synchronous_fua_writes_come_from_any_thread() {
        needs!(Need::Loop);
        let (_scratch, _node, mut device) = on_loop();
        device.capabilities.fua = true;
        device.prepare_fua();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    let pool = crate::BufferPool::new(8192).unwrap();
                    let mut buf = pool.take(4096).unwrap();
                    let mut back = pool.take(4096).unwrap();
                    for round in 0..32u8 {
                        buf.fill(round);
                        device.write_at(&buf, thread * 4096, WriteDurability::Fua).unwrap();
                        device.read_at(&mut back, thread * 4096).unwrap();
                        assert_eq!(&buf[..], &back[..]);
                    }
                });
            }
        });
    }

    /// Short writes use a ring where the kernel makes that cheaper: here the test forces it.
    #[test]
    fn root_short_writes_go_by_rings_and_are_no_flush() {
        needs!(Need::Loop);
        let (_scratch, node, mut device) = on_loop();
        device.ring_writes();
        assert!(device.rings_writes);
        let before = flushes(&node);
        let device = &device;
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let pool = crate::BufferPool::new(256 << 10).unwrap();
                    for (length, pos) in
                        [(512, 0), (4096, 4096), (RINGED_MAX, 65536), (2 * RINGED_MAX, 131_072)]
                    {
                        let (mut buf, mut back) = (pool.take(length).unwrap(), pool.take(length).unwrap());
                        let pos = pos + (u64::from(thread) << 19);
                        buf.fill(thread + 1);
                        device.write_at(&buf, pos, WriteDurability::Cached).unwrap();
                        device.read_at(&mut back, pos).unwrap();
                        assert_eq!(&buf[..], &back[..]);
                    }
                });
            }
        });
        assert_eq!(flushes(&node), before);
    }

    #[test]
    fn root_short_writes_by_rings_leave_their_neighbours() {
        needs!(Need::Loop);
        let (_scratch, _node, mut device) = on_loop();
        device.ring_writes();
        let pool = crate::BufferPool::new(64 << 10).unwrap();
        let (mut long, mut short) = (pool.take(12288).unwrap(), pool.take(8192).unwrap());
        for length in [512, 4096, 4608, 8192] {
            long.fill(1);
            device.write_at(&long, 0, WriteDurability::Cached).unwrap();
            short.fill(2);
            device.write_at(&short[..length], 512, WriteDurability::Cached).unwrap();
            device.read_at(&mut long, 0).unwrap();
            let inside = 512..512 + length;
            let right = |(at, &byte)| byte == if inside.contains(&at) { 2 } else { 1 };
            assert!(long.iter().enumerate().all(right), "{length}");
        }
    }

    /// If no ring is available, nothing is sent, and the caller gets the reason.
    #[test]
    fn root_a_write_that_finds_no_ring_was_not_sent() {
        needs!(Need::Loop);
        let (_scratch, _node, device) = on_loop();
        let rings = LazyPool::new(WriteRing::new(&device.ring_target()).unwrap(), 1);
        // A ring whose work failed is dropped: now there is none.
        let dropped: io::Result<()> = rings.with(|| unreachable!(), |_| Err(io::Error::other("broken")));
        assert!(dropped.is_err());
        let pool = crate::BufferPool::new(4096).unwrap();
        let buf = pool.take(4096).unwrap();
        let none = || Err(io::Error::from_raw_os_error(libc::EMFILE));
        for fua in [false, true] {
            let no_ring = device.write_by(&buf, 0, fua, &rings, none).unwrap_err();
            assert_eq!(no_ring.raw_os_error(), Some(libc::EMFILE), "the caller gets the reason");
        }
        assert!(matches!(device.write_ringed(&buf, 0, false, &rings), Ok(Ok(()))), "a new ring is created");
    }

    #[test]
    fn root_the_sync_engine_claims_no_fua_on_block_devices() {
        needs!(Need::Loop);
        let scratch = Scratch::new(8 << 20);
        let image = scratch.sparse_file("image", 4 << 20);
        let node = LoopDevice::attach(&image, LoopOptions::default());
        let mut device = FileDevice::open(node.path(), FileEngine::Sync, true, false).unwrap();
        device.capabilities.fua = true;
        device.prepare_fua();
        assert!(!device.capabilities.fua && device.write_rings.is_none());
    }
}
