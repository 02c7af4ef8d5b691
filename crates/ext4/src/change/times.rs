//! The times of overwrites, which change nothing else of their inode: they are kept in memory and written with the next
//! change of it, by `fsync` and `O_SYNC`, when the file is closed, when the volume is, and now and then between.
//!
//! Such a write is a change of attributes: it never makes the inode datasync-dirty, so `O_DSYNC` overwrites go on with
//! FUA. On volumes that take overwrites only the times stay in memory.

use super::Files;
use crate::ground::error::Result;
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::edit::Change;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The record.
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
        Journaled::run(self.state, CREDITS, |blocks| inode.edit(blocks)?.store(blocks, Change::Attributes))
    }

    /// The same for all inodes in memory of which none were written for so long. Not for those without a name: nobody
    /// will read theirs.
    ///
    /// # Errors
    /// The first one; the others are written all the same.
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
        // One of them may have lost its name meanwhile, and its last user.
        outcome.and(self.free_all_left())
    }

    /// The last use of an open file ends: best effort, without a commit.
    pub(crate) fn close_times(&self, inode: &Arc<Inode>) {
        // The cache has the other one.
        let last = Arc::strong_count(inode) <= 2;
        if last && inode.disk().links > 0 && !std::thread::panicking() {
            // They stay in memory if that fails, and the volume says why when it is closed.
            let _best_effort = self.write_times(inode);
        }
    }
}
