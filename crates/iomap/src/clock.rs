//! The coarse clock that stamps writes in memory.

use rustix::time::{ClockId, clock_gettime};

/// Real time since 1970 in nanoseconds, of the resolution of a timer tick. No system call (vDSO).
#[inline]
pub(crate) fn coarse_now_ns() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    // Times before 1970 do not occur; they would only make a stamp wrong, never a request.
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
