//! Aligned I/O memory that queues can register once.
//!
//! A [`BufferPool`] owns a few mapped regions and hands out [`Buffer`]s: page-aligned pieces in power-of-two size
//! classes. A queue registers all regions with its ring. When the pool runs out, it adds a region and registers that
//! with all rings that follow it. If a ring refuses, the buffers of that region are plain memory, and
//! [`Memory::registered`] says so.

use crate::memory::{BUFFER_ALIGN as PAGE, Memory, Registered};
use crate::{Error, Process, Result};
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest region: the kernel takes at most 1 GiB per registered buffer.
const MAX_REGION: usize = 1 << 30;
/// Size classes: 4 KiB (a page), 8 KiB, … 1 GiB.
const CLASSES: usize = (MAX_REGION / PAGE).trailing_zeros() as usize + 1;
/// Smallest growth, so that small requests do not each map a region.
const MIN_GROWTH: usize = 1 << 20;
/// Largest growth, unless a single buffer needs more.
const MAX_GROWTH: usize = 64 << 20;
/// Default limit: this many times the initial size, but at least [`MIN_LIMIT`].
const LIMIT_FACTOR: usize = 8;
/// See [`LIMIT_FACTOR`].
const MIN_LIMIT: usize = 256 << 20;
/// Most pages registered individually: each costs about a microsecond when a queue is created.
const PAGES_MAX: usize = 4096;
/// Most regions registered after creation: entries that start out empty in a ring's table.
const GROWTHS_MAX: u16 = 256;

/// A pool of aligned memory that queues can register. Cheap to clone; the memory lives until the last clone
/// and the last [`Buffer`] are gone.
#[derive(Debug, Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

/// A piece of aligned pool memory, or of foreign memory ([`Buffer::foreign`]). Derefs to `[u8]` of exactly the
/// requested length; returns to its pool when dropped. Moving it moves one word. A child process finds zeros in the
/// pool's buffers that it inherits.
pub struct Buffer {
    /// Only `drop` takes it out.
    piece: ManuallyDrop<Box<Piece>>,
}

/// What a [`Buffer`] points to.
#[derive(Debug)]
struct Piece {
    address: NonNull<u8>,
    length: u32,
    registered: Option<Registered>,
    /// None for foreign memory and while the piece is spare.
    pool: Option<Arc<Shared>>,
}

// Buffers move through every slot and completion of a queue; each move copies memory unless a buffer fits a register.
const _: () = assert!(size_of::<Option<Buffer>>() == size_of::<usize>() && MAX_REGION <= u32::MAX as usize);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Regions that existed at creation: the first ones.
    first: u16,
    /// Pages of the first region that have an entry of their own.
    pages: u16,
    /// Most bytes mapped in total.
    limit: usize,
}

#[derive(Debug)]
struct State {
    /// Distinguishes this pool's regions from those of other pools. `None`: the numbers ran out, so nothing is
    /// registered.
    serial: Option<NonZeroU64>,
    regions: Vec<Region>,
    /// Free blocks by [registered, not registered] and size class.
    free: [[Vec<Block>; CLASSES]; 2],
    /// Existing blocks by the same indices: what each free list must be able to hold without allocating.
    blocks: [[usize; CLASSES]; 2],
    /// Unused pieces, and the number of all pieces.
    #[allow(clippy::vec_box, reason = "a buffer holds one of these boxes")]
    spare: Vec<Box<Piece>>,
    pieces: usize,
    /// Bytes mapped in all regions.
    mapped: usize,
    /// Regions that got an entry after creation.
    growths: u16,
    /// The rings that the regions are registered with, by follower number.
    rings: Vec<(u64, Box<dyn Registrar>)>,
    /// Number of the next follower.
    next_follower: u64,
    /// Why a region has no entry, if a ring refused one.
    refused: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    address: NonNull<u8>,
    registered: Option<Registered>,
}

/// One private anonymous mapping. Blocks are carved from its start.
#[derive(Debug)]
struct Region {
    base: NonNull<u8>,
    length: usize,
    carved: usize,
    /// Its entry in the table of each ring.
    entry: Option<u16>,
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

    /// As [`BufferPool::new`], but never maps more than `limit` bytes (or `bytes`, if that is more).
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
            growths: 0,
            rings: Vec::new(),
            next_follower: 0,
            refused: None,
        };
        if total.div_ceil(MAX_REGION) > usize::from(u16::MAX) - PAGES_MAX - usize::from(GROWTHS_MAX) {
            return Err(cannot_map(libc::ENOMEM));
        }
        while state.mapped < total {
            let mut region = Region::map((total - state.mapped).min(MAX_REGION))?;
            region.entry = state.serial.map(|_| state.regions.len() as u16);
            state.add(region);
        }
        let first = state.regions.len() as u16;
        let pages = (state.regions[0].length / PAGE).min(PAGES_MAX) as u16;
        Ok(BufferPool {
            shared: Arc::new(Shared { state: Mutex::new(state), first, pages, limit: limit.max(total) }),
        })
    }

    /// The number of this pool in [`Registered::pool`], if its memory can be registered.
    pub(crate) fn serial(&self) -> Option<NonZeroU64> {
        self.shared.state.lock().serial
    }

    /// The table that a ring registers: the initial regions, then the first pages of the first region individually,
    /// then the regions added later. The kernel handles a one-page request faster if its registered buffer is that page
    /// alone: then it skips the check whether the request must be split (`bio_may_exceed_limits` in Linux). The
    /// addresses stay valid as long as this pool (or a clone, or a buffer) lives.
    pub(crate) fn registrations(&self) -> Registrations {
        let Shared { first, pages, limit, .. } = *self.shared;
        let state = self.shared.state.lock();
        let (old, added) = state.regions.split_at(usize::from(first));
        let whole = |region: &Region| (region.base.as_ptr(), region.length);
        let mut vectors: Vec<(*mut u8, usize)> = old.iter().map(whole).collect();
        // SAFETY: the page lies inside the region.
        let page = |number| unsafe { old[0].base.add(usize::from(number) * PAGE) };
        vectors.extend((0..pages).map(|number| (page(number).as_ptr(), PAGE)));
        let grows = limit > old.iter().map(|region| region.length).sum();
        let empty = if grows { usize::from(GROWTHS_MAX) } else { 0 };
        vectors.resize(vectors.len() + empty, (std::ptr::null_mut(), 0));
        for region in added {
            if let Some(entry) = region.entry {
                vectors[usize::from(entry)] = whole(region);
            }
        }
        Registrations { vectors, regions: first, pages }
    }

    /// Also registers regions added from now on with `ring`, until the result is dropped.
    pub(crate) fn follow(&self, ring: Box<dyn Registrar>, process: Process) -> Follower {
        let mut state = self.shared.state.lock();
        let number = state.next_follower;
        state.next_follower += 1;
        state.rings.push((number, ring));
        Follower { pool: self.clone(), number, process }
    }

    /// Why some memory of the pool is not registered with its queues: one of them refused a region added later. `None`
    /// if none did.
    pub fn refused(&self) -> Option<String> {
        self.shared.state.lock().refused.clone()
    }

    /// A buffer of exactly `length` bytes, aligned to 4096. Registered memory is used first. A pool that runs out adds
    /// a region and registers it with its queues.
    ///
    /// The contents are zero on first use and **whatever the last user left** on reuse. A pool is meant to serve one
    /// volume (or one queue of it). If volumes that must not see each other's data share a pool, the caller must
    /// overwrite each buffer first.
    ///
    /// # Errors
    /// [`Error::PoolExhausted`] beyond the limit or above 1 GiB, [`Error::Open`] if the system refuses memory,
    /// [`Error::Unsupported`] if a queue that requires registered buffers cannot register a new region.
    pub fn take(&self, length: usize) -> Result<Buffer> {
        let exhausted = || Error::PoolExhausted { wanted: length as u64, limit: self.shared.limit as u64 };
        let class = class_of(length).ok_or_else(exhausted)?;
        let first_growth = self.shared.first + self.shared.pages;
        let mut state = self.shared.state.lock();
        let block = match state.find(class) {
            Some(block) => block,
            None => {
                let room = self.shared.limit.saturating_sub(state.mapped);
                let growth = state.mapped.clamp(MIN_GROWTH, MAX_GROWTH).max(class_size(class)).min(room);
                if growth < class_size(class) {
                    return Err(exhausted());
                }
                state.grow(growth & !(PAGE - 1), first_growth)?;
                state.find(class).ok_or_else(exhausted)?
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

/// The table that a ring registers for a pool.
pub(crate) struct Registrations {
    /// Addresses and lengths of the initial regions, the pages, and the regions added later. Null and 0 is an empty
    /// entry.
    pub(crate) vectors: Vec<(*mut u8, usize)>,
    pub(crate) regions: u16,
    pub(crate) pages: u16,
}

/// A ring that the regions of a pool are registered with.
pub(crate) trait Registrar: Send + fmt::Debug {
    /// Registers a region in an empty entry.
    fn register(&self, entry: u16, base: NonNull<u8>, length: usize) -> io::Result<()>;
    /// Whether the ring takes registered memory only.
    fn requires(&self) -> bool;
}

/// Registers the regions added to a pool with a ring until dropped.
#[derive(Debug)]
pub(crate) struct Follower {
    pool: BufferPool,
    number: u64,
    process: Process,
}

impl Drop for Follower {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // The thread that held the lock at the fork may not exist here.
            return;
        }
        self.pool.shared.state.lock().rings.retain(|(number, _)| *number != self.number);
    }
}

/// A number that no pool of this process has had before; `None` after 2³² - 1 of them.
fn next_serial() -> Option<NonZeroU64> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let last = LAST
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            Some(last + 1).filter(|&next| next < Registered::POOLS)
        })
        .ok()?;
    NonZeroU64::new(last + 1)
}

/// The size class that holds `length` bytes, `None` above the largest.
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
    fn add(&mut self, region: Region) {
        self.mapped += region.length;
        self.regions.push(region);
    }

    /// Adds a region and registers it with all rings. `first_growth` is the entry of the first added region.
    fn grow(&mut self, length: usize, first_growth: u16) -> Result<()> {
        let mut region = Region::map(length)?;
        match self.register(&region, first_growth) {
            Ok(entry) => {
                region.entry = Some(entry);
                self.growths += 1;
            }
            Err(why) if self.is_required() => {
                return Err(Error::Unsupported(format!("registering {length} more bytes of buffers: {why}")));
            }
            Err(why) => self.refused = Some(format!("buffers added later are not registered: {why}")),
        }
        self.add(region);
        Ok(())
    }

    fn register(&self, region: &Region, first_growth: u16) -> std::result::Result<u16, String> {
        if self.serial.is_none() || self.growths == GROWTHS_MAX {
            return Err("no table entry is left".into());
        }
        let entry = first_growth + self.growths;
        for (_, ring) in &self.rings {
            let done = ring.register(entry, region.base, region.length);
            done.map_err(|error| format!("{} (RLIMIT_MEMLOCK may be too low)", crate::describe(&error)))?;
        }
        Ok(entry)
    }

    fn is_required(&self) -> bool {
        self.rings.iter().any(|(_, ring)| ring.requires())
    }

    /// A piece to reuse. Without one, makes room for the return of a new piece, so that dropping a buffer never
    /// allocates.
    fn spare(&mut self) -> Option<Box<Piece>> {
        let spare = self.spare.pop();
        if spare.is_none() {
            self.pieces += 1;
            self.spare.reserve(self.pieces - self.spare.len());
        }
        spare
    }

    /// A block of `class`: a free one, a new one, or part of a larger free one. Tries registered memory first, and only
    /// that if a ring requires it.
    fn find(&mut self, class: usize) -> Option<Block> {
        let kinds = if self.is_required() { 1 } else { 2 };
        (0..kinds).find_map(|kind| {
            self.free[kind][class]
                .pop()
                .or_else(|| self.carve(kind, class))
                .or_else(|| self.split(kind, class))
        })
    }

    fn carve(&mut self, kind: usize, class: usize) -> Option<Block> {
        let size = class_size(class);
        let fits =
            |region: &Region| region.entry.is_none() == (kind == 1) && region.length - region.carved >= size;
        let index = self.regions.iter().position(fits)?;
        let region = &mut self.regions[index];
        // SAFETY: `carved + size <= length`, so the block lies inside the region's mapping.
        let address = unsafe { region.base.add(region.carved) };
        let page = if index == 0 { u16::try_from(region.carved / PAGE + 1).unwrap_or(0) } else { 0 };
        region.carved += size;
        let place = self.serial.zip(region.entry).map(|(pool, entry)| Registered::new(pool, entry, page));
        self.count_block(kind, class);
        Some(Block { address, registered: place })
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

    /// Counts one more block and makes room for its return, so that dropping a buffer never allocates.
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
        // Huge pages save TLB misses and pinning work; without them nothing else is lost.
        // SAFETY: exactly the mapping made above; the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(base, length, Advice::LinuxHugepage) };
        // Children find zeros instead of a copy. Pages shared after a fork are copied at the next write, which may move
        // the parent's data away from the page that a device is writing to: kernels before 6.3 do not keep pages under
        // direct I/O in place.
        // SAFETY: as above; nothing in the mapping has a value yet.
        let wiped = unsafe { rustix::mm::madvise(base, length, Advice::LinuxWipeOnFork) };
        let region = Region {
            base: NonNull::new(base.cast::<u8>()).ok_or_else(|| cannot_map(libc::ENOMEM))?,
            length,
            carved: 0,
            entry: None,
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
    /// The memory of this buffer from byte `offset` on, for a request. It stays valid while the buffer lives. The
    /// registered place refers to the pool's own regions.
    ///
    /// # Panics
    /// If `offset` lies beyond the buffer.
    #[inline]
    pub fn memory(&mut self, offset: usize) -> Memory {
        let piece = &**self.piece;
        assert!(offset <= piece.length as usize, "offset beyond the buffer");
        // SAFETY: `offset <= length`, so the result is inside the block or one past its end.
        let address = unsafe { piece.address.add(offset) };
        // A foreign buffer may begin anywhere in its page.
        let in_page = piece.address.addr().get() % PAGE;
        Memory { address, registered: piece.registered.map(|place| place.advanced(in_page + offset)) }
    }

    /// Memory that the caller owns, for one request. The buffer does not free it. `registered` is its place in a
    /// registered region, if it has one. Passing a foreign buffer that is no longer needed as `spare` saves an
    /// allocation.
    ///
    /// # Safety
    /// While the buffer lives, the `length` bytes from `address` on are readable, writable and initialised, and nobody
    /// else accesses them. If `registered` is given, its region holds all of them.
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

    /// First byte, aligned to 4096 in pool memory. For reading through a raw pointer while the buffer is borrowed.
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
        // `take` chose the class by the same length. The pool is released after its lock.
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

    /// A ring that accepts `left` more regions.
    #[derive(Debug)]
    struct Ring {
        left: Arc<AtomicU64>,
        requires: bool,
    }

    impl Registrar for Ring {
        fn register(&self, _: u16, _: NonNull<u8>, _: usize) -> io::Result<()> {
            let left =
                self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            left.map(drop).map_err(|_none| io::Error::from_raw_os_error(libc::ENOMEM))
        }
        fn requires(&self) -> bool {
            self.requires
        }
    }

    fn entry(buffer: &mut Buffer) -> Option<u16> {
        buffer.memory(0).registered.map(Registered::region)
    }

    #[test]
    fn growth_has_an_entry_behind_the_pages_and_is_limited() {
        let pool = BufferPool::with_limit(16 << 10, (16 << 10) + (1 << 20)).unwrap();
        let base = pool.registrations().vectors[0].0;
        let mut first: Vec<_> = (0..4).map(|_| pool.take(4096).unwrap()).collect();
        for (index, buffer) in first.iter_mut().enumerate() {
            assert_eq!(entry(buffer), Some(0));
            assert_eq!(buffer.address().as_ptr() as usize, base as usize + index * 4096);
        }
        let mut beyond = pool.take(512 << 10).unwrap();
        assert_eq!(entry(&mut beyond), Some(5), "after one region and its four pages");
        let error = pool.take(1 << 20).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
        let Registrations { vectors, regions, pages } = pool.registrations();
        assert_eq!((vectors.len(), regions, pages), (5 + usize::from(GROWTHS_MAX), 1, 4));
        assert_eq!(vectors[5], (beyond.address().as_ptr(), 1 << 20), "a later queue registers it too");
        assert!(vectors[6..].iter().all(|&(base, length)| base.is_null() && length == 0));
    }

    #[test]
    fn what_a_ring_refuses_is_plain_memory_or_an_error_where_it_is_required() {
        for requires in [false, true] {
            let pool = BufferPool::new(PAGE).unwrap();
            let left = Arc::new(AtomicU64::new(1));
            let follow = |requires| {
                let ring = Ring { left: Arc::clone(&left), requires };
                pool.follow(Box::new(ring), Process::current().unwrap())
            };
            let follower = follow(requires);
            let mut long: Vec<_> = (0..16).map(|_| pool.take(64 << 10).unwrap()).collect();
            assert!(long.iter_mut().all(|buffer| entry(buffer) == Some(2)), "the first growth");
            let more = pool.take(64 << 10);
            assert_eq!(pool.refused().is_some(), !requires);
            if requires {
                assert!(matches!(more, Err(Error::Unsupported(_))), "{more:?}");
                left.store(1, Ordering::Relaxed);
                assert_eq!(entry(&mut pool.take(64 << 10).unwrap()), Some(3), "not permanent");
            } else {
                assert_eq!(entry(&mut more.unwrap()), None);
                // A ring that requires registration gets nothing of the plain region.
                let strict = follow(true);
                assert!(pool.take(64 << 10).is_err());
                drop(strict);
            }
            drop(follower);
            assert!(pool.take(512 << 10).is_ok(), "no ring is left to refuse it");
        }
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
        assert_eq!(long.registered_at(inside, 32 << 10), None, "it ends past the buffer");
        // A foreign buffer that begins inside a page reaches the next page sooner.
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
        let page = (long.address().as_ptr(), PAGE);
        assert_eq!(all.vectors[usize::from(start)], page, "regions first, pages from 1");
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
        let base = pool.registrations().vectors[0].0 as usize;
        for piece in &mut pieces {
            let place = piece.memory(0).registered.unwrap();
            let page = (piece.address().as_ptr() as usize - base) / PAGE;
            assert_eq!((place.pool(), place.region()), (serial.get(), 0));
            assert_eq!(usize::from(place.page()), page + 1, "a block that was split");
        }
        assert_ne!(BufferPool::new(4096).unwrap().serial(), Some(serial));
    }
}
