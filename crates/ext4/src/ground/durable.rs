//! What makes changes durable: the journal, or the batch of a volume that has none.

use super::error::{Error, Result};
use super::state::Ground;
use std::time::Duration;
use uext4_jbd2::{AbortCause, Journal, JournalStats, SyncOutcome, Tid};
use uext4_ondisk::ext4::State;

impl Ground {
    /// Makes durable all that was changed so far. The caller is in no handle.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn commit_all(&self) -> Result<()> {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.commit_all().map(drop).map_err(Error::from),
            (None, Some(unlogged)) => unlogged.commit().map(drop),
            (None, None) => Ok(()),
        }
    }

    /// Makes durable what was changed up to this transaction. Whether the device was flushed after all data that was
    /// complete before the call. The caller is in no handle.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn datasync(&self, tid: Tid) -> Result<bool> {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => Ok(journal.datasync(tid)? == SyncOutcome::Committed { flushed: true }),
            (None, Some(unlogged)) => unlogged.commit(),
            (None, None) => Ok(false),
        }
    }

    /// The newest transaction that changed something and is not durable: what is read of the volume may be a change of
    /// it.
    pub(crate) fn newest_uncommitted(&self) -> Option<Tid> {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.newest_uncommitted(),
            (None, unlogged) => unlogged.as_ref()?.newest_uncommitted(),
        }
    }

    /// How long what was changed has waited to become durable, at most.
    pub(crate) fn running_for(&self) -> Option<Duration> {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.running_for(),
            (None, unlogged) => unlogged.as_ref()?.running_for(),
        }
    }

    /// Whether anything can be changed but written blocks. Of a volume without a journal that was not left cleanly
    /// nobody knows what is right.
    pub(crate) fn can_change(&self) -> bool {
        self.journal.is_some() || self.unlogged.is_some() && self.superblock.state.contains(State::CLEAN)
    }

    /// Ends all changes for good.
    pub(crate) fn abort(&self, cause: AbortCause) {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.abort(cause),
            (None, Some(unlogged)) => unlogged.abort(cause),
            (None, None) => {}
        }
    }

    /// The same, and not even the cause is written.
    pub(crate) fn abandon(&self, cause: AbortCause) {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.abandon(cause),
            (None, Some(unlogged)) => unlogged.abort(cause),
            (None, None) => {}
        }
    }

    /// Most credits that a handle can have. Without a journal nothing is bounded by a log.
    pub(crate) fn max_credits(&self) -> u32 {
        self.journal.as_ref().map_or(u32::MAX, Journal::max_handle_credits)
    }

    /// What journal or batch did.
    pub(crate) fn journal_stats(&self) -> JournalStats {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.stats(),
            (None, Some(unlogged)) => unlogged.stats(),
            (None, None) => JournalStats::default(),
        }
    }
}
