//! FUSE over io_uring (Linux 6.14): an entry of a processor's queue goes to the kernel with an answer and comes back
//! with the next request, in one system call.
//!
//! The rules are those of `fs/fuse/dev_uring.c`: an entry is registered once with its memory. From then on the
//! kernel has it, until a completion gives it back with a request in its memory; the answer goes back in that place.
//! The kernel writes to the memory only in the context of the thread that gave the entry, inside its system calls or
//! before they return. Whoever sends the answer has the entry from then on, whichever ring it came through.
//!
//! All rings are made before the sandbox, which allows no others. They take no command but those of FUSE, for no other
//! file than the mount's, so that whoever gets to use one cannot do with it what system calls are refused for.

use crate::dev::Device;
use crate::transport::DATA_MAX;
use crate::wire::{OutHeader, RingHead};
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::mm::Advice;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::time::Duration;
use uext4::{Buffer, BufferPool};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Commands (`enum fuse_uring_cmd`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Bytes of an entry's memory: a huge page of most processors.
const HUGE: usize = 2 << 20;
/// Bytes of the page before the payload: the head, and further back where the two are for the kernel.
const PAGE: usize = 4096;
/// Where the two `struct iovec` are in that page.
const PLACES: usize = 2048;
/// Where the length of the payload is in the head.
const PAYLOAD_AT: usize = 272;
/// How commands end with their mount.
const ENDS: [i32; 5] = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::ENODEV, libc::ENOENT];
/// When to try again without memory.
const MEMORY: Duration = Duration::from_millis(1);
/// A payload of more bytes is large.
const LARGE: usize = 64 << 10;
/// Where a submission has its length (`struct io_uring_sqe`).
const SQE_LENGTH_AT: usize = 24;

/// An entry of a queue while this process has it.
pub(crate) struct Entry {
    memory: Buffer,
    queue: u16,
    /// Of the request that came in it.
    commit: u64,
    /// The process that waits for the answer in it.
    pub(crate) caller: Option<u32>,
    /// Bytes of the payload that the request and its answer took.
    used: usize,
    /// Its memory is one huge page, if the system has one.
    huge: bool,
}

impl Entry {
    /// Memory for an entry of the queue of a processor. Pages that no request needs stay untouched.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new(queue: u16) -> Result<Entry, uext4::Error> {
        let mut memory = BufferPool::new(HUGE)?.take(HUGE)?;
        advise(&mut memory, Advice::LinuxNoHugepage);
        Ok(Entry { memory, queue, commit: 0, caller: None, used: 0, huge: false })
    }

    /// The number of its queue.
    pub(crate) fn queue(&self) -> u16 {
        self.queue
    }

    /// The head of the request, as it came.
    pub(crate) fn head(&mut self) -> RingHead {
        let head = RingHead::read_from_prefix(&self.memory);
        let head = head.map_or_else(|_| RingHead::new_zeroed(), |(head, _)| head);
        (self.commit, self.caller, self.used) = (head.commit, None, head.payload as usize);
        head
    }

    /// Whether the request or its answer took much memory.
    pub(crate) fn is_large(&self) -> bool {
        self.used > LARGE
    }

    /// Whether its memory is one huge page.
    pub(crate) fn is_huge(&self) -> bool {
        self.huge
    }

    /// What came besides, of this length, and the aligned memory after it; together the payload.
    pub(crate) fn payload(&mut self, length: usize) -> (&[u8], &mut [u8]) {
        let payload = &mut self.memory[PAGE..][..DATA_MAX];
        let length = length.min(payload.len());
        let (came, after) = payload.split_at_mut(length.next_multiple_of(PAGE));
        (&came[..length], after)
    }

    /// Puts an answer in: its data is at the begin of the payload already, or is copied there from elsewhere.
    pub(crate) fn answer(&mut self, header: &OutHeader, data: Answered<'_>) {
        let length = match data {
            Answered::InPlace(length) => length,
            Answered::Bytes(bytes) => {
                self.memory[PAGE..][..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            }
        };
        self.used = self.used.max(length);
        self.memory[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        self.memory[PAYLOAD_AT..][..4].copy_from_slice((length as u32).as_bytes());
    }
}

/// Where the data of an answer is.
pub(crate) enum Answered<'a> {
    /// So many bytes at the begin of the payload.
    InPlace(usize),
    /// Here; they fit in the payload.
    Bytes(&'a [u8]),
}

/// The mount's descriptor among the files of a ring, which has no others.
const MOUNT: types::Fixed = types::Fixed(0);

/// Descriptors left free for the rest of the process if not all rings fit.
const LEFT: usize = 32;

/// Rings that no thread has yet.
pub(crate) struct Rings(Mutex<Vec<IoUring<squeue::Entry128>>>);

impl Rings {
    /// So many rings, or fewer if there is no memory or descriptor for all, but no fewer than `least`. Some descriptors
    /// are left then.
    ///
    /// # Errors
    /// If the kernel has none like these.
    pub(crate) fn new(device: &Device, count: usize, least: usize) -> io::Result<Rings> {
        let mut rings = Vec::with_capacity(count);
        while rings.len() < count {
            match restricted(device) {
                Ok(ring) => rings.push(ring),
                Err(_) if rings.len() >= least + LEFT => {
                    rings.truncate(rings.len() - LEFT);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Rings(Mutex::new(rings)))
    }

    /// One for a thread.
    ///
    /// # Errors
    /// If there is none left.
    pub(crate) fn take(&self) -> io::Result<Ring> {
        let ring = self.0.lock().pop().ok_or(io::ErrorKind::QuotaExceeded)?;
        Ok(Ring { ring, given: None, came: None })
    }

    /// Takes back one that was not enabled.
    pub(crate) fn give_back(&self, unused: Ring) {
        self.0.lock().push(unused.ring);
    }
}

/// A ring that is to be enabled by the thread that will use it.
fn restricted(device: &Device) -> io::Result<IoUring<squeue::Entry128>> {
    let ring = IoUring::<squeue::Entry128>::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_r_disabled()
        .build(1)?;
    let submitter = ring.submitter();
    submitter.register_files(&[device.as_raw_fd()])?;
    let fixed = squeue::Flags::FIXED_FILE.bits();
    submitter.register_restrictions(&mut [
        Restriction::sqe_op(opcode::UringCmd80::CODE),
        Restriction::sqe_flags_required(fixed),
    ])?;
    Ok(ring)
}

/// A ring of one thread, for one entry.
pub(crate) struct Ring {
    ring: IoUring<squeue::Entry128>,
    /// What the kernel has. Never dropped: if the thread ends early, the kernel may still write there.
    given: Option<ManuallyDrop<Entry>>,
    /// What a completion said that nobody has waited for yet.
    came: Option<i32>,
}

impl Ring {
    /// Makes it the calling thread's, who alone can use it from now on.
    pub(crate) fn enable(&mut self) {
        // If it fails, so does the first submission.
        let _disabled = self.ring.submitter().register_enable_rings();
    }

    /// Whether the kernel has no entry of it.
    pub(crate) fn is_free(&self) -> bool {
        self.given.is_none()
    }

    /// Adds an entry to its queue. The queues serve when there is one in each.
    ///
    /// # Errors
    /// If the kernel refuses it. All requests come through `/dev/fuse` then.
    pub(crate) fn register(&mut self, mut entry: Entry) -> io::Result<()> {
        let head = entry.memory.as_mut_ptr();
        let payload = entry.memory[PAGE..].as_mut_ptr();
        let places = [head.expose_provenance(), size_of::<RingHead>(), payload.expose_provenance(), DATA_MAX];
        entry.memory[PLACES..][..size_of_val(&places)].copy_from_slice(places.as_bytes());
        let places = entry.memory[PLACES..].as_mut_ptr();
        self.give(entry, REGISTER, Some(places.expose_provenance()))?;
        self.ring.submit()?;
        // Refused it is complete at once. A request may have come as well.
        self.came = self.ring.completion().next().map(|completion| completion.result());
        match self.came {
            Some(error) if error < 0 => {
                // The kernel has made no entry of it. The ring may be used for another one.
                drop(self.given.take().map(ManuallyDrop::into_inner));
                self.came = None;
                Err(io::Error::from_raw_os_error(-error))
            }
            _ => Ok(()),
        }
    }

    /// Has the kernel give up the rings of this mount, before each queue has an entry: requests come through
    /// `/dev/fuse` then.
    ///
    /// # Errors
    /// If that cannot be told.
    pub(crate) fn refuse(mut self) -> io::Result<()> {
        // There is no such queue, so the kernel says EINVAL and gives the rings up. The other reasons mean that it has
        // done so before, or that the mount is gone.
        let entry = Entry::new(u16::MAX).map_err(io::Error::other)?;
        self.enable();
        let refused = self.register(entry).err().and_then(|error| error.raw_os_error());
        match (self.is_free(), refused) {
            (true, Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTCONN | libc::ECONNABORTED)) => Ok(()),
            (_, errno) => Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO))),
        }
    }

    /// Sends the answer that is in an entry, with the next [`Ring::wait`]; the kernel has the entry from then on.
    ///
    /// # Errors
    /// If another entry is on its way.
    pub(crate) fn commit(&mut self, entry: Entry) -> io::Result<()> {
        self.give(entry, COMMIT_AND_FETCH, None)
    }

    /// Sends the answer now. If that fails [`Ring::wait`] sends it.
    pub(crate) fn send(&mut self) {
        let _later = self.ring.submit();
        self.came = self.came.or_else(|| self.ring.completion().next().map(|completion| completion.result()));
    }

    /// Sends the answer now, and gives the entry's memory back to the system, which has one huge page or small ones for
    /// the next request. Returns whether it did: not if that has come already.
    pub(crate) fn renew(&mut self, huge: bool) -> bool {
        self.send();
        // The kernel writes there only in calls of this thread, and tells at once if it has.
        if let (None, true, Some(entry)) = (self.came, self.ring.submission().is_empty(), &mut self.given) {
            advise(&mut entry.memory, Advice::LinuxDontNeed);
            advise(&mut entry.memory, if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage });
            entry.huge = huge;
            return true;
        }
        false
    }

    /// Waits until the kernel gives the entry back with a request. `None` when the mount is gone.
    ///
    /// # Errors
    /// Those of the ring, and the kernel's if it does not take the answer: the request is never answered then.
    pub(crate) fn wait(&mut self) -> io::Result<Option<Entry>> {
        while self.came.is_none() {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel has no memory now.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) =>
                {
                    std::thread::sleep(MEMORY);
                }
                Err(error) => return Err(error),
            }
            self.came = self.ring.completion().next().map(|completion| completion.result());
        }
        let Some(entry) = self.given.take().map(ManuallyDrop::into_inner) else { return Ok(None) };
        match self.came.take() {
            Some(0..) => Ok(Some(entry)),
            // ENOENT: the end came while the answer was on its way.
            Some(error) if !ENDS.contains(&-error) => Err(io::Error::from_raw_os_error(-error)),
            _ => Ok(None),
        }
    }

    fn give(&mut self, entry: Entry, command: u32, places: Option<usize>) -> io::Result<()> {
        if self.given.is_some() {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut words = [0; 80];
        // `struct fuse_uring_cmd_req`: flags, commit id, queue id.
        words[8..16].copy_from_slice(entry.commit.as_bytes());
        words[16..18].copy_from_slice(entry.queue.as_bytes());
        let build = opcode::UringCmd80::new(MOUNT, command).cmd(words);
        let mut submission = build.addr(places.map(|address| address as u64)).build();
        if places.is_some() {
            let at = std::ptr::from_mut(&mut submission).cast::<u8>();
            // SAFETY: a submission is 128 plain bytes, `struct io_uring_sqe` first, whose `len` are four of them.
            unsafe { at.add(SQE_LENGTH_AT).cast::<u32>().write_unaligned(2) };
        }
        self.given = Some(ManuallyDrop::new(entry));
        // SAFETY: the addresses that the kernel gets, now or when the entry was registered, are in the memory of
        // `entry`. That stays in `given`, which nobody reads or frees, until a completion says that the kernel has
        // given it back. The descriptor is open as long as the ring, by `device`.
        unsafe { self.ring.submission().push(&submission) }.map_err(io::Error::other)
    }
}

/// Tells the kernel what becomes of memory: of whole pages, whose contents nobody needs.
fn advise(memory: &mut [u8], advice: Advice) {
    let (start, length) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the pages are exclusively borrowed private memory; the advice used here leaves them mapped, with what is
    // in them or zeros.
    let _refused = unsafe { rustix::mm::madvise(start.cast(), length, advice) };
}

const _: () = assert!(size_of::<squeue::Entry128>() == 128 && PLACES + 32 <= PAGE && PAGE + DATA_MAX <= HUGE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_where_the_kernel_reads_them() {
        let mut entry = Entry::new(3).unwrap();
        let header = OutHeader { len: 0, error: 0, unique: 7 };
        entry.answer(&header, Answered::Bytes(b"data"));
        let head = entry.head();
        assert_eq!((head.payload, u64::read_from_bytes(&head.header[8..16])), (4, Ok(7)));
        assert_eq!(&entry.payload(4).0, b"data");
        let (came, after) = entry.payload(4097);
        assert_eq!((came.len(), after.len()), (4097, DATA_MAX - 2 * PAGE));
        assert_eq!(entry.payload(usize::MAX).0.len(), DATA_MAX);
        assert_eq!(entry.payload(0).1.as_ptr().addr() % PAGE, 0);
        assert!(!entry.is_large());
        entry.answer(&header, Answered::InPlace(LARGE + 1));
        assert!(entry.is_large());
    }
    /// What a ring with restrictions says to a submission.
    fn told(submission: &squeue::Entry128) -> i32 {
        let null =
            rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        let mut ring = Rings::new(&Device::new(null), 1, 1).unwrap().take().unwrap();
        ring.enable();
        // SAFETY: the commands of the tests refer to no memory.
        unsafe { ring.ring.submission().push(submission) }.unwrap();
        ring.ring.submit_and_wait(1).unwrap();
        ring.ring.completion().next().unwrap().result()
    }

    #[test]
    fn rings_take_commands_of_the_mount_and_nothing_else() {
        // The null device takes any.
        assert_eq!(told(&opcode::UringCmd80::new(MOUNT, REGISTER).build()), 0);
        let elsewhere = opcode::UringCmd80::new(types::Fd(0), REGISTER).build();
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_DGRAM, 0).build();
        for refused in [elsewhere, opcode::Nop::new().build().into(), socket.into()] {
            assert_eq!(told(&refused), -libc::EACCES);
        }
    }

    #[test]
    fn rings_that_were_taken_are_gone() {
        let null =
            rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        let rings = Rings::new(&Device::new(null), 2, 1).unwrap();
        let taken = [rings.take().unwrap(), rings.take().unwrap()];
        assert!(rings.take().is_err());
        let [first, _second] = taken;
        rings.give_back(first);
        assert!(rings.take().unwrap().is_free());
    }
    #[test]
    fn a_ring_whose_entry_was_refused_takes_another() {
        // A file that knows no commands.
        let file = rustix::fs::open("/proc/self/exe", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())
            .unwrap();
        let mut ring = Rings::new(&Device::new(file), 1, 1).unwrap().take().unwrap();
        ring.enable();
        for _ in 0..2 {
            let refused = ring.register(Entry::new(0).unwrap()).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
            assert!(ring.is_free() && ring.came.is_none());
        }
    }
}
