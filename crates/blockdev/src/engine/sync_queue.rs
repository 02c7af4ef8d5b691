//! A request queue without io_uring: requests run one after another in the call that submits them.
//!
//! This is the queue of `sync:`, of kernels without io_uring, and of devices that have no NOWAIT and complete requests
//! in the call: a ring would hand each of their requests to a worker thread, which costs several times as much as the
//! request.

use super::ring::{RingTarget, Wakeup};
use crate::queue::VECTORS_MAX;
use crate::{
    DeviceQueue, Done, Full, Op, Priority, Process, QueueFacts, QueueOptions, Request, Result, Wait, sys,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Most bytes that the kernel is told to zero at once: it may write them itself, and only a fatal signal interrupts it.
const ZEROED_MAX: u64 = 1 << 30;

/// The queue.
#[derive(Debug)]
pub(super) struct SyncQueue {
    /// The process that opened the device.
    process: Process,
    target: RingTarget,
    /// For requests that have no priority of their own.
    priority: Priority,
    waiting: VecDeque<Request>,
    ready: VecDeque<Done>,
    depth: u32,
    wakeup: Option<Wakeup>,
    facts: QueueFacts,
}

impl SyncQueue {
    /// Creates the queue; `fallbacks` lists requested features that are missing.
    pub(super) fn new(
        process: Process,
        target: RingTarget,
        options: &QueueOptions,
        fallbacks: Vec<String>,
    ) -> Result<Self> {
        options.check_depth()?;
        let depth = options.depth as usize;
        let (waiting, ready) = (VecDeque::with_capacity(depth), VecDeque::with_capacity(depth));
        options.priority.check()?;
        let priority = options.priority;
        let facts = QueueFacts { inline: true, vectors: VECTORS_MAX, fallbacks, ..QueueFacts::default() };
        Ok(SyncQueue { process, target, priority, waiting, ready, depth: options.depth, wakeup: None, facts })
    }

    fn run(&self, request: &Request) -> io::Result<usize> {
        let file = self.target.file.as_fd();
        let length = u64::from(request.length);
        if request.op != Op::Flush && (length > self.target.size || request.pos > self.target.size - length) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let nowait = if request.nowait && self.target.nowait { libc::RWF_NOWAIT } else { 0 };
        let dsync = if request.fua && self.target.volatile_cache { libc::RWF_DSYNC } else { 0 };
        let (address, bytes) = (request.memory.address, request.length as usize);
        match request.op {
            Op::Read | Op::Write if request.memory.is_vectors() => {
                // SAFETY: the caller of `push` promises the request's memory, which the vectors are part of.
                let vectors = unsafe { request.memory.as_vectors(request.length) };
                let write = request.op == Op::Write;
                let flags = if write { nowait | dsync } else { nowait };
                let (first, count) = (vectors.as_ptr().cast(), vectors.len());
                retry(|| {
                    // SAFETY: the same promise, until the completion is delivered, which happens after this call.
                    unsafe { sys::transfer_vectors(file, write, first, count, request.pos, flags) }
                })
            }
            Op::Read => retry(|| {
                // SAFETY: the caller of `push` promises that the memory is writable and unshared until the
                // completion is delivered, which happens after this call.
                unsafe { sys::read_raw(file, address, bytes, request.pos, nowait) }
            }),
            Op::Write => retry(|| {
                // SAFETY: the caller of `push` promises that the memory is readable and unchanged until the
                // completion is delivered, which happens after this call.
                unsafe { sys::write_raw(file, address, bytes, request.pos, nowait | dsync) }
            }),
            Op::Flush if !self.target.volatile_cache => Ok(0),
            Op::Flush => retry(|| Ok(rustix::fs::fdatasync(file)?)).map(|()| 0),
            Op::Discard => discard(file, self.target.block, request.pos, length).map(|()| 0),
        }
    }

    /// Runs all pushed requests and returns their number.
    fn carry_out(&mut self) -> Result<usize> {
        self.process.check()?;
        let mut sent = 0;
        while let Some(request) = self.waiting.pop_front() {
            let priority = request.priority.or(self.priority);
            let ran = priority.around(|| self.run(&request));
            let result =
                match ran.unwrap_or_else(|refused| Err(io::Error::from_raw_os_error(refused.errno()))) {
                    // A request is shorter than 4 GiB, but one transfer is at most 2 GiB - 4 KiB and fits the result.
                    Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
                    Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
                };
            self.ready.push_back(Done { tag: request.tag, result });
            sent += 1;
        }
        Ok(sent)
    }
}

/// Repeats a call that a signal interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Zeroes a range of a block device (`BLKZEROOUT`).
pub(super) fn zero_blocks(file: BorrowedFd<'_>, pos: u64, length: u64) -> io::Result<()> {
    (pos..pos + length).step_by(ZEROED_MAX as usize).try_for_each(|start| {
        let part = ZEROED_MAX.min(pos + length - start);
        retry(|| sys::zero_blocks(file, start, part))
    })
}

/// Discards a range: `BLKDISCARD` on block devices, a punched hole in files.
pub(super) fn discard(file: BorrowedFd<'_>, block: bool, pos: u64, length: u64) -> io::Result<()> {
    if block {
        return retry(|| sys::discard_blocks(file, pos, length));
    }
    let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    retry(|| Ok(rustix::fs::fallocate(file, mode, pos, length)?))
}

impl DeviceQueue for SyncQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.in_flight() >= self.depth || !self.process.is_here() {
            return Err(Full);
        }
        self.waiting.push_back(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<usize> {
        let sent = self.carry_out()?;
        if let Some(wakeup) = self.wakeup.as_ref().filter(|_| sent > 0) {
            wakeup.signal();
        }
        Ok(sent)
    }

    fn reap(&mut self, out: &mut Vec<Done>, _wait: Wait) -> Result<usize> {
        self.carry_out()?;
        let count = self.ready.len().min(out.capacity() - out.len());
        out.extend(self.ready.drain(..count));
        if let Some(wakeup) = &self.wakeup {
            if self.ready.is_empty() { wakeup.clear() } else { wakeup.signal() }
        }
        Ok(count)
    }

    fn in_flight(&self) -> u32 {
        (self.waiting.len() + self.ready.len()) as u32
    }

    fn capacity(&self) -> u32 {
        self.depth
    }

    fn facts(&self) -> QueueFacts {
        self.facts.clone()
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.process.check()?;
        if self.wakeup.is_none() {
            let wakeup = Wakeup::alone()?;
            if !self.ready.is_empty() {
                // Earlier completions were not signalled.
                wakeup.signal();
            }
            self.wakeup = Some(wakeup);
        }
        Ok(self.wakeup.as_ref().map(Wakeup::as_fd))
    }
}
