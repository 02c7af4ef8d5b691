//! The coarse clock that stamps writes in memory.

use rustix::time::{ClockId, clock_gettime};

/// Real time since 1970 in nanoseconds, of the resolution of a timer tick. No system call (vDSO).
#[inline]
pub(crate) fn coarse_now_ns() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000) + now.tv_nsec.unsigned_abs()
}
