//! Aligned memory for device transfers.
//!
//! Cached images are exact-size `Arc<[u8]>`s without alignment promises; a transfer goes through one of a few
//! reused bounce areas that obey [`uext4_blockdev::Geometry::memory_align`]. The copy costs far less than the
//! device request and keeps the cache free of padding.

use crate::sync::Mutex;

/// Idle areas kept for reuse; more exist only while more transfers run at once.
const KEEP: usize = 8;

/// Bounce areas of one size and alignment.
#[derive(Debug)]
pub(crate) struct ScratchPool {
    length: usize,
    align: usize,
    idle: Mutex<Vec<Vec<u8>>>,
}

impl ScratchPool {
    /// Areas of `length` bytes whose address is a multiple of `align` (a power of two).
    pub(crate) fn new(length: usize, align: usize) -> Self {
        ScratchPool { length, align: align.max(1), idle: Mutex::new(Vec::with_capacity(KEEP)) }
    }

    /// Runs `transfer` on an area with undefined (but initialised) contents.
    pub(crate) fn with<R>(&self, transfer: impl FnOnce(&mut [u8]) -> R) -> R {
        // Over-allocate and start at the first aligned byte: alignment without unsafe code.
        let mut memory = self.idle.lock().pop().unwrap_or_else(|| vec![0; self.length + self.align - 1]);
        let start = memory.as_ptr().addr().wrapping_neg() & (self.align - 1);
        let result = transfer(&mut memory[start..start + self.length]);
        let mut idle = self.idle.lock();
        if idle.len() < KEEP {
            idle.push(memory);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::ScratchPool;

    #[test]
    fn areas_are_aligned_and_exact() {
        for align in [1, 2, 512, 4096, 65536] {
            let pool = ScratchPool::new(1536, align);
            for _ in 0..3 {
                pool.with(|outer| {
                    assert_eq!(outer.len(), 1536);
                    assert_eq!(outer.as_ptr().addr() % align, 0);
                    outer.fill(1);
                    pool.with(|inner| {
                        inner.fill(2);
                        assert_eq!(inner.as_ptr().addr() % align, 0);
                    });
                    assert!(outer.iter().all(|byte| *byte == 1), "areas in use never overlap");
                });
            }
        }
    }
}
