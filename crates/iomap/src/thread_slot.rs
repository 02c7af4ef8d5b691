//! A small number for each thread, unique while the thread lives, so that synchronous calls can own a cache line per
//! inode and per volume without registering.

/// Number of threads that get their own line. Later threads share one more, with atomic additions.
#[cfg(not(loom))]
pub const OWNED_SLOTS: usize = 64;

/// Few enough for a model: each further line adds a load to every exclusive hold.
#[cfg(loom)]
pub const OWNED_SLOTS: usize = 2;

/// Index of the line that all further threads share.
pub const SHARED_SLOT: usize = OWNED_SLOTS;

#[cfg(loom)]
pub use model::{own_slot, thread_slot};
#[cfg(not(loom))]
pub use tickets::thread_slot;

/// loom's threads are not system threads. A model assigns each its line; the assignment of numbers is not explored.
#[cfg(loom)]
mod model {
    use super::{OWNED_SLOTS, SHARED_SLOT};
    use std::cell::Cell;

    loom::thread_local! {
        static SLOT: Cell<usize> = Cell::new(SHARED_SLOT);
    }

    /// Gives the calling thread the line `slot`, which no other thread of the model may own.
    pub fn own_slot(slot: usize) {
        assert!(slot < OWNED_SLOTS);
        SLOT.with(|own| own.set(slot));
    }

    /// This thread's slot: the shared one unless it was given another.
    pub fn thread_slot() -> usize {
        SLOT.with(Cell::get)
    }
}

#[cfg(not(loom))]
mod tickets {
    use super::SHARED_SLOT;
    use parking_lot::Mutex;

    static FREE: Mutex<Free> = Mutex::new(Free { bits: u64::MAX });

    struct Free {
        bits: u64,
    }

    struct SlotIndex(usize);

    impl SlotIndex {
        fn take() -> Self {
            let mut free = FREE.lock();
            if free.bits == 0 {
                return SlotIndex(SHARED_SLOT);
            }
            let index = free.bits.trailing_zeros() as usize;
            free.bits &= free.bits - 1;
            SlotIndex(index)
        }
    }

    impl Drop for SlotIndex {
        fn drop(&mut self) {
            // The lock orders this thread's plain stores to its lines before the next owner's loads.
            NUMBER.set(SHARED_SLOT + 1);
            if self.0 != SHARED_SLOT {
                FREE.lock().bits |= 1 << self.0;
            }
        }
    }

    thread_local! {
        static TICKET: SlotIndex = SlotIndex::take();
        /// A copy of the ticket's number plus 1, for fast access, since it has no destructor. 0: no ticket yet.
        static NUMBER: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    /// This thread's slot: below [`OWNED_SLOTS`] it is the only writer of lines with this index.
    #[inline(always)]
    pub fn thread_slot() -> usize {
        match NUMBER.get() {
            0 => take_ticket(),
            number => number - 1,
        }
    }

    #[cold]
    fn take_ticket() -> usize {
        // A thread that is ending has returned its ticket and uses the shared line.
        let slot = TICKET.try_with(|ticket| ticket.0).unwrap_or(SHARED_SLOT);
        NUMBER.set(slot + 1);
        slot
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_unique_among_living_threads_and_reused() {
        let barrier = std::sync::Barrier::new(OWNED_SLOTS + 8);
        let mut seen: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..OWNED_SLOTS + 8)
                .map(|_| {
                    scope.spawn(|| {
                        let slot = thread_slot();
                        barrier.wait();
                        slot
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        seen.retain(|&slot| slot != SHARED_SLOT);
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count, "two living threads had one slot");
        let again = std::thread::spawn(thread_slot).join().unwrap();
        assert!(again < OWNED_SLOTS, "slots of ended threads are free again");
    }
}
