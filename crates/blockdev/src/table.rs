//! Values that are only ever added and never moved, in one piece of memory: of huge pages once it is that long.
//!
//! Made for look-ups at random places in megabytes: with small pages nearly each of them also waits for the
//! processor to walk the page tables, twice over in a virtual machine.

use parking_lot::Mutex;
use rustix::mm::Advice;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The usual size of a huge page. On machines with others the advice is worth less and hurts nothing.
const HUGE_PAGE: usize = 2 << 20;

/// An array of fixed capacity that grows at its end while others read what is there.
///
/// Memory that no value was ever added to is not touched, apart from the rest of a huge page.
pub struct Table<T> {
    base: NonNull<T>,
    layout: Layout,
    capacity: usize,
    /// Values that are there. Stored after they were written, by whoever holds `adding`.
    length: AtomicUsize,
    adding: Mutex<()>,
}

// SAFETY: the table owns its memory. Values below `length` are not written again, and are written before `length`
// says so (release, acquire), so sharing the table shares `&T` only; `append` takes `T` from any thread.
unsafe impl<T: Copy + Send + Sync> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Send + Sync> Sync for Table<T> {}

impl<T: Copy> Table<T> {
    /// An empty table with room for `capacity` values, at least one.
    ///
    /// # Panics
    /// If so many values exceed the address space, or `T` has no size.
    pub fn with_capacity(capacity: usize) -> Self {
        assert!(size_of::<T>() > 0, "a table of nothing");
        let capacity = capacity.max(1);
        let exact = Layout::array::<T>(capacity).expect("a table that fits the address space");
        let huge = exact.size() >= HUGE_PAGE;
        let layout = if huge {
            exact.align_to(HUGE_PAGE).expect("a table that fits the address space").pad_to_align()
        } else {
            exact
        };
        // SAFETY: the layout has a size: neither `T` nor `capacity` is zero.
        let bytes = unsafe { alloc(layout) };
        let Some(base) = NonNull::new(bytes.cast::<T>()) else { handle_alloc_error(layout) };
        if huge {
            // A kernel that refuses leaves small pages.
            // SAFETY: exactly the memory allocated above, whole huge pages; the advice changes no contents.
            let _ = unsafe { rustix::mm::madvise(bytes.cast(), layout.size(), Advice::LinuxHugepage) };
        }
        Table { base, layout, capacity, length: AtomicUsize::new(0), adding: Mutex::new(()) }
    }

    /// Adds `values` at the end and returns the index of the first; `None` if there is no room for all of them.
    pub fn append(&self, values: &[T]) -> Option<usize> {
        let _adding = self.adding.lock();
        let length = self.length.load(Ordering::Relaxed);
        if values.len() > self.capacity - length {
            return None;
        }
        // SAFETY: `length + values.len() <= capacity`, so the range lies in the table's memory; it is behind
        // `length`, so nobody reads it yet, and the lock keeps other writers out. `values` is borrowed memory and
        // cannot lie there: `slice` gives out only what is below `length`.
        unsafe { self.base.add(length).copy_from_nonoverlapping(NonNull::from(values).cast(), values.len()) };
        self.length.store(length + values.len(), Ordering::Release);
        Some(length)
    }

    /// The values that are there.
    #[inline]
    pub fn values(&self) -> &[T] {
        let length = self.length.load(Ordering::Acquire);
        // SAFETY: the first `length` values were written before `length` was stored, and nobody writes them again
        // while the table lives.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), length) }
    }

    /// Some of the values.
    ///
    /// # Panics
    /// If they are not all there.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &[T] {
        &self.values()[range]
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        // The values are `Copy`: nothing of them is to be dropped.
        // SAFETY: the memory came from `alloc` with this layout, and nobody borrows the table any more.
        unsafe { dealloc(self.base.as_ptr().cast(), self.layout) };
    }
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.length.load(Ordering::Relaxed);
        f.debug_struct("Table").field("length", &length).field("capacity", &self.capacity).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_where_they_were_added() {
        let table = Table::with_capacity(5);
        assert_eq!(table.append(&[1u64, 2]), Some(0));
        let first = table.slice(0..2);
        assert_eq!(table.append(&[3]), Some(2));
        assert_eq!((first, table.values()), (&[1, 2][..], &[1, 2, 3][..]));
        assert_eq!(table.append(&[4, 5, 6]), None, "no room for all");
        assert_eq!(table.append(&[4, 5]), Some(3));
        assert_eq!(table.append(&[6]), None);
        assert_eq!(table.values(), [1, 2, 3, 4, 5]);
        assert_eq!(table.append(&[]), Some(5));
    }

    #[test]
    fn long_tables_lie_on_huge_pages() {
        let table = Table::<[u64; 8]>::with_capacity(HUGE_PAGE / 64);
        assert_eq!(table.base.as_ptr() as usize % HUGE_PAGE, 0);
        let line = |number: u64| [number; 8];
        for number in 0..(HUGE_PAGE / 64) as u64 {
            assert_eq!(table.append(&[line(number)]), Some(number as usize));
        }
        assert!(table.append(&[line(0)]).is_none());
        assert!(table.values().iter().enumerate().all(|(index, value)| *value == line(index as u64)));
    }

    #[test]
    #[should_panic = "range end index 2 out of range"]
    fn what_is_not_there_is_not_given_out() {
        let table = Table::with_capacity(5);
        table.append(&[1u64]);
        table.slice(0..2);
    }

    #[test]
    fn readers_see_whole_values_while_others_are_added() {
        let table = Table::with_capacity(1 << 16);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let table = &table;
                scope.spawn(move || while table.append(&[[thread; 4]; 3]).is_some() {});
            }
            let mut seen = 0;
            while seen < (1 << 16) - 2 {
                let values = table.values();
                assert!(values.chunks(3).all(|three| three.iter().all(|value| *value == [three[0][0]; 4])));
                seen = values.len();
            }
        });
        assert_eq!(table.values().len(), 65535);
    }
}
