//! What a commit would write if it began now, for explaining a write in advance.

use crate::journal::Journal;
use crate::log_writer::blocks_at_once;
use std::ops::Range;

/// The log writes of a commit. Ranges are bytes of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitOutlook {
    /// Revoke blocks, descriptors and copies, one range per request, in order. A flush follows the last one.
    pub log: Vec<Range<u64>>,
    /// The commit block, written after that flush and durable when its write completes.
    pub commit_block: Range<u64>,
    /// Whether the log is not in use yet, so that the commit first writes the superblocks of the volume and of the log.
    pub begins: bool,
}

impl Journal {
    /// The log writes of a commit that begins now. `None` if the running transaction has nothing to commit. Changes
    /// nothing; other handles may add to the transaction before it is committed.
    #[must_use]
    pub fn commit_outlook(&self) -> Option<CommitOutlook> {
        let state = self.state.read();
        let running = state.running.as_ref().filter(|running| running.transaction.has_work())?;
        let (copies, revoked) = running.transaction.sizes();
        let blocks = self.limits.needed(copies, revoked);
        let size = self.format.block_size as usize;
        let most = (blocks_at_once(size, &self.limits) * size) as u64;
        let size = size as u64;
        let mut log: Vec<Range<u64>> = Vec::new();
        let mut last = 0;
        for block in 0..blocks {
            last = self.log.physical(self.ring.after(state.head, block))?.checked_mul(size)?;
            match log.last_mut() {
                Some(run) if run.end == last && run.end - run.start < most => run.end += size,
                _ => log.push(last..last + size),
            }
        }
        Some(CommitOutlook { log, commit_block: last..last + size, begins: !state.begun })
    }
}
