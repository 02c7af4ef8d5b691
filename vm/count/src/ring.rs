//! The least that a ring takes: one file and one set of buffers, registered; nothing that could go wrong is handled.

use crate::Target;
use crate::shape::Shape;
use crate::system::{self, Page};
use io_uring::types::Fixed;
use io_uring::{IoUring, opcode, squeue};
use std::os::fd::{AsRawFd, OwnedFd};

/// A ring of its own.
pub struct Ring {
    ring: IoUring,
    memory: Vec<Page>,
    /// All memory is one registered buffer.
    region: bool,
    free: Vec<u16>,
    shape: &'static Shape,
    _file: OwnedFd,
}

/// `RWF_DSYNC`
const DSYNC: i32 = 2;

impl Ring {
    /// On a device or a file. `region`: all memory is registered as one buffer, not each page.
    pub fn new(path: &str, shape: &'static Shape, region: bool) -> Self {
        let file = system::open(path, shape);
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        if shape.polled {
            builder.setup_iopoll();
        }
        let ring = builder.build(shape.depth as u32).expect("a ring");
        let mut memory: Vec<Page> = (0..shape.depth).map(|_| Page([0x5A; 4096])).collect();
        let vector = |pages: &mut [Page]| libc::iovec {
            iov_base: pages.as_mut_ptr().cast(),
            iov_len: size_of_val(pages),
        };
        let piece = if region { shape.depth } else { 1 };
        let vectors: Vec<libc::iovec> = memory.chunks_mut(piece).map(vector).collect();
        // SAFETY: the memory stays as long as the ring: both are in one `Ring`, and the ring is dropped first.
        unsafe { ring.submitter().register_buffers(&vectors) }.expect("registered memory");
        ring.submitter().register_files(&[file.as_raw_fd()]).expect("a registered file");
        let free = (0..shape.depth as u16).collect();
        Ring { ring, memory, region, free, shape, _file: file }
    }

    #[inline]
    fn entry(&mut self, pos: u64, number: u16) -> squeue::Entry {
        let memory = self.memory[usize::from(number)].0.as_mut_ptr();
        let length = self.shape.block as u32;
        let buffer = if self.region { 0 } else { number };
        let entry = if self.shape.write {
            let flags = if self.shape.dsync { DSYNC } else { 0 };
            opcode::WriteFixed::new(Fixed(0), memory, length, buffer).offset(pos).rw_flags(flags).build()
        } else {
            opcode::ReadFixed::new(Fixed(0), memory, length, buffer).offset(pos).build()
        };
        entry.user_data(u64::from(number))
    }
}

impl Target for Ring {
    #[inline]
    fn push(&mut self, pos: u64) {
        let number = self.free.pop().expect("room");
        let entry = self.entry(pos, number);
        // SAFETY: the memory is the ring's own and stays until the ring is closed.
        unsafe { self.ring.submission().push(&entry).expect("room") };
    }

    fn submit(&mut self) {
        self.ring.submit().expect("submitted");
    }

    fn wait(&mut self, count: usize) -> usize {
        self.ring.submit_and_wait(count).expect("waited");
        let mut done = 0;
        for completion in self.ring.completion() {
            assert_eq!(completion.result(), self.shape.block as i32);
            self.free.push(completion.user_data() as u16);
            done += 1;
        }
        done
    }
}
