//! Per-thread request queues: the asynchronous interface of a device.
//!
//! [`DeviceQueue::push`] adds requests, [`DeviceQueue::submit`] sends them, and [`DeviceQueue::reap`] delivers
//! completions. None of these calls allocates, and none checks who owns the memory: the caller must prove that, which
//! is why `push` is unsafe.

use crate::{BufferPool, Error, Memory, Priority, Result};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Makes completed writes durable; position, length and memory are ignored.
    Flush,
    /// Tells the device that a range is unused; memory is ignored.
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
    /// Fail with `EAGAIN` instead of blocking, where the device supports it. A transfer longer than the device takes in
    /// one request, which the kernel would split, always fails this way.
    pub nowait: bool,
    /// I/O priority; the queue's unless set.
    pub priority: Priority,
    /// First byte on the device.
    pub pos: u64,
    /// Bytes.
    pub length: u32,
    /// Data memory.
    pub memory: Memory,
    /// Returned in [`Done::tag`].
    pub tag: u64,
}

/// One completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Tag of the request.
    pub tag: u64,
    /// Bytes transferred, or a negative errno. A short transfer is reported as such.
    pub result: i32,
}

/// The queue is full; reap first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// How long [`DeviceQueue::reap`] may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until at least this many completions were delivered by this call (or nothing is in flight).
    AtLeast(u32),
    /// Until one completion, but no longer than this.
    Timeout(Duration),
}

/// How strongly an optional feature is wanted. Refusal of a required feature is an error; refusal of a tried one is a
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

impl Ask {
    /// Whether to use an optional feature. If `there` refuses it, its reason becomes a fallback, or the error if it is
    /// required.
    pub(crate) fn granted(
        self,
        what: &str,
        there: impl FnOnce() -> std::result::Result<(), String>,
        facts: &mut QueueFacts,
    ) -> Result<bool> {
        if self == Ask::No {
            return Ok(false);
        }
        match there() {
            Ok(()) => return Ok(true),
            Err(why) if self == Ask::Require => return Err(Error::Unsupported(format!("{what}: {why}"))),
            Err(why) => facts.fallbacks.push(format!("without {what}: {why}")),
        }
        Ok(false)
    }
}

/// Options of a queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// Most requests in flight, 1 ..= [`QueueOptions::DEPTH_MAX`].
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
    /// Register the pool's memory with the ring, including regions that the pool adds later. If required,
    /// [`BufferPool::take`] fails when the ring refuses a new region.
    pub register_buffers: Ask,
    /// Register the ring with the thread that drives it, so that no call has to look up its descriptor. Only for an
    /// owner-driven queue without SQPOLL, which its owner must then drop: if another thread drops it with requests in
    /// flight, the drop waits until the owner's thread has ended; without any, the device stays open until then.
    pub register_ring: Ask,
    /// The pool to register.
    pub pool: Option<BufferPool>,
    /// I/O priority of requests that have none of their own. Engines without priorities say so in
    /// [`QueueFacts::fallbacks`].
    pub priority: Priority,
}

impl QueueOptions {
    /// Most requests in flight of one queue: the kernel's limit for a submission ring.
    pub const DEPTH_MAX: u32 = 32768;

    /// Checks the depth.
    ///
    /// # Errors
    /// [`Error::Unsupported`] outside of 1 ..= [`QueueOptions::DEPTH_MAX`].
    pub fn check_depth(&self) -> Result<()> {
        if (1..=Self::DEPTH_MAX).contains(&self.depth) {
            return Ok(());
        }
        Err(Error::Unsupported(format!("queue depth {} (1 to {})", self.depth, Self::DEPTH_MAX)))
    }

    /// Defaults for `depth` requests: tries to register file and buffers; interrupt-driven, reapable by any thread.
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

/// Most vectors in one request, where the kernel takes several: `UIO_MAXIOV`.
pub(crate) const VECTORS_MAX: u32 = 1024;

/// Which of the requested features a queue got.
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
    /// The submitting call executes the requests.
    pub inline: bool,
    /// Most vectors in one request ([`Memory::vectors`]). 0: the queue takes no vectors.
    pub vectors: u32,
    /// Fallbacks taken, one sentence each.
    pub fallbacks: Vec<String>,
}

/// A request queue. Its methods take `&mut self`: only one thread drives it at a time.
pub trait DeviceQueue: Send {
    /// Adds a request. Nothing is sent before [`DeviceQueue::submit`] (an engine may start earlier).
    ///
    /// Range and alignment are **not** checked again here: the caller has checked them against [`crate::Geometry`]; the
    /// device answers a bad request with an error completion.
    ///
    /// # Safety
    /// The memory must be valid for `length` bytes (writable for reads, readable for writes) and must not be accessed
    /// by others, freed or moved until `reap` has delivered the completion with this tag or the queue has been dropped.
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full>;

    /// Sends the pushed requests and returns their number. Requests beyond what the device takes at once are held back
    /// until a later call of this or of [`DeviceQueue::reap`]. They always have requests of this queue ahead of them in
    /// the device, so a caller that waits for completions, or for the descriptor, sends them in time. Dropping the
    /// queue executes them.
    fn submit(&mut self) -> Result<usize>;

    /// Appends completions to `out`, up to its spare capacity, and returns how many. Also sends pushed requests, so
    /// that no caller waits for a request that was never sent.
    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize>;

    /// Requests pushed whose completion is not yet delivered.
    fn in_flight(&self) -> u32;

    /// Most requests in flight.
    fn capacity(&self) -> u32;

    /// Which features were granted.
    fn facts(&self) -> QueueFacts;

    /// A descriptor that becomes readable when a completion may be waiting, where the engine has one.
    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>>;
}
