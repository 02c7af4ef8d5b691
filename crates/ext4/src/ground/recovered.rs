//! The outcome of recovery at open.

use uext4_jbd2::{Damage, FastCommits, LogEnd, RecoveryReport};
use uext4_ondisk::ext4::{State, Superblock};

/// What opening did with the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoveryState {
    /// The journal was empty, or there is none.
    Clean,
    /// The superblock asked for recovery, but the log was empty.
    EmptyLog,
    /// The superblock asks for recovery, but there is no journal (volume opened read-only).
    NoJournal,
    /// The log is replayed in memory; the device is as it was.
    Overlay,
    /// The log was replayed onto the device.
    Replayed,
    /// The log holds stale leftovers; they are still there.
    Ignored,
    /// The log held stale leftovers and was emptied.
    Emptied,
}

impl RecoveryState {
    /// The state as one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RecoveryState::Clean => "clean",
            RecoveryState::EmptyLog => "empty_log",
            RecoveryState::NoJournal => "no_journal",
            RecoveryState::Overlay => "overlay",
            RecoveryState::Replayed => "replayed",
            RecoveryState::Ignored => "ignored",
            RecoveryState::Emptied => "emptied",
        }
    }
}

/// What was recovered when the volume was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryInfo {
    /// What opening did with the journal.
    pub state: RecoveryState,
    /// Whether the device still asks for recovery.
    pub needed: bool,
    /// What the log held, if it was read.
    pub log: Option<RecoveryReport>,
    /// Error that the journal had recorded (`s_errno`), 0 = none.
    pub journal_errno: i32,
    /// Whether this errno is the only recorded error, and one of a failing device: an abort that committed nothing.
    pub(crate) device_failed: bool,
    /// Why a fast commit could not be replayed, if any. The volume is shown without it and later ones.
    pub fast_commits_refused: Option<String>,
    /// The fast commits before that one, if any. They were replayed.
    pub fast_commits_before: Option<FastCommits>,
    /// Why the journal cannot be used. Only set for a volume that was opened read-only and does not need it.
    pub journal_damage: Option<String>,
}

/// Errnos of a device that fails or is full.
const DEVICE: [i32; 6] =
    [libc::EIO, libc::ENOSPC, libc::ENXIO, libc::ENODEV, libc::ETIMEDOUT, libc::EREMOTEIO];

impl RecoveryInfo {
    /// Takes over the error that the journal recorded. `superblock` is the one on the device, before recovery.
    pub(crate) fn note_journal(&mut self, errno: i32, superblock: &Superblock) {
        let known = superblock.state.contains(State::ERRORS) || superblock.errors.count > 0;
        self.journal_errno = errno;
        self.device_failed = DEVICE.contains(&errno.saturating_abs()) && !known;
    }

    pub(crate) fn new(state: RecoveryState, needed: bool) -> Self {
        RecoveryInfo {
            state,
            needed,
            log: None,
            journal_errno: 0,
            device_failed: false,
            fast_commits_refused: None,
            fast_commits_before: None,
            journal_damage: None,
        }
    }

    /// The fast commits that were replayed, if there were any.
    #[must_use]
    pub fn fast_commits(&self) -> Option<FastCommits> {
        match self.fast_commits_refused {
            None => self.log.as_ref()?.fast_commits.filter(|found| found.records > 0),
            Some(_) => self.fast_commits_before,
        }
    }

    /// No recovery was needed.
    pub(crate) fn clean() -> Self {
        Self::new(RecoveryState::Clean, false)
    }

    /// The damage that ended the log before a committed transaction, if there is any.
    #[must_use]
    pub fn log_damage(&self) -> Option<Damage> {
        self.log.as_ref()?.ended.damage()
    }

    /// Why committed changes in the journal could not be replayed, in one sentence. `None` if all were.
    #[must_use]
    pub fn loss(&self) -> Option<String> {
        if let Some(damage) = self.log_damage() {
            return Some(format!("the journal is damaged, later changes are lost: {damage}"));
        }
        let why = self.fast_commits_refused.as_ref()?;
        let which = match self.fast_commits_before {
            Some(before) => format!("from number {} on ", before.commits + 1),
            None => String::new(),
        };
        Some(format!(
            "the fast commits of the journal {which}are not replayed, later changes are lost: {why}"
        ))
    }

    /// Remarks for the user, one sentence each.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.loss().into_iter().chain(self.facts()).collect()
    }

    /// Remarks for the user besides [`RecoveryInfo::loss`], one sentence each.
    #[must_use]
    pub fn facts(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let log = self.log.as_ref();
        if let (RecoveryState::Overlay, Some(log)) = (self.state, log) {
            notes.push(format!(
                "the journal is replayed in memory ({} transactions, {} blocks); the device is unchanged",
                log.transactions, log.blocks
            ));
        }
        if let (RecoveryState::Overlay, Some(found)) = (self.state, self.fast_commits()) {
            let FastCommits { records, commits, .. } = found;
            notes.push(format!("{commits} fast commits ({records} records) are replayed, too"));
        }
        if let Some(number) = log.and_then(|log| log.torn_fast_commit) {
            notes.push(format!(
                "fast commit {number} of the journal has a wrong checksum and does not count: torn or damaged"
            ));
        }
        if self.state == RecoveryState::NoJournal {
            notes.push("the superblock asks for recovery, but there is no journal: run e2fsck".into());
        }
        if self.state == RecoveryState::Ignored {
            notes.push("the journal holds left-overs without needs_recovery; they are ignored".into());
        }
        if log.is_some_and(|log| log.ended == LogEnd::Interrupted) {
            notes.push("the last transaction of the journal was not complete and does not count".into());
        }
        if let Some(damage) = &self.journal_damage {
            notes.push(format!("the journal is damaged, so the volume can only be read: {damage}"));
        }
        if self.journal_errno != 0 {
            notes.push(format!("the journal recorded error {}", self.journal_errno));
        }
        notes
    }
}
