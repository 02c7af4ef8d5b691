//! Queues: attach, submit and reap batches, registered memory.

use crate::border::put;
use crate::call::{Fault, Result, call, call_int};
use crate::file::{FILES, PRIO_FLAGS, fallocate_mode, priority, read_flags, uext4_file, write_flags};
use crate::handle::{Kind, Open, Table};
use crate::volume::{VOLUMES, uext4_volume};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use uext4::{Ask, Buffer, Completion, FileSlot, IoQueue, QueueOptions};

/// A queue of I/O. One thread at a time uses it: another gets `-EBUSY`.
pub struct uext4_queue(());

static QUEUES: Table<Mutex<Queue>> = Table::new(Kind::Queue);

/// Only the thread that makes the queue drives it, and it must keep calling (`DEFER_TASKRUN`). Makes completions
/// cheaper.
pub const UEXT4_QUEUE_OWNER_DRIVEN: u32 = 1;
/// Completions are polled for (`IOPOLL`); an error on a device that cannot. Implies `UEXT4_QUEUE_OWNER_DRIVEN`.
pub const UEXT4_QUEUE_POLLED: u32 = 2;
/// Memory of `uext4_queue_alloc` is registered with the kernel; an error where it cannot be.
pub const UEXT4_QUEUE_REGISTERED: u32 = 4;

/// Reads. `flags`: `UEXT4_NOWAIT`.
pub const UEXT4_OP_READ: u16 = 0;
/// Writes. `flags`: `UEXT4_DSYNC`, `UEXT4_SYNC`, `UEXT4_NOWAIT`, `UEXT4_ATOMIC`.
pub const UEXT4_OP_WRITE: u16 = 1;
/// As `fdatasync`, for what completed before.
pub const UEXT4_OP_FDATASYNC: u16 = 2;
/// As `fsync`, for what completed before.
pub const UEXT4_OP_FSYNC: u16 = 3;
/// Frees blocks (`UEXT4_FALLOC_PUNCH`).
pub const UEXT4_OP_DISCARD: u16 = 4;
/// Changes blocks: `flags` is one of `UEXT4_FALLOC_…`.
pub const UEXT4_OP_FALLOCATE: u16 = 5;

/// A request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_request {
    /// Comes back with the completion.
    pub tag: u64,
    /// Byte of the file.
    pub pos: u64,
    /// Bytes, below 4 GiB for reads and writes.
    pub length: u64,
    /// Memory of a read or write: the library's from submission until the completion is reaped.
    pub data: *mut c_void,
    /// What `uext4_queue_attach` returned.
    pub file: u32,
    /// `UEXT4_OP_…`.
    pub op: u16,
    /// Flags of the operation.
    pub flags: u16,
}

/// A finished request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_completion {
    /// Of the request.
    pub tag: u64,
    /// Bytes transferred, or the negative errno of its failure.
    pub result: i64,
}

struct Queue {
    // Dropped before the memory that its requests use.
    queue: IoQueue,
    files: Vec<Option<FileSlot>>,
    /// Reaped and not given to the caller yet.
    reaped: VecDeque<uext4_completion>,
    /// Buffers of requests that are over, for the next ones.
    spare: Vec<Buffer>,
    /// From `uext4_queue_alloc`.
    memory: Vec<Buffer>,
    /// What `uext4_queue_eventfd` gave.
    event: Option<OwnedFd>,
}

/// A queue, which this thread has to itself.
fn with<R>(queue: *mut uext4_queue, work: impl FnOnce(&mut Queue) -> Result<R>) -> Result<R> {
    let open: Open<Mutex<Queue>> = QUEUES.get(queue)?;
    let mut alone: MutexGuard<'_, Queue> =
        open.try_lock().ok_or_else(|| Fault::new(libc::EBUSY, "another thread is using the queue"))?;
    work(&mut alone)
}

impl Queue {
    fn slot(&self, file: u32) -> Result<FileSlot> {
        let slot = self.files.get(file as usize).copied().flatten();
        slot.ok_or_else(|| Fault::new(libc::EBADF, "no such file is attached to the queue"))
    }

    /// Memory of a caller as a buffer.
    ///
    /// # Safety
    /// `length` bytes from `data` on are nobody else's until the request is over.
    unsafe fn buffer(&mut self, data: *mut c_void, length: u64) -> Result<Buffer> {
        let length =
            u32::try_from(length).map_err(|_| Fault::invalid(format!("a request of {length} bytes")))?;
        let address = match NonNull::new(data.cast::<u8>()) {
            Some(address) => address,
            None if length == 0 => NonNull::dangling(),
            None => return Err(Fault::new(libc::EFAULT, "a buffer is NULL")),
        };
        let registered = self.memory.iter().find_map(|home| home.registered_at(address, length));
        let spare = self.spare.pop();
        // SAFETY: the caller's promise; a registered place is the one that the address lies in.
        Ok(unsafe { Buffer::foreign(address, length, registered, spare) })
    }

    /// # Safety
    /// The memory of a read or write is nobody else's until its completion is reaped.
    unsafe fn submit(&mut self, request: &uext4_request) -> Result<()> {
        let (slot, flags) = (self.slot(request.file)?, u32::from(request.flags));
        let uext4_request { tag, pos, length, data, .. } = *request;
        let no_flags = || match flags {
            0 => Ok(()),
            _ => Err(Fault::invalid(format!("flags {flags:#x} of a request that takes none"))),
        };
        match request.op {
            UEXT4_OP_READ => {
                let flags = read_flags(flags)?;
                // SAFETY: the caller's promise.
                let buffer = unsafe { self.buffer(data, length) }?;
                self.queue.read_with(slot, pos, buffer, flags, tag)?;
            }
            UEXT4_OP_WRITE => {
                let flags = write_flags(flags)?;
                // SAFETY: the caller's promise.
                let buffer = unsafe { self.buffer(data, length) }?;
                self.queue.write(slot, pos, buffer, flags, tag)?;
            }
            UEXT4_OP_FDATASYNC => {
                no_flags()?;
                self.queue.sync_data(slot, tag)?;
            }
            UEXT4_OP_FSYNC => {
                no_flags()?;
                self.queue.sync_all(slot, tag)?;
            }
            UEXT4_OP_DISCARD => {
                no_flags()?;
                self.queue.discard(slot, pos, length, tag)?;
            }
            UEXT4_OP_FALLOCATE => self.queue.fallocate(slot, fallocate_mode(flags)?, pos, length, tag)?,
            op => return Err(Fault::invalid(format!("operation {op}"))),
        }
        Ok(())
    }

    fn keep(reaped: &mut VecDeque<uext4_completion>, spare: &mut Vec<Buffer>, done: Completion) {
        let result = match done.result {
            Ok(bytes) => bytes as i64,
            Err(error) => call(|| Err(Fault::from(*error))),
        };
        reaped.push_back(uext4_completion { tag: done.tag, result });
        spare.extend(done.payload.into_buffer());
    }

    /// Has `count` completions at hand, or all there will be, or as many as there are at `deadline`.
    fn reap(&mut self, count: usize, deadline: Option<Instant>) -> Result<()> {
        let Queue { queue, reaped, spare, .. } = self;
        loop {
            let missing = count.saturating_sub(reaped.len());
            let done = match deadline {
                _ if missing == 0 => queue.poll()?,
                None => queue.wait(missing)?,
                Some(deadline) => queue.wait_timeout(deadline.saturating_duration_since(Instant::now()))?,
            };
            done.for_each(|done| Self::keep(reaped, spare, done));
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if reaped.len() >= count || queue.pending() == 0 || late {
                return Ok(());
            }
        }
    }
}

/// A queue for up to `depth` requests (1 to 32768). `bytes` of memory are reserved for `uext4_queue_alloc`, and
/// registered with the kernel if it takes them; 0: 4 KiB for each request. `flags`: `UEXT4_QUEUE_…` and an I/O
/// priority.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_queue_open(
    volume: *mut uext4_volume,
    depth: u32,
    bytes: usize,
    flags: u32,
    queue: *mut *mut uext4_queue,
) -> i32 {
    call_int(|| {
        let volume = VOLUMES.get(volume)?;
        const KNOWN: u32 =
            UEXT4_QUEUE_OWNER_DRIVEN | UEXT4_QUEUE_POLLED | UEXT4_QUEUE_REGISTERED | PRIO_FLAGS;
        if flags & !KNOWN != 0 {
            return Err(Fault::invalid(format!("unknown flags {:#x}", flags & !KNOWN)));
        }
        // SAFETY: the caller promises a place for a handle.
        unsafe { put(queue, std::ptr::null_mut()) }?;
        let mut options = QueueOptions::depth(depth)
            .owner_driven(flags & UEXT4_QUEUE_OWNER_DRIVEN != 0)
            .priority(priority(flags)?);
        if flags & UEXT4_QUEUE_POLLED != 0 {
            options = options.iopoll(Ask::Require);
        }
        if flags & UEXT4_QUEUE_REGISTERED != 0 {
            options = options.register_buffers(Ask::Require);
        }
        if bytes > 0 {
            options = options.buffer_bytes(bytes);
        }
        let made = Queue {
            queue: volume.queue(options)?,
            files: Vec::new(),
            reaped: VecDeque::with_capacity(depth as usize),
            spare: Vec::with_capacity(depth as usize),
            memory: Vec::new(),
            event: None,
        };
        let handle = QUEUES.insert(Mutex::new(made))?;
        // SAFETY: as above.
        unsafe { put(queue, handle) }?;
        Ok(0)
    })
}

/// Ends the handle. Waits for what is in flight; completions that were not reaped are lost, the requests are not.
/// Memory of `uext4_queue_alloc` goes with it.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_queue_close(queue: *mut uext4_queue) -> i32 {
    call_int(|| {
        // Nobody may be inside: the memory of a request would go while its thread looks at it.
        with(queue, |_| Ok(()))?;
        QUEUES.remove(queue)?;
        Ok(0)
    })
}

/// Attaches a file. Returns the number that requests name it by.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_queue_attach(queue: *mut uext4_queue, file: *mut uext4_file) -> i32 {
    call_int(|| {
        with(queue, |queue| {
            let file = FILES.get(file)?;
            let slot = queue.queue.attach(&file)?;
            let index = queue.files.iter().position(Option::is_none).unwrap_or_else(|| {
                queue.files.push(None);
                queue.files.len() - 1
            });
            queue.files[index] = Some(slot);
            i64::try_from(index).map_err(|_| Fault::new(libc::EMFILE, "too many files"))
        })
    })
}

/// Detaches a file. Its requests in flight go on.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_queue_detach(queue: *mut uext4_queue, file: u32) -> i32 {
    call_int(|| {
        with(queue, |queue| {
            let slot = queue.slot(file)?;
            queue.queue.detach(slot)?;
            queue.files[file as usize] = None;
            Ok(0)
        })
    })
}

/// `length` bytes of memory for requests of this queue, aligned to 4096, at most 1 GiB; NULL on failure. The kernel
/// registers it if it can; with `UEXT4_QUEUE_REGISTERED` it does, or this fails. Contents are unspecified.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_queue_alloc(queue: *mut uext4_queue, length: usize) -> *mut c_void {
    let mut address = std::ptr::null_mut();
    call(|| {
        with(queue, |queue| {
            let memory = queue.queue.buffer(length)?;
            address = memory.address().as_ptr().cast();
            queue.memory.push(memory);
            Ok(0)
        })
    });
    address
}

/// Gives memory of `uext4_queue_alloc` back. No request may use it any more.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_queue_free(queue: *mut uext4_queue, data: *mut c_void) -> i32 {
    call_int(|| {
        with(queue, |queue| {
            let found = queue.memory.iter().position(|memory| memory.address().as_ptr().cast() == data);
            let index = found.ok_or_else(|| Fault::invalid("no memory of this queue"))?;
            queue.memory.swap_remove(index);
            Ok(0)
        })
    })
}

/// Queues `count` requests and sends them. Returns how many were taken: all, or those before the first that was
/// refused. If that is the first one, its negative errno: `-EAGAIN` for a full queue (reap, then go on).
///
/// A request that was taken completes once, whatever becomes of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_queue_submit(
    queue: *mut uext4_queue,
    requests: *const uext4_request,
    count: u32,
) -> i32 {
    call_int(|| {
        with(queue, |queue| {
            if requests.is_null() && count > 0 {
                return Err(Fault::new(libc::EFAULT, "the requests are NULL"));
            }
            let mut taken = 0;
            while taken < count {
                // SAFETY: not NULL, and the caller promises `count` requests there.
                let request = unsafe { requests.add(taken as usize).read() };
                // SAFETY: the caller's promise about their memory.
                match unsafe { queue.submit(&request) } {
                    Ok(()) => taken += 1,
                    Err(fault) if taken == 0 => return Err(fault),
                    Err(_) => break,
                }
            }
            // They were taken, and are the queue's. What the device refuses shows when they are reaped.
            let _shows_later = queue.queue.submit();
            Ok(i64::from(taken))
        })
    })
}

/// Gives up to `most` completions. Waits until there are `least` (or all that are in flight), `timeout_ms` at the most
/// (negative: as long as it takes). Returns how many it gave.
///
/// The errors of requests are in their completions; this call fails only if the queue itself does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_queue_reap(
    queue: *mut uext4_queue,
    completions: *mut uext4_completion,
    least: u32,
    most: u32,
    timeout_ms: i32,
) -> i32 {
    call_int(|| {
        with(queue, |queue| {
            if completions.is_null() && most > 0 || least > most {
                return Err(Fault::invalid("no room for the completions"));
            }
            let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            queue.reap(least as usize, deadline)?;
            let given = queue.reaped.len().min(most as usize);
            for (index, done) in queue.reaped.drain(..given).enumerate() {
                // SAFETY: the caller promises places for `most` of them.
                unsafe { put(completions.wrapping_add(index), done) }?;
            }
            Ok(given as i64)
        })
    })
}

/// Requests that were taken and whose completions were not given yet.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_queue_pending(queue: *mut uext4_queue) -> i32 {
    call_int(|| with(queue, |queue| Ok((queue.queue.pending() + queue.reaped.len()) as i64)))
}

/// A descriptor that becomes readable when there may be something to reap; `-EOPNOTSUPP` on devices that have none. It
/// belongs to the queue. Poll it, do not read it; reap once after submitting, before you sleep.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_queue_eventfd(queue: *mut uext4_queue) -> i32 {
    call_int(|| {
        with(queue, |queue| {
            // Asked again, it shows again what completed since it was looked at last.
            let now = queue.queue.eventfd()?;
            if queue.event.is_none() {
                queue.event = now;
            }
            let none =
                || Fault::new(libc::EOPNOTSUPP, "completions of this device come without a descriptor");
            Ok(i64::from(queue.event.as_ref().ok_or_else(none)?.as_raw_fd()))
        })
    })
}
