//! A ring that its thread has registered: `io_uring_enter` takes an index instead of a descriptor, which the kernel
//! would have to look up and reference in each call.
//!
//! The index refers to a table of the thread (not of the process), and means nothing, or another ring, in any other
//! thread: so every call first checks that it runs on the thread that registered. The table holds the ring: it is not
//! torn down before the index is released or the thread has ended.

use io_uring::IoUring;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// `IORING_REGISTER_RING_FDS` and its reverse, of `linux/io_uring.h` (Linux 5.18).
const REGISTER: u32 = 20;
const UNREGISTER: u32 = 21;
/// `IORING_ENTER_REGISTERED_RING`.
const ENTER_REGISTERED: u32 = 1 << 4;

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct Update {
    /// In: any index (all bits set) or the one to release. Out: the index.
    offset: u32,
    reserved: u32,
    /// The descriptor.
    data: u64,
}

/// A number of this thread that no other thread ever has.
fn here() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// A registration. The ring's descriptor must stay open until this is dropped.
#[derive(Debug)]
pub(super) struct RingIndex {
    index: u32,
    fd: RawFd,
    thread: u64,
}

impl RingIndex {
    /// Registers `ring` with the calling thread.
    pub(super) fn new(ring: &IoUring) -> io::Result<Self> {
        let fd = ring.as_raw_fd();
        let mut update = Update { offset: u32::MAX, reserved: 0, data: fd as u64 };
        register(fd, REGISTER, &mut update)?;
        Ok(RingIndex { index: update.offset, fd, thread: here() })
    }

    /// Whether the calling thread registered the ring.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.thread == here()
    }

    /// `io_uring_enter` without an argument structure; only where [`RingIndex::is_here`].
    pub(super) fn enter(&self, to_submit: u32, want: u32, flags: u32) -> io::Result<usize> {
        debug_assert!(self.is_here());
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: no argument structure is passed, so the kernel touches nothing but the ring and the memory of its
        // entries, whose validity the caller of `push` promised. The thread's table keeps the ring.
        let entered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.index,
                to_submit,
                want,
                flags | ENTER_REGISTERED,
                no_mask,
                0usize,
            )
        };
        usize::try_from(entered).map_err(|_negative| io::Error::last_os_error())
    }
}

impl Drop for RingIndex {
    fn drop(&mut self) {
        if self.is_here() {
            let mut update = Update { offset: self.index, reserved: 0, data: 0 };
            // No one to report an error to; the kernel releases the index when the thread ends.
            let _ = register(self.fd, UNREGISTER, &mut update);
        }
    }
}

/// Registers or unregisters one ring; an error if the kernel did nothing.
fn register(fd: RawFd, what: u32, update: &mut Update) -> io::Result<()> {
    // SAFETY: both operations take one such structure; it is writable and outlives the call.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, fd, what, std::ptr::from_mut(update), 1u32) };
    match done {
        1 => Ok(()),
        0 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        _ => Err(io::Error::last_os_error()),
    }
}
