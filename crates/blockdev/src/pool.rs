//! Aligned transfer memory that queues can register once.
//!
//! A [`BufferPool`] owns a few mapped regions and hands out [`Buffer`]s: page-aligned pieces in power-of-two
//! size classes. The regions made by [`BufferPool::new`] are what a queue registers with its ring; regions
//! added later, when the pool is used up, are ordinary memory, and their buffers say so in
//! [`Memory::registered`].

use crate::{Error, Result};
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignment in memory of every [`Buffer`] that is not empty.
pub const BUFFER_ALIGN: usize = 4096;
/// The smallest size class.
const PAGE: usize = BUFFER_ALIGN;
/// Largest region: the kernel takes at most 1 GiB per registered buffer.
const MAX_REGION: usize = 1 << 30;
/// Size classes 4 KiB, 8 KiB, … 1 GiB.
const CLASSES: usize = (MAX_REGION / PAGE).trailing_zeros() as usize + 1;
/// Least growth of a used-up pool, so that small requests do not each map a region.
const MIN_GROWTH: usize = 1 << 20;
/// Most growth at once beyond what was asked.
const MAX_GROWTH: usize = 64 << 20;
/// Default limit: this many times the initial size, but at least [`MIN_LIMIT`].
const LIMIT_FACTOR: usize = 8;
/// See [`LIMIT_FACTOR`].
const MIN_LIMIT: usize = 256 << 20;
/// Most pages that are registered by themselves: each costs about a microsecond when a queue is made.
const PAGES_MAX: usize = 4096;

/// The memory of one request. A plain address: validity is promised by the caller of [`crate::DeviceQueue::push`].
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// First byte.
    pub address: NonNull<u8>,
    /// The region that holds the whole request, if its pool registers it with queues. A queue of another pool, or of
    /// none, takes the memory as plain memory.
    pub registered: Option<Registered>,
}

/// A place in a region of memory that a pool registers with its queues. The same numbers name another place in each
/// pool, so the pool belongs to it.
// One word, that it is copied as one: the pool's number, 16 bits for the page and 16 for the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered(NonZeroU64);

/// Places in a pool.
const PLACES: NonZeroU64 = NonZeroU64::new(1 << 32).expect("not zero");

impl Registered {
    /// Pools are numbered below this.
    pub(crate) const POOLS: u64 = 1 << 32;

    /// Region `region` of the pool with the number `pool`, which is below [`Registered::POOLS`]. Page `page` of it, of
    /// those that are registered by themselves too, counted from 1; 0 is none of them.
    pub(crate) fn new(pool: NonZeroU64, region: u16, page: u16) -> Self {
        Registered(pool.saturating_mul(PLACES) | u64::from(page) << 16 | u64::from(region))
    }

    /// Number of the pool: unique in the process, never used again.
    #[inline(always)]
    pub(crate) fn pool(self) -> u64 {
        self.0.get() / PLACES
    }

    /// Index in the pool's list of regions.
    #[inline(always)]
    pub(crate) fn region(self) -> u16 {
        self.0.get() as u16
    }

    /// The page, counted from 1; 0 if it has no number.
    #[inline(always)]
    pub(crate) fn page(self) -> u16 {
        (self.0.get() >> 16) as u16
    }

    /// The place so many bytes further in the same region, counted from the begin of its page.
    #[inline]
    fn advanced(self, offset: usize) -> Self {
        let (page, pages) = (self.page(), offset / PAGE);
        if page == 0 || pages == 0 {
            return self;
        }
        let page = u16::try_from(usize::from(page) + pages).unwrap_or(0);
        Registered((self.0.get() & !(0xffff << 16) | u64::from(page) << 16).try_into().unwrap_or(self.0))
    }
}

// One of these goes with every request.
const _: () = assert!(size_of::<Memory>() == 2 * size_of::<usize>());

// SAFETY: a `Memory` is only an address; nothing is accessed through it except by a queue, under the promise made at
// the unsafe `push`.
unsafe impl Send for Memory {}

impl Memory {
    /// Placeholder for requests without data.
    pub const NONE: Memory = Memory { address: NonNull::dangling(), registered: None };
}

/// A pool of aligned memory that queues can register. Cheap to clone; the memory lives until the last clone
/// and the last [`Buffer`] are gone.
#[derive(Debug, Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

/// A piece of aligned memory, owned, or of foreign memory. Derefs to `[u8]` of exactly the length asked for; returns to
/// its pool when dropped. Moving it moves one word. A child process finds zeros in the buffers that it inherits.
pub struct Buffer {
    /// Taken out by `drop` only.
    piece: ManuallyDrop<Box<Piece>>,
}

/// What a buffer is.
#[derive(Debug)]
struct Piece {
    address: NonNull<u8>,
    length: u32,
    registered: Option<Registered>,
    /// None while the piece is spare.
    pool: Option<Arc<Shared>>,
}

// Buffers go through every slot and completion of a queue, each time from one place in memory to the next unless
// they fit a register.
const _: () = assert!(size_of::<Option<Buffer>>() == size_of::<usize>() && MAX_REGION <= u32::MAX as usize);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// How many of the regions, counted from the first, existed at creation and have a number to be registered under.
    registered: usize,
    /// Most bytes mapped in all.
    limit: usize,
}

#[derive(Debug)]
struct State {
    /// What tells this pool's regions from those of others. `None`: no numbers are left, nothing is registered.
    serial: Option<NonZeroU64>,
    regions: Vec<Region>,
    /// Free blocks by [registered, not registered] and size class.
    free: [[Vec<Block>; CLASSES]; 2],
    /// Blocks in existence by the same indices: what the free list must be able to hold without allocating.
    blocks: [[usize; CLASSES]; 2],
    /// Pieces that no buffer uses, and how many exist.
    #[allow(clippy::vec_box, reason = "the boxes are what buffers are made of")]
    spare: Vec<Box<Piece>>,
    pieces: usize,
    /// Bytes mapped in all regions.
    mapped: usize,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    address: NonNull<u8>,
    registered: Option<Registered>,
}

/// One private anonymous mapping, carved from its start.
#[derive(Debug)]
struct Region {
    base: NonNull<u8>,
    length: usize,
    carved: usize,
}

// SAFETY: a region is plain memory of the process; the pointer is only turned into blocks, each owned by one
// `Buffer` or one free list at a time, so that no two threads reach the same bytes.
unsafe impl Send for Region {}
// SAFETY: a block is an address that its holder (a free list under the pool's lock, or a `Buffer`) owns
// exclusively.
unsafe impl Send for Block {}
// SAFETY: a piece in a buffer owns its bytes exclusively, as `Box<[u8]>` does, and a spare one has none; the pool
// behind it is `Send + Sync`.
unsafe impl Send for Piece {}
// SAFETY: through `&Buffer` bytes can only be read, as through `&Box<[u8]>`.
unsafe impl Sync for Piece {}

impl BufferPool {
    /// Maps `bytes` of memory (rounded up to whole pages, at least one), zeroed, in regions of at most 1 GiB.
    /// The pool may grow to eight times that, at least to 256 MiB.
    pub fn new(bytes: usize) -> Result<Self> {
        Self::with_limit(bytes, bytes.saturating_mul(LIMIT_FACTOR).max(MIN_LIMIT))
    }

    /// As [`BufferPool::new`], with `limit` as the most bytes that may ever be mapped (never less than
    /// `bytes`).
    pub fn with_limit(bytes: usize, limit: usize) -> Result<Self> {
        let total = bytes.max(1).checked_next_multiple_of(PAGE).ok_or_else(|| cannot_map(libc::ENOMEM))?;
        let mut state = State {
            serial: next_serial(),
            regions: Vec::new(),
            free: Default::default(),
            blocks: [[0; CLASSES]; 2],
            spare: Vec::new(),
            pieces: 0,
            mapped: 0,
        };
        if total.div_ceil(MAX_REGION) > usize::from(u16::MAX) {
            return Err(cannot_map(libc::ENOMEM));
        }
        while state.mapped < total {
            state.map((total - state.mapped).min(MAX_REGION))?;
        }
        let registered = if state.serial.is_some() { state.regions.len() } else { 0 };
        Ok(BufferPool {
            shared: Arc::new(Shared { state: Mutex::new(state), registered, limit: limit.max(total) }),
        })
    }

    /// The number of this pool in [`Registered::pool`], if its memory can be registered.
    pub(crate) fn serial(&self) -> Option<NonZeroU64> {
        self.shared.state.lock().serial
    }

    /// The regions that existed at creation, in the order of their registered indices: what a ring registers.
    /// Their addresses stay valid as long as this pool (or a clone, or a buffer) lives.
    pub fn regions(&self) -> Vec<(NonNull<u8>, usize)> {
        let state = self.shared.state.lock();
        state.regions[..self.shared.registered].iter().map(|region| (region.base, region.length)).collect()
    }

    /// What a ring registers: the regions, and behind them the first pages of the first region, each by itself. The
    /// kernel takes a request of one page faster if no more is registered with it: then it does not ask whether the
    /// request has to be divided (`bio_may_exceed_limits` of Linux).
    pub(crate) fn registrations(&self) -> Registrations {
        let mut vectors = self.regions();
        let regions = vectors.len() as u16;
        let first = vectors.first().map_or(0, |(_, length)| length / PAGE);
        let pages = first.min(PAGES_MAX);
        if let Some(&(base, _)) = vectors.first() {
            // SAFETY: the page lies inside the region.
            vectors.extend((0..pages).map(|page| (unsafe { base.add(page * PAGE) }, PAGE)));
        }
        Registrations { vectors, regions, pages: pages as u16 }
    }

    /// A buffer of exactly `length` bytes, aligned to 4096. Registered memory is used first; a used-up pool
    /// grows by an unregistered region.
    ///
    /// The contents are zero on first use and **whatever the last holder left** on reuse. A pool is meant to
    /// serve one volume (or one queue of it); whoever shares a pool between volumes that must not see each
    /// other's data has to overwrite buffers first.
    ///
    /// # Errors
    /// [`Error::PoolExhausted`] beyond the limit or above 1 GiB, [`Error::Open`] if the system refuses
    /// memory.
    pub fn take(&self, length: usize) -> Result<Buffer> {
        let exhausted = || Error::PoolExhausted { wanted: length as u64, limit: self.shared.limit as u64 };
        let class = class_of(length).ok_or_else(exhausted)?;
        let registered = self.shared.registered;
        let mut state = self.shared.state.lock();
        let block = match state.find(class, registered) {
            Some(block) => block,
            None => {
                let room = self.shared.limit.saturating_sub(state.mapped);
                let growth = state.mapped.clamp(MIN_GROWTH, MAX_GROWTH).max(class_size(class)).min(room);
                if growth < class_size(class) {
                    return Err(exhausted());
                }
                state.map(growth & !(PAGE - 1))?;
                state.find(class, registered).ok_or_else(exhausted)?
            }
        };
        let spare = state.spare();
        drop(state);
        let piece = Piece {
            address: block.address,
            length: length as u32,
            registered: block.registered,
            pool: Some(Arc::clone(&self.shared)),
        };
        let piece = match spare {
            Some(mut spare) => {
                *spare = piece;
                spare
            }
            None => Box::new(piece),
        };
        Ok(Buffer { piece: ManuallyDrop::new(piece) })
    }
}

/// What a ring registers of a pool.
pub(crate) struct Registrations {
    /// First bytes and lengths: of regions, then of pages.
    pub(crate) vectors: Vec<(NonNull<u8>, usize)>,
    pub(crate) regions: u16,
    pub(crate) pages: u16,
}

/// A number that no pool of this process had before; none after 2³² - 1 of them.
fn next_serial() -> Option<NonZeroU64> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let last = LAST
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            Some(last + 1).filter(|&next| next < Registered::POOLS)
        })
        .ok()?;
    NonZeroU64::new(last + 1)
}

/// The class that holds `length` bytes, `None` above the largest.
fn class_of(length: usize) -> Option<usize> {
    if length > MAX_REGION {
        return None;
    }
    Some((length.max(PAGE).next_power_of_two() / PAGE).trailing_zeros() as usize)
}

fn class_size(class: usize) -> usize {
    PAGE << class
}

fn cannot_map(errno: i32) -> Error {
    Error::Open { path: "buffer pool".into(), action: "map memory", errno }
}

impl State {
    fn map(&mut self, length: usize) -> Result<()> {
        self.regions.push(Region::map(length)?);
        self.mapped += length;
        Ok(())
    }

    /// A piece to use again. Otherwise there is room for the return of a new one, so that dropping a buffer never
    /// allocates.
    fn spare(&mut self) -> Option<Box<Piece>> {
        let spare = self.spare.pop();
        if spare.is_none() {
            self.pieces += 1;
            self.spare.reserve(self.pieces - self.spare.len());
        }
        spare
    }

    /// A block of `class`: a free one, a new one, or half of a larger free one; registered memory first.
    fn find(&mut self, class: usize, registered: usize) -> Option<Block> {
        (0..2).find_map(|kind| {
            self.free[kind][class]
                .pop()
                .or_else(|| self.carve(kind, class, registered))
                .or_else(|| self.split(kind, class))
        })
    }

    fn carve(&mut self, kind: usize, class: usize, registered: usize) -> Option<Block> {
        let range = if kind == 0 { 0..registered } else { registered..self.regions.len() };
        let size = class_size(class);
        for index in range {
            let region = &mut self.regions[index];
            if region.length - region.carved < size {
                continue;
            }
            // SAFETY: `carved + size <= length`, so the block lies inside the region's mapping.
            let address = unsafe { region.base.add(region.carved) };
            let page = if index == 0 { u16::try_from(region.carved / PAGE + 1).unwrap_or(0) } else { 0 };
            region.carved += size;
            self.count_block(kind, class);
            let named = |pool| Registered::new(pool, index as u16, page);
            return Some(Block { address, registered: self.serial.filter(|_| kind == 0).map(named) });
        }
        None
    }

    /// Halves the smallest larger free block until it fits. Blocks are not merged again: transfer sizes
    /// repeat.
    fn split(&mut self, kind: usize, class: usize) -> Option<Block> {
        let from = (class + 1..CLASSES).find(|&larger| !self.free[kind][larger].is_empty())?;
        let block = self.free[kind][from].pop()?;
        self.blocks[kind][from] -= 1;
        for smaller in (class..from).rev() {
            // SAFETY: the block has `class_size(smaller + 1)` bytes, so its second half starts inside it.
            let address = unsafe { block.address.add(class_size(smaller)) };
            self.count_block(kind, smaller);
            let registered = block.registered.map(|place| place.advanced(class_size(smaller)));
            self.free[kind][smaller].push(Block { address, registered });
        }
        self.count_block(kind, class);
        Some(block)
    }

    /// Registers one more block and makes room for its return, so that dropping a buffer never allocates.
    fn count_block(&mut self, kind: usize, class: usize) {
        self.blocks[kind][class] += 1;
        let list = &mut self.free[kind][class];
        list.reserve(self.blocks[kind][class] - list.len());
    }
}

impl Region {
    fn map(length: usize) -> Result<Region> {
        // SAFETY: a new anonymous mapping at an address the kernel chooses touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| cannot_map(errno.raw_os_error()))?;
        // Huge pages save TLB misses and pinning work; a kernel without them loses nothing else.
        // SAFETY: exactly the mapping made above; the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(base, length, Advice::LinuxHugepage) };
        // Children find zeros instead of a copy. Pages shared after a fork are copied at the next touch, perhaps away
        // from where a device is writing to: kernels before 6.3 do not keep those of direct I/O in place.
        // SAFETY: as above; nothing in the mapping has a value yet.
        let wiped = unsafe { rustix::mm::madvise(base, length, Advice::LinuxWipeOnFork) };
        let region = Region {
            base: NonNull::new(base.cast::<u8>()).ok_or_else(|| cannot_map(libc::ENOMEM))?,
            length,
            carved: 0,
        };
        wiped.map_err(|errno| cannot_map(errno.raw_os_error()))?;
        Ok(region)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this region owns the mapping; it is dropped with `Shared`, which every `Buffer` keeps
        // alive, so no block of it is reachable any more. Failure would only leak.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

impl Buffer {
    /// The memory for a request that covers this buffer from byte `offset`. It stays valid while the buffer
    /// lives; the registered index means the pool's own region list.
    ///
    /// # Panics
    /// If `offset` lies beyond the buffer.
    #[inline]
    pub fn memory(&mut self, offset: usize) -> Memory {
        let piece = &**self.piece;
        assert!(offset <= piece.length as usize, "offset beyond the buffer");
        // SAFETY: `offset <= length`, so the result is inside the block or one past its end.
        let address = unsafe { piece.address.add(offset) };
        // A foreign buffer begins anywhere in its page.
        let in_page = piece.address.addr().get() % PAGE;
        Memory { address, registered: piece.registered.map(|place| place.advanced(in_page + offset)) }
    }

    /// Memory of somebody else, for one request. The buffer does not free it. `registered` is the region that it lies
    /// in, if it lies in one. `spare`, a foreign buffer that is not needed any more, saves an allocation.
    ///
    /// # Safety
    /// While the buffer lives, `length` bytes from `address` on can be read and written, hold initialised bytes, and
    /// are nobody else's. A `registered` region holds them all.
    pub unsafe fn foreign(
        address: NonNull<u8>,
        length: u32,
        registered: Option<Registered>,
        spare: Option<Buffer>,
    ) -> Buffer {
        let piece = Piece { address, length, registered, pool: None };
        match spare.filter(|spare| spare.piece.pool.is_none()) {
            Some(mut spare) => {
                **spare.piece = piece;
                spare
            }
            None => Buffer { piece: ManuallyDrop::new(Box::new(piece)) },
        }
    }

    /// Whether these bytes lie in this buffer.
    pub fn holds(&self, address: NonNull<u8>, length: u32) -> bool {
        self.offset_of(address, length).is_some()
    }

    fn offset_of(&self, address: NonNull<u8>, length: u32) -> Option<usize> {
        let offset = address.addr().get().checked_sub(self.piece.address.addr().get())?;
        (offset + length as usize <= self.piece.length as usize).then_some(offset)
    }

    /// Where these bytes of this buffer are registered: for [`Buffer::foreign`].
    pub fn registered_at(&self, address: NonNull<u8>, length: u32) -> Option<Registered> {
        let offset = self.piece.address.addr().get() % PAGE + self.offset_of(address, length)?;
        self.piece.registered.map(|place| place.advanced(offset))
    }

    /// First byte, aligned to 4096. For reading from it through a raw pointer while the buffer is borrowed.
    #[inline]
    pub fn address(&self) -> NonNull<u8> {
        self.piece.address
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let piece = &**self.piece;
        // SAFETY: the block has at least `length` initialised bytes (mapped zeroed) that this buffer owns.
        unsafe { std::slice::from_raw_parts(piece.address.as_ptr(), piece.length as usize) }
    }
}

impl std::ops::DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let piece = &**self.piece;
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(piece.address.as_ptr(), piece.length as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used again.
        let mut piece = unsafe { ManuallyDrop::take(&mut self.piece) };
        let block = Block { address: piece.address, registered: piece.registered };
        let kind = usize::from(block.registered.is_none());
        // `take` found the class by the same length. The pool is let go after its lock.
        let (Some(class), Some(pool)) = (class_of(piece.length as usize), piece.pool.take()) else { return };
        let mut state = pool.state.lock();
        state.free[kind][class].push(block);
        state.spare.push(piece);
        drop(state);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("address", &self.piece.address)
            .field("length", &self.piece.length)
            .field("registered", &self.piece.registered)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_unregistered_and_limited() {
        let pool = BufferPool::with_limit(16 << 10, (16 << 10) + (1 << 20)).unwrap();
        let (base, length) = pool.regions()[0];
        assert_eq!((pool.regions().len(), length), (1, 16 << 10));
        let mut first: Vec<_> = (0..4).map(|_| pool.take(4096).unwrap()).collect();
        for (index, buffer) in first.iter_mut().enumerate() {
            let memory = buffer.memory(0);
            assert_eq!(memory.registered.map(Registered::region), Some(0));
            assert_eq!(memory.address.as_ptr() as usize, base.as_ptr() as usize + index * 4096);
        }
        let mut beyond = pool.take(512 << 10).unwrap();
        assert_eq!(beyond.memory(0).registered, None);
        let error = pool.take(1 << 20).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
        assert_eq!(pool.regions().len(), 1, "growth must not change what is registered");
    }

    #[test]
    fn a_place_inside_a_buffer_knows_its_page() {
        let pool = BufferPool::with_limit(64 << 10, 64 << 10).unwrap();
        let _first = pool.take(4096).unwrap();
        let mut long = pool.take(32 << 10).unwrap();
        let page = |memory: Memory| memory.registered.unwrap().page();
        let start = page(long.memory(0));
        assert_eq!([512, 4095, 4096, 20_000].map(|offset| page(long.memory(offset)) - start), [0, 0, 1, 4]);
        // SAFETY: inside the buffer.
        let inside = unsafe { long.address().add(8192) };
        assert_eq!(long.registered_at(inside, 4096).unwrap().page(), start + 2);
        assert_eq!(long.registered_at(inside, 32 << 10), None, "it ends behind the buffer");
        // A buffer of somebody else that begins inside a page: what follows is in the next page sooner.
        // SAFETY: inside the buffer, which is not used otherwise.
        let mut foreign = unsafe {
            let address = long.address().add(3584);
            Buffer::foreign(address, 4096, long.registered_at(address, 4096), None)
        };
        assert_eq!([0, 511, 512, 4095].map(|offset| page(foreign.memory(offset)) - start), [0, 0, 1, 1]);
        let address = foreign.memory(1024).address;
        assert_eq!(foreign.registered_at(address, 512).unwrap().page(), start + 1);
        let all = pool.registrations();
        assert_eq!((all.regions, all.pages, all.vectors.len()), (1, 16, 17));
        assert_eq!(all.vectors[usize::from(start)], (long.address(), PAGE), "regions first, pages from 1");
        let none = Registered::new(pool.serial().unwrap(), 0, 0);
        assert_eq!(none.advanced(1 << 20), none);
        assert_eq!(Registered::new(pool.serial().unwrap(), 0, 65_000).advanced(8 << 20).page(), 0);
    }

    #[test]
    fn blocks_come_back_registered_first_and_split() {
        let pool = BufferPool::with_limit(1 << 20, 1 << 20).unwrap();
        let whole = pool.take(1 << 20).unwrap();
        assert!(pool.take(4096).is_err());
        drop(whole);
        let mut pieces: Vec<_> = (0..256).map(|_| pool.take(4096).unwrap()).collect();
        assert!(pool.take(1).is_err(), "the region has exactly 256 pages");
        let mut addresses: Vec<_> = pieces.iter().map(|piece| piece.address().as_ptr() as usize).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 256);
        let serial = pool.serial().unwrap();
        let place = Registered::new(serial, 7, 9);
        assert_eq!((place.pool(), place.region(), place.page()), (serial.get(), 7, 9));
        let base = pool.regions()[0].0.as_ptr() as usize;
        for piece in &mut pieces {
            let place = piece.memory(0).registered.unwrap();
            let page = (piece.address().as_ptr() as usize - base) / PAGE;
            assert_eq!((place.pool(), place.region()), (serial.get(), 0));
            assert_eq!(usize::from(place.page()), page + 1, "a block that was divided");
        }
        assert_ne!(BufferPool::new(4096).unwrap().serial(), Some(serial));
    }
}
