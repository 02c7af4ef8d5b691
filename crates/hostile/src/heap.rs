//! An allocator that counts, for every program that uses this crate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread allocated and nobody freed here; negative if it freed what others allocated.
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(change: isize) {
    // At the end of a thread its cells are gone; what it still frees is of no interest.
    let _gone = NOW.try_with(|now| {
        now.set(now.get() + change);
        let _gone = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may exist at once while the bytes move.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises, passed on.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Starts a measurement on this thread.
pub fn start() {
    PEAK.set(NOW.get());
}

/// Bytes on the heap of this thread now.
pub fn now() -> isize {
    NOW.get()
}

/// Most bytes on the heap of this thread since the start.
pub fn peak() -> isize {
    PEAK.get()
}
