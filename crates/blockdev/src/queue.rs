//! Per-thread request queues: the asynchronous face of a device.
//!
//! A queue is told requests with [`DeviceQueue::push`], sends them with [`DeviceQueue::submit`] and hands completions
//! back with [`DeviceQueue::reap`]. It never allocates on these calls once created, and never checks who owns the
//! memory: that is the caller's proof, which is why `push` is unsafe.

use crate::{BufferPool, Memory, Priority, Result};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Make completed writes durable; position, length and memory are ignored.
    Flush,
    /// Tell the device a range is unused; memory is ignored.
    Discard,
}

impl Op {
    /// Lower-case name for errors and traces.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
        }
    }
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// A write that must be durable when it completes. Only if [`crate::Capabilities::fua`].
    pub fua: bool,
    /// Fail with `EAGAIN` instead of blocking, where the device can tell. One that the kernel divides, because it is
    /// longer than the device takes at once, fails so each time.
    pub nowait: bool,
    /// I/O priority; that of the queue unless set.
    pub priority: Priority,
    /// First byte on the device.
    pub pos: u64,
    /// Bytes.
    pub length: u32,
    /// Data memory.
    pub memory: Memory,
    /// Comes back in [`Done::tag`].
    pub tag: u64,
}

/// One completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Tag of the request.
    pub tag: u64,
    /// Bytes transferred, or a negative errno. A transfer shorter than asked is reported as it is.
    pub result: i32,
}

/// The queue holds as many requests as it can; reap first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// How long [`DeviceQueue::reap`] may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until at least this many completions were delivered by this call (or nothing is in flight).
    AtLeast(u32),
    /// Until one completion, or this long.
    Timeout(Duration),
}

/// How much something optional is wanted. What is required and refused is an error; what is tried and refused is a
/// fallback that [`QueueFacts`] reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ask {
    /// Do not use it.
    #[default]
    No,
    /// Use it if possible, report a fallback otherwise.
    Try,
    /// Fail without it.
    Require,
}

/// Options of a queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// Most requests in flight, 1 ..= 32768.
    pub depth: u32,
    /// Only the creating thread submits and reaps (SINGLE_ISSUER + DEFER_TASKRUN on io_uring). Otherwise any thread
    /// that holds the queue's lock may.
    pub owner_driven: bool,
    /// Busy-polled completions (IOPOLL). Implies `owner_driven`.
    pub iopoll: Ask,
    /// Kernel submission thread (SQPOLL).
    pub sqpoll: Ask,
    /// Register the file with the ring.
    pub register_file: Ask,
    /// Register the memory of this pool with the ring, and what it grows by. If required, [`BufferPool::take`] fails
    /// where the ring does not take that.
    pub register_buffers: Ask,
    /// Register the ring with the thread that drives it, so that no call has to look its descriptor up. Only for an
    /// owner-driven queue without SQPOLL, which must then be dropped by its owner: dropped by another thread with
    /// requests in flight, it waits until the owner's thread has ended, and without it keeps the device open
    /// until then.
    pub register_ring: Ask,
    /// The pool to register.
    pub pool: Option<BufferPool>,
    /// I/O priority of requests that have none of their own. Engines without priorities tell so in
    /// [`QueueFacts::fallbacks`].
    pub priority: Priority,
}

impl QueueOptions {
    /// Defaults for `depth` requests: registered file and buffers tried, interrupt-driven, reapable by any thread.
    pub fn depth(depth: u32) -> Self {
        QueueOptions {
            depth,
            owner_driven: false,
            iopoll: Ask::No,
            sqpoll: Ask::No,
            register_file: Ask::Try,
            register_buffers: Ask::Try,
            register_ring: Ask::No,
            pool: None,
            priority: Priority::OF_THREAD,
        }
    }
}

/// Most pieces of memory of one request, where the kernel takes several: `UIO_MAXIOV`.
pub(crate) const VECTORS_MAX: u32 = 1024;

/// What a queue got of what it asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueFacts {
    /// Completions are busy-polled on the device.
    pub polled: bool,
    /// A kernel thread submits.
    pub sqpoll: bool,
    /// The file is registered.
    pub registered_file: bool,
    /// The pool is registered.
    pub registered_buffers: bool,
    /// The ring is registered with the thread that drives it.
    pub registered_ring: bool,
    /// Only the creating thread may drive it.
    pub owner_driven: bool,
    /// Requests run in the call that submits them.
    pub inline: bool,
    /// Most pieces of memory that one request may have ([`Memory::vectors`]). 0: a request has one piece.
    pub vectors: u32,
    /// Fallbacks taken, one sentence each.
    pub fallbacks: Vec<String>,
}

/// A request queue. `&mut self`: whoever drives it holds it exclusively.
pub trait DeviceQueue: Send {
    /// Adds a request. Nothing is sent before [`DeviceQueue::submit`] (an engine may start earlier).
    ///
    /// Range and alignment are **not** checked again here: the caller has checked them against [`crate::Geometry`];
    /// the device answers a wrong one with an error completion.
    ///
    /// # Safety
    /// The memory must be valid for `length` bytes (writable for reads, readable for writes) and must not be touched
    /// by others, freed or moved until the completion with this tag was delivered by `reap` or the queue was dropped.
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full>;

    /// Sends what was pushed, and returns how many requests that were. What is more than the device takes at once is
    /// kept back, and goes with a later call of this or of [`DeviceQueue::reap`]: completions of this queue are due
    /// then, so whoever waits for them, or for the descriptor, sends it in time. Dropping the queue carries it out.
    fn submit(&mut self) -> Result<usize>;

    /// Delivers completions into `out`, at most `out`'s spare capacity, and returns how many. Also sends what was
    /// pushed, so that a waiter cannot wait for something that was never sent.
    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize>;

    /// Requests pushed and not yet delivered.
    fn in_flight(&self) -> u32;

    /// Most requests at once.
    fn capacity(&self) -> u32;

    /// What was granted.
    fn facts(&self) -> QueueFacts;

    /// A descriptor that becomes readable when a completion may be waiting, where the engine has one.
    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>>;
}
