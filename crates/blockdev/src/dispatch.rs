//! The queue that a device hands out: one type for all engines, so that the hot path needs no virtual calls.

use crate::engine::{NullQueue, UringQueue};
use crate::{DeviceQueue, Done, Full, QueueFacts, Request, Result, Wait};
use std::os::fd::BorrowedFd;

/// A queue of a known engine (dispatched without a virtual call on the hot path) or of any other device.
///
/// Dropping it waits for everything in flight, because the memory of the requests may be freed right after.
// An explicit tag: a discriminant in a field's niche takes five instructions to test.
#[allow(clippy::large_enum_variant, reason = "one per thread; boxing would cost the hot path a load")]
#[repr(u8)]
pub enum Queue {
    /// io_uring.
    Uring(UringQueue),
    /// The null engine, which moves no data.
    Null(NullQueue),
    /// Any other queue.
    Other(Box<dyn DeviceQueue>),
}

macro_rules! forward {
    ($self:ident, $queue:ident => $call:expr) => {
        match $self {
            Queue::Uring($queue) => $call,
            Queue::Null($queue) => $call,
            Queue::Other($queue) => $call,
        }
    };
}

impl DeviceQueue for Queue {
    #[inline(always)]
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        // SAFETY: the caller's promise is passed on unchanged.
        forward!(self, queue => unsafe { queue.push(request) })
    }

    #[inline]
    fn submit(&mut self) -> Result<usize> {
        forward!(self, queue => queue.submit())
    }

    #[inline]
    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        forward!(self, queue => queue.reap(out, wait))
    }

    fn in_flight(&self) -> u32 {
        forward!(self, queue => queue.in_flight())
    }

    fn capacity(&self) -> u32 {
        forward!(self, queue => queue.capacity())
    }

    fn facts(&self) -> QueueFacts {
        forward!(self, queue => queue.facts())
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        forward!(self, queue => queue.event_fd())
    }
}
