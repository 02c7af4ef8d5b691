//! What the caches of a volume hold, and how long its commits take.

use crate::face::volume::Volume;
use std::time::Duration;

/// One cache. Counters only grow from the opening of the volume on. While others work the figures do not belong to one
/// moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheUse {
    /// Entries in memory.
    pub entries: u64,
    /// Bytes that count against the budget.
    pub bytes: u64,
    /// The most of these bytes. More is evicted, unless it is in use.
    pub budget: u64,
    /// Look-ups that found an entry.
    pub hits: u64,
    /// Look-ups that had to read the volume.
    pub misses: u64,
    /// Entries dropped to stay within the budget.
    pub evictions: u64,
}

/// The caches of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caches {
    /// Blocks of metadata.
    pub metadata: CacheUse,
    /// Bytes of those that are in the journal, or need none, and wait for their write to the place where they belong.
    pub metadata_waiting: u64,
    /// Names that were looked up, found or not.
    pub names: CacheUse,
    /// Inodes. Bytes are those of inodes that nobody uses: only they are evicted.
    pub inodes: CacheUse,
}

/// Commits since the volume was opened: of transactions, or without a journal of batches of changed metadata.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commits {
    /// How many.
    pub count: u64,
    /// Blocks that they wrote to the log, or without a journal to where they belong.
    pub blocks: u64,
    /// How long all of them took together, from the end of the transaction to the durable commit block.
    pub total: Duration,
    /// How long the latest one took.
    pub last: Duration,
    /// Fast commits, which do not count above.
    pub fast: u64,
    /// Blocks of the fast-commit area written for them.
    pub fast_blocks: u64,
    /// Syncs that committed in full because the fast-commit area was full.
    pub full_for_area: u64,
    /// Syncs that committed in full because a change has no records.
    pub full_for_undeclared: u64,
    /// Syncs that committed in full because no record describes what a file has become.
    pub full_for_file: u64,
    /// Syncs that committed in full because the log was not in use yet.
    pub full_for_unused: u64,
}

impl Volume {
    /// What the caches hold and did.
    pub fn caches(&self) -> Caches {
        let state = self.state();
        let blocks = state.cache.stats();
        let metadata = CacheUse {
            entries: blocks.resident_bytes / u64::from(self.block_size()),
            bytes: blocks.resident_bytes,
            budget: blocks.budget_bytes,
            hits: blocks.hits + blocks.waits,
            misses: blocks.misses,
            evictions: blocks.evictions,
        };
        let names = state.names.usage();
        let inodes = state.inode_usage();
        let [names, inodes] = [names, inodes].map(|found| CacheUse {
            entries: found.entries,
            bytes: found.bytes,
            budget: found.budget,
            hits: found.hits,
            misses: found.misses,
            evictions: found.evictions,
        });
        Caches { metadata, metadata_waiting: blocks.dirty_bytes, names, inodes }
    }

    /// How many commits there were, and how long they took.
    pub fn commits(&self) -> Commits {
        let journal = self.state().journal_stats();
        let journaled = self.state().journal.is_some();
        Commits {
            count: journal.commits,
            blocks: if journaled { journal.blocks_logged } else { journal.home_writes },
            total: Duration::from_nanos(journal.commit_nanoseconds),
            last: Duration::from_nanos(journal.last_commit_nanoseconds),
            fast: journal.fast_commits,
            fast_blocks: journal.fast_commit_blocks,
            full_for_area: journal.full_for_area,
            full_for_undeclared: journal.full_for_undeclared,
            full_for_file: journal.full_for_file,
            full_for_unused: journal.full_for_unused,
        }
    }
}
