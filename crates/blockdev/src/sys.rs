//! System calls that no safe crate offers, each in a small function.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// `BLKDISCARD` of `linux/fs.h`: `_IO(0x12, 119)`, argument `u64[2]` {start, length} in bytes.
const BLKDISCARD: libc::c_ulong = 0x1277;
/// `BLKZEROOUT` of `linux/fs.h`: `_IO(0x12, 127)`, with the same argument.
const BLKZEROOUT: libc::c_ulong = 0x127f;

/// `LOOP_GET_STATUS64` of `linux/loop.h`.
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;

/// Size of `struct loop_info64` in `linux/loop.h`.
const LOOP_INFO64_SIZE: usize = 232;

/// Kind of an open-file-description lock on the whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}

/// Bytes whose locks say, since QEMU 2.10, what a process does with an image (`block/file-posix.c`): byte 100 + n
/// that it uses permission n, byte 200 + n that it lets nobody else use it. All are read locks; a conflict is found
/// by a test.
const QEMU: std::ops::Range<i64> = 100..300;

/// The bytes of QEMU's permissions that a reader uses: to read consistently.
const QEMU_READS: i64 = 100;

/// The bytes that a reader holds so that nobody else writes or changes the size.
const QEMU_NO_WRITERS: [i64; 2] = [201, 203];

/// The bytes that somebody holds who writes, changes the size, or lets nobody read.
const QEMU_WRITERS: [i64; 3] = [101, 103, 200];

/// A lock of `length` bytes from `start` on (0: to the end of the file, wherever that moves).
fn range(kind: LockKind, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: match kind {
            LockKind::Read => libc::F_RDLCK as libc::c_short,
            LockKind::Write => libc::F_WRLCK as libc::c_short,
        },
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        // Required to be zero for open-file-description locks.
        l_pid: 0,
    }
}

/// The locks that a user takes. A writer's covers all bytes: neither QEMU nor another of us can have any. A reader
/// leaves out QEMU's bytes but those that say that it reads, so that QEMU may read too.
fn locks(kind: LockKind) -> Vec<libc::flock> {
    if kind == LockKind::Write {
        return vec![range(kind, 0, 0)];
    }
    let mut locks = vec![range(kind, 0, QEMU.start), range(kind, QEMU.end, 0), range(kind, QEMU_READS, 1)];
    locks.extend(QEMU_NO_WRITERS.map(|byte| range(kind, byte, 1)));
    locks
}

/// Takes locks that belong to the open file description of `fd`. `Ok(false)` if a conflicting lock is held: then it has
/// none.
pub(crate) fn try_lock(fd: BorrowedFd<'_>, kind: LockKind) -> io::Result<bool> {
    let mut taken = locks(kind).into_iter().map(|lock| set_lock(fd, lock));
    let failed = taken.find_map(|taken| taken.err());
    let refused = match failed {
        Some(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => true,
        Some(error) => return Err(error),
        None => kind == LockKind::Read && qemu_writer(fd).is_some(),
    };
    if refused {
        set_lock(fd, libc::flock { l_type: libc::F_UNLCK as libc::c_short, ..range(kind, 0, 0) })?;
    }
    Ok(!refused)
}

fn set_lock(fd: BorrowedFd<'_>, lock: libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open for the borrow, and F_OFD_SETLK reads one `struct flock` through the
    // pointer, which points to a live, fully initialised value.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What holds a lock that conflicts with `wanted`: a process if the kernel names one (0: it does not).
fn conflict(fd: BorrowedFd<'_>, mut wanted: libc::flock) -> Option<u32> {
    // SAFETY: the descriptor is open for the borrow, and F_OFD_GETLK reads and writes one `struct flock`
    // through the pointer, which points to a live, fully initialised value that nobody else refers to.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut wanted) };
    (result == 0 && libc::c_int::from(wanted.l_type) != libc::F_UNLCK)
        .then(|| u32::try_from(wanted.l_pid).unwrap_or(0))
}

/// Whether a process says by QEMU's bytes that it writes.
fn qemu_writer(fd: BorrowedFd<'_>) -> Option<u32> {
    QEMU_WRITERS.iter().find_map(|byte| conflict(fd, range(LockKind::Write, *byte, 1)))
}

/// The process that holds a lock that conflicts with `kind`, if the kernel names one (it does not for the locks of
/// [`try_lock`], which belong to no process).
pub(crate) fn lock_holder(fd: BorrowedFd<'_>, kind: LockKind) -> Option<u32> {
    let holder = locks(kind).into_iter().find_map(|lock| conflict(fd, lock));
    holder.or_else(|| if kind == LockKind::Read { qemu_writer(fd) } else { None }).filter(|&pid| pid != 0)
}

/// Whether a lock that conflicts with `kind` is one of QEMU's.
pub(crate) fn is_qemus(fd: BorrowedFd<'_>, kind: LockKind) -> bool {
    let elsewhere = [range(kind, 0, QEMU.start), range(kind, QEMU.end, 0)];
    let bytes = range(LockKind::Write, QEMU.start, QEMU.end - QEMU.start);
    elsewhere.into_iter().all(|lock| conflict(fd, lock).is_none()) && conflict(fd, bytes).is_some()
}

/// Discards a range of a block device.
pub(crate) fn discard_blocks(fd: BorrowedFd<'_>, pos: u64, length: u64) -> io::Result<()> {
    over_blocks(fd, BLKDISCARD, [pos, length])
}

/// Zeroes a range of a block device. Without a request for it the kernel writes zeros. It does not unmap
/// (`blkdev_issue_zeroout` with `BLKDEV_ZERO_NOUNMAP`).
pub(crate) fn zero_blocks(fd: BorrowedFd<'_>, pos: u64, length: u64) -> io::Result<()> {
    over_blocks(fd, BLKZEROOUT, [pos, length])
}

/// `BLKDISCARD` or `BLKZEROOUT`.
fn over_blocks(fd: BorrowedFd<'_>, request: libc::c_ulong, range: [u64; 2]) -> io::Result<()> {
    // SAFETY: the descriptor is open for the borrow, and both requests read exactly two u64 through the pointer, which
    // points to a live array of two.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, range.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Device and inode number of the file behind a loop device.
pub(crate) fn loop_backing(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    // `struct loop_info64` begins with `lo_device` and `lo_inode`, both u64; an array of u64 has its alignment.
    let mut info = [0u64; LOOP_INFO64_SIZE / 8];
    // SAFETY: the descriptor is open for the borrow, and LOOP_GET_STATUS64 writes one `struct loop_info64` of 232 bytes
    // through the pointer, which points to a live array of exactly that size and of sufficient alignment. No other
    // driver's ioctl with this number can be reached: the caller opened a node named `loopN`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), LOOP_GET_STATUS64 as _, info.as_mut_ptr()) };
    if result == 0 { Ok((info[0], info[1])) } else { Err(io::Error::last_os_error()) }
}

/// Voluntary context switches of the calling thread.
pub(crate) fn voluntary_switches() -> io::Result<libc::c_long> {
    // SAFETY: all-zero bytes are a valid value of this structure of integers, and the call writes one through the
    // pointer.
    let (result, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), usage)
    };
    if result == 0 { Ok(usage.ru_nvcsw) } else { Err(io::Error::last_os_error()) }
}

/// `IOPRIO_WHO_PROCESS` of `linux/ioprio.h`; number 0 means the calling thread.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;

/// The I/O priority of the calling thread, in the kernel's encoding.
pub(crate) fn thread_ioprio() -> io::Result<i32> {
    // SAFETY: the call takes and returns integers; no memory is touched.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0 as libc::c_int) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as i32) }
}

/// Sets the I/O priority of the calling thread.
pub(crate) fn set_thread_ioprio(ioprio: i32) -> io::Result<()> {
    // SAFETY: the call takes integers; no memory is touched.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0 as libc::c_int, ioprio) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// One `preadv2` into several pieces of memory, which need not be initialised, or `pwritev2` from them.
///
/// # Safety
/// There are `count` vectors from `first` on. They describe memory that is valid for writing (for a write: for reading,
/// and initialised), and that nobody else accesses (for a write: changes) during the call.
pub(crate) unsafe fn transfer_vectors(
    fd: BorrowedFd<'_>,
    write: bool,
    first: *const libc::iovec,
    count: usize,
    pos: u64,
    flags: libc::c_int,
) -> io::Result<usize> {
    let (fd, pos) = (fd.as_raw_fd(), pos as libc::off_t);
    let count = count as libc::c_int;
    // SAFETY: the descriptor is open for the borrow, and the caller promises vectors and memory.
    let result = unsafe {
        if write {
            libc::pwritev2(fd, first, count, pos, flags)
        } else {
            libc::preadv2(fd, first, count, pos, flags)
        }
    };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// One `pread`, or `preadv2` if there are flags, into memory that need not be initialised.
///
/// # Safety
/// `address` must be valid for writing `length` bytes, and nobody else may access them during the call.
pub(crate) unsafe fn read_raw(
    fd: BorrowedFd<'_>,
    address: NonNull<u8>,
    length: usize,
    pos: u64,
    flags: libc::c_int,
) -> io::Result<usize> {
    let (fd, pos) = (fd.as_raw_fd(), pos as libc::off_t);
    let result = if flags == 0 {
        // Cheaper: the kernel has no vector to fetch.
        // SAFETY: the descriptor is open for the borrow; the caller promises memory that is writable and unshared for
        // the call.
        unsafe { libc::pread(fd, address.as_ptr().cast(), length, pos) }
    } else {
        let vector = libc::iovec { iov_base: address.as_ptr().cast(), iov_len: length };
        // SAFETY: as above; one iovec is passed, and it describes that memory.
        unsafe { libc::preadv2(fd, &raw const vector, 1, pos, flags) }
    };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// One `pwrite`, or `pwritev2` if there are flags.
///
/// # Safety
/// `address` must be valid for reading `length` initialised bytes, and nobody may write them during the call.
pub(crate) unsafe fn write_raw(
    fd: BorrowedFd<'_>,
    address: NonNull<u8>,
    length: usize,
    pos: u64,
    flags: libc::c_int,
) -> io::Result<usize> {
    let (fd, pos) = (fd.as_raw_fd(), pos as libc::off_t);
    let result = if flags == 0 {
        // SAFETY: the descriptor is open for the borrow; the caller promises memory that is readable and unchanged for
        // the call.
        unsafe { libc::pwrite(fd, address.as_ptr().cast(), length, pos) }
    } else {
        let vector = libc::iovec { iov_base: address.as_ptr().cast(), iov_len: length };
        // SAFETY: as above; one iovec is passed, and it describes that memory.
        unsafe { libc::pwritev2(fd, &raw const vector, 1, pos, flags) }
    };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// [`read_raw`] into a slice.
pub(crate) fn read(fd: BorrowedFd<'_>, buf: &mut [u8], pos: u64, flags: libc::c_int) -> io::Result<usize> {
    let length = buf.len();
    // SAFETY: an exclusive slice is writable, unshared memory of its length for as long as it is borrowed.
    unsafe { read_raw(fd, NonNull::from(buf).cast(), length, pos, flags) }
}

/// [`write_raw`] from a slice.
pub(crate) fn write(fd: BorrowedFd<'_>, buf: &[u8], pos: u64, flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: a shared slice is initialised, readable and unchanging memory of its length while it is
    // borrowed.
    unsafe { write_raw(fd, NonNull::from(buf).cast(), buf.len(), pos, flags) }
}
