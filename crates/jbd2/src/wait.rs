//! Sleeping for a condition that others make true without taking a lock.
//!
//! The waker changes an atomic, then checks for waiters; the waiter registers itself, then checks the atomic once more
//! before it sleeps. Both are a store followed by a load, sequentially consistent, so at least one of the two sees the
//! other: no wake-up is lost, and without waiters a waker pays one load.

use crate::sync::{AtomicU32, Condvar, Mutex, Ordering, order_store_before_load};

#[derive(Debug)]
pub(crate) struct WaitQueue {
    waiting: AtomicU32,
    /// Announcements so far.
    epoch: Mutex<u64>,
    announced: Condvar,
}

impl WaitQueue {
    pub(crate) fn new() -> Self {
        WaitQueue { waiting: AtomicU32::new(0), epoch: Mutex::new(0), announced: Condvar::new() }
    }

    /// Registers the caller as a waiter. It must check its condition again before [`Waiter::sleep`].
    pub(crate) fn enter(&self) -> Waiter<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        order_store_before_load();
        Waiter { queue: self, epoch: *self.epoch.lock() }
    }

    /// Wakes all waiters, if there are any. The caller has changed the condition with sequentially consistent ordering.
    #[inline]
    pub(crate) fn announce(&self) {
        order_store_before_load();
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.announce_always();
        }
    }

    /// Wakes all waiters. The condition may have been changed with any ordering: the queue's mutex orders it.
    #[cold]
    pub(crate) fn announce_always(&self) {
        *self.epoch.lock() += 1;
        self.announced.notify_all();
    }
}

/// A registered waiter; dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    queue: &'a WaitQueue,
    epoch: u64,
}

impl Waiter<'_> {
    /// Sleeps until the next announcement after [`WaitQueue::enter`].
    pub(crate) fn sleep(self) {
        let taken = self.epoch;
        #[cfg(not(loom))]
        {
            let mut epoch = self.queue.epoch.lock();
            self.queue.announced.wait_while(&mut epoch, |epoch| *epoch == taken);
        }
        #[cfg(loom)]
        self.queue.announced.wait_while(self.queue.epoch.lock(), |epoch| *epoch == taken);
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p uext4-jbd2 --lib`: every interleaving of waiters and a waker.
#[cfg(all(loom, test))]
mod model {
    use super::WaitQueue;
    use crate::transaction::Account;
    use loom::sync::Arc;
    use loom::thread;

    struct Journal {
        account: Account,
        starters: WaitQueue,
        quiescers: WaitQueue,
    }

    impl Journal {
        /// One credit in all, held by one active handle.
        fn full() -> Arc<Journal> {
            let account = Account::new(0);
            assert!(account.reserve(1, 1));
            account.begin();
            Arc::new(Journal { account, starters: WaitQueue::new(), quiescers: WaitQueue::new() })
        }

        fn start(&self) {
            loop {
                if self.account.reserve(1, 1) {
                    break;
                }
                let ticket = self.starters.enter();
                if self.account.reserve(1, 1) {
                    break;
                }
                ticket.sleep();
            }
            self.account.begin();
        }

        fn stop(&self) {
            self.account.end(1);
            self.starters.announce();
            self.quiescers.announce();
        }

        fn quiesce(&self) {
            loop {
                let ticket = self.quiescers.enter();
                if self.account.updates() == 0 {
                    return;
                }
                ticket.sleep();
            }
        }
    }

    /// A lost wake-up would leave the model in a deadlock, which loom reports.
    #[test]
    fn a_stop_wakes_a_start() {
        loom::model(|| {
            let journal = Journal::full();
            let other = Arc::clone(&journal);
            let starter = thread::spawn(move || {
                other.start();
                assert_eq!(other.account.outstanding(), 1);
            });
            journal.stop();
            starter.join().unwrap();
        });
    }

    #[test]
    fn starts_hand_the_credit_on() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let journal = Journal::full();
            let starters = [0, 1].map(|_| {
                let other = Arc::clone(&journal);
                thread::spawn(move || {
                    other.start();
                    assert!(other.account.outstanding() <= 1);
                    other.stop();
                })
            });
            journal.stop();
            for starter in starters {
                starter.join().unwrap();
            }
            assert_eq!((journal.account.updates(), journal.account.outstanding()), (0, 0));
        });
    }

    /// A thread that sees no active handle sees the credits that it returned.
    #[test]
    fn a_stop_wakes_a_quiescer() {
        loom::model(|| {
            let journal = Journal::full();
            let other = Arc::clone(&journal);
            let quiescer = thread::spawn(move || {
                other.quiesce();
                assert_eq!(other.account.outstanding(), 0);
            });
            journal.stop();
            quiescer.join().unwrap();
        });
    }
}
