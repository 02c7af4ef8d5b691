//! Who may still use a place that the tables no longer name.
//!
//! A request looks a place up and then reads or writes there. Meanwhile the cluster may be discarded and freed, so it
//! is used again only when every request that began before has ended. Requests are counted in one of two counters, by
//! the phase in which they begin. A request that found the old entry was counted before the entry was changed, in
//! either counter: so each of them has to be seen at zero once after the change. Changing the phase lets the other one
//! drain while requests go on.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// How many requests of a queue are in flight, counted by the phase in which they began. Each queue has its own, so
/// that queues do not contend for one cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts([AtomicU64; 2]);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Uses {
    phase: AtomicUsize,
    /// Those of synchronous calls.
    calls: Counts,
    queues: Mutex<Vec<Arc<Counts>>>,
}

/// A request of a queue that has begun. It ends with [`Counts::end`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun(usize);

/// A synchronous call that has begun.
#[derive(Debug)]
pub(super) struct InUse<'a> {
    counts: &'a Counts,
    begun: Begun,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.counts.end(self.begun);
    }
}

impl Counts {
    #[inline]
    pub(super) fn end(&self, begun: Begun) {
        self.0[begun.0].fetch_sub(1, Ordering::Release);
    }
}

impl Uses {
    /// Begins a request. Entries of tables are looked up after this.
    #[inline]
    pub(super) fn begin(&self, counts: &Counts) -> Begun {
        let phase = self.phase.load(Ordering::Relaxed) & 1;
        counts.0[phase].fetch_add(1, Ordering::SeqCst);
        // The other side is `is_idle`: either it sees this request, or the request sees the changed entry.
        fence(Ordering::SeqCst);
        Begun(phase)
    }

    pub(super) fn call(&self) -> InUse<'_> {
        InUse { counts: &self.calls, begun: self.begin(&self.calls) }
    }

    /// The counters of a new queue.
    pub(super) fn join(&self) -> Arc<Counts> {
        let counts = Arc::new(Counts::default());
        self.queues.lock().push(Arc::clone(&counts));
        counts
    }

    /// The queue has gone, and nothing of it is in flight.
    pub(super) fn leave(&self, counts: &Arc<Counts>) {
        self.queues.lock().retain(|other| !Arc::ptr_eq(other, counts));
    }

    /// Whether nothing is in flight that began in this phase. Entries of tables are changed before this.
    fn is_idle(&self, phase: usize) -> bool {
        fence(Ordering::SeqCst);
        let idle = |counts: &Counts| counts.0[phase].load(Ordering::SeqCst) == 0;
        idle(&self.calls) && self.queues.lock().iter().all(|counts| idle(counts))
    }
}

/// Clusters that no durable table names, until nobody uses them.
#[derive(Debug, Default)]
pub(super) struct Limbo {
    /// Not begun with: changes of the phase count for none of them.
    next: Vec<u64>,
    /// Those for which the other phase was seen at zero, and then the phase was changed, if `turned`.
    now: Vec<u64>,
    turned: bool,
}

impl Limbo {
    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty() && self.now.is_empty()
    }

    pub(super) fn extend(&mut self, clusters: impl IntoIterator<Item = u64>) {
        self.next.extend(clusters);
    }

    /// Takes out clusters that nobody uses any more, if there are some. Waits for nobody.
    pub(super) fn take(&mut self, uses: &Uses) -> Vec<u64> {
        if self.now.is_empty() {
            self.now = std::mem::take(&mut self.next);
            self.turned = false;
        }
        if self.now.is_empty() {
            return Vec::new();
        }
        let other = |uses: &Uses| (uses.phase.load(Ordering::Relaxed) & 1) ^ 1;
        if !self.turned {
            if !uses.is_idle(other(uses)) {
                return Vec::new();
            }
            uses.phase.fetch_add(1, Ordering::SeqCst);
            self.turned = true;
        }
        if !uses.is_idle(other(uses)) {
            return Vec::new();
        }
        std::mem::take(&mut self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_waits_for_those_who_began_before_it_was_freed() {
        let (uses, mut limbo) = (Uses::default(), Limbo::default());
        let queue = uses.join();
        let before = uses.begin(&queue);
        limbo.extend([7, 8]);
        assert!(limbo.take(&uses).is_empty() && !limbo.is_empty());
        // Whoever begins later does not hold it up, nor do clusters that are freed later.
        let after = uses.begin(&queue);
        limbo.extend([9]);
        assert!(limbo.take(&uses).is_empty());
        queue.end(before);
        assert_eq!(limbo.take(&uses), [7, 8]);
        // `after` may have seen that one.
        assert!(limbo.take(&uses).is_empty());
        // A call that begins now finds the new entry.
        let call = uses.call();
        queue.end(after);
        assert_eq!(limbo.take(&uses), [9]);
        limbo.extend([10]);
        assert!(limbo.take(&uses).is_empty(), "the call may have seen that one");
        drop(call);
        assert_eq!(limbo.take(&uses), [10]);
        assert!(limbo.is_empty() && limbo.take(&uses).is_empty());
    }

    #[test]
    fn a_request_that_is_counted_late_is_waited_for() {
        let (uses, mut limbo) = (Uses::default(), Limbo::default());
        let queue = uses.join();
        // It has looked at the phase, which changes before it counts itself.
        let phase = uses.phase.load(Ordering::Relaxed) & 1;
        limbo.extend([1]);
        assert_eq!(limbo.take(&uses), [1]);
        queue.0[phase].fetch_add(1, Ordering::SeqCst);
        limbo.extend([2]);
        assert!(limbo.take(&uses).is_empty(), "it may have seen that one");
        queue.end(Begun(phase));
        assert_eq!(limbo.take(&uses), [2]);
    }

    #[test]
    fn a_queue_that_goes_is_not_waited_for() {
        let (uses, mut limbo) = (Uses::default(), Limbo::default());
        let (first, second) = (uses.join(), uses.join());
        let _lost = uses.begin(&first);
        limbo.extend([1]);
        assert!(limbo.take(&uses).is_empty());
        uses.leave(&second);
        assert!(limbo.take(&uses).is_empty(), "the other one has gone");
        uses.leave(&first);
        assert_eq!(limbo.take(&uses), [1]);
    }
}
