//! A queue that answers some requests itself and passes the others on: what masks and faults have in common.

use super::wake::Wake;
use crate::engine::DoneRing;
use crate::{DeviceQueue, Done, Full, Queue, QueueFacts, Request, Result, Wait};
use std::os::fd::BorrowedFd;

/// The wrapped queue and the answers that did not come from it.
pub(crate) struct Inject {
    inner: Queue,
    own: DoneRing,
    wake: Wake,
}

impl Inject {
    /// Wraps a queue.
    pub(crate) fn new(inner: Queue) -> Self {
        let own = DoneRing::new(inner.capacity());
        Inject { inner, own, wake: Wake::default() }
    }

    /// Passes a request on.
    ///
    /// # Safety
    /// As [`DeviceQueue::push`].
    pub(crate) unsafe fn pass(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.in_flight() >= self.capacity() {
            return Err(Full);
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.push(request) }
    }

    /// Answers a request without the device.
    pub(crate) fn answer(&mut self, tag: u64, result: i32) -> std::result::Result<(), Full> {
        if self.in_flight() >= self.capacity() {
            return Err(Full);
        }
        self.own.push(Done { tag, result })
    }

    /// See [`DeviceQueue::submit`].
    pub(crate) fn submit(&mut self) -> Result<usize> {
        let own = self.own.send();
        self.signal()?;
        Ok(self.inner.submit()? + own)
    }

    /// See [`DeviceQueue::reap`]. The device's completions come first, so that an error of the device loses
    /// none of ours.
    pub(crate) fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.own.send();
        let wait = match wait {
            Wait::AtLeast(count) if count > self.own.len() => Wait::AtLeast(count - self.own.len()),
            Wait::Timeout(limit) if self.own.len() == 0 => Wait::Timeout(limit),
            _ => Wait::No,
        };
        let passed = self.inner.reap(out, wait)?;
        let own = self.own.deliver(out);
        self.signal()?;
        Ok(passed + own)
    }

    /// Requests pushed and not yet delivered.
    pub(crate) fn in_flight(&self) -> u32 {
        self.inner.in_flight() + self.own.len()
    }

    /// Most requests at once.
    pub(crate) fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    /// What the wrapped queue was granted.
    pub(crate) fn facts(&self) -> QueueFacts {
        self.inner.facts()
    }

    /// Readable for completions of either kind.
    pub(crate) fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.wake.get(&mut self.inner)?;
        self.signal()?;
        self.wake.get(&mut self.inner)
    }

    fn signal(&self) -> Result<()> {
        self.wake.set((self.own.len() > 0).then_some(0))
    }
}

/// Implements [`DeviceQueue`] for a queue with a field `inject`, except `push`.
macro_rules! forward_to_inject {
    () => {
        fn submit(&mut self) -> Result<usize> {
            self.inject.submit()
        }

        fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
            self.inject.reap(out, wait)
        }

        fn in_flight(&self) -> u32 {
            self.inject.in_flight()
        }

        fn capacity(&self) -> u32 {
            self.inject.capacity()
        }

        fn facts(&self) -> QueueFacts {
            self.inject.facts()
        }

        fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
            self.inject.event_fd()
        }
    };
}
pub(crate) use forward_to_inject;
