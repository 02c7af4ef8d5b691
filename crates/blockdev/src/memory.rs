//! The memory of a request: an address, and its place in a pool's registered memory.

use std::num::NonZeroU64;
use std::ptr::NonNull;

/// Alignment in bytes of every pool [`Buffer`](crate::Buffer) that is not empty.
pub const BUFFER_ALIGN: usize = 4096;

/// The memory of one request. A plain address: validity is promised by the caller of [`crate::DeviceQueue::push`].
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// First byte.
    pub address: NonNull<u8>,
    /// The region that holds the whole request, if its pool registers it with queues. A queue of another pool, or of
    /// none, treats it as plain memory.
    pub registered: Option<Registered>,
}

/// A place in a region of memory that a pool registers with its queues. It includes the pool's number, because each
/// pool numbers its own regions and pages.
// One word, so that it is copied as one: the pool's number, 16 bits for the page and 16 for the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered(NonZeroU64);

/// Places per pool: the unit of the pool's number in the word.
const PLACES: NonZeroU64 = NonZeroU64::new(1 << 32).expect("not zero");

impl Registered {
    /// Marks memory that is an array of vectors; no pool has this value.
    const VECTORS: Registered = Registered(NonZeroU64::MIN);

    /// Pool numbers are below this.
    pub(crate) const POOLS: u64 = 1 << 32;

    /// A place in entry `region` of pool number `pool`, which is below [`Registered::POOLS`]. `page` counts the
    /// individually registered pages from 1; 0 is none of them.
    pub(crate) fn new(pool: NonZeroU64, region: u16, page: u16) -> Self {
        Registered(pool.saturating_mul(PLACES) | u64::from(page) << 16 | u64::from(region))
    }

    /// Number of the pool: unique in the process, never reused.
    #[inline(always)]
    pub(crate) fn pool(self) -> u64 {
        self.0.get() / PLACES
    }

    /// The region's entry in the table of a ring.
    #[inline(always)]
    pub(crate) fn region(self) -> u16 {
        self.0.get() as u16
    }

    /// The page, counted from 1; 0 if it is not registered individually.
    #[inline(always)]
    pub(crate) fn page(self) -> u16 {
        (self.0.get() >> 16) as u16
    }

    /// The place `offset` bytes after the start of this place's page, in the same region.
    #[inline]
    pub(crate) fn advanced(self, offset: usize) -> Self {
        let (page, pages) = (self.page(), offset / BUFFER_ALIGN);
        if page == 0 || pages == 0 {
            return self;
        }
        let page = u16::try_from(usize::from(page) + pages).unwrap_or(0);
        Registered((self.0.get() & !(0xffff << 16) | u64::from(page) << 16).try_into().unwrap_or(self.0))
    }
}

/// One of several pieces of memory of a request, laid out as `struct iovec`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Vector {
    /// First byte.
    pub address: NonNull<u8>,
    /// Bytes, not zero.
    pub length: usize,
}

const _: () = assert!(size_of::<Vector>() == size_of::<libc::iovec>());

// SAFETY: an address and a number, as `Memory`.
unsafe impl Send for Vector {}

// Every request carries one.
const _: () = assert!(size_of::<Memory>() == 2 * size_of::<usize>());

// SAFETY: a `Memory` is only an address; nothing is accessed through it except by a queue, under the promise made at
// the unsafe `push`.
unsafe impl Send for Memory {}

impl Memory {
    /// Placeholder for requests without data.
    pub const NONE: Memory = Memory { address: NonNull::dangling(), registered: None };

    /// Several pieces of memory for one contiguous range of the device: `first` begins an array of vectors that
    /// together have as many bytes as the request. The array is part of the request's memory. Only for queues that take
    /// that many ([`QueueFacts::vectors`](crate::QueueFacts::vectors)).
    ///
    /// # Safety
    /// The array is valid and unchanged until the request completes, and every request with this memory has as many
    /// bytes as the vectors together.
    pub unsafe fn vectors(first: NonNull<Vector>) -> Memory {
        Memory { address: first.cast(), registered: Some(Registered::VECTORS) }
    }

    /// Whether this is an array of vectors.
    #[inline]
    pub(crate) fn is_vectors(&self) -> bool {
        self.registered == Some(Registered::VECTORS)
    }

    /// The vectors of a request of `length` bytes.
    ///
    /// # Safety
    /// [`Memory::is_vectors`], and the promise of [`Memory::vectors`] holds as long as the result is used.
    pub(crate) unsafe fn as_vectors<'a>(&self, length: u32) -> &'a [Vector] {
        let first = self.address.cast::<Vector>();
        let (mut count, mut bytes) = (0, 0);
        while bytes < length as usize {
            // SAFETY: the vectors so far have fewer bytes than the request, so the array has another one.
            bytes += unsafe { first.add(count).as_ref() }.length;
            count += 1;
        }
        // SAFETY: the loop has read `count` vectors of the array.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), count) }
    }
}
