//! Reaping of queues on rings, for any type of entry: sends, waits, drains, and wakes threads that wait on the queue's
//! descriptor.

use super::enter;
use super::ring::{self, Wakeup};
use crate::{Done, Process, QueueFacts, Result, Wait};
use io_uring::{IoUring, cqueue, squeue};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// State that all queues on rings have.
pub(super) struct Shell {
    pub(super) process: Process,
    /// Completions that never went through a ring.
    pub(super) ready: VecDeque<Done>,
    pub(super) wakeup: Option<Wakeup>,
    pub(super) facts: QueueFacts,
}

/// How one blocking system call ended.
#[derive(PartialEq, Eq)]
pub(super) enum Entered {
    Progress,
    TimedOut,
}

/// A queue on a ring.
pub(super) trait Reaps {
    type Entry: squeue::EntryMarker;
    type Completion: cqueue::EntryMarker;
    fn shell(&mut self) -> &mut Shell;
    fn ring(&mut self) -> &mut IoUring<Self::Entry, Self::Completion>;
    /// Requests pushed whose completion is not yet delivered.
    fn pending(&self) -> u32;
    /// Requests of the ring that the kernel has, or that ended there without being seen.
    fn in_ring(&self) -> u32;
    /// Moves completions to `out`, at most `room`.
    fn drain(&mut self, out: &mut Vec<Done>, room: usize) -> usize;
    /// One system call that sends and waits for `want` completions (at least 1) or the deadline. The caller has drained
    /// the ring and checks it again afterwards.
    fn enter(&mut self, want: u32, deadline: Option<Instant>) -> Result<Entered>;
    /// Accepts all pushed requests and sends as many as the device admits, without waiting. Returns how many requests
    /// were accepted.
    fn send(&mut self) -> Result<usize>;
    /// Called when `late` completions were drained after sending. Sends held-back requests into their room: there may
    /// be no other completion after which they would be sent.
    fn send_into_room(&mut self, late: usize) -> Result<()>;

    /// Waits for `want` completions in the ring without sending anything.
    fn enter_only(&mut self, want: u32) -> Result<()> {
        waited(enter::wait_only(self.ring(), want))
    }

    /// After a refused submission: EINTR is retried; EAGAIN and EBUSY (the kernel is short of memory) wait for a
    /// request to end, if there is one.
    #[cold]
    fn make_room(&mut self, error: &io::Error) -> Result<()> {
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            Some(libc::EAGAIN | libc::EBUSY) if self.in_ring() > 0 => self.enter_only(1),
            _ => Err(ring::enter_error("submit", error)),
        }
    }

    /// Lets the kernel post completions that it only posts on demand. No system call if there is nothing to post.
    fn nudge(&mut self) -> Result<()> {
        let QueueFacts { polled, owner_driven, .. } = self.shell().facts;
        let on_demand = polled || (owner_driven && self.ring().submission().taskrun());
        if on_demand && self.pending() > 0 { self.enter_only(0) } else { Ok(()) }
    }
}

/// Result of a wait for completions. After any other wakeup the caller checks again.
pub(super) fn waited(entered: io::Result<usize>) -> Result<()> {
    match entered {
        Ok(_) => Ok(()),
        Err(error) if ring::is_transient(&error) => Ok(()),
        Err(error) => Err(ring::enter_error("wait", &error)),
    }
}

impl Shell {
    pub(super) fn new(process: Process, depth: u32, facts: QueueFacts) -> Self {
        Shell { process, ready: VecDeque::with_capacity(depth as usize), wakeup: None, facts }
    }

    /// Completes a request that does not go through the ring.
    pub(super) fn complete(&mut self, tag: u64, result: i32) {
        self.ready.push_back(Done { tag, result });
        if let Some(wakeup) = &self.wakeup {
            wakeup.signal();
        }
    }
}

/// See [`crate::DeviceQueue::reap`].
pub(super) fn reap(queue: &mut impl Reaps, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
    queue.shell().process.check()?;
    if let Some(wakeup) = &queue.shell().wakeup {
        wakeup.clear();
    }
    let mut taken = 0;
    let outcome = reap_inner(queue, out, wait, &mut taken);
    if queue.shell().wakeup.is_some() && out.len() == out.capacity() {
        signal_rest(queue);
    }
    match outcome {
        // Completions already delivered must be counted; a permanent error will recur.
        Err(error) if taken == 0 => Err(error),
        _ => Ok(taken),
    }
}

fn reap_inner(queue: &mut impl Reaps, out: &mut Vec<Done>, wait: Wait, taken: &mut usize) -> Result<()> {
    let room = out.capacity() - out.len();
    let (wanted, deadline) = match wait {
        Wait::No => (0, None),
        Wait::AtLeast(count) => (count as usize, None),
        Wait::Timeout(time) => (1, Instant::now().checked_add(time)),
    };
    *taken = queue.drain(out, room);
    loop {
        let wanted = wanted.min(room).min(*taken + queue.pending() as usize);
        if *taken >= wanted {
            break;
        }
        let entered = queue.enter((wanted - *taken) as u32, deadline)?;
        *taken += queue.drain(out, room - *taken);
        if entered == Entered::TimedOut {
            break;
        }
    }
    queue.send()?;
    if *taken == 0 {
        queue.nudge()?;
    }
    let late = queue.drain(out, room - *taken);
    *taken += late;
    queue.send_into_room(late)
}

/// Completions for which there was no room must still be signalled.
#[cold]
fn signal_rest(queue: &mut impl Reaps) {
    let rest = !queue.ring().completion().is_empty();
    let shell = queue.shell();
    if (rest || !shell.ready.is_empty())
        && let Some(wakeup) = &shell.wakeup
    {
        wakeup.signal();
    }
}

/// See [`crate::DeviceQueue::event_fd`]. `None` for a polled queue, which makes no progress unless it is polled.
pub(super) fn event_fd(queue: &mut impl Reaps) -> Result<Option<BorrowedFd<'_>>> {
    queue.shell().process.check()?;
    if queue.shell().facts.polled {
        return Ok(None);
    }
    if queue.shell().wakeup.is_none() {
        let wakeup = Wakeup::new(queue.ring())?;
        if queue.pending() > 0 {
            // Earlier completions were not signalled.
            wakeup.signal();
        }
        queue.shell().wakeup = Some(wakeup);
    }
    Ok(queue.shell().wakeup.as_ref().map(Wakeup::as_fd))
}
