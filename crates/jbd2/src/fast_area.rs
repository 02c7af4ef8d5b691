//! The blocks behind the log that hold fast commits.

use std::sync::atomic::{AtomicU32, Ordering};
use uext4_ondisk::jbd2::JournalSuperblock;

/// The blocks of fast commits.
#[derive(Debug)]
pub(crate) struct FastArea {
    /// First log block. jbd2 leaves the one before it unused.
    first: u32,
    /// Blocks to use.
    blocks: u32,
    /// Blocks in use by fast commits of the running transaction. Changed by the thread that has the turn.
    used: AtomicU32,
}

impl FastArea {
    /// The area of a log; `None` if it has none, or a useless one.
    pub(crate) fn of(superblock: &JournalSuperblock) -> Option<FastArea> {
        let blocks = superblock.fast_commit_blocks().checked_sub(2).filter(|blocks| *blocks > 0)?;
        Some(FastArea { first: superblock.log_end() + 1, blocks, used: AtomicU32::new(0) })
    }

    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn set_used(&self, used: u32) {
        self.used.store(used, Ordering::Relaxed);
    }

    /// Blocks left.
    pub(crate) fn free(&self) -> u32 {
        self.blocks - self.used()
    }

    /// The log block of a block of the area.
    pub(crate) fn log_block(&self, block: u32) -> u32 {
        self.first + block
    }
}
