//! `mem:`: a device in memory. [`crate::layer::LatencyDevice`] around it models the cost of requests.
//!
//! Data moves when a request is issued (at `push` for queued ones). Requests in flight at the same time have no order
//! on a real device either, and a completed one has taken effect in both cases.

use super::attempt::io_error;
use super::instant::{Instant, InstantQueue};
use super::pages::Pages;
use crate::{
    Capabilities, Description, Device, Driving, Error, Geometry, Op, Queue, QueueOptions, Request, Result,
    Sharing, WriteDurability,
};
use std::sync::Arc;

/// What a [`MemoryDevice`] models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Size in bytes, a positive multiple of `logical_block`. Only written pages take memory.
    pub size: u64,
    /// Logical block size in bytes, a power of two, 512 ..= 65536.
    pub logical_block: u32,
    /// Memory alignment in bytes, a power of two. 512 by default although any address would work: code that runs here
    /// must also run with O_DIRECT on a disk with 512-byte sectors, and should fail here if it would fail there.
    pub memory_align: u32,
    /// Whether a flush is needed. The device does not lose bytes either way.
    pub volatile_cache: bool,
    /// Whether FUA writes are accepted.
    pub fua: bool,
}

impl MemoryOptions {
    /// A device without a volatile cache, with 512-byte blocks, that accepts FUA.
    pub fn new(size: u64) -> Self {
        MemoryOptions { size, logical_block: 512, memory_align: 512, volatile_cache: false, fua: true }
    }

    fn check(&self) -> Result<()> {
        let bad = |reason: &str| Error::BadSpec { spec: format!("mem:{}", self.size), reason: reason.into() };
        if !self.logical_block.is_power_of_two() || !(512..=65536).contains(&self.logical_block) {
            return Err(bad("the logical block size must be a power of two from 512 to 65536"));
        }
        if !self.memory_align.is_power_of_two() {
            return Err(bad("the memory alignment must be a power of two"));
        }
        if self.size == 0 || !self.size.is_multiple_of(u64::from(self.logical_block)) {
            return Err(bad("the size must be a positive multiple of the logical block size"));
        }
        Ok(())
    }
}

/// A device in private memory. See [`MemoryOptions`].
#[derive(Debug)]
pub struct MemoryDevice {
    pages: Arc<Pages>,
    options: MemoryOptions,
}

impl MemoryDevice {
    /// A zeroed device. Errors: [`Error::BadSpec`] for impossible sizes, [`Error::Open`] without address
    /// space.
    pub fn new(options: MemoryOptions) -> Result<Self> {
        options.check()?;
        Ok(MemoryDevice { pages: Arc::new(Pages::new(options.size)?), options })
    }
}

impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.options.size,
            logical_block: self.options.logical_block,
            memory_align: self.options.memory_align,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: self.options.volatile_cache,
            fua: self.options.fua,
            nowait: true,
            discard: true,
            read_only: false,
            dax: None,
        }
    }

    fn describe(&self) -> Description {
        let locator = self.options.size.to_string();
        Description {
            engine: "mem",
            locator,
            layers: Vec::new(),
            sharing: Sharing::Private,
            driving: Driving::Engine,
            tags: None,
            notes: Vec::new(),
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.geometry().check_transfer(buf, pos)?;
        // SAFETY: `buf` is exclusively ours and has this length.
        let read = unsafe { self.pages.read(pos, buf.as_mut_ptr(), buf.len()) };
        read.map_err(|errno| io_error(Op::Read, pos, buf.len() as u64, errno))
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.geometry().check_transfer(buf, pos)?;
        if durability == WriteDurability::Fua && !self.options.fua {
            return Err(Error::Unsupported("FUA write (fua=off)".into()));
        }
        // SAFETY: a shared slice is valid for reads of its length and not written meanwhile.
        let written = unsafe { self.pages.write(pos, buf.as_ptr(), buf.len()) };
        written.map_err(|errno| io_error(Op::Write, pos, buf.len() as u64, errno))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.geometry().check(pos, length)?;
        self.pages.discard(pos, length).map_err(|errno| io_error(Op::Discard, pos, length, errno))
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let copies =
            Copies { pages: Arc::clone(&self.pages), geometry: self.geometry(), fua: self.options.fua };
        Ok(Queue::Other(Box::new(InstantQueue::new("mem", copies, options)?)))
    }
}

/// The requests of a [`MemoryDevice`]'s queue.
#[derive(Debug)]
struct Copies {
    pages: Arc<Pages>,
    geometry: Geometry,
    fua: bool,
}

impl Instant for Copies {
    #[inline]
    unsafe fn run(&self, request: &Request) -> i32 {
        let (pos, length) = (request.pos, request.length as usize);
        if request.op == Op::Flush {
            return 0;
        }
        let address = request.memory.address.as_ptr();
        // A completion carries at most `i32::MAX` bytes.
        if self.geometry.check(pos, length as u64).is_err() || i32::try_from(length).is_err() {
            return -libc::EINVAL;
        }
        let outcome = match request.op {
            Op::Read | Op::Write if self.geometry.check_memory(address as usize).is_err() => {
                Err(libc::EINVAL)
            }
            // SAFETY: the caller promises `length` writable bytes that nobody else touches.
            Op::Read => unsafe { self.pages.read(pos, address, length) },
            Op::Write if request.fua && !self.fua => Err(libc::EOPNOTSUPP),
            // SAFETY: the caller promises `length` readable bytes that nobody changes.
            Op::Write => unsafe { self.pages.write(pos, address, length) },
            Op::Discard | Op::Flush => self.pages.discard(pos, length as u64),
        };
        match outcome {
            Ok(()) if request.op == Op::Discard => 0,
            Ok(()) => length as i32,
            Err(errno) => -errno,
        }
    }
}
