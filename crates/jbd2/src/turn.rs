//! Who commits: one thread at a time, whoever finds nobody at it. The others wait for it.
//!
//! A thread that wants a transaction committed takes the turn, or waits until whoever has it gives it back, and looks
//! again: its transaction was committed meanwhile, or it is its turn, for all that waited with it.

use crate::sync::{AtomicBool, Ordering};
use crate::wait::WaitQueue;

/// The right to commit.
#[derive(Debug)]
pub struct CommitTurn {
    taken: AtomicBool,
    waiters: WaitQueue,
}

/// The turn is taken. Dropping it gives it back and wakes who waits.
#[derive(Debug)]
#[must_use = "the turn is given back as soon as this is dropped"]
pub struct Taken<'t>(&'t CommitTurn);

impl Default for CommitTurn {
    fn default() -> Self {
        CommitTurn::new()
    }
}

impl CommitTurn {
    /// Nobody commits.
    #[must_use]
    pub fn new() -> CommitTurn {
        CommitTurn { taken: AtomicBool::new(false), waiters: WaitQueue::new() }
    }

    fn take(&self) -> Option<Taken<'_>> {
        // A failed attempt must not write: the line belongs to whoever commits.
        let taken = self.taken.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok().then(|| Taken(self))
    }

    /// Takes the turn unless `done`. Sleeps while another thread has it; `None` once `done` says so. `done` is asked
    /// again after every turn of others and every [`CommitTurn::wake`].
    pub fn take_unless(&self, done: impl Fn() -> bool) -> Option<Taken<'_>> {
        loop {
            if done() {
                return None;
            }
            if let Some(taken) = self.take() {
                // Whoever had the turn before may have done it.
                return if done() { None } else { Some(taken) };
            }
            let ticket = self.waiters.enter();
            if !done() && self.taken.load(Ordering::SeqCst) {
                ticket.sleep();
            }
        }
    }

    /// Wakes everybody who waits, to look again.
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
