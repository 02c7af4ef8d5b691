//! Creates io_uring rings: their flags, the fallbacks when the kernel refuses one, and what they register.

use super::budget::Budget;
use super::ring_index::RingIndex;
use crate::{Ask, Error, QueueFacts, QueueOptions, Result};
use io_uring::{IoUring, cqueue, squeue};
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Action of the [`Error::Open`] for a kernel that refuses io_uring altogether.
pub(super) const SETUP: &str = "io_uring_setup";

/// How long the kernel's submission thread spins before it sleeps, milliseconds.
const SQPOLL_IDLE_MS: u32 = 50;

/// Slot of the device in a ring's file table.
const SLOT_DEVICE: usize = 0;

/// The device that a ring works on.
#[derive(Debug, Clone)]
pub(crate) struct RingTarget {
    /// The opened device; kept alive by its queues.
    pub(crate) file: Arc<OwnedFd>,
    /// A block device (otherwise a regular file).
    pub(crate) block: bool,
    /// Bytes that may be addressed.
    pub(crate) size: u64,
    /// Smallest transfer, for the trial of IOPOLL.
    pub(crate) logical_block: u32,
    /// Flushes and FUA mean something.
    pub(crate) volatile_cache: bool,
    /// `RWF_NOWAIT` is understood.
    pub(crate) nowait: bool,
    /// How much the device takes at once, if that is known.
    pub(crate) budget: Option<Arc<Budget>>,
}

/// The requested properties of a ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingParams {
    pub(super) depth: u32,
    /// IOPOLL; a trial succeeded.
    pub(super) polled: bool,
    /// SINGLE_ISSUER and DEFER_TASKRUN.
    pub(super) owner: bool,
    pub(super) sqpoll: Ask,
}

/// The properties that a ring got.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingKind {
    pub(super) polled: bool,
    pub(super) owner: bool,
    pub(super) sqpoll: bool,
}

/// Builds the main ring of a queue. Drops refused features that were only tried, and reports that in `facts`.
pub(super) fn build<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    plan: RingParams,
    facts: &mut QueueFacts,
) -> Result<(IoUring<S, C>, RingKind)> {
    let mut kind = RingKind { polled: plan.polled, owner: plan.owner, sqpoll: false };
    let sqpoll = RingKind { sqpoll: true, ..kind };
    let mut made = None;
    // Above half of the kernel's largest ring this is EINVAL, see `setup`.
    let mut make =
        || setup(plan.depth, sqpoll).map(|ring| made = Some(ring)).map_err(|error| crate::describe(&error));
    plan.sqpoll.granted("a kernel submission thread (SQPOLL)", &mut make, facts)?;
    if let Some(ring) = made {
        return Ok((ring, sqpoll));
    }
    match setup(plan.depth, kind) {
        Err(error) if kind.owner && error.raw_os_error() == Some(libc::EINVAL) => {
            facts.fallbacks.push("the kernel has no DEFER_TASKRUN: completions interrupt the owner".into());
            kind.owner = false;
            Ok((setup(plan.depth, kind).map_err(setup_error)?, kind))
        }
        other => Ok((other.map_err(setup_error)?, kind)),
    }
}

/// The ordinary ring that accompanies a polled one.
pub(super) fn build_side(depth: u32) -> Result<IoUring> {
    setup(depth, RingKind { polled: false, owner: false, sqpoll: false }).map_err(setup_error)
}

fn setup<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    depth: u32,
    kind: RingKind,
) -> io::Result<IoUring<S, C>> {
    let mut builder = IoUring::<S, C>::builder();
    // A refused entry must not hold back those after it.
    builder.setup_submit_all();
    if kind.polled {
        builder.setup_iopoll();
    }
    let mut entries = depth.next_power_of_two();
    if kind.sqpoll {
        builder.setup_sqpoll(SQPOLL_IDLE_MS);
        // The kernel's thread may post a completion a moment before it frees the request's entry: with room for twice
        // the depth a push still finds one.
        entries *= 2;
    }
    if kind.owner {
        // Disabled: the thread that enables it becomes the owner, which need not be its creator.
        builder.setup_single_issuer().setup_r_disabled();
        if !kind.sqpoll {
            builder.setup_defer_taskrun().setup_taskrun_flag();
        }
    }
    builder.build(entries)
}

fn setup_error(error: io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Error::Open { path: "io_uring".into(), action: SETUP, errno }
}

/// Whether an error of [`build`] means that there is no io_uring at all (seccomp, sysctl, old kernel).
pub(super) fn is_unavailable(error: &Error) -> bool {
    matches!(error, Error::Open { action: SETUP, errno: libc::ENOSYS | libc::EPERM | libc::EACCES, .. })
}

/// Sends the one entry pushed for a trial and waits for it; `result` extracts its result. After an error the kernel may
/// use the entry's memory forever.
pub(super) fn try_one<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    ring: &mut IoUring<S, C>,
    result: impl FnOnce(&C) -> i32,
) -> io::Result<i32> {
    loop {
        let waited = ring.submit_and_wait(1);
        if let Some(completion) = ring.completion().next() {
            return Ok(result(&completion));
        }
        if let Err(error) = waited
            && !is_transient(&error)
        {
            return Err(error);
        }
    }
}

/// Whether a failed `io_uring_enter` can simply be repeated.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Translates a failure of the ring itself (not of a request).
pub(super) fn enter_error(op: &'static str, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EEXIST) => {
            Error::Unsupported("only the first thread that drives an owner-driven queue may drive it".into())
        }
        errno => Error::Io { op, pos: 0, length: 0, errno: errno.unwrap_or(libc::EIO) },
    }
}

/// The kernel took nothing and reported no error.
pub(super) fn submit_stuck() -> Error {
    Error::Io { op: "submit", pos: 0, length: 0, errno: libc::EIO }
}

/// Registers the file table with the ring (and its side ring). Returns whether the device's slot is usable.
///
/// Always registers the tombstone, and `held`, which the table keeps open while requests are in flight, even after the
/// process died; the device only if requested.
pub(super) fn register_files<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    ring: &IoUring<S, C>,
    side: Option<&IoUring<S, C>>,
    file: BorrowedFd<'_>,
    held: Option<BorrowedFd<'_>>,
    tombstone: &Tombstone,
    options: &QueueOptions,
    facts: &mut QueueFacts,
) -> Result<bool> {
    let rings = || std::iter::once(ring).chain(side);
    let wanted = options.register_file != Ask::No;
    // -1 leaves the slot empty.
    let mut table = vec![-1, tombstone.held().as_raw_fd()];
    table.extend(held.map(|held| held.as_raw_fd()));
    if wanted {
        table[SLOT_DEVICE] = file.as_raw_fd();
    }
    let mut outcome = rings().try_for_each(|ring| ring.submitter().register_files(&table));
    if let (Err(error), Ask::Try) = (&outcome, options.register_file) {
        facts.fallbacks.push(format!("the file is not registered: {}", crate::describe(error)));
        table[SLOT_DEVICE] = -1;
        for ring in rings() {
            // A half-registered pair starts over; an error here means that nothing was registered yet.
            let _ = ring.submitter().unregister_files();
        }
        outcome = rings().try_for_each(|ring| ring.submitter().register_files(&table));
    }
    outcome.map_err(|error| {
        Error::Unsupported(format!("registering files with the ring: {}", crate::describe(&error)))
    })?;
    Ok(table[SLOT_DEVICE] != -1)
}

/// Decides whether to register the ring with its owner, by registering it with this thread for a moment.
pub(super) fn want_index(ring: &IoUring, kind: RingKind, ask: Ask, facts: &mut QueueFacts) -> Result<bool> {
    let register = || match RingIndex::new(ring) {
        _ if !kind.owner || kind.sqpoll => Err("only for an owner-driven queue without SQPOLL".into()),
        Ok(_given_back) => Ok(()),
        Err(error) => Err(crate::describe(&error)),
    };
    ask.granted("a registered ring", register, facts)
}

/// Detects when the kernel has torn down a ring.
///
/// Only the ring's file table holds the writing end of a pipe. The kernel drops the table when it frees the ring, and
/// frees the ring when the last request has ended: the reading end then reports end of file.
#[derive(Debug)]
pub(super) struct Tombstone {
    reading: PipeReader,
    writing: Option<PipeWriter>,
    armed: bool,
}

impl Tombstone {
    pub(super) fn new() -> Result<Self> {
        let (reading, writing) = io::pipe().map_err(setup_error)?;
        Ok(Tombstone { reading, writing: Some(writing), armed: false })
    }

    /// The descriptor that the ring has to hold.
    fn held(&self) -> BorrowedFd<'_> {
        self.writing.as_ref().map_or(self.reading.as_fd(), |writing| writing.as_fd())
    }

    /// After registration: from now on only the rings hold the writing end.
    pub(super) fn seal(&mut self) {
        self.writing = None;
    }

    /// Makes dropping wait. The rings must be closed first.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }
}

impl Drop for Tombstone {
    fn drop(&mut self) {
        if self.armed {
            self.writing = None;
            // Nothing is ever written: this returns at end of file.
            while let Err(error) = self.reading.read(&mut [0]) {
                if error.kind() != io::ErrorKind::Interrupted {
                    break;
                }
            }
        }
    }
}

/// The eventfd of a queue.
#[derive(Debug)]
pub(super) struct Wakeup(OwnedFd);

impl Wakeup {
    /// Creates it and registers it with the ring.
    pub(super) fn new<S: squeue::EntryMarker, C: cqueue::EntryMarker>(ring: &IoUring<S, C>) -> Result<Self> {
        let wakeup = Wakeup::alone()?;
        let registered = ring.submitter().register_eventfd(wakeup.0.as_raw_fd());
        registered.map_err(|error| enter_error("register", &error))?;
        Ok(wakeup)
    }

    /// Creates an eventfd that only [`Wakeup::signal`] makes readable.
    pub(super) fn alone() -> Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags).map_err(|errno| setup_error(errno.into()))?;
        Ok(Wakeup(event))
    }

    /// Makes it readable.
    pub(super) fn signal(&self) {
        // Any nonzero count wakes a reader, so the byte order does not matter; a full counter is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_le_bytes());
    }

    /// Makes it unreadable. Check for completions after this.
    pub(super) fn clear(&self) {
        // If there was nothing to read, it is clear already.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
