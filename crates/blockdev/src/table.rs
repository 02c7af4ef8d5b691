//! An append-only array whose values never move, in one piece of memory: huge pages from 2 MiB on.
//!
//! Made for random look-ups in megabytes of data: with small pages nearly every look-up also waits for a page-table
//! walk, a nested one in a virtual machine.

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The usual huge page size. On machines with another size the advice helps less and does no harm.
const HUGE_PAGE: usize = 2 << 20;

/// An array of fixed capacity that grows at its end while other threads read it.
///
/// From 2 MiB on it is a mapping of its own, whose huge pages are not touched before values are added to them.
///
/// Added values must live as long as the table's type says:
///
/// ```compile_fail
/// let table = uext4_blockdev::Table::<&'static str>::with_capacity(2);
/// {
///     let short = String::from("gone soon");
///     let as_short: &uext4_blockdev::Table<&str> = &table;
///     as_short.append(&[short.as_str()]);
/// }
/// ```
pub struct Table<T> {
    base: NonNull<T>,
    layout: Layout,
    capacity: usize,
    /// Number of values. Stored after the values are written, under the lock `adding`.
    length: AtomicUsize,
    adding: Mutex<()>,
    /// Written through `&self`, so invariant in `T`: a shorter-lived value must not get in through a reference to the
    /// table under another type.
    _invariant: PhantomData<UnsafeCell<T>>,
}

// SAFETY: the table owns its memory. Values below `length` are not written again, and are written before `length`
// says so (release, acquire), so sharing the table shares `&T` only; `append` takes `T` from any thread.
unsafe impl<T: Copy + Send + Sync> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Send + Sync> Sync for Table<T> {}

impl<T: Copy> Table<T> {
    /// An empty table with room for `capacity` values, at least one.
    ///
    /// Aborts, as other allocations do, if the system refuses memory.
    ///
    /// # Panics
    /// If `capacity` values exceed the address space, if `T` is zero-sized, or if it is aligned to a huge page.
    pub fn with_capacity(capacity: usize) -> Self {
        assert!(size_of::<T>() > 0, "a table of zero-sized values");
        assert!(align_of::<T>() < HUGE_PAGE, "the alignment of a huge page marks a mapping");
        let capacity = capacity.max(1);
        let exact = Layout::array::<T>(capacity).expect("a table that fits the address space");
        let huge = exact.size() >= HUGE_PAGE;
        let layout = if huge {
            exact.align_to(HUGE_PAGE).expect("a table that fits the address space").pad_to_align()
        } else {
            exact
        };
        let base = if huge { map_huge(layout) } else { allocate(layout) };
        Table {
            base: base.cast(),
            layout,
            capacity,
            length: AtomicUsize::new(0),
            adding: Mutex::new(()),
            _invariant: PhantomData,
        }
    }

    /// Adds `values` at the end and returns the index of the first; `None` if there is no room for all of them.
    pub fn append(&self, values: &[T]) -> Option<usize> {
        let _adding = self.adding.lock();
        let length = self.length.load(Ordering::Relaxed);
        if values.len() > self.capacity - length {
            return None;
        }
        // SAFETY: `length + values.len() <= capacity`, so the range lies in the table's memory; it is past `length`, so
        // nobody reads it yet, and the lock keeps other writers out. `values` is borrowed memory and cannot overlap it:
        // `slice` gives out only values below `length`.
        unsafe { self.base.add(length).copy_from_nonoverlapping(NonNull::from(values).cast(), values.len()) };
        self.length.store(length + values.len(), Ordering::Release);
        Some(length)
    }

    /// All values added so far.
    #[inline]
    pub fn values(&self) -> &[T] {
        let length = self.length.load(Ordering::Acquire);
        // SAFETY: the first `length` values were written before `length` was stored, and nobody writes them again
        // while the table lives.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), length) }
    }

    /// The values in `range`.
    ///
    /// # Panics
    /// If `range` exceeds the values added so far.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &[T] {
        &self.values()[range]
    }
}

/// Heap memory. `layout` is not empty.
fn allocate(layout: Layout) -> NonNull<u8> {
    assert!(layout.size() > 0, "a zero-sized layout");
    // SAFETY: the layout has a size.
    let bytes = unsafe { alloc(layout) };
    NonNull::new(bytes).unwrap_or_else(|| handle_alloc_error(layout))
}

/// A new mapping, aligned to a huge page. `layout` is whole huge pages, aligned to one.
fn map_huge(layout: Layout) -> NonNull<u8> {
    let length = layout.size();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new anonymous mapping at an address the kernel chooses touches no existing memory.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length + HUGE_PAGE, access, flags) };
    let Ok(start) = mapped else { handle_alloc_error(layout) };
    let front = start.addr().wrapping_neg() % HUGE_PAGE;
    // SAFETY: `front < HUGE_PAGE`, so `base` and the `length` bytes from it lie in the mapping; only the whole pages
    // before and after them are unmapped, to which there is no pointer. The advice changes no contents. A kernel that
    // refuses any of this leaves small pages or unused address space.
    unsafe {
        let base = start.byte_add(front);
        if front > 0 {
            let _ = rustix::mm::munmap(start, front);
        }
        let _ = rustix::mm::munmap(base.byte_add(length), HUGE_PAGE - front);
        let _ = rustix::mm::madvise(base, length, Advice::LinuxHugepage);
        NonNull::new(base.cast()).unwrap_or_else(|| handle_alloc_error(layout))
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        let base = self.base.as_ptr();
        // The values are `Copy`, so none needs to be dropped.
        // SAFETY: the memory came from `map_huge` or `allocate` with this layout (only the former's has this
        // alignment), and nobody borrows the table any more. A failure to unmap only leaks.
        unsafe {
            if self.layout.align() >= HUGE_PAGE {
                let _ = rustix::mm::munmap(base.cast(), self.layout.size());
            } else {
                dealloc(base.cast(), self.layout);
            }
        }
    }
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.length.load(Ordering::Relaxed);
        f.debug_struct("Table").field("length", &length).field("capacity", &self.capacity).finish()
    }
}
