//! Counters.

use crate::sync::{AtomicU64, Ordering};

/// What the cache did and holds. Counters only grow; they are read without a common lock, so a snapshot taken
/// while others work is approximate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Look-ups that found the contents in memory.
    pub hits: u64,
    /// Look-ups that read the device.
    pub misses: u64,
    /// Look-ups that waited for a read started by another thread.
    pub waits: u64,
    /// Buffers dropped to stay within the budget.
    pub evictions: u64,
    /// Verifiers run.
    pub verifications: u64,
    /// Device reads that failed.
    pub load_errors: u64,
    /// Blocks written home.
    pub writes: u64,
    /// Bytes of blocks in the cache now.
    pub resident_bytes: u64,
    /// Bytes of blocks in the cache now that wait for their home write.
    pub dirty_bytes: u64,
    /// Blocks pinned now.
    pub pinned_blocks: u64,
    /// The budget in bytes.
    pub budget_bytes: u64,
}

/// The counters of one shard: threads that work on different blocks rarely meet here.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub hits: Counter,
    pub misses: Counter,
    pub waits: Counter,
    pub evictions: Counter,
    pub verifications: Counter,
    pub load_errors: Counter,
    pub writes: Counter,
}

impl Counters {
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        stats.hits += self.hits.get();
        stats.misses += self.misses.get();
        stats.waits += self.waits.get();
        stats.evictions += self.evictions.get();
        stats.verifications += self.verifications.get();
        stats.load_errors += self.load_errors.get();
        stats.writes += self.writes.get();
    }
}

/// An event counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Counts one event.
    pub(crate) fn count(&self) {
        // Relaxed: nothing is published through a statistic.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
