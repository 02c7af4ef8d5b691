//! Threads that serve the queues of FUSE over io_uring, one queue for each processor.
//!
//! A request goes to the queue of the processor that its caller runs on, and there to the thread that was done last.
//! The threads of a queue stay on its processor, so that a request does not wake another one. Each has a ring and an
//! entry of its own, does the request in the entry's memory and sends the answer with the call that waits for the
//! next request. When few threads of a queue are idle another one starts, up to a limit; it stays, since an entry
//! cannot leave its queue.
//!
//! The kernel hands a request that found no idle entry to the next one that is answered, not to one that is
//! registered: when all threads hang with their device, it would wait for them. So a thread that joins has the kernel
//! send a request to its queue, whose answer fetches the one that waits.
//!
//! There are as many rings as there can be threads, made before the sandbox. A thread whose entry was taken over keeps
//! its ring and waits for another job.

use crate::aside::{Aside, Callers};
use crate::dev::Device;
use crate::reply::{Errno, Outcome};
use crate::request::{Request, cut};
use crate::ring::{Answered, Entry, Ring, Rings};
use crate::server::{Answer, Payload, Served};
use crate::transport::DATA_MAX;
use crate::wire::{InHeader, NOTIFY_RETRIEVE, OutHeader, RetrieveOut, RingHead, op};
use crate::work::{Last, Owed, Taker, Takers, Work};
use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Most threads of all queues together, if each can have [`QUEUE_LEAST`].
const ALL_MAX: usize = 256;
/// Most threads of a queue.
const QUEUE_MAX: usize = 32;
/// Threads that each queue may have in any case.
const QUEUE_LEAST: usize = 4;
/// Where the kernel lists the processors that there may be.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// A thread that is done with a large request gives its memory back while more threads of its queue are busy. Otherwise
/// it gets a huge page, which devices read and write in fewer pieces; that many threads and one more have one.
const LARGE_KEPT: usize = 2;
/// When to try again after a thread could not join a queue.
const AGAIN: Duration = Duration::from_secs(1);
/// Most threads that hang with a sync that was interrupted.
const HUNG_MAX: usize = 64;
/// Threads that shall be idle in a queue.
const IDLE_LEAST: usize = 3;
/// Numbers of requests that the kernel is asked to send: even ones from here on. Its own are far below. No two under
/// way have the same, since the kernel finds the entry of an answer by it.
const ASKED_FOR: u64 = 1 << 63;

/// How many threads a queue has, and how many of them do a request.
#[derive(Debug, Clone, Copy)]
struct Threads {
    all: usize,
    busy: usize,
    /// Those whose entries are huge pages.
    huge: usize,
    callers: Callers,
    /// When a thread could not join last.
    failed: Option<Instant>,
}

/// The queues of a mount.
pub(crate) struct Queues {
    work: Arc<Work>,
    rings: Rings,
    /// Threads with rings that have nothing to do.
    parked: Mutex<Vec<Sender<Job>>>,
    queues: Vec<Mutex<Threads>>,
    /// Most threads of one.
    most: usize,
    aside: Option<Arc<Aside>>,
    /// Threads that hang, and whose entries others have.
    hung: AtomicUsize,
    /// How many requests the kernel was asked to send.
    asked: AtomicU64,
    /// Told when a ring fails while the mount is there.
    broken: Broken,
    /// Each thread has a reference to this.
    _last: Last,
}

/// What a thread does until the mount is gone, or it has lost its entry.
enum Job {
    /// Begins a queue, and tells how that went. Nobody else is in it.
    Begin(u16, Begun),
    /// Joins a queue that lacks threads.
    Join(u16),
    /// Sends the answer that is in an entry, and serves its queue instead of a thread that hangs.
    TakeOver(Entry),
}

/// Tells that a queue has begun, or with which error it has not.
type Begun = Sender<Result<(), Option<i32>>>;

/// A thread that was called to take over an entry.
struct Called {
    queues: Weak<Queues>,
    give: Option<Sender<Job>>,
}

impl Drop for Called {
    fn drop(&mut self) {
        // It was not needed.
        if let (Some(queues), Some(give)) = (self.queues.upgrade(), self.give.take()) {
            queues.parked.lock().push(give);
        }
    }
}

/// Called with the error that makes the rings unusable.
pub(crate) type Broken = Box<dyn Fn(io::Error) + Send + Sync>;

/// The processors that the kernel has queues for, by number.
///
/// # Errors
/// If the kernel does not tell them.
pub(crate) fn processors() -> io::Result<usize> {
    let told = std::fs::read_to_string(POSSIBLE)?;
    count(told.trim()).ok_or_else(|| io::Error::other(format!("{POSSIBLE}: {told}")))
}

/// The processors in a list like `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let ranges = list.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        Some(usize::from(last.checked_sub(first)?) + 1)
    });
    ranges.sum()
}

/// The rings of a mount.
///
/// # Errors
/// If the kernel has none, or too few for a thread in each queue.
pub(crate) fn rings(device: &Device) -> io::Result<Rings> {
    let count = processors()?;
    // And one that tells the kernel that there are none.
    Rings::new(device, count * most(count) + HUNG_MAX + 1, count + 1)
}

/// Most threads of a queue if there are so many.
fn most(queues: usize) -> usize {
    // Processors that are off send no requests.
    let online = std::thread::available_parallelism().map_or(queues, std::num::NonZero::get);
    (ALL_MAX / online).clamp(QUEUE_LEAST, QUEUE_MAX)
}

/// Has the calling thread stay on a processor. It may not, or the processor may be off: it runs anywhere then.
fn stay_on(processor: u16) {
    let mut set = CpuSet::new();
    if usize::from(processor) < CpuSet::MAX_CPU {
        set.set(processor.into());
        let _anywhere = sched_setaffinity(None, &set);
    }
}

impl Threads {
    /// One does a request from now on. Returns whether one more is needed, which counts from now on.
    fn begins(&mut self, most: usize) -> bool {
        self.busy += 1;
        let few = self.busy + IDLE_LEAST > self.all && self.all < most;
        let more = few && self.failed.is_none_or(|failed| failed.elapsed() > AGAIN);
        self.all += usize::from(more);
        more
    }

    /// One that was counted is not there.
    fn could_not_join(&mut self) {
        self.all -= 1;
        self.failed = Some(Instant::now());
    }
}

impl Queues {
    /// Starts a thread for each queue, which serve as soon as all have begun.
    ///
    /// # Errors
    /// If a queue has none. The kernel may wait for it until [`Ring::refuse`].
    pub(crate) fn start(
        work: Arc<Work>,
        rings: Rings,
        broken: Broken,
        last: Last,
    ) -> io::Result<Weak<Queues>> {
        let count = processors()?;
        let queues = (0..count)
            .map(|_| Mutex::new(Threads { all: 1, busy: 0, huge: 0, callers: Callers::new(), failed: None }))
            .collect();
        let aside = Aside::new();
        if let Some(aside) = &aside {
            aside.watch()?;
        }
        let started = Arc::new(Queues {
            work,
            rings,
            parked: Mutex::default(),
            queues,
            most: most(count),
            aside,
            hung: AtomicUsize::new(0),
            asked: AtomicU64::new(0),
            broken,
            _last: last,
        });
        let (begun, begins) = channel();
        let all = (0..count).try_for_each(|queue| {
            let queue = u16::try_from(queue).map_err(io::Error::other)?;
            started.hand_out(Job::Begin(queue, begun.clone()))
        });
        drop(begun);
        let mut each = 0;
        for begun in begins {
            begun.map_err(|errno: Option<i32>| {
                errno.map_or_else(|| io::ErrorKind::Other.into(), io::Error::from_raw_os_error)
            })?;
            each += 1;
        }
        all?;
        if each < count {
            return Err(io::Error::other("a queue did not begin"));
        }
        Ok(Arc::downgrade(&started))
    }

    /// How many threads there are, and how many of them do a request.
    pub(crate) fn count(&self) -> (usize, usize) {
        let each = self.queues.iter().map(|queue| *queue.lock());
        each.fold((0, 0), |(all, busy), threads| (all + threads.all, busy + threads.busy))
    }

    /// What takes over entries whose threads hang.
    pub(crate) fn takers(queues: Weak<Queues>) -> Takers {
        Box::new(move || {
            let queues = queues.upgrade()?;
            if queues.hung.load(Ordering::Relaxed) >= HUNG_MAX {
                return None;
            }
            let mut called = queues.call()?;
            let take: Taker = Box::new(move |mut entry, unique, error| {
                let queue = usize::from(entry.queue());
                put(&mut entry, unique, Err(error));
                let Some(give) = called.give.take() else { return Err(entry) };
                if let Err(not_taken) = give.send(Job::TakeOver(entry)) {
                    return match not_taken.0 {
                        Job::TakeOver(entry) => Err(entry),
                        Job::Begin(..) | Job::Join(_) => Ok(()),
                    };
                }
                // The queue counts the thread that takes the entry instead of the one that hangs.
                queues.queues[queue].lock().busy -= 1;
                queues.hung.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            Some(take)
        })
    }

    /// A thread that has a ring and nothing to do.
    fn call(self: &Arc<Self>) -> Option<Called> {
        let parked = self.parked.lock().pop();
        let give = parked.or_else(|| {
            let (give, jobs) = channel();
            self.spawn(jobs).ok().map(|()| give)
        });
        give.map(|give| Called { queues: Arc::downgrade(self), give: Some(give) })
    }

    /// Has a thread do something.
    fn hand_out(self: &Arc<Self>, job: Job) -> io::Result<()> {
        let mut called = self.call().ok_or(io::ErrorKind::QuotaExceeded)?;
        let given = called.give.take().map(|give| give.send(job));
        given.and_then(Result::ok).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Starts a thread with a ring.
    fn spawn(self: &Arc<Self>, mut jobs: Receiver<Job>) -> io::Result<()> {
        let ring = Arc::new(Mutex::new(Some(self.rings.take()?)));
        let (taken, queues) = (ring.clone(), Arc::downgrade(self));
        let live = move || {
            let Some(mut ring) = taken.lock().take() else { return };
            ring.enable();
            while let Ok(job) = jobs.recv() {
                // Without an own reference while it waits: the threads that serve keep the mount.
                let Some(queues) = queues.upgrade() else { return };
                if !queues.does(job, &mut ring) {
                    return;
                }
                let (give, next) = channel();
                queues.parked.lock().push(give);
                jobs = next;
            }
        };
        let started = std::thread::Builder::new().name("uext4-queue".into()).spawn(live);
        if started.is_err()
            && let Some(unused) = ring.lock().take()
        {
            self.rings.give_back(unused);
        }
        started.map(|_| ())
    }

    /// Does a job to its end. Returns whether the thread can do others.
    fn does(self: &Arc<Self>, job: Job, ring: &mut Ring) -> bool {
        let queue = match job {
            Job::Begin(queue, begun) => {
                let joined = self.join(queue, ring);
                let told = begun.send(joined.as_ref().copied().map_err(io::Error::raw_os_error));
                // The starter waits until all have let go.
                drop(begun);
                if joined.is_err() || told.is_err() {
                    return false;
                }
                queue
            }
            Job::Join(queue) => {
                if self.join(queue, ring).is_err() {
                    self.queues[usize::from(queue)].lock().could_not_join();
                    return ring.is_free();
                }
                self.ask_for_a_request();
                queue
            }
            Job::TakeOver(entry) => {
                let queue = entry.queue();
                stay_on(queue);
                if ring.commit(entry).is_err() {
                    return false;
                }
                queue
            }
        };
        self.serve(queue, ring)
    }

    /// Adds an entry to a queue, with the ring of the calling thread.
    fn join(&self, queue: u16, ring: &mut Ring) -> io::Result<()> {
        stay_on(queue);
        ring.register(Entry::new(queue).map_err(io::Error::other)?)
    }

    /// Serves until the mount is gone, or another thread has taken over the entry; returns whether it is that.
    fn serve(self: &Arc<Self>, queue: u16, ring: &mut Ring) -> bool {
        let threads = &self.queues[usize::from(queue)];
        let courtesy = self.aside.as_ref().map(Aside::courtesy);
        loop {
            let entry = match ring.wait() {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                // Otherwise this caller and all later ones would wait for ever.
                Err(error) => {
                    (self.broken)(error);
                    break;
                }
            };
            if threads.lock().begins(self.most) && self.hand_out(Job::Join(queue)).is_err() {
                threads.lock().could_not_join();
            }
            let Some(entry) = self.handle(entry) else {
                self.hung.fetch_sub(1, Ordering::Relaxed);
                return true;
            };
            let mut counts = threads.lock();
            counts.busy -= 1;
            let caller = entry.caller;
            let again = courtesy.is_some()
                && caller.is_some_and(|caller| counts.callers.asks_all_the_time(caller, Instant::now()));
            let (many, huge) = (counts.busy > LARGE_KEPT, counts.huge);
            drop(counts);
            let (was_huge, large) = (entry.is_huge(), entry.is_large());
            let renews = large && (many || !was_huge && huge <= LARGE_KEPT);
            if ring.commit(entry).is_err() {
                break;
            }
            if let (Some(courtesy), true) = (&courtesy, again) {
                courtesy.answer(|| ring.send());
            }
            if renews && ring.renew(!many) {
                let mut counts = threads.lock();
                counts.huge = counts.huge + usize::from(!many) - usize::from(was_huge);
            }
        }
        threads.lock().all -= 1;
        false
    }

    /// Has the kernel send a request to the queue of the processor that the calling thread stays on: for what it has
    /// cached of a regular file, which is nothing at no length.
    fn ask_for_a_request(&self) {
        let served = self.work.served.read();
        let known = served.as_ref().map_or_else(Vec::new, |served| served.some_known());
        drop(served);
        // It refuses nodes of other kinds, and those that it has forgotten.
        let _none = known.into_iter().find(|&node| self.ask_for(node).is_ok());
    }

    fn ask_for(&self, node: u64) -> io::Result<()> {
        let unique = ASKED_FOR + 2 * self.asked.fetch_add(1, Ordering::Relaxed);
        let asked = RetrieveOut { unique, node, ..RetrieveOut::default() };
        let len = (size_of::<OutHeader>() + size_of_val(&asked)) as u32;
        let header = OutHeader { len, error: NOTIFY_RETRIEVE, unique: 0 };
        self.work.channel.send(&[IoSlice::new(header.as_bytes()), IoSlice::new(asked.as_bytes())])
    }

    /// How many answers were given aside, and how many threads were called back.
    pub(crate) fn aside(&self) -> Option<(u64, u64)> {
        self.aside.as_ref().map(|aside| aside.counts())
    }

    /// Does the request in an entry. Returns it with the answer, unless that was sent already.
    fn handle(&self, mut entry: Entry) -> Option<Entry> {
        let head = entry.head();
        let (came, memory) = entry.payload(head.payload as usize);
        let request = match Request::from_parts(&head, came) {
            Ok(request) => request,
            Err(error) => {
                let unique = cut::<InHeader>(&head.header).map_or(0, |(header, _)| header.unique);
                put(&mut entry, unique, Err(error));
                return Some(entry);
            }
        };
        let (unique, opcode) = (request.header.unique, request.header.opcode);
        // Nobody waits for the end of what is sent when a file is closed, or of what the kernel asks for itself.
        let waits = request.header.pid != 0 && !matches!(opcode, op::RELEASE | op::RELEASEDIR);
        let caller = waits.then_some(request.header.pid);
        if opcode == op::NOTIFY_REPLY {
            put(&mut entry, unique, Ok(Answer::DONE));
            return Some(entry);
        }
        if Served::is_sync(opcode) {
            return self.sync(entry, unique, &head);
        }
        let served = self.work.served.read();
        let outcome = self.work.outcome(served.as_deref(), &request, memory);
        put(&mut entry, unique, outcome);
        entry.caller = caller;
        Some(entry)
    }

    /// Does a sync while somebody else may take over the entry.
    fn sync(&self, entry: Entry, unique: u64, head: &RingHead) -> Option<Entry> {
        self.work.syncs.lock().insert(unique, Owed::Entry(entry));
        let served = self.work.served.read();
        // Its arguments are in the head, which stays here.
        let outcome = Request::from_parts(head, &[])
            .and_then(|request| self.work.outcome(served.as_deref(), &request, &mut []));
        let Some(Owed::Entry(mut entry)) = self.work.syncs.lock().remove(&unique) else { return None };
        put(&mut entry, unique, outcome);
        Some(entry)
    }
}

/// Puts what a request gave into its entry.
fn put(entry: &mut Entry, unique: u64, outcome: Outcome<Answer>) {
    let header = |error| OutHeader { len: 0, error, unique };
    match outcome {
        Err(Errno(errno)) => entry.answer(&header(-errno.clamp(1, 999)), Answered::InPlace(0)),
        Ok(answer) => match answer.payload {
            Payload::Nothing => entry.answer(&header(0), Answered::InPlace(0)),
            Payload::Bytes(bytes) if bytes.len() > DATA_MAX => put(entry, unique, Err(Errno::IO)),
            Payload::Bytes(bytes) => entry.answer(&header(0), Answered::Bytes(&bytes)),
            // Only requests without a payload fill memory, so their data begins where the payload does.
            Payload::Memory(length) => entry.answer(&header(0), Answered::InPlace(length)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, expected) in [("0", 1), ("0-1", 2), ("0-3,8,10-11", 7)] {
            assert_eq!(count(list), Some(expected), "{list}");
        }
        for list in ["", "a", "3-1", "0-", "70000"] {
            assert_eq!(count(list), None, "{list}");
        }
    }

    #[test]
    fn a_thread_is_added_while_few_are_idle() {
        let mut threads = Threads { all: 1, busy: 0, huge: 0, callers: Callers::new(), failed: None };
        assert!(threads.begins(6) && threads.all == 2);
        assert!(threads.begins(6) && threads.all == 3);
        (threads.all, threads.busy) = (4, 0);
        assert!(!threads.begins(6), "three are idle");
        assert!(threads.begins(6) && threads.all == 5);
        (threads.all, threads.busy) = (6, 4);
        assert!(!threads.begins(6) && !threads.begins(6), "no more than that");
    }
}
