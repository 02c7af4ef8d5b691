//! The blocks behind the log that hold fast commits.

use crate::Result;
use crate::io::transfer_buffer;
use crate::sync::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use uext4_blockdev::Buffer;
use uext4_ondisk::jbd2::JournalSuperblock;

/// Most memory that is kept for the next fast commit: getting it from the kernel costs more than the rest of a commit.
const KEPT: usize = 64 << 10;

/// The blocks of fast commits.
pub(crate) struct FastArea {
    /// First log block. jbd2 leaves the one before it unused.
    first: u32,
    /// Blocks to use.
    blocks: u32,
    /// Blocks in use by fast commits of the running transaction. Changed by the thread that has the turn.
    used: AtomicU32,
    /// What the last fast commit was written from.
    memory: Mutex<Option<Buffer>>,
}

impl FastArea {
    /// The area of a log; `None` if it has none, or a useless one.
    pub(crate) fn of(superblock: &JournalSuperblock) -> Option<FastArea> {
        let blocks = superblock.fast_commit_blocks().checked_sub(2).filter(|blocks| *blocks > 0)?;
        Some(FastArea {
            first: superblock.log_end() + 1,
            blocks,
            used: AtomicU32::new(0),
            memory: Mutex::new(None),
        })
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

    /// Memory of at least `bytes` bytes, with any contents, that the device can transfer from.
    pub(crate) fn take_memory(&self, bytes: usize) -> Result<Buffer> {
        match self.memory.lock().take().filter(|memory| memory.len() >= bytes) {
            Some(memory) => Ok(memory),
            None => transfer_buffer(bytes),
        }
    }

    /// Keeps it for the next time.
    pub(crate) fn keep_memory(&self, memory: Buffer) {
        if memory.len() <= KEPT {
            *self.memory.lock() = Some(memory);
        }
    }

    /// The log block of a block of the area.
    pub(crate) fn log_block(&self, block: u32) -> u32 {
        self.first + block
    }
}

impl fmt::Debug for FastArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FastArea { first, blocks, .. } = self;
        f.debug_struct("FastArea").field("first", first).field("blocks", blocks).finish_non_exhaustive()
    }
}
