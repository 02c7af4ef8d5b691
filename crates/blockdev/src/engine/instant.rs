//! The queue of engines that execute requests in `push`.

use super::plain::{DoneRing, grant};
use crate::timer::TimerFd;
use crate::{DeviceQueue, Done, Full, Op, QueueFacts, QueueOptions, Request, Result, Wait};
use std::os::fd::BorrowedFd;

/// Executes requests.
pub(crate) trait Instant: Send {
    /// Bytes transferred, or a negative errno.
    ///
    /// # Safety
    /// As [`DeviceQueue::push`].
    unsafe fn run(&self, request: &Request) -> i32;

    /// [`Error::Forked`](crate::Error::Forked) in a child process that must not use the engine.
    #[inline]
    fn check_process(&self) -> Result<()> {
        Ok(())
    }
}

/// See the module. Requests have completed by the time `push` returns, so `reap` never waits.
#[derive(Debug)]
pub struct InstantQueue<E> {
    engine: E,
    ring: DoneRing,
    timer: TimerFd,
    facts: QueueFacts,
}

impl<E> InstantQueue<E> {
    pub(super) fn new(name: &'static str, engine: E, options: &QueueOptions) -> Result<Self> {
        let facts = grant(name, options)?;
        Ok(InstantQueue { engine, ring: DoneRing::new(options.depth), timer: TimerFd::default(), facts })
    }

    #[cold]
    fn signal(&self) -> Result<()> {
        self.timer.set((self.ring.len() > 0).then_some(0))
    }
}

impl<E: Instant> DeviceQueue for InstantQueue<E> {
    /// Not inlined, so that instruction counts can separate the push of `null:`, which stands in for encoding a ring
    /// entry, from its caller.
    #[inline(never)]
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.ring.is_full() || self.engine.check_process().is_err() {
            return Err(Full);
        }
        // SAFETY: the caller's promise is passed on.
        let result = unsafe { self.engine.run(&request) };
        self.ring.push(Done { tag: request.tag, result })
    }

    #[inline]
    fn submit(&mut self) -> Result<usize> {
        self.engine.check_process()?;
        if self.timer.is_wanted() {
            self.signal()?;
        }
        Ok(self.ring.send())
    }

    #[inline]
    fn reap(&mut self, out: &mut Vec<Done>, _wait: Wait) -> Result<usize> {
        self.engine.check_process()?;
        self.ring.send();
        let delivered = self.ring.deliver(out);
        if self.timer.is_wanted() {
            self.signal()?;
        }
        Ok(delivered)
    }

    fn in_flight(&self) -> u32 {
        self.ring.len()
    }

    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn facts(&self) -> QueueFacts {
        self.facts.clone()
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.engine.check_process()?;
        self.timer.get()?;
        self.signal()?;
        self.timer.get().map(Some)
    }
}

/// **Moves nothing**: reads leave their memory unchanged. Only the kind of a request is looked at: bad positions,
/// lengths and addresses succeed as well.
#[derive(Debug)]
pub struct Nothing;

/// The queue of the null engine.
pub type NullQueue = InstantQueue<Nothing>;

impl Instant for Nothing {
    #[inline]
    unsafe fn run(&self, request: &Request) -> i32 {
        match request.op {
            Op::Read | Op::Write => request.length as i32,
            Op::Flush | Op::Discard => 0,
        }
    }
}
