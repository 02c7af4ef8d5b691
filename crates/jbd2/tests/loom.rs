//! Models of the commit hand-over, explored by loom: who commits, who waits, who may return.
//!
//! What is bounded: three preemptions a run, three threads. A transaction is a number here: the one that runs, and the
//! last committed one. Whoever has the turn makes the running one committed and begins the next.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p uext4-jbd2 --test loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use uext4_jbd2::turn::CommitTurn;

struct Journal {
    turn: CommitTurn,
    running: AtomicU64,
    committed: AtomicU64,
    aborted: AtomicBool,
    /// Somebody writes the log.
    writing: AtomicBool,
    commits: AtomicU64,
}

impl Journal {
    fn new() -> Arc<Journal> {
        Arc::new(Journal {
            turn: CommitTurn::new(),
            running: AtomicU64::new(1),
            committed: AtomicU64::new(0),
            aborted: AtomicBool::new(false),
            writing: AtomicBool::new(false),
            commits: AtomicU64::new(0),
        })
    }

    /// Joins the running transaction and returns its number.
    fn change(&self) -> u64 {
        self.running.load(Ordering::SeqCst)
    }

    fn datasync(&self, tid: u64) -> bool {
        let done = || self.committed.load(Ordering::SeqCst) >= tid || self.aborted.load(Ordering::SeqCst);
        while let Some(turn) = self.turn.take_unless(done) {
            let tid = self.running.fetch_add(1, Ordering::SeqCst);
            assert!(!self.writing.swap(true, Ordering::SeqCst), "two commit at once");
            self.commits.fetch_add(1, Ordering::SeqCst);
            self.committed.store(tid, Ordering::SeqCst);
            self.writing.store(false, Ordering::SeqCst);
            drop(turn);
        }
        !self.aborted.load(Ordering::SeqCst)
    }

    fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }
}

fn model(name: &str, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
    println!("model {name}: explored");
}

/// Whoever returns is committed; nobody sleeps for ever; commits are shared or one after the other.
#[test]
fn everybody_who_returns_is_committed() {
    model("everybody_who_returns_is_committed", || {
        let journal = Journal::new();
        let others = [0, 1].map(|_| {
            let journal = Arc::clone(&journal);
            thread::spawn(move || {
                let tid = journal.change();
                assert!(journal.datasync(tid));
                assert!(journal.committed.load(Ordering::SeqCst) >= tid);
            })
        });
        let tid = journal.change();
        assert!(journal.datasync(tid));
        assert!(journal.committed.load(Ordering::SeqCst) >= tid);
        others.into_iter().for_each(|other| other.join().unwrap());
        let commits = journal.commits();
        assert!((1..=3).contains(&commits), "{commits}");
        assert_eq!(commits, journal.committed.load(Ordering::SeqCst));
    });
}

/// Three that want the same transaction share one commit.
#[test]
fn one_transaction_is_committed_once() {
    model("one_transaction_is_committed_once", || {
        let journal = Journal::new();
        let others = [0, 1].map(|_| {
            let journal = Arc::clone(&journal);
            thread::spawn(move || assert!(journal.datasync(1)))
        });
        assert!(journal.datasync(1));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(journal.commits(), 1);
    });
}

/// An abort wakes who waits, whatever the one who commits does.
#[test]
fn an_abort_wakes_who_waits() {
    model("an_abort_wakes_who_waits", || {
        let journal = Journal::new();
        let turn = journal.turn.take_unless(|| false).unwrap();
        let waiter = {
            let journal = Arc::clone(&journal);
            thread::spawn(move || journal.datasync(1))
        };
        journal.aborted.store(true, Ordering::SeqCst);
        journal.turn.wake();
        assert!(!waiter.join().unwrap(), "it cannot have been committed");
        drop(turn);
    });
}
