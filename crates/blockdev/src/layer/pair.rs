//! Two queues that are reaped as one.

use crate::engine::goal;
use crate::timer::{duration_ns, now_ns};
use crate::{DeviceQueue, Done, Error, Queue, QueueFacts, Result, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;

/// How long to wait for one of two queues that have no descriptors.
const GLANCE: Duration = Duration::from_micros(50);

/// See the module.
pub(super) struct Pair<'a> {
    pub(super) first: &'a mut Queue,
    pub(super) second: &'a mut Queue,
    /// One of them polls for its completions.
    pub(super) polled: bool,
}

impl Pair<'_> {
    fn in_flight(&self) -> u32 {
        self.first.in_flight() + self.second.in_flight()
    }

    /// Delivers the completions of both, waiting as `wait` says. `seen` is called with those of the first.
    pub(super) fn reap(
        &mut self,
        out: &mut Vec<Done>,
        wait: Wait,
        mut seen: impl FnMut(&mut [Done]),
    ) -> Result<usize> {
        let (room, goal) = (out.len(), goal(wait, self.in_flight(), out));
        let due = match wait {
            Wait::Timeout(time) => Some(now_ns().saturating_add(duration_ns(time))),
            _ => None,
        };
        loop {
            let missing = goal.saturating_sub(out.len() - room);
            let left = due.map(|due| Duration::from_nanos(due.saturating_sub(now_ns())));
            let both = self.first.in_flight() > 0 && self.second.in_flight() > 0;
            let wait = match left {
                _ if missing == 0 || both => Wait::No,
                Some(left) => Wait::Timeout(left),
                None => Wait::AtLeast(missing as u32),
            };
            let taken = self.take(out, wait, &mut seen)?;
            if taken >= missing || left.is_some_and(|left| left.is_zero()) || !both && due.is_some() {
                return Ok(out.len() - room);
            }
            if both && taken == 0 {
                self.wait_for_either(left)?;
            }
        }
    }

    /// Delivers what is there, waiting as `wait` says in the queue that has something in flight: one of them at most.
    fn take(&mut self, out: &mut Vec<Done>, wait: Wait, seen: &mut impl FnMut(&mut [Done])) -> Result<usize> {
        let before = out.len();
        let in_first = self.first.in_flight() > 0;
        let taken = self.first.reap(out, if in_first { wait } else { Wait::No });
        seen(&mut out[before..]);
        taken?;
        self.second.reap(out, if in_first { Wait::No } else { wait })?;
        Ok(out.len() - before)
    }

    /// Waits until either queue may have a completion, or the time is over.
    fn wait_for_either(&mut self, timeout: Option<Duration>) -> Result<()> {
        if self.polled {
            std::hint::spin_loop();
            return Ok(());
        }
        let (Some(first), Some(second)) = (self.first.event_fd()?, self.second.event_fd()?) else {
            std::thread::sleep(timeout.unwrap_or(GLANCE).min(GLANCE));
            return Ok(());
        };
        let mut fds = [PollFd::new(&first, PollFlags::IN), PollFd::new(&second, PollFlags::IN)];
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => {
                Err(Error::Open { path: "poll".into(), action: "wait", errno: errno.raw_os_error() })
            }
        }
    }
}

/// What two queues have together. The fallbacks of the second begin with its name. Neither takes vectors.
pub(super) fn facts(first: QueueFacts, second: QueueFacts, name: &str) -> QueueFacts {
    let named = second.fallbacks.into_iter().map(|why| format!("{name}: {why}"));
    QueueFacts {
        polled: first.polled && second.polled,
        sqpoll: first.sqpoll && second.sqpoll,
        registered_file: first.registered_file && second.registered_file,
        registered_buffers: first.registered_buffers && second.registered_buffers,
        registered_ring: first.registered_ring && second.registered_ring,
        owner_driven: first.owner_driven || second.owner_driven,
        inline: first.inline && second.inline,
        vectors: 0,
        fallbacks: first.fallbacks.into_iter().chain(named).collect(),
    }
}
