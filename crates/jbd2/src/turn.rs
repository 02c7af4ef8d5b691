//! The commit turn: one thread commits at a time, the first that finds the turn free. The others wait for it.
//!
//! A thread that needs a transaction committed takes the turn, or waits until the turn is released and checks again:
//! either its transaction has been committed, or it takes the turn and commits for all that waited with it.

use crate::sync::{AtomicBool, Ordering};
use crate::wait::WaitQueue;

/// The right to commit.
#[derive(Debug)]
pub struct CommitTurn {
    taken: AtomicBool,
    waiters: WaitQueue,
}

/// The turn, taken. Dropping it releases the turn and wakes the waiters.
#[derive(Debug)]
#[must_use = "the turn is given back as soon as this is dropped"]
pub struct Taken<'t>(&'t CommitTurn);

impl Default for CommitTurn {
    fn default() -> Self {
        CommitTurn::new()
    }
}

impl CommitTurn {
    /// A free turn.
    #[must_use]
    pub fn new() -> CommitTurn {
        CommitTurn { taken: AtomicBool::new(false), waiters: WaitQueue::new() }
    }

    fn take(&self) -> Option<Taken<'_>> {
        // A failed attempt must not write: the cache line belongs to the committing thread.
        let taken = self.taken.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok().then(|| Taken(self))
    }

    /// Takes the turn unless `done`. Sleeps while another thread has it; `None` once `done` returns true. `done` is
    /// checked again after every turn of another thread and every [`CommitTurn::wake`].
    pub fn take_unless(&self, done: impl Fn() -> bool) -> Option<Taken<'_>> {
        loop {
            if done() {
                return None;
            }
            if let Some(taken) = self.take() {
                // The previous turn may have done the work.
                return if done() { None } else { Some(taken) };
            }
            let ticket = self.waiters.enter();
            if !done() && self.taken.load(Ordering::SeqCst) {
                ticket.sleep();
            }
        }
    }

    /// Wakes all waiters to check again.
    pub fn wake(&self) {
        self.waiters.announce_always();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::SeqCst);
        self.0.waiters.announce();
    }
}
