//! I/O memory registered with a ring.

use crate::pool::{Follower, Registrar, Registrations};
use crate::{Ask, Error, Memory, Process, QueueFacts, QueueOptions, Result};
use io_uring::{IoUring, cqueue, squeue};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;

/// Bytes of an individually registered page.
const PAGE: usize = 4096;

/// `IORING_REGISTER_BUFFERS_UPDATE` of `linux/io_uring.h` (Linux 5.13).
const UPDATE: u32 = 16;

/// The memory of a pool that is registered with a ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    /// Number of the pool.
    pool: u64,
    regions: u16,
    /// Pages with an entry of their own, after those of the regions.
    pages: u16,
}

impl Default for Table {
    /// No pool: none has this number.
    fn default() -> Self {
        Table { pool: u64::MAX, regions: 0, pages: 0 }
    }
}

impl Table {
    pub(super) fn is_empty(&self) -> bool {
        self.pool == u64::MAX
    }

    /// The entry of the table that holds these bytes. Memory of any other pool is plain memory here.
    #[inline(always)]
    pub(super) fn entry(&self, memory: &Memory, length: u32) -> Option<u16> {
        let place = memory.registered.filter(|place| place.pool() == self.pool)?;
        let page = place.page().wrapping_sub(1);
        let in_page = memory.address.addr().get() % PAGE + length as usize <= PAGE;
        Some(if page < self.pages && in_page { self.regions + page } else { place.region() })
    }

    /// The entry that holds exactly these bytes, if they are a whole page.
    #[inline]
    pub(super) fn whole_page(&self, memory: &Memory, length: u32) -> Option<u16> {
        let aligned = memory.address.addr().get().is_multiple_of(PAGE);
        let entry = self.entry(memory, length).filter(|_| aligned && length as usize == PAGE)?;
        (self.regions..self.regions + self.pages).contains(&entry).then_some(entry)
    }
}

/// Registers the pool's memory with the ring: all its regions and pages, or only the regions, or nothing. Regions that
/// the pool adds later are registered too until the follower is dropped, which must happen before the ring is closed.
pub(super) fn register_memory<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    ring: &IoUring<S, C>,
    options: &QueueOptions,
    facts: &mut QueueFacts,
) -> Result<(Table, Option<Follower>)> {
    let required = options.register_buffers == Ask::Require;
    let pool = match (&options.pool, options.register_buffers) {
        (_, Ask::No) | (None, Ask::Try) => return Ok((Table::default(), None)),
        (None, Ask::Require) => return Err(Error::Unsupported("registering buffers without a pool".into())),
        (Some(pool), _) => pool,
    };
    let Some(number) = pool.serial() else {
        return refused("the pool numbers ran out", required, facts);
    };
    // Before the table is built, so that no region added meanwhile is missed.
    let process = Process::current()?;
    let follower = pool.follow(Box::new(Ring { fd: ring.as_raw_fd(), process, required }), process);
    let Registrations { mut vectors, regions, pages } = pool.registrations();
    let mut table = Table { pool: number.get(), regions, pages };
    let why = if is_limited() {
        "RLIMIT_MEMLOCK would count them twice".into()
    } else {
        match register(ring, &vectors) {
            Ok(()) => return Ok((table, Some(follower))),
            Err(error) => crate::describe(&error),
        }
    };
    vectors[usize::from(regions)..][..usize::from(pages)].fill((std::ptr::null_mut(), 0));
    table.pages = 0;
    match register(ring, &vectors) {
        Ok(()) => {
            facts.fallbacks.push(format!("pages are not registered individually: {why}"));
            Ok((table, Some(follower)))
        }
        Err(error) => {
            refused(&format!("{} (RLIMIT_MEMLOCK may be too low)", crate::describe(&error)), required, facts)
        }
    }
}

fn refused(why: &str, required: bool, facts: &mut QueueFacts) -> Result<(Table, Option<Follower>)> {
    if required {
        return Err(Error::Unsupported(format!("registering buffers: {why}")));
    }
    facts.fallbacks.push(format!("buffers are not registered: {why}"));
    Ok((Table::default(), None))
}

/// A ring that registers the regions a pool adds.
#[derive(Debug)]
struct Ring {
    fd: RawFd,
    process: Process,
    required: bool,
}

/// `struct io_uring_rsrc_update2`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    /// Address of the vectors.
    data: u64,
    tags: u64,
    count: u32,
    reserved2: u32,
}

impl Registrar for Ring {
    fn register(&self, entry: u16, base: NonNull<u8>, length: usize) -> io::Result<()> {
        if !self.process.is_here() {
            // The ring is the parent's.
            return Ok(());
        }
        let vector = libc::iovec { iov_base: base.as_ptr().cast(), iov_len: length };
        let update = Update {
            offset: u32::from(entry),
            reserved: 0,
            data: (&raw const vector).expose_provenance() as u64,
            tags: 0,
            count: 1,
            reserved2: 0,
        };
        // SAFETY: this operation takes this structure; its vector lives until the call returns, and the region lives as
        // long as the pool, which outlives the ring. The descriptor is open: the follower is dropped before the ring is
        // closed.
        let done = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.fd,
                UPDATE,
                &raw const update,
                size_of::<Update>() as u32,
            )
        };
        match done {
            1 => Ok(()),
            0 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn requires(&self) -> bool {
        self.required && self.process.is_here()
    }
}

/// Whether the memory that this process may register is limited. If so, pages are not registered individually too: they
/// would count twice and leave other queues no room.
fn is_limited() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    limit.is_some() && !rustix::process::geteuid().is_root()
}

fn register<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    ring: &IoUring<S, C>,
    parts: &[(*mut u8, usize)],
) -> io::Result<()> {
    let vector =
        |&(address, length): &(*mut u8, usize)| libc::iovec { iov_base: address.cast(), iov_len: length };
    let vectors: Vec<libc::iovec> = parts.iter().map(vector).collect();
    // SAFETY: the parts are live mappings of the pool, and the queue keeps a handle of the pool for as long as the ring
    // exists (`_pool` of the queue).
    unsafe { ring.submitter().register_buffers(&vectors) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferPool;

    #[test]
    fn requests_of_one_page_take_its_entry() {
        let pool = BufferPool::with_limit(64 << 10, 64 << 10).unwrap();
        let number = pool.serial().unwrap().get();
        let table = Table { pool: number, regions: 1, pages: 4 };
        let mut long = pool.take(32 << 10).unwrap();
        let mut entry = |offset, length| table.entry(&long.memory(offset), length);
        assert_eq!(entry(0, 4096), Some(1));
        assert_eq!(entry(512, 512), Some(1));
        assert_eq!(entry(4096, 4096), Some(2));
        assert_eq!(entry(512, 4096), Some(0), "over two pages");
        assert_eq!(entry(0, 8192), Some(0));
        assert_eq!(entry(16 << 10, 4096), Some(0), "past the pages that have entries");
        let mut whole = |offset, length| table.whole_page(&long.memory(offset), length);
        assert_eq!((whole(0, 4096), whole(12288, 4096)), (Some(1), Some(4)));
        for (offset, length) in [(16384, 4096), (0, 512), (512, 512), (512, 4096), (0, 8192)] {
            assert_eq!(whole(offset, length), None, "{length} at {offset}");
        }
        let regions = Table { pages: 0, ..table };
        assert_eq!(regions.whole_page(&long.memory(0), 4096), None);
        assert_eq!(regions.entry(&long.memory(0), 4096), Some(0));
        assert_eq!(Table { pool: number + 1, ..table }.entry(&long.memory(0), 4096), None);
        assert_eq!(Table::default().entry(&long.memory(0), 4096), None);
        let plain = Memory { registered: None, ..long.memory(0) };
        assert_eq!(table.entry(&plain, 4096), None);
    }
}
