//! What a commit calls in the file system.

use crate::{AbortCause, Tid};

/// Blocks that a transaction freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreedRun {
    /// First block.
    pub first: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// What a fast commit may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastCommitRoom {
    /// The transaction. No handle of it is active.
    pub tid: Tid,
    /// Whether it is the first one of this transaction, which begins with a head.
    pub first: bool,
    /// Maximum number of blocks.
    pub blocks: u32,
    /// Bytes of a block.
    pub block_size: usize,
}

/// The contents of a fast commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FastCommitContents {
    /// Nothing was declared since the last fast commit of the transaction.
    Nothing,
    /// These blocks describe everything declared since then ([`uext4_ondisk::jbd2::FastCommitWriter`]).
    Blocks(Vec<u8>),
    /// What was declared cannot be described.
    Full(FullCommit),
}

/// Why a sync made a full commit although the log has an area for fast commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullCommit {
    /// The log was not in use yet.
    LogUnused,
    /// A handle made changes that it did not declare.
    Undeclared,
    /// The area has too little room.
    AreaFull,
    /// No record describes what a file has become.
    File,
}

/// Reasons of full commits.
pub(crate) const FULL_COMMITS: usize = 4;

/// Calls that a commit makes, on the thread that commits. They may do I/O, but must neither start a handle nor wait
/// for a commit, for room in the log or for a gate. An error aborts the journal.
pub trait CommitHooks: Send + Sync {
    /// The log is about to be used for the first time since it was empty. When this returns, the volume must be durably
    /// marked as needing recovery, or the next mount discards the log.
    ///
    /// # Errors
    /// Abort the journal.
    fn log_begins(&self) -> Result<(), AbortCause> {
        Ok(())
    }

    /// Submits the data of these inodes that must be complete before this transaction commits and is not submitted yet.
    /// The log blocks are written while it is in flight.
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

    /// Describes what was declared since the last fast commit of the transaction, and forgets it. The journal is
    /// quiesced: handles that wait hold no lock that comes after handles.
    fn describe(&self, _room: &FastCommitRoom) -> FastCommitContents {
        FastCommitContents::Full(FullCommit::File)
    }

    /// The transaction is durable, and [`crate::Journal::last_committed`] includes it. The blocks that it freed may now
    /// be allocated and reused. Called once for every commit, in order, before its waiters return.
    fn committed(&self, _tid: Tid, _freed: &[FreedRun]) {}

    /// The journal was aborted for this first cause. Called once, on the thread that detected it.
    fn aborted(&self, _cause: &AbortCause) {}
}
