//! Limits the requests that all queues of one device have in flight together.
//!
//! A device takes as many requests at once as it has tags. io_uring hands any excess to worker threads, which costs
//! more than the request itself. So the excess stays in the queues, and this account says how much each may send.
//! Queues whose depths fit together never touch it. Otherwise a queue asks once per batch ([`Share::admit`]):
//!
//! - **Idle tags go to whoever asks**: a queue may send as long as all queues together stay below the device's tags.
//! - **No queue is kept below the fair share**, the device's tags divided by the active queues. A queue that finds the
//!   tags taken works with a *window*, which it may fill whatever the others use. Its own completions let it grow by an
//!   eighth (at least one) at a time, up to the fair share. The others see the device overdrawn and send less. So a
//!   thread that stopped without reaping its completions takes nothing from the fair share of others, and the device is
//!   overdrawn by an eighth at most: [`Tags::usable`] leaves that free.
//! - **No queue has to wake another**: a window is never below one, so a queue with waiting requests always has one of
//!   its own in the device, and asks again when that completes.
//!
//! The whole account is one word. A queue writes it only when its number of requests in the device changes from one
//! batch to the next: a queue that sends as many as it reaps only reads it.

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// How many requests a device takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tags {
    /// Requests of one hardware queue.
    pub(crate) each: u32,
    /// Hardware queues.
    pub(crate) queues: u32,
}

impl Tags {
    /// Requests of all hardware queues.
    pub(crate) fn all(self) -> u32 {
        self.each.saturating_mul(self.queues)
    }

    /// Tags we plan to use. The rest is headroom for other processes, for synchronous calls, for tags that the device
    /// frees a moment after it reports the completion, and for queues that catch up with their share.
    fn usable(tags: u32) -> u32 {
        (tags - tags.div_ceil(8).min(tags)).max(1)
    }
}

/// The account of one device.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Most requests of all queues.
    total: u32,
    /// Most requests of one queue: those of one thread go to one hardware queue.
    each: u32,
    /// Sum of the depths of all queues.
    depths: CachePadded<AtomicU32>,
    account: CachePadded<AtomicU64>,
}

/// The word of the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    /// Queues that have requests.
    active: u32,
    /// Requests of all queues in the device.
    used: u32,
}

impl Account {
    fn unpack(word: u64) -> Self {
        Account { active: (word >> 32) as u32, used: word as u32 }
    }

    fn pack(self) -> u64 {
        u64::from(self.active) << 32 | u64::from(self.used)
    }
}

/// Budgets of the devices that are open in this process, by device number: partitions of a disk share its tags.
static OPEN: Mutex<Vec<(String, Weak<Budget>)>> = Mutex::new(Vec::new());

impl Budget {
    /// A device with these tags.
    fn new(tags: Tags) -> Self {
        Budget {
            total: Tags::usable(tags.all()),
            each: Tags::usable(tags.each),
            depths: CachePadded::new(AtomicU32::new(0)),
            account: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// The budget of the disk with this number. Only the first open of a disk sets its tags.
    pub(crate) fn of_disk(number: String, tags: Tags) -> Arc<Self> {
        let mut open = OPEN.lock();
        open.retain(|(_, budget)| budget.strong_count() > 0);
        let known = open.iter().find(|(disk, _)| *disk == number).and_then(|(_, budget)| budget.upgrade());
        known.unwrap_or_else(|| {
            let budget = Arc::new(Budget::new(tags));
            open.push((number, Arc::downgrade(&budget)));
            budget
        })
    }

    /// Adds a queue of this depth.
    pub(crate) fn join(self: &Arc<Self>, depth: u32) -> Share {
        self.depths.fetch_add(depth, Ordering::Relaxed);
        Share { budget: Arc::clone(self), depth, held: 0, active: false, window: 1, landed: false }
    }

    fn read(&self) -> Account {
        Account::unpack(self.account.load(Ordering::Relaxed))
    }

    /// Whether the queues together can exceed the device's tags.
    fn is_crowded(&self) -> bool {
        self.depths.load(Ordering::Relaxed) > self.total
    }
}

/// A queue's share of the budget of its device.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    depth: u32,
    /// This queue's part of the account's requests.
    held: u32,
    /// Whether the account counts this queue as active.
    active: bool,
    /// Requests that this queue may have in the device even if others use all tags; bounded by the fair share.
    window: u32,
    /// Whether completions arrived since the window last grew.
    landed: bool,
}

impl Share {
    /// How many of `waiting` requests may be sent now. This queue has `in_device` requests sent and not reaped;
    /// admitted ones count as sent from now on. Admits at least one if the queue has none in the device.
    ///
    /// Also returns tags that this queue no longer uses to the others, so call it after each reap, even if `waiting` is
    /// zero.
    #[inline]
    pub(crate) fn admit(&mut self, in_device: u32, waiting: u32) -> u32 {
        if !self.active && !self.budget.is_crowded() {
            return waiting.min(self.budget.each.saturating_sub(in_device));
        }
        self.agree(in_device, waiting)
    }

    #[inline(never)]
    fn agree(&mut self, in_device: u32, waiting: u32) -> u32 {
        let budget = &*self.budget;
        let need = in_device + waiting;
        let mut old = budget.read();
        let (level, active, fair) = loop {
            let active = need > 0;
            let others = old.active - u32::from(self.active);
            let used_by_others = old.used - self.held;
            let fair = (budget.total / (others + 1)).max(1);
            let left = budget.total.saturating_sub(used_by_others);
            let limit = left.max(self.window.min(fair)).min(budget.each);
            // Requests in the device cannot be taken back.
            let level = need.min(limit).max(in_device);
            let new = Account { active: others + u32::from(active), used: used_by_others + level };
            if new == old {
                break (level, active, fair);
            }
            // Relaxed: the word publishes no other data.
            let swapped = budget.account.compare_exchange_weak(
                old.pack(),
                new.pack(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => break (level, active, fair),
                Err(word) => old = Account::unpack(word),
            }
        };
        self.landed |= in_device < self.held;
        if self.landed && level < need {
            self.window = (self.window + (self.window / 8).max(1)).min(fair);
            self.landed = false;
        }
        self.window = self.window.max(level.min(fair));
        (self.held, self.active) = (level, active);
        level - in_device
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.active {
            self.agree(0, 0);
        }
        self.budget.depths.fetch_sub(self.depth, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_testkit::Rng;

    /// A queue with more to send than the device takes, and its requests in the device.
    struct Sim {
        share: Share,
        waiting: u32,
        sent: u32,
    }

    impl Sim {
        fn new(budget: &Arc<Budget>, waiting: u32) -> Self {
            Sim { share: budget.join(waiting), waiting, sent: 0 }
        }

        /// What a queue does at each call.
        fn drive(&mut self) {
            let admitted = self.share.admit(self.sent, self.waiting);
            assert!(admitted <= self.waiting);
            (self.waiting, self.sent) = (self.waiting - admitted, self.sent + admitted);
            assert!(self.sent > 0 || self.waiting == 0, "no completion of its own will ever wake it");
        }

        /// `count` requests complete and are reaped, and as many new ones wait.
        fn turn(&mut self, count: u32) {
            let count = count.min(self.sent);
            (self.waiting, self.sent) = (self.waiting + count, self.sent - count);
            self.drive();
        }
    }

    fn budget(each: u32, queues: u32) -> Arc<Budget> {
        Arc::new(Budget::new(Tags { each, queues }))
    }

    #[test]
    fn an_eighth_of_the_tags_stays_free_and_one_is_always_used() {
        let usable = [(1, 1), (2, 1), (4, 3), (32, 28), (128, 112), (1023, 895)];
        assert!(usable.iter().all(|&(tags, wanted)| Tags::usable(tags) == wanted));
        assert_eq!(Tags { each: u32::MAX, queues: 2 }.all(), u32::MAX);
    }

    #[test]
    fn queues_that_fit_together_never_write_the_account() {
        let budget = budget(128, 1);
        let mut queues = [Sim::new(&budget, 80), Sim::new(&budget, 32)];
        for queue in &mut queues {
            queue.drive();
            assert_eq!(queue.waiting, 0);
        }
        assert_eq!(budget.read(), Account { active: 0, used: 0 });
        // The third queue exceeds the tags; from the next call on all are counted.
        let mut third = Sim::new(&budget, 1);
        queues.iter_mut().for_each(Sim::drive);
        third.drive();
        assert_eq!(budget.read(), Account { active: 3, used: 113 });
    }

    #[test]
    fn a_queue_alone_takes_all_tags_of_one_hardware_queue() {
        for (each, queues, wanted) in [(128, 1, 112), (64, 4, 56), (1, 8, 1)] {
            let mut queue = Sim::new(&budget(each, queues), 1000);
            queue.drive();
            assert_eq!(queue.sent, wanted);
            // The depth fits into all hardware queues together, but not into the one that it is sent to.
            let roomy = budget(each, queues);
            let depth = roomy.total.min(wanted + 7);
            let mut queue = Sim::new(&roomy, depth);
            queue.drive();
            assert_eq!(queue.sent, wanted.min(depth));
        }
    }

    #[test]
    fn those_who_come_late_get_their_fair_share_and_hardly_overdraw() {
        let budget = budget(128, 1);
        let mut queues: Vec<Sim> = (0..8).map(|_| Sim::new(&budget, 256)).collect();
        queues[0].drive();
        assert_eq!(queues[0].sent, 112);
        for _ in 0..40 {
            for queue in &mut queues {
                // The device completes the oldest requests: more of those queues that have more in it.
                queue.turn(queue.sent.div_ceil(4));
            }
            let sent: u32 = queues.iter().map(|queue| queue.sent).sum();
            assert_eq!(budget.read(), Account { active: 8, used: sent });
            assert!((105..=128).contains(&sent), "{sent}");
        }
        assert!(queues.iter().all(|queue| queue.sent == 14), "an eighth each");
        // Now the account is stable: no queue writes the cache line that the others read.
        let before = budget.read();
        queues.iter_mut().for_each(|queue| queue.turn(3));
        assert_eq!(budget.read(), before);
        // Seven queues go idle: the last one has the device to itself.
        for queue in &mut queues[1..] {
            (queue.waiting, queue.sent) = (0, 0);
            queue.drive();
        }
        queues[0].turn(14);
        assert_eq!(queues[0].sent, 112);
    }

    /// A thread that reaps and then sends leaves a gap each time, which the deeper queue fills at once.
    #[test]
    fn a_queue_below_its_fair_share_is_not_squeezed_by_a_deeper_one() {
        let budget = budget(128, 1);
        let (mut deep, mut small) = (Sim::new(&budget, 1000), Sim::new(&budget, 32));
        deep.drive();
        for _ in 0..60 {
            let reaped = small.sent.div_ceil(4);
            small.sent -= reaped;
            small.drive();
            deep.turn(deep.sent / 4);
            small.waiting += reaped;
            small.drive();
        }
        assert_eq!((small.sent, small.waiting), (32, 0));
        assert!((80..=88).contains(&deep.sent), "{}", deep.sent);
    }

    #[test]
    fn a_thread_that_went_away_with_all_tags_does_not_stop_the_others() {
        let budget = budget(128, 1);
        let mut gone = Sim::new(&budget, 256);
        gone.drive();
        assert_eq!(gone.sent, 112);
        let mut others = [Sim::new(&budget, 256), Sim::new(&budget, 256)];
        others.iter_mut().for_each(Sim::drive);
        assert_eq!(others[0].sent, 1, "one at once");
        for _ in 0..60 {
            others.iter_mut().for_each(|queue| queue.turn(u32::MAX));
        }
        assert!(others.iter().all(|queue| queue.sent == 112 / 3), "a third each");
        // A dropped queue leaves the account.
        drop(gone);
        for _ in 0..60 {
            others.iter_mut().for_each(|queue| queue.turn(u32::MAX));
        }
        assert!(others.iter().all(|queue| queue.sent == 56));
        drop(others);
        assert_eq!(budget.read(), Account { active: 0, used: 0 });
        assert_eq!(budget.depths.load(Ordering::Relaxed), 0);
    }

    /// Whatever the queues do: one with waiting requests has one in the device, usable tags are used, and no queue
    /// stays below the fair share for long.
    #[test]
    fn random_queues_are_never_stuck_and_waste_nothing() {
        for seed in 0..200 {
            let mut random = Rng::new(seed);
            let budget = budget(1 + random.below(64) as u32, 1 + random.below(3) as u32);
            let mut queues: Vec<Sim> =
                (0..1 + random.below(6)).map(|_| Sim::new(&budget, 1 + random.below(200) as u32)).collect();
            let mut finished = 0;
            let total: u32 = queues.iter().map(|queue| queue.waiting).sum();
            let mut rounds = 0;
            while finished < total {
                rounds += 1;
                assert!(rounds < 100_000, "seed {seed}: stuck");
                let queue = random.below(queues.len() as u64) as usize;
                let queue = &mut queues[queue];
                let done = random.below(u64::from(queue.sent) + 1) as u32;
                queue.sent -= done;
                finished += done;
                queue.drive();
                let free = budget.total.saturating_sub(budget.read().used);
                assert!(queue.waiting == 0 || free == 0 || queue.sent == budget.each, "seed {seed}: wasted");
                assert!(queue.sent <= budget.each, "seed {seed}");
            }
            assert_eq!(budget.read().used, 0, "seed {seed}");
        }
    }

    #[test]
    fn threads_keep_one_account() {
        let budget = budget(64, 1);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let budget = &budget;
                scope.spawn(move || {
                    let mut random = Rng::new(thread);
                    let mut queue = Sim::new(budget, 200);
                    queue.drive();
                    for _ in 0..20_000 {
                        queue.turn(random.below(9) as u32);
                    }
                    while queue.sent + queue.waiting > 0 {
                        queue.sent = 0;
                        queue.drive();
                    }
                });
            }
        });
        assert_eq!(budget.read(), Account { active: 0, used: 0 });
    }

    #[test]
    fn partitions_of_a_disk_share_its_budget_while_one_is_open() {
        let tags = Tags { each: 64, queues: 2 };
        let first = Budget::of_disk("test:1".into(), tags);
        assert!(Arc::ptr_eq(&first, &Budget::of_disk("test:1".into(), tags)));
        assert!(!Arc::ptr_eq(&first, &Budget::of_disk("test:2".into(), tags)));
        drop(first);
        let again = Budget::of_disk("test:1".into(), Tags { each: 8, queues: 1 });
        assert_eq!(again.total, 7, "the tags given now");
    }
}
