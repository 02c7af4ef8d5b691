//! A ring for one write at a time, whose thread waits for it.
//!
//! A [`super::uring::UringQueue`] of one entry would work. But it is built for many requests, and most of its overhead
//! is wasted here: some 700 of the 9 500 instructions of a write (`make vm-count`).
//!
//! **Memory.** Data that fits into a page is copied into one registered with the ring. The copy takes half of the
//! instructions that the kernel needs to pin and unpin the caller's page.

use super::registered::register_memory;
use super::ring::{self, RingParams, RingTarget, Tombstone};
use crate::{Ask, Buffer, BufferPool, Process, QueueFacts, QueueOptions, Result};
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// Bytes of the registered memory.
const PAGE: usize = crate::BUFFER_ALIGN;

/// See the module.
pub(super) struct WriteRing {
    process: Process,
    // Drop order: first the ring, then `tombstone`, which waits until the ring is gone, then the memory of requests.
    ring: IoUring,
    tombstone: Tombstone,
    page: Option<Registered>,
    /// Keeps the device open.
    _file: Arc<OwnedFd>,
    descriptor: types::Fd,
    descriptor_flags: Flags,
    /// Flags of a FUA write.
    fua_flags: i32,
    /// A write was pushed whose completion was not yet seen.
    busy: bool,
}

/// Memory registered with the ring.
struct Registered {
    buffer: Buffer,
    index: u16,
    _pool: BufferPool,
}

impl WriteRing {
    /// A ring on a device. The tag budget does not count it, because it is nearly always idle.
    pub(super) fn new(target: &RingTarget) -> Result<Box<Self>> {
        let process = Process::current()?;
        // Refused features are dropped silently: the caller requested none.
        let mut facts = QueueFacts::default();
        let plan = RingParams { depth: 1, polled: false, owner: false, sqpoll: Ask::No };
        let (ring, _) = ring::build(plan, &mut facts)?;
        let mut tombstone = Tombstone::new()?;
        let pool = BufferPool::with_limit(PAGE, PAGE)?;
        let mut buffer = pool.take(PAGE)?;
        let options = QueueOptions {
            register_file: Ask::Try,
            register_buffers: Ask::Try,
            pool: Some(pool.clone()),
            ..QueueOptions::depth(1)
        };
        let file = target.file.as_fd();
        let fixed = ring::register_files(&ring, None, file, None, &tombstone, &options, &mut facts)?;
        let (table, _) = register_memory(&ring, &options, &mut facts)?;
        let index = table.entry(&buffer.memory(0), PAGE as u32);
        tombstone.seal();
        Ok(Box::new(WriteRing {
            process,
            ring,
            tombstone,
            page: index.map(|index| Registered { buffer, index, _pool: pool }),
            descriptor: types::Fd(if fixed { 0 } else { file.as_raw_fd() }),
            descriptor_flags: if fixed { Flags::FIXED_FILE } else { Flags::empty() },
            fua_flags: if target.volatile_cache { libc::RWF_DSYNC } else { 0 },
            _file: Arc::clone(&target.file),
            busy: false,
        }))
    }

    /// Runs one write; returns bytes. After an error the caller must drop the ring, which waits for the request.
    pub(super) fn run(&mut self, buf: &[u8], pos: u64, fua: bool) -> io::Result<usize> {
        self.push(buf, pos, fua)?;
        loop {
            let entered = self.ring.submit_and_wait(1);
            if let Some(completion) = self.ring.completion().next() {
                self.busy = false;
                let result = completion.result();
                return usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            }
            if let Err(error) = entered {
                self.may_go_on(error)?;
            }
        }
    }

    #[inline]
    fn push(&mut self, buf: &[u8], pos: u64, fua: bool) -> io::Result<()> {
        debug_assert!(!self.busy, "a ring whose write failed is dropped");
        let entry = self.entry(buf, pos, if fua { self.fua_flags } else { 0 });
        // SAFETY: the memory is the ring's own page, which is freed after the ring, or the slice. The slice stays
        // borrowed until the caller of `run` has either seen the completion or dropped the ring, which waits; the
        // kernel only reads it. `self._file` (and the ring's table) keeps the file open.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
        self.busy = true;
        Ok(())
    }

    #[inline]
    fn entry(&mut self, buf: &[u8], pos: u64, flags: i32) -> Entry {
        // Fits: callers send at most 1 GiB at once.
        let length = buf.len() as u32;
        let entry = match &mut self.page {
            Some(page) if buf.len() <= PAGE => {
                page.buffer[..buf.len()].copy_from_slice(buf);
                let address = page.buffer.address().as_ptr();
                opcode::WriteFixed::new(self.descriptor, address, length, page.index)
                    .offset(pos)
                    .rw_flags(flags)
                    .build()
            }
            _ => {
                opcode::Write::new(self.descriptor, buf.as_ptr(), length).offset(pos).rw_flags(flags).build()
            }
        };
        entry.flags(self.descriptor_flags)
    }

    /// Whether the kernel has a write. The ring has one entry: until the kernel takes that, it has none.
    fn is_sent(&mut self) -> bool {
        self.busy && self.ring.submission().is_empty()
    }

    /// Whether a failed call may be repeated: it was interrupted, or the kernel has the write and was short of memory
    /// for its completion. If the kernel did not take the write for lack of memory, the error is EAGAIN.
    #[cold]
    fn may_go_on(&mut self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            Some(libc::EAGAIN | libc::EBUSY) if self.is_sent() => Ok(()),
            Some(libc::EBUSY) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            _ => Err(error),
        }
    }

    /// Waits until the kernel has no write of this ring. Returns whether that is certain.
    fn quiesce(&mut self) -> bool {
        while self.is_sent() {
            let waited = self.ring.submit_and_wait(1);
            if self.ring.completion().next().is_some() {
                self.busy = false;
            } else if waited.is_err_and(|error| !ring::is_transient(&error)) {
                return false;
            }
        }
        true
    }
}

impl Drop for WriteRing {
    fn drop(&mut self) {
        if !self.process.is_here() {
            return;
        }
        // The kernel frees a closed ring some time later, and until then its table would keep the file open: its lock
        // or exclusive claim would outlive the device. So unregister the table first.
        let released = self.quiesce() && self.ring.submitter().unregister_files().is_ok();
        if !released {
            self.tombstone.arm();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::OFlags;
    use std::io::{PipeReader, Read, Write};
    use std::os::fd::BorrowedFd;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
    use std::time::Duration;

    const LONG: usize = 2 * PAGE;

    /// A ring on a full pipe: a write stays in the kernel until the pipe is read.
    fn on_full_pipe() -> (Box<WriteRing>, PipeReader, usize) {
        let (reading, mut writing) = io::pipe().unwrap();
        let mut full = 0;
        rustix::fs::fcntl_setfl(&writing, OFlags::NONBLOCK).unwrap();
        while let Ok(count) = writing.write(&[1; PAGE]) {
            full += count;
        }
        rustix::fs::fcntl_setfl(&writing, OFlags::empty()).unwrap();
        let target = RingTarget {
            file: Arc::new(OwnedFd::from(writing)),
            block: false,
            size: 1 << 20,
            logical_block: 512,
            volatile_cache: false,
            nowait: false,
            budget: None,
        };
        (WriteRing::new(&target).unwrap(), reading, full)
    }

    /// Drops the ring in a thread of its own, which reports when that is done.
    fn dropped(ring: Box<WriteRing>) -> Receiver<()> {
        let (told, done) = channel();
        std::thread::spawn(move || {
            drop(ring);
            told.send(())
        });
        done
    }

    #[test]
    fn dropping_waits_for_a_write_that_the_kernel_has() {
        for length in [PAGE, LONG] {
            let (mut ring, mut reading, full) = on_full_pipe();
            let buf = vec![2; length];
            ring.push(&buf, 0, false).unwrap();
            ring.ring.submit().unwrap();
            let done = dropped(ring);
            let still = done.recv_timeout(Duration::from_millis(200));
            assert_eq!(still, Err(RecvTimeoutError::Timeout), "{length}");
            let mut all = vec![0; full + length];
            reading.read_exact(&mut all).unwrap();
            assert!(all[full..].iter().all(|&byte| byte == 2), "the memory lives until the end");
            done.recv_timeout(Duration::from_secs(5)).expect("it is over");
        }
    }

    /// A forked child that has the ring's descriptor too keeps the ring: dropping does not wait for that.
    #[test]
    fn dropping_does_not_wait_for_a_write_that_was_not_sent() {
        let (mut ring, _reading, _) = on_full_pipe();
        // SAFETY: the descriptor is the ring's, which is open.
        let _kept = unsafe { BorrowedFd::borrow_raw(ring.ring.as_raw_fd()) }.try_clone_to_owned().unwrap();
        ring.push(&[2; PAGE], 0, false).unwrap();
        dropped(ring).recv_timeout(Duration::from_secs(5)).expect("the kernel has nothing");
    }

    #[test]
    fn an_error_is_the_result() {
        let (mut ring, reading, _) = on_full_pipe();
        drop(reading);
        let error = ring.run(&[2; PAGE], 0, false).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
        dropped(ring).recv_timeout(Duration::from_secs(5)).expect("it is over");
    }
}
