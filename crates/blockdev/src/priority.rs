//! I/O priorities of requests.

use crate::{Error, Result, sys};
use std::fmt;

/// Class of a [`Priority`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PriorityClass {
    /// Before all others. Needs `CAP_SYS_NICE` or `CAP_SYS_ADMIN`.
    RealTime = 1,
    /// The default class.
    BestEffort = 2,
    /// Only while no other requests are waiting.
    Idle = 3,
}

/// I/O priority of a request, as in `ioprio_set(2)`. A hint for I/O schedulers (`mq-deadline`, `bfq`) and for drivers
/// with queues per priority. Engines that bypass the block layer (`nvme:`, `dax:`, `mem:`) have no priorities.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Priority(u8);

/// Levels of a class.
const LEVELS: u8 = 8;

impl Priority {
    /// The priority of the submitting thread.
    pub const OF_THREAD: Priority = Priority(0);

    /// `level` is 0 (highest) to 7 (lowest); `None` above that.
    pub const fn new(class: PriorityClass, level: u8) -> Option<Priority> {
        if level < LEVELS { Some(Priority(class as u8 * LEVELS + level)) } else { None }
    }

    /// The class; `None` for the thread's own priority.
    pub const fn class(self) -> Option<PriorityClass> {
        match self.0 / LEVELS {
            1 => Some(PriorityClass::RealTime),
            2 => Some(PriorityClass::BestEffort),
            3 => Some(PriorityClass::Idle),
            _ => None,
        }
    }

    /// Level in its class, 0 to 7.
    pub const fn level(self) -> u8 {
        self.0 % LEVELS
    }

    /// Whether this is the thread's own priority.
    #[inline]
    pub const fn is_of_thread(self) -> bool {
        self.0 == 0
    }

    /// This priority, or `other` if this is the thread's own.
    #[inline]
    pub const fn or(self, other: Priority) -> Priority {
        if self.is_of_thread() { other } else { self }
    }

    /// The kernel's encoding; 0 is the thread's own priority.
    #[inline]
    pub(crate) const fn ioprio(self) -> u16 {
        (self.0 / LEVELS) as u16 * (1 << 13) + self.level() as u16
    }

    /// Checks that this thread may use the priority, by setting it for a moment.
    ///
    /// # Errors
    /// [`Error::Priority`].
    pub fn check(self) -> Result<()> {
        self.around(|| ())
    }

    /// Runs `call` with the calling thread at this priority, so that its synchronous requests have it too.
    ///
    /// # Errors
    /// [`Error::Priority`]: `call` did not run.
    pub fn around<T>(self, call: impl FnOnce() -> T) -> Result<T> {
        if self.is_of_thread() {
            return Ok(call());
        }
        let refused = |error: std::io::Error| Error::Priority {
            priority: self.to_string(),
            errno: error.raw_os_error().unwrap_or(libc::EINVAL),
        };
        let before = sys::thread_ioprio().map_err(refused)?;
        sys::set_thread_ioprio(self.ioprio().into()).map_err(refused)?;
        let _back = Back(before);
        Ok(call())
    }
}

/// Restores the thread's previous priority.
struct Back(i32);

impl Drop for Back {
    fn drop(&mut self) {
        // A thread that lost its privileges meanwhile keeps the current priority.
        let _ = sys::set_thread_ioprio(self.0);
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class() {
            None => return f.write_str("the thread's own"),
            Some(PriorityClass::RealTime) => "realtime",
            Some(PriorityClass::BestEffort) => "best effort",
            Some(PriorityClass::Idle) => "idle",
        };
        write!(f, "{class} {}", self.level())
    }
}

impl fmt::Debug for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Priority({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_priority_and_the_thread_its_own_again() {
        let before = sys::thread_ioprio().unwrap();
        for (class, level, wanted) in
            [(PriorityClass::BestEffort, 7, 2 << 13 | 7), (PriorityClass::Idle, 0, 3 << 13)]
        {
            let priority = Priority::new(class, level).unwrap();
            assert_eq!((priority.class(), priority.level()), (Some(class), level));
            assert_eq!(priority.around(|| sys::thread_ioprio().unwrap()), Ok(wanted));
            let panicked = std::panic::catch_unwind(|| priority.around(|| panic!("in the call")));
            assert!(panicked.is_err());
            assert_eq!(sys::thread_ioprio().unwrap(), before);
        }
        assert_eq!(Priority::OF_THREAD.around(|| sys::thread_ioprio().unwrap()), Ok(before));
        assert_eq!(Priority::new(PriorityClass::RealTime, 8), None);
        let real_time = Priority::new(PriorityClass::RealTime, 3).unwrap();
        assert_eq!((real_time.ioprio(), real_time.to_string()), (1 << 13 | 3, "realtime 3".into()));
    }
}
