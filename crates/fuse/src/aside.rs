//! A thread that answers steps aside for its caller.
//!
//! Linux wakes the caller on an idle processor if there is one, since the thread that answers still runs on its own:
//! an interrupt, and in a virtual machine a wait for the host, twice as long as most requests take. A processor that
//! runs nothing but `SCHED_IDLE` threads counts as idle. So the thread has that policy in the call that answers; the
//! caller wakes beside it, goes on at once, and the thread waits for the next request when the caller does.
//!
//! Meanwhile any other thread of that processor goes first. If one does for a millisecond, a watcher gives the thread
//! its policy back, and the thread answers without this for a while. Only answers to one caller that asks all the time
//! are given so, and only where the policy can be taken back: by root, or with a limit on nice values that allows 0.

use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, getpriority_process, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, gettid};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a thread may stay aside.
const PATIENCE: Duration = Duration::from_millis(1);
/// How long a thread does without after it stayed longer.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the watcher goes on after the last answer.
const WATCH: Duration = Duration::from_millis(50);
/// A caller asks all the time if its requests come at most so far apart.
const APART: Duration = Duration::from_millis(1);
/// And it has done so for as many requests.
const STREAK: u32 = 8;
/// `RLIMIT_NICE` at which the policy can be taken back, at nice 0.
const LIMIT: i32 = 20;

/// The threads of a mount that step aside.
pub(crate) struct Aside {
    begun: Instant,
    slots: Mutex<Vec<Weak<Slot>>>,
    watches: AtomicBool,
    watcher: OnceLock<Thread>,
    /// When the last answer was given so, nanoseconds since `begun`.
    last: AtomicU64,
    stepped: AtomicU64,
    recalled: AtomicU64,
}

/// One thread.
struct Slot {
    thread: Pid,
    /// Since when it is aside, nanoseconds since [`Aside::begun`]; 0 if it is not.
    since: AtomicU64,
    /// Until when it does without.
    pause: AtomicU64,
}

/// What a thread needs to step aside.
pub(crate) struct Courtesy {
    aside: Arc<Aside>,
    slot: Arc<Slot>,
}

/// Who asked a queue last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Callers {
    process: u32,
    at: Instant,
    streak: u32,
}

impl Aside {
    /// For a mount, if this process can take the policy back. A thread tries it: whatever stands in the way of the rest
    /// (a limit, a user namespace, a filter of system calls) stands in its way too.
    pub(crate) fn new() -> Option<Arc<Aside>> {
        let tried = std::thread::Builder::new()
            .name("uext4-trial".into())
            .spawn(|| may_return() && set_policy(0, libc::SCHED_IDLE) && set_policy(0, libc::SCHED_OTHER));
        let may = tried.is_ok_and(|trial| trial.join().unwrap_or(false));
        may.then(|| {
            Arc::new(Aside {
                begun: Instant::now(),
                slots: Mutex::default(),
                watches: AtomicBool::new(false),
                watcher: OnceLock::new(),
                last: AtomicU64::new(0),
                stepped: AtomicU64::new(0),
                recalled: AtomicU64::new(0),
            })
        })
    }

    /// Starts the watcher, which ends when nobody else has a reference.
    ///
    /// # Errors
    /// If there is no thread.
    pub(crate) fn watch(self: &Arc<Aside>) -> io::Result<()> {
        let aside = Arc::downgrade(self);
        let watch = move || {
            while let Some(aside) = aside.upgrade() {
                let goes_on = aside.look();
                drop(aside);
                if goes_on { std::thread::sleep(PATIENCE) } else { std::thread::park_timeout(PAUSE * 10) }
            }
        };
        let watcher = std::thread::Builder::new().name("uext4-aside".into()).spawn(watch)?;
        self.watcher.get_or_init(|| watcher.thread().clone());
        Ok(())
    }

    /// For the calling thread.
    pub(crate) fn courtesy(self: &Arc<Aside>) -> Courtesy {
        let slot = Slot { thread: gettid(), since: AtomicU64::new(0), pause: AtomicU64::new(0) };
        let slot = Arc::new(slot);
        self.slots.lock().push(Arc::downgrade(&slot));
        Courtesy { aside: self.clone(), slot }
    }

    /// How many answers were given so, and how many threads had to be called back.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.stepped.load(Ordering::Relaxed), self.recalled.load(Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// Calls back who is aside for too long. Returns whether to look again soon.
    fn look(&self) -> bool {
        let now = self.now();
        // Held, so that no thread ends, and its number means another one, before it is called.
        let mut slots = self.slots.lock();
        slots.retain(|slot| slot.strong_count() > 0);
        for slot in slots.iter().filter_map(Weak::upgrade) {
            let since = slot.since.load(Ordering::Acquire);
            if since != 0 && now.saturating_sub(since) > PATIENCE.as_nanos() as u64 {
                slot.pause.store(now + PAUSE.as_nanos() as u64, Ordering::Relaxed);
                self.recalled.fetch_add(1, Ordering::Relaxed);
                let _back = set_policy(slot.thread.as_raw_pid(), libc::SCHED_OTHER);
            }
        }
        drop(slots);
        if now.saturating_sub(self.last.load(Ordering::Relaxed)) < WATCH.as_nanos() as u64 {
            return true;
        }
        self.watches.store(false, Ordering::SeqCst);
        // A thread that stepped aside just before this has not woken the watcher.
        now.saturating_sub(self.last.load(Ordering::SeqCst)) < WATCH.as_nanos() as u64 && {
            self.watches.store(true, Ordering::SeqCst);
            true
        }
    }

    /// Has the watcher look from now on.
    fn wake_watcher(&self, now: u64) {
        self.last.store(now, Ordering::SeqCst);
        if !self.watches.load(Ordering::SeqCst)
            && !self.watches.swap(true, Ordering::SeqCst)
            && let Some(watcher) = self.watcher.get()
        {
            watcher.unpark();
        }
    }
}

impl Callers {
    /// None yet.
    pub(crate) fn new() -> Callers {
        Callers { process: 0, at: Instant::now(), streak: 0 }
    }

    /// A process waits for an answer. Returns whether it is one that asks all the time.
    pub(crate) fn asks_all_the_time(&mut self, process: u32, now: Instant) -> bool {
        let same = process == self.process && now.duration_since(self.at) < APART;
        self.streak = if same { self.streak.saturating_add(1) } else { 0 };
        (self.process, self.at) = (process, now);
        self.streak >= STREAK
    }
}

impl Courtesy {
    /// Calls `answer`, which answers a caller that asks all the time, while this thread is aside.
    pub(crate) fn answer(&self, answer: impl FnOnce()) {
        let now = self.aside.now();
        if now < self.slot.pause.load(Ordering::Relaxed) {
            return answer();
        }
        self.aside.wake_watcher(now);
        self.slot.since.store(now, Ordering::Release);
        let _aside = set_policy(0, libc::SCHED_IDLE);
        answer();
        let _back = set_policy(0, libc::SCHED_OTHER);
        self.slot.since.store(0, Ordering::Release);
        self.aside.stepped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Courtesy {
    fn drop(&mut self) {
        // The watcher calls nobody while this is held, and finds no slot afterwards.
        let slots = self.aside.slots.lock();
        self.slot.since.store(0, Ordering::Release);
        drop(slots);
    }
}

/// Whether a thread of this process can go back from `SCHED_IDLE` to what it has now.
fn may_return() -> bool {
    // SAFETY: it reads the policy of the calling thread.
    let usual = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
    let right = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    let nice = getpriority_process(None).unwrap_or(i32::MIN);
    let limit = getrlimit(Resource::Nice).current.unwrap_or(u64::MAX);
    usual && (right || i64::from(LIMIT) - i64::from(nice) <= i64::try_from(limit).unwrap_or(i64::MAX))
}

/// Allows all threads of this process to come back later without `CAP_SYS_NICE`. Returns whether that is so: it takes
/// `CAP_SYS_RESOURCE` now.
pub(crate) fn allow_return() -> bool {
    let limit = Some(LIMIT as u64);
    let limit = Rlimit { current: limit, maximum: limit };
    setrlimit(Resource::Nice, limit).is_ok()
}

/// Sets the policy of a thread of this process, by number; 0 is the calling one. Returns whether it has it.
fn set_policy(thread: i32, policy: i32) -> bool {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: it reads `parameter` and changes nothing but how the kernel schedules a thread.
    unsafe { libc::sched_setscheduler(thread, policy, &raw const parameter) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: it reads the policy of the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn only_one_caller_asks_all_the_time() {
        let mut callers = Callers::new();
        let mut now = Instant::now();
        let mut asks = |process, later| {
            now += later;
            callers.asks_all_the_time(process, now)
        };
        let soon = APART / 2;
        for request in 0..2 * STREAK {
            assert_eq!(asks(7, soon), request >= STREAK, "{request}");
        }
        assert!(!asks(8, soon) && !asks(7, soon), "two take turns");
        assert!((0..STREAK).any(|_| asks(7, soon)));
        assert!(!asks(7, APART), "it has done something else");
    }

    #[test]
    fn who_stays_aside_is_called_back_and_does_without_for_a_while() {
        let Some(aside) = Aside::new() else { return };
        aside.watch().unwrap();
        let courtesy = aside.courtesy();
        let mut called_back = false;
        let begun = Instant::now();
        while !called_back {
            // On a busy machine it is called back before it looks, and does without for a while.
            courtesy.answer(|| {
                while policy() == libc::SCHED_IDLE {
                    assert!(begun.elapsed() < Duration::from_secs(20), "not called back");
                    std::thread::sleep(PATIENCE);
                    called_back = true;
                }
            });
            assert_eq!(policy(), libc::SCHED_OTHER);
            assert!(begun.elapsed() < Duration::from_secs(20), "not aside");
        }
        assert!(aside.counts().1 > 0 && courtesy.slot.pause.load(Ordering::Relaxed) > 0);
        courtesy.slot.pause.store(u64::MAX, Ordering::Relaxed);
        courtesy.answer(|| assert_eq!(policy(), libc::SCHED_OTHER));
    }
}
