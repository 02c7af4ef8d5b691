//! What a commit asks of the file system.

use crate::{AbortCause, Tid};

/// Blocks that a transaction freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreedRun {
    /// First block.
    pub first: u64,
    /// Blocks.
    pub blocks: u64,
}

/// Calls that a commit makes, on the thread that commits. They may do I/O, but must neither start a handle nor wait
/// for a commit, for room in the log or for a gate. An error aborts the journal.
pub trait CommitHooks: Send + Sync {
    /// The log is about to be used for the first time since it was empty. Afterwards it must be durable that the
    /// volume needs recovery, or the next mount throws the log away.
    ///
    /// # Errors
    /// Abort the journal.
    fn log_begins(&self) -> Result<(), AbortCause> {
        Ok(())
    }

    /// Sends the data that must be complete before this transaction is: what writes of these inodes have not sent yet.
    /// The log's own blocks are written while the data is under way.
    ///
    /// # Errors
    /// Abort the journal.
    fn send_ordered(&self, _tid: Tid, _inodes: &[u64]) -> Result<(), AbortCause> {
        Ok(())
    }

    /// Waits until that data is complete. The commit's flush, which follows, makes it durable.
    ///
    /// # Errors
    /// Abort the journal.
    fn await_ordered(&self, _tid: Tid, _inodes: &[u64]) -> Result<(), AbortCause> {
        Ok(())
    }

    /// The transaction is durable, and [`crate::Journal::last_committed`] says so. From now on what it freed may be
    /// allocated and carry anything. Called once for every commit, in order, before those who wait for it return.
    fn committed(&self, _tid: Tid, _freed: &[FreedRun]) {}

    /// The journal was aborted, for this first cause. Called once, on whatever thread found it out.
    fn aborted(&self, _cause: &AbortCause) {}
}
