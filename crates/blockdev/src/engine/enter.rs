//! `io_uring_enter` for all, some or none of the pushed entries: the rest stays in the submission ring.

use io_uring::{EnterFlags, IoUring, cqueue, squeue, types};
use std::io;
use std::time::Duration;

/// `struct io_uring_getevents_arg` of `linux/io_uring.h`.
#[repr(C)]
struct Argument {
    sigmask: u64,
    sigmask_size: u32,
    min_wait_us: u32,
    time: u64,
}

/// `struct __kernel_timespec` of `linux/time_types.h`.
#[repr(C)]
struct Time {
    seconds: i64,
    nanoseconds: i64,
}

/// Waits for `want` completions without sending anything.
pub(super) fn wait_only<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    ring: &IoUring<S, C>,
    want: u32,
) -> io::Result<usize> {
    // SAFETY: no entry is submitted and no argument structure is passed, so the kernel touches nothing but the ring,
    // and the memory of requests, as promised when they were sent.
    unsafe { ring.submitter().enter::<libc::sigset_t>(0, want, EnterFlags::GETEVENTS.bits(), None) }
}

/// Submits all pushed entries and waits for `want` completions, for at most `rest`. Returns how many entries the kernel
/// took.
///
/// # Errors
/// Those of the system call: no entry was taken. ETIME means that `rest` has passed.
pub(super) fn send_and_wait<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    ring: &IoUring<S, C>,
    want: u32,
    rest: Option<Duration>,
) -> io::Result<usize> {
    let Some(rest) = rest else { return ring.submit_and_wait(want as usize) };
    let time = types::Timespec::from(rest);
    ring.submitter().submit_with_args(want as usize, &types::SubmitArgs::new().timespec(&time))
}

/// Submits the first `count` unsubmitted entries and waits for `want` completions, for at most `rest`. Returns how many
/// entries the kernel took. Not for rings with a submission thread, which takes every entry that it sees.
///
/// # Errors
/// Those of the system call: no entry was taken. ETIME means that `rest` has passed.
pub(super) fn enter_part(ring: &IoUring, count: u32, want: u32, rest: Option<Duration>) -> io::Result<usize> {
    let flags = EnterFlags::GETEVENTS;
    let Some(rest) = rest else {
        // SAFETY: no argument structure is passed. The callers that pushed the entries promised that their memory is
        // valid.
        return unsafe { ring.submitter().enter::<libc::sigset_t>(count, want, flags.bits(), None) };
    };
    let seconds = i64::try_from(rest.as_secs()).unwrap_or(i64::MAX);
    let time = Time { seconds, nanoseconds: i64::from(rest.subsec_nanos()) };
    let argument = Argument {
        sigmask: 0,
        sigmask_size: 0,
        min_wait_us: 0,
        time: (&raw const time).expose_provenance() as u64,
    };
    let flags = flags | EnterFlags::EXT_ARG;
    // SAFETY: with EXT_ARG the kernel reads one `struct io_uring_getevents_arg`, whose time points to a live value and
    // which has no signal mask. The entries: as above.
    unsafe { ring.submitter().enter(count, want, flags.bits(), Some(&argument)) }
}
