//! Making changes durable: by the journal, or by the batch of a volume without one.

use super::error::{Error, Result};
use super::lifetime::stamp_time;
use super::state::Ground;
use super::unlogged::BatchOutlook;
use std::ops::Range;
use std::time::Duration;
use uext4_jbd2::{AbortCause, CommitOutlook, Journal, JournalStats, SyncOutcome, Tid};
use uext4_ondisk::ext4::{State, Superblock};

impl Ground {
    /// Makes all changes so far durable. The caller holds no handle.
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

    /// Makes changes up to this transaction durable. Returns whether the device was flushed after all data that was
    /// complete before the call. The caller holds no handle.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub(crate) fn datasync(&self, tid: Tid) -> Result<bool> {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => Ok(journal.sync(tid)? == SyncOutcome::Committed { flushed: true }),
            (None, Some(unlogged)) => unlogged.commit(),
            (None, None) => Ok(false),
        }
    }

    /// The newest transaction with changes that are not durable yet. Whatever is read from the volume may include its
    /// changes.
    pub(crate) fn newest_uncommitted(&self) -> Option<Tid> {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.newest_uncommitted(),
            (None, unlogged) => unlogged.as_ref()?.newest_uncommitted(),
        }
    }

    /// Age of the oldest change that is not durable.
    pub(crate) fn running_for(&self) -> Option<Duration> {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.running_for(),
            (None, unlogged) => unlogged.as_ref()?.running_for(),
        }
    }

    /// Whether anything but written blocks can be changed here and now: the volume takes changes and is open for
    /// writing.
    pub(crate) fn can_change(&self) -> bool {
        (self.journal.is_some() || self.unlogged.is_some()) && self.takes_changes()
    }

    /// Whether anything but written blocks could be changed if the volume were open for writing. Depends on the
    /// superblock only. A volume without a journal that was not unmounted cleanly takes no change, because its bitmaps
    /// cannot be trusted.
    pub(crate) fn takes_changes(&self) -> bool {
        self.superblock.has_journal() || self.superblock.state.contains(State::CLEAN)
    }

    /// What a commit would send to the device if it began now. `None` if there is nothing to commit.
    pub(crate) fn commit_outlook(&self) -> Option<CommitSteps> {
        let bytes = u64::from(self.cache.block_size());
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.commit_outlook().map(CommitSteps::of_log),
            (None, Some(unlogged)) => unlogged.outlook().map(|batch| CommitSteps::of_batch(&batch, bytes)),
            (None, None) => None,
        }
    }

    /// Aborts the volume: no more changes.
    pub(crate) fn abort(&self, cause: AbortCause) {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.abort(cause),
            (None, Some(unlogged)) => unlogged.abort(cause),
            (None, None) => {}
        }
    }

    /// The same, without recording the cause on the device.
    pub(crate) fn abandon(&self, cause: AbortCause) {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.abandon(cause),
            (None, Some(unlogged)) => unlogged.abort(cause),
            (None, None) => {}
        }
    }

    /// Most credits that a handle can ask for. Without a journal no log bounds them.
    pub(crate) fn max_credits(&self) -> u32 {
        let most = self.journal.as_ref().map_or(u32::MAX, Journal::max_handle_credits);
        most.saturating_sub(self.quota_credits())
    }

    /// Credits that each handle gets in addition, for charging quota.
    pub(crate) fn quota_credits(&self) -> u32 {
        self.quota.as_ref().map_or(0, |quota| quota.credits())
    }

    /// Counters of the journal or batch.
    pub(crate) fn journal_stats(&self) -> JournalStats {
        match (&self.journal, &self.unlogged) {
            (Some(journal), _) => journal.stats(),
            (None, Some(unlogged)) => unlogged.stats(),
            (None, None) => JournalStats::default(),
        }
    }

    /// Brings write time and lifetime writes of a superblock that is about to be written up to date. Takes the
    /// journal's state lock.
    pub(crate) fn stamp(&self, superblock: &mut Superblock) {
        let journal = self.journal_stats();
        let blocks = journal.blocks_logged + journal.home_writes;
        let bytes = blocks * u64::from(self.superblock.geometry.block_size()) + self.written.bytes();
        // From the value at open, so that it does not matter how often it is set.
        superblock.kbytes_written = self.superblock.kbytes_written.saturating_add(bytes >> 10);
        stamp_time(superblock, self.clock);
    }
}

/// One step of a commit. Ranges are bytes of the device.
pub(crate) enum CommitStep {
    /// A write that the next flush makes durable.
    Write(Range<u64>),
    /// A write that is durable when it is complete: with FUA, or followed by a flush.
    Durable(Range<u64>),
    /// A flush of the device.
    Flush,
}

/// What a commit sends to the device, in order.
pub(crate) struct CommitSteps {
    pub(crate) steps: Vec<CommitStep>,
    /// Before that it marks the volume as in use, which `steps` leaves out.
    pub(crate) begins: bool,
}

impl CommitSteps {
    fn of_log(outlook: CommitOutlook) -> CommitSteps {
        let CommitOutlook { log, commit_block, begins } = outlook;
        let ending = [CommitStep::Flush, CommitStep::Durable(commit_block)];
        CommitSteps { steps: log.into_iter().map(CommitStep::Write).chain(ending).collect(), begins }
    }

    /// Of a batch of a volume without a journal: its blocks go home in groups, a flush after each.
    fn of_batch(batch: &BatchOutlook, block_size: u64) -> CommitSteps {
        let mut steps = Vec::new();
        for group in &batch.groups {
            let mut runs: Vec<Range<u64>> = Vec::new();
            for block in group {
                let start = block * block_size;
                match runs.last_mut() {
                    Some(run) if run.end == start => run.end += block_size,
                    _ => runs.push(start..start + block_size),
                }
            }
            steps.extend(runs.into_iter().map(CommitStep::Write));
            steps.push(CommitStep::Flush);
        }
        CommitSteps { steps, begins: batch.begins }
    }
}
