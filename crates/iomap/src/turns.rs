//! The waiting line for exclusive access to a gate: one thread holds it, the others wait in order.
//!
//! A holder that leaves hands the gate, still closed, to the first in line: no request could enter in between, so the
//! next holder needs no barrier of its own and causes no needless wake-ups. After a few hand-overs the gate is opened
//! for threads that want to share it, if there are any.
//!
//! The line also records which thread held the gate last and how often in a row, which decides to whom it may be lent
//! (`gate/lease.rs`).

use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Waiters, pause};
use crate::thread_slot::{OWNED_SLOTS, SHARED_SLOT};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Maximum hand-overs in a row while a thread waits to share the gate.
pub(crate) const HANDS: u32 = 16;

/// How long a thread in line sleeps before it drives its queue unasked. A holder that needs that asks for it
/// ([`Turns::nudge`]).
const UNASKED: Duration = Duration::from_millis(5);

/// Holds in a row by one thread after which the gate is lent to it: first and last value. Each lease that is revoked
/// early doubles the number, up to the last value, because a revocation costs about as much as a few holds in turn. A
/// lease that paid off resets it.
#[cfg(not(loom))]
const LENDS_AFTER: std::ops::RangeInclusive<u32> = 4..=4096;
#[cfg(loom)]
const LENDS_AFTER: std::ops::RangeInclusive<u32> = 1..=1;

/// Number of holds after which a lease has paid for its revocation.
const WORTH: u64 = 64;

const WAITING: u64 = 0;
const HANDED: u64 = 1;
const OPENED: u64 = 2;

/// The state in which a new holder gets the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gets {
    /// Open: the holder must close it.
    Open,
    /// Closed, as the previous holder left it.
    Closed,
}

/// Which thread holds a gate exclusively, and which are next.
#[derive(Debug)]
pub(crate) struct Turns {
    hands: u32,
    line: Mutex<Line>,
    /// Holds in the last lease. Only the borrower changes it.
    lent_holds: AtomicU64,
}

#[derive(Debug)]
struct Line {
    held: bool,
    handed: u32,
    waiting: VecDeque<Arc<QueuePosition>>,
    habit: Habit,
}

/// Who uses the gate.
#[derive(Debug)]
struct Habit {
    slot: usize,
    times: u32,
    lends_after: u32,
    /// The last lease may still be active. It has ended if a thread takes a turn.
    lent: bool,
}

impl Habit {
    /// Records the end of a hold in turn by `slot`. Returns whether the gate may be lent to it.
    fn note(&mut self, slot: usize, lent_holds: u64) -> bool {
        if std::mem::take(&mut self.lent) {
            let (first, last) = (*LENDS_AFTER.start(), *LENDS_AFTER.end());
            self.lends_after = if lent_holds < WORTH { last.min(self.lends_after * 2) } else { first };
            self.times = 0;
        }
        self.times = if self.slot == slot { self.times.saturating_add(1) } else { 1 };
        self.slot = slot;
        slot < OWNED_SLOTS && self.times >= self.lends_after
    }
}

#[derive(Debug)]
struct QueuePosition {
    granted: AtomicU64,
    nudged: AtomicBool,
    sleeper: Waiters,
}

impl QueuePosition {
    fn grant(&self, how: u64) {
        self.granted.store(how, Ordering::Release);
        self.sleeper.announce_one();
    }
}

impl Turns {
    /// A free gate. `hands`: [`HANDS`], except in models.
    pub(crate) fn new(hands: u32) -> Self {
        let lends_after = *LENDS_AFTER.start();
        let habit = Habit { slot: SHARED_SLOT, times: 0, lends_after, lent: false };
        Turns {
            hands,
            line: Mutex::new(Line { held: false, handed: 0, waiting: VecDeque::new(), habit }),
            lent_holds: AtomicU64::new(0),
        }
    }

    /// Becomes the holder, waiting for its turn and calling `help` from time to time. `open` opens the gate, in case
    /// `help` panics when the waiter has already been given its turn.
    pub(crate) fn take(&self, help: &mut dyn FnMut(), open: &dyn Fn()) -> Gets {
        let mut line = self.line.lock();
        if !line.held {
            line.held = true;
            return Gets::Open;
        }
        let turn = Arc::new(QueuePosition {
            granted: AtomicU64::new(WAITING),
            nudged: AtomicBool::new(false),
            sleeper: Waiters::new(),
        });
        line.waiting.push_back(turn.clone());
        drop(line);
        let in_line = InLine { turns: self, turn: &turn, open };
        loop {
            match turn.granted.load(Ordering::Acquire) {
                WAITING => {}
                granted => {
                    std::mem::forget(in_line);
                    return if granted == HANDED { Gets::Closed } else { opened() };
                }
            }
            let asleep =
                || turn.granted.load(Ordering::Acquire) == WAITING && !turn.nudged.load(Ordering::Relaxed);
            turn.sleeper.park(asleep, UNASKED);
            // In a model an old value may be read for ever, but not across a lock.
            #[cfg(loom)]
            drop(self.line.lock());
            if turn.granted.load(Ordering::Acquire) == WAITING {
                turn.nudged.store(false, Ordering::Relaxed);
                help();
            }
        }
    }

    /// Becomes the holder of a gate that nobody holds. It is open.
    pub(crate) fn try_take(&self) -> bool {
        let mut line = self.line.lock();
        !std::mem::replace(&mut line.held, true)
    }

    /// Counts one more hold by the borrower.
    pub(crate) fn count_lent(&self) {
        self.lent_holds.store(self.lent_holds.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The holder, which has `slot`, leaves. `open` gets whether the gate may be lent; it lends or opens the gate and
    /// returns whether it lent it. `shared`: whether a thread waits to share it.
    pub(crate) fn pass(&self, slot: usize, shared: bool, open: impl FnOnce(bool) -> bool) {
        let mut line = self.line.lock();
        let may_lend = line.habit.note(slot, self.lent_holds.load(Ordering::Relaxed));
        let Some(next) = line.waiting.pop_front() else {
            line.held = false;
            line.handed = 0;
            // Before another thread can take and close it.
            self.lent_holds.store(0, Ordering::Relaxed);
            line.habit.lent = open(may_lend);
            return;
        };
        if shared && line.handed >= self.hands {
            line.handed = 0;
            open(false);
            next.grant(OPENED);
        } else {
            line.handed += 1;
            next.grant(HANDED);
        }
    }

    /// The holder leaves a gate that it has not closed, and that may be lent.
    pub(crate) fn give_up(&self) {
        let mut line = self.line.lock();
        match line.waiting.pop_front() {
            Some(next) => next.grant(OPENED),
            None => line.held = false,
        }
    }

    /// Asks the threads in line to drive their queues: the holder waits for requests that may be theirs.
    pub(crate) fn nudge(&self) {
        for turn in &self.line.lock().waiting {
            turn.nudged.store(true, Ordering::Relaxed);
            turn.sleeper.announce_one();
        }
    }
}

/// Threads that share the gate were woken at the same time: let them in first.
fn opened() -> Gets {
    pause();
    Gets::Open
}

/// Removes a waiter that unwinds from the line.
struct InLine<'a> {
    turns: &'a Turns,
    turn: &'a Arc<QueuePosition>,
    open: &'a dyn Fn(),
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let mut line = self.turns.line.lock();
        let before = line.waiting.len();
        line.waiting.retain(|other| !Arc::ptr_eq(other, self.turn));
        let granted = line.waiting.len() == before;
        if granted && let Some(next) = line.waiting.pop_front() {
            // It already had its turn: the next waiter gets the gate in the same state.
            next.grant(self.turn.granted.load(Ordering::Acquire));
        } else if granted {
            line.held = false;
            (self.open)();
        }
    }
}
