//! Time for modelled latencies: one clock, precise waits, a descriptor that becomes readable at a given time.
//!
//! No thread sleeps on behalf of a request: a queue keeps its completions with their due times, and the caller that
//! waits for them sleeps.

use crate::{Error, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::thread::ClockId;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::time::Duration;

/// Sleeps end this long before the due time, and a spin takes the rest: the kernel adds up to 50 µs of timer slack to a
/// sleep, and waking up takes about 20 µs in a virtual machine; together 10 % of a 740 µs request.
const SPIN_NS: u64 = 80_000;

const NS_PER_S: u64 = 1_000_000_000;

/// Monotonic time in nanoseconds.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * NS_PER_S + now.tv_nsec as u64
}

/// A duration in whole nanoseconds, saturating after 584 years.
pub(crate) fn duration_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / NS_PER_S) as _, tv_nsec: (ns % NS_PER_S) as _ }
}

/// Returns at `due` or as soon after as the scheduler allows, never before.
pub(crate) fn wait_until(due: u64) {
    sleep_until(due);
    while now_ns() < due {
        std::hint::spin_loop();
    }
}

/// Sleeps until shortly before `due`; returns at once if that is past.
pub(crate) fn sleep_until(due: u64) {
    let wake = due.saturating_sub(SPIN_NS);
    while now_ns() < wake {
        // An interrupted sleep is resumed by the loop; the time is absolute, so nothing accumulates.
        let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &timespec(wake));
    }
}

/// How long to sleep before the last [`SPIN_NS`] until `due`, or `None` if only the spin is left.
pub(crate) fn sleepable(due: u64) -> Option<Duration> {
    due.checked_sub(now_ns())?.checked_sub(SPIN_NS).filter(|&ns| ns > 0).map(Duration::from_nanos)
}

/// A timer descriptor, created on first use, that is readable from a due time on. Poll it; there is no need to read it,
/// because the queue that owns it rearms it whenever its state changes.
#[derive(Debug, Default)]
pub(crate) struct TimerFd {
    fd: Option<OwnedFd>,
}

impl TimerFd {
    /// The descriptor.
    pub(crate) fn get(&mut self) -> Result<BorrowedFd<'_>> {
        if self.fd.is_none() {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            self.fd = Some(
                timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|errno| failed("create", errno))?,
            );
        }
        match &self.fd {
            Some(fd) => Ok(fd.as_fd()),
            None => Err(failed("create", rustix::io::Errno::BADF)),
        }
    }

    /// Whether the descriptor was ever requested.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.fd.is_some()
    }

    /// Makes it readable from `due` (0: at once) on, or not at all. Does nothing if it was never requested.
    pub(crate) fn set(&self, due: Option<u64>) -> Result<()> {
        let Some(fd) = &self.fd else { return Ok(()) };
        // A zero value would disarm the timer; 1 ns after boot is long past.
        let it_value = timespec(due.map_or(0, |due| due.max(1)));
        let value = Itimerspec { it_interval: timespec(0), it_value };
        timerfd_settime(fd, TimerfdTimerFlags::ABSTIME, &value).map_err(|errno| failed("set", errno))?;
        Ok(())
    }
}

fn failed(action: &'static str, errno: rustix::io::Errno) -> Error {
    Error::Open { path: "timerfd".into(), action, errno: errno.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_never_short() {
        for us in [1u64, 50, 100, 740] {
            let due = now_ns() + us * 1000;
            wait_until(due);
            assert!(now_ns() >= due);
        }
        wait_until(0);
    }

    #[test]
    fn the_descriptor_is_readable_from_its_time_on() {
        let mut timer = TimerFd::default();
        timer.set(Some(0)).unwrap();
        assert!(!timer.is_wanted());
        let fd = timer.get().unwrap().try_clone_to_owned().unwrap();
        let readable = |timeout_ms: i64| {
            let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut polled, Some(&timespec(timeout_ms as u64 * 1_000_000))).unwrap() == 1
        };
        assert!(!readable(0));
        timer.set(Some(0)).unwrap();
        assert!(readable(0));
        timer.set(None).unwrap();
        assert!(!readable(0));
        let due = now_ns() + 2_000_000;
        timer.set(Some(due)).unwrap();
        assert!(readable(10_000));
        assert!(now_ns() >= due);
    }
}
