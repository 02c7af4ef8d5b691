//! Times of overwrites, which change nothing else of their inode: they are kept in memory, and written with its next
//! change, by `fsync` and `O_SYNC`, when the file or the volume is closed, and periodically.
//!
//! Writing them changes attributes only: it never makes the inode datasync-dirty, so `O_DSYNC` overwrites still use
//! FUA. On volumes that only take overwrites the times stay in memory.

use super::Files;
use crate::ground::error::Result;
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::edit::Change;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The record's block.
const CREDITS: u32 = 1;

impl Files<'_> {
    /// Writes the time of the latest overwrite into the record, in a handle of its own, if it is not there yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::ground::error::Error::Corrupt), those of the journal.
    pub(crate) fn write_times(&self, inode: &Inode) -> Result<()> {
        if !self.state.can_change() || !inode.has_untold_times() {
            return Ok(());
        }
        Journaled::run(self.state, "times", CREDITS, |blocks| {
            inode.edit(blocks)?.store(blocks, Change::Attributes)?;
            blocks.declare(inode.ino(), 0..0);
            Ok(())
        })
    }

    /// The same for all inodes in memory whose times were last written at least `age` ago. Skips inodes without a name:
    /// nobody will read theirs.
    ///
    /// # Errors
    /// The first failure; the others are written all the same.
    pub(crate) fn write_old_times(&self, age: Duration) -> Result<()> {
        if !self.state.can_change() {
            return Ok(());
        }
        let (now, mut outcome) = (Instant::now(), Ok(()));
        for inode in self.state.inodes_in_use(Inode::has_untold_times) {
            if inode.disk().links > 0 && inode.times_are_old(now, age) {
                outcome = outcome.and(self.write_times(&inode));
            }
        }
        // One of them may have lost its name and its last user meanwhile.
        outcome.and(self.free_all_left())
    }

    /// Called when an open file is closed: best effort, without a commit.
    pub(crate) fn close_times(&self, inode: &Arc<Inode>) {
        // The other reference is the cache's.
        let last = Arc::strong_count(inode) <= 2;
        if last && inode.disk().links > 0 && !std::thread::panicking() {
            // If this fails, they stay in memory, and closing the volume reports the error.
            let _best_effort = self.write_times(inode);
        }
    }
}
