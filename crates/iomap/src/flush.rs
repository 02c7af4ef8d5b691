//! Flush tickets: concurrent flushes share one.
//!
//! A flush makes durable what was complete before it *started*. So each caller draws a ticket, the number of the next
//! flush to start, and is served by that flush or any later one that succeeds. One flush runs at a time; callers that
//! arrive during it wait for the next, which the first of them starts and all share. `tests/loom.rs` explores it.

use crate::sync::{Condvar, Mutex};

/// The flushes of one volume.
#[derive(Debug)]
pub struct FlushTickets {
    flushes: Mutex<Flushing>,
    over: Condvar,
}

#[derive(Debug)]
struct Flushing {
    /// Flushes started so far: the number of the latest.
    started: u64,
    /// The latest that succeeded.
    covered: u64,
    running: bool,
}

impl Default for FlushTickets {
    fn default() -> Self {
        Self::new()
    }
}

impl FlushTickets {
    /// None so far.
    pub fn new() -> Self {
        FlushTickets {
            flushes: Mutex::new(Flushing { started: 0, covered: 0, running: false }),
            over: Condvar::new(),
        }
    }

    /// Returns once a `flush` that started after this call has succeeded: this caller's own, or a concurrent caller's.
    ///
    /// # Errors
    /// The error of this caller's own `flush`. A failed flush covers no waiter: each of them runs its own, which must
    /// fail if the earlier failure cannot be repaired.
    pub fn covered<E>(&self, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut flushes = self.flushes.lock();
        let ticket = flushes.started + 1;
        while flushes.running {
            flushes = self.over.wait(&self.flushes, flushes);
            if flushes.covered >= ticket {
                return Ok(());
            }
        }
        flushes.running = true;
        flushes.started += 1;
        drop(flushes);
        // Ends the run even if `flush` panics; then it covers no caller.
        let mut run = RunningFlush { tickets: self, succeeded: false };
        let flushed = flush();
        run.succeeded = flushed.is_ok();
        flushed
    }
}

/// The running flush. There is only one, so its number is the latest started.
struct RunningFlush<'a> {
    tickets: &'a FlushTickets,
    succeeded: bool,
}

impl Drop for RunningFlush<'_> {
    fn drop(&mut self) {
        let mut flushes = self.tickets.flushes.lock();
        flushes.running = false;
        if self.succeeded {
            flushes.covered = flushes.started;
        }
        drop(flushes);
        self.tickets.over.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn who_arrives_during_a_flush_shares_the_next() {
        let tickets = FlushTickets::new();
        let flushes = AtomicU32::new(0);
        let began = AtomicBool::new(false);
        let flush = || {
            flushes.fetch_add(1, Ordering::SeqCst);
            began.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            Ok::<(), ()>(())
        };
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| tickets.covered(flush));
            while !began.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            for _ in 0..15 {
                scope.spawn(|| tickets.covered(flush));
            }
        });
        // The first flush cannot cover the others; a second covers them all. A thread that arrived after the second
        // began (on a loaded machine) needs a third.
        let flushes = flushes.load(Ordering::SeqCst);
        assert!((2..=3).contains(&flushes), "{flushes} flushes in {:?}", started.elapsed());
    }

    #[test]
    fn a_failed_flush_covers_nobody() {
        let tickets = FlushTickets::new();
        let began = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let failed = tickets.covered(|| {
                    began.store(true, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(50));
                    Err("the first")
                });
                assert_eq!(failed, Err("the first"));
            });
            while !began.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let others: Vec<_> = (0..4).map(|_| scope.spawn(|| tickets.covered(|| Err("another")))).collect();
            for other in others {
                assert_eq!(other.join().unwrap(), Err("another"));
            }
        });
    }

    #[test]
    fn a_panic_ends_its_flush() {
        let tickets = FlushTickets::new();
        let run =
            std::panic::AssertUnwindSafe(|| tickets.covered(|| -> Result<(), ()> { panic!("on purpose") }));
        assert!(std::panic::catch_unwind(run).is_err());
        assert_eq!(tickets.covered(|| Ok::<(), ()>(())), Ok(()));
    }
}
