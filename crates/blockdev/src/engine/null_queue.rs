//! The queue of the null engine, which counts requests and moves nothing.

use super::plain::{DoneRing, grant};
use crate::timer::TimerFd;
use crate::{DeviceQueue, Done, Full, Op, QueueFacts, QueueOptions, Request, Result, Wait};
use std::os::fd::BorrowedFd;

/// A queue that completes every request at once and **moves nothing**: reads leave their memory as it was.
///
/// Requests are not looked at beyond their kind: wrong positions, lengths and addresses succeed as well.
#[derive(Debug)]
pub struct NullQueue {
    ring: DoneRing,
    timer: TimerFd,
    facts: QueueFacts,
}

impl NullQueue {
    pub(super) fn new(options: &QueueOptions) -> Result<Self> {
        let facts = grant("null", options)?;
        Ok(NullQueue { ring: DoneRing::new(options.depth), timer: TimerFd::default(), facts })
    }

    #[cold]
    fn signal(&self) -> Result<()> {
        self.timer.set((self.ring.len() > 0).then_some(0))
    }
}

impl DeviceQueue for NullQueue {
    /// Not inlined, so that instruction counts can tell this stand-in for encoding a ring entry from its caller.
    #[inline(never)]
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        let result = match request.op {
            Op::Read | Op::Write => request.length as i32,
            Op::Flush | Op::Discard => 0,
        };
        self.ring.push(Done { tag: request.tag, result })
    }

    #[inline]
    fn submit(&mut self) -> Result<usize> {
        if self.timer.is_wanted() {
            self.signal()?;
        }
        Ok(self.ring.send())
    }

    #[inline]
    fn reap(&mut self, out: &mut Vec<Done>, _wait: Wait) -> Result<usize> {
        // Everything in flight is complete, so there is nothing to wait for.
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
        self.timer.get()?;
        self.signal()?;
        self.timer.get().map(Some)
    }
}
