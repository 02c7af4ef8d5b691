//! Completion work of queued requests outside their queue: converting the blocks they wrote and making them durable.
//!
//! A commit and a flush take milliseconds, and `poll` must not wait for them. So the remaining work of requests whose
//! transfers are done becomes a [`SyncJob`], which holds no part of the queue. The owner runs it in calls that may
//! wait, a drainer runs it outside the queue's lock, and `poll` hands it to the [`Flusher`], a thread that exists while
//! there are such jobs. The queue picks up the outcome when it is next driven.

use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{FileSystem, Synced};
use crate::pipeline::Fresh;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the flusher's thread stays idle before it exits.
const IDLE: Duration = Duration::from_secs(1);

/// Outcome of a job, set once it has ended.
pub(crate) struct Outcome<E> {
    known: Mutex<Known<E>>,
    over: Condvar,
}

struct Known<E> {
    result: Option<Ended<E>>,
    /// Wakes the queue's owner if it sleeps on a descriptor.
    wake: Option<Arc<Waker>>,
}

/// Results of the parts of a job.
#[derive(Clone)]
pub(crate) struct Ended<E> {
    /// Result of each conversion, in the order of [`SyncJob::convert`]. Empty if the conversions were never run.
    pub(crate) converted: Vec<Result<(), E>>,
    /// Result of the commit and flush.
    pub(crate) synced: Result<(), E>,
}

impl<E: Clone> Outcome<E> {
    fn new(wake: Option<Arc<Waker>>) -> Arc<Self> {
        Arc::new(Outcome { known: Mutex::new(Known { result: None, wake }), over: Condvar::new() })
    }

    /// The outcome, if the job has ended.
    pub(crate) fn get(&self) -> Option<Ended<E>> {
        self.known.lock().result.clone()
    }

    /// Also wakes `waker`: the owner asked for a descriptor while the job was running.
    pub(crate) fn wakes(&self, waker: &Arc<Waker>) {
        let mut known = self.known.lock();
        if known.result.is_some() {
            waker.wake();
        } else {
            known.wake = Some(waker.clone());
        }
    }

    /// Waits for the outcome, at most until `deadline`.
    pub(crate) fn wait(&self, deadline: Option<Instant>) {
        let mut known = self.known.lock();
        while known.result.is_none() {
            match deadline {
                None => self.over.wait(&mut known),
                Some(deadline) => {
                    if self.over.wait_until(&mut known, deadline).timed_out() {
                        return;
                    }
                }
            }
        }
    }

    fn set(&self, outcome: Ended<E>) {
        let mut known = self.known.lock();
        known.result.get_or_insert(outcome);
        self.over.notify_all();
        if let Some(wake) = &known.wake {
            wake.wake();
        }
    }
}

/// An event descriptor that becomes readable when an outcome arrives.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
    /// Set after the descriptor is written, so that clearing the flag before the descriptor loses no wake-up.
    raised: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker { event, raised: AtomicBool::new(false) })
    }

    /// Makes it readable.
    pub(crate) fn wake(&self) {
        // Any non-zero number will do, in any byte order. This fails only if the counter is at its maximum, and then
        // the descriptor is readable already.
        let _readable_anyway = rustix::io::write(&self.event, &1u64.to_le_bytes());
        self.raised.store(true, Ordering::Release);
    }

    /// Makes it unreadable. Check for outcomes after this call, not before.
    pub(crate) fn clear(&self) {
        if self.raised.swap(false, Ordering::Acquire) {
            let _count = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// One conversion of each inode, then one commit and one flush, for requests whose transfers are over. Must be run: the
/// requests stay in flight until its outcome is known.
#[must_use]
pub(crate) struct SyncJob<F: FileSystem> {
    engine: Arc<Engine<F>>,
    fresh: Vec<Fresh<F>>,
    /// Inodes to make durable, and for each whether that means every change (fsync) or only those needed to read the
    /// data back (fdatasync).
    inodes: Vec<(Arc<F::Inode>, bool)>,
    outcome: Arc<Outcome<F::Error>>,
}

impl<F: FileSystem> SyncJob<F> {
    /// An empty job.
    pub(crate) fn new(engine: &Arc<Engine<F>>, wake: Option<Arc<Waker>>) -> Self {
        SyncJob { engine: engine.clone(), fresh: Vec::new(), inodes: Vec::new(), outcome: Outcome::new(wake) }
    }

    /// Adds the conversion of the blocks that a write filled.
    pub(crate) fn convert(&mut self, fresh: Fresh<F>) {
        self.fresh.push(fresh);
    }

    /// Adds an inode to make durable.
    pub(crate) fn sync(&mut self, inode: &Arc<F::Inode>, all: bool) {
        match self.inodes.iter_mut().find(|(known, _)| Arc::ptr_eq(known, inode)) {
            Some((_, known)) => *known |= all,
            None => self.inodes.push((inode.clone(), all)),
        }
    }

    pub(crate) fn outcome(&self) -> Arc<Outcome<F::Error>> {
        self.outcome.clone()
    }

    /// Whether running it never waits: no handle to start, no cache to flush and no change to commit.
    pub(crate) fn is_short(&self) -> bool {
        let clean = |(inode, all): &(Arc<F::Inode>, bool)| !all && F::state(inode).datasync_tid().is_none();
        let flushes = self.engine.capabilities.volatile_cache && !self.inodes.is_empty();
        self.fresh.is_empty() && !flushes && self.inodes.iter().all(clean)
    }

    /// Runs the job and waits for it. The caller may hold its own queue's lock, but no other queue's, no gate and no
    /// map lock.
    pub(crate) fn run(self) {
        run_all(vec![self]);
    }
}

impl<F: FileSystem> Drop for SyncJob<F> {
    /// A job interrupted by a panic ends too, and its requests fail. Dropping a job that was not run is a bug in any
    /// other case.
    fn drop(&mut self) {
        if self.outcome.get().is_none() {
            self.outcome.set(Ended { converted: Vec::new(), synced: Err(Error::CutOff.into()) });
            debug_assert!(std::thread::panicking(), "a batch was dropped before it was made durable");
        }
    }
}

/// Runs all conversions of `jobs`, which belong to one engine; then one commit and one flush for those that need it.
fn run_all<F: FileSystem>(mut jobs: Vec<SyncJob<F>>) {
    let Some(first) = jobs.first() else { return };
    let engine = first.engine.clone();
    let convert = |job: &mut SyncJob<F>| engine.convert(std::mem::take(&mut job.fresh));
    let converted: Vec<_> = jobs.iter_mut().map(convert).collect();
    let end = |sync: bool, synced: Result<(), F::Error>| {
        for (job, converted) in jobs.iter().zip(&converted).filter(|(job, _)| job.inodes.is_empty() != sync) {
            job.outcome.set(Ended { converted: converted.clone(), synced: synced.clone() });
        }
    };
    end(false, Ok(()));
    let mut batch: Vec<Synced<'_, F>> = Vec::new();
    for (inode, all) in jobs.iter().flat_map(|job| &job.inodes) {
        match batch.iter_mut().find(|known| std::ptr::eq(known.inode, &**inode)) {
            Some(known) => known.all |= all,
            None => batch.push(Synced { inode, all: *all }),
        }
    }
    if !batch.is_empty() {
        end(true, engine.make_durable(&batch));
    }
}

/// Runs jobs for queues whose owners do not wait.
pub(crate) struct Flusher<F: FileSystem> {
    shared: Arc<Shared<F>>,
}

struct Shared<F: FileSystem> {
    waiting: Mutex<Waiting<F>>,
    more: Condvar,
}

struct Waiting<F: FileSystem> {
    jobs: Vec<SyncJob<F>>,
    /// A thread is running.
    manned: bool,
}

impl<F: FileSystem> Flusher<F> {
    pub(crate) fn new() -> Self {
        let waiting = Mutex::new(Waiting { jobs: Vec::new(), manned: false });
        Flusher { shared: Arc::new(Shared { waiting, more: Condvar::new() }) }
    }

    /// Runs `job` soon, together with other waiting jobs. If no thread can be created, it runs here at once.
    pub(crate) fn take(&self, job: SyncJob<F>) {
        let mut waiting = self.shared.waiting.lock();
        waiting.jobs.push(job);
        if waiting.manned {
            self.shared.more.notify_one();
            return;
        }
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("uext4-flush".into()).spawn(move || shared.serve());
        waiting.manned = thread.is_ok();
        if !waiting.manned {
            let jobs = std::mem::take(&mut waiting.jobs);
            drop(waiting);
            run_all(jobs);
        }
    }
}

impl<F: FileSystem> Shared<F> {
    fn serve(&self) {
        let _leaving = Leaving(self);
        loop {
            let mut waiting = self.waiting.lock();
            while waiting.jobs.is_empty() {
                if self.more.wait_for(&mut waiting, IDLE).timed_out() && waiting.jobs.is_empty() {
                    waiting.manned = false;
                    return;
                }
            }
            let jobs = std::mem::take(&mut waiting.jobs);
            drop(waiting);
            run_all(jobs);
        }
    }
}

/// If a panic ends the thread, the next job starts a new one, and none waits for this one.
struct Leaving<'a, F: FileSystem>(&'a Shared<F>);

impl<F: FileSystem> Drop for Leaving<'_, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut waiting = self.0.waiting.lock();
            waiting.manned = false;
            let jobs = std::mem::take(&mut waiting.jobs);
            drop(waiting);
            drop(jobs);
        }
    }
}
