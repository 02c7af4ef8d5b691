//! The coarse clock for in-memory write times.

use rustix::time::{ClockId, clock_gettime};

/// Real time since 1970 in nanoseconds, at timer-tick resolution. No system call (vDSO).
#[inline]
pub fn coarse_now_ns() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    // Times before 1970 do not occur; one would give a wrong time stamp and do no other harm.
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
