//! System calls, and plain copies.

use crate::Target;
use crate::shape::{SPAN, Shape};
use rustix::fs::{Mode, OFlags};
use rustix::io::ReadWriteFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::io::IoSlice;
use std::os::fd::OwnedFd;

/// Memory that every device takes.
#[repr(align(4096))]
pub struct Page(pub [u8; 4096]);

impl Page {
    /// Not zeros.
    pub fn new() -> Box<Self> {
        Box::new(Page([0x5A; 4096]))
    }
}

/// Opens without the page cache.
pub fn open(path: &str, shape: &Shape) -> OwnedFd {
    let direct = if shape.dax { OFlags::empty() } else { OFlags::DIRECT };
    let flags = OFlags::RDWR | OFlags::CLOEXEC | direct;
    rustix::fs::open(path, flags, Mode::empty()).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Keeps the calling thread on a processor.
pub fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).expect("a processor");
}

/// `pread` and `pwrite`.
pub struct Calls {
    file: OwnedFd,
    memory: Box<Page>,
    shape: &'static Shape,
}

impl Calls {
    /// On a device or a file.
    pub fn new(path: &str, shape: &'static Shape) -> Self {
        assert_eq!(shape.depth, 1, "calls are no queue");
        Calls { file: open(path, shape), memory: Page::new(), shape }
    }
}

impl Target for Calls {
    fn one(&mut self, pos: u64) {
        let memory = &mut self.memory.0[..self.shape.block];
        let done = match (self.shape.write, self.shape.dsync) {
            (false, _) => rustix::io::pread(&self.file, memory, pos),
            (true, false) => rustix::io::pwrite(&self.file, memory, pos),
            (true, true) => {
                rustix::io::pwritev2(&self.file, &[IoSlice::new(memory)], pos, ReadWriteFlags::DSYNC)
            }
        };
        assert_eq!(done, Ok(self.shape.block), "at {pos}");
    }
}

/// A copy from or to mapped memory, and nothing else: no write-back of the processor's caches.
pub struct Mapped {
    start: *mut u8,
    memory: Box<Page>,
    shape: &'static Shape,
}

impl Mapped {
    /// A file, best on memory that is mapped directly.
    pub fn new(path: &str, shape: &'static Shape) -> Self {
        assert_eq!(shape.depth, 1, "copies are no queue");
        let (file, length) = (open(path, shape), SPAN as usize);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, which nobody else has and which stays to the end of the process.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, flags, &file, 0) };
        Mapped { start: start.expect("map").cast(), memory: Page::new(), shape }
    }
}

impl Target for Mapped {
    fn one(&mut self, pos: u64) {
        let (memory, length) = (&mut self.memory.0, self.shape.block);
        assert!(pos + length as u64 <= SPAN);
        // SAFETY: the mapping has SPAN bytes and the page 4096, no block is longer, and no thread of this process has
        // references into the mapping; what other threads copy meanwhile are bytes that nobody looks at.
        unsafe {
            let inside = self.start.add(pos as usize);
            if self.shape.write {
                std::ptr::copy_nonoverlapping(memory.as_ptr(), inside, length);
            } else {
                std::ptr::copy_nonoverlapping(inside, memory.as_mut_ptr(), length);
            }
        }
    }
}
