//! A small number for each thread, unique while it lives, so that synchronous calls can own a cache line per
//! inode and per volume without registering anywhere.

use parking_lot::Mutex;

/// Threads that get a line of their own. Later threads share one more, with atomic additions.
pub const OWNED_SLOTS: usize = 64;

/// Index of the line that all further threads share.
pub const SHARED_SLOT: usize = OWNED_SLOTS;

static FREE: Mutex<Free> = Mutex::new(Free { bits: u64::MAX });

struct Free {
    bits: u64,
}

struct Ticket(usize);

impl Ticket {
    fn take() -> Self {
        let mut free = FREE.lock();
        if free.bits == 0 {
            return Ticket(SHARED_SLOT);
        }
        let index = free.bits.trailing_zeros() as usize;
        free.bits &= free.bits - 1;
        Ticket(index)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // The lock orders this thread's plain stores to its lines before the next owner's loads.
        NUMBER.set(SHARED_SLOT + 1);
        if self.0 != SHARED_SLOT {
            FREE.lock().bits |= 1 << self.0;
        }
    }
}

thread_local! {
    static TICKET: Ticket = Ticket::take();
    /// The ticket's number once it was taken, without a destructor: the quick way to it. 0 is none yet.
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
    // A thread that is ending has given its ticket back: it shares the last line.
    let slot = TICKET.try_with(|ticket| ticket.0).unwrap_or(SHARED_SLOT);
    NUMBER.set(slot + 1);
    slot
}

#[cfg(test)]
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
