//! Recovery: reads a log that is not empty and finds the blocks that must replace older ones.
//!
//! | file | step |
//! |---|---|
//! | `reader.rs` | log blocks, read ahead |
//! | `scan.rs` | follow the transactions to the last good commit |
//! | `select.rs` | apply revokes, choose the latest copy of each block |
//! | `fast_commit.rs` | the fast commits after the last transaction |
//! | `apply.rs` | write the copies home, empty the log |
//! | `convert.rs` | convert the changes of fast commits into an ordinary transaction |
//!
//! Nothing is written before [`Recovery::write_home`]; a reader may instead use the copies in place
//! ([`Recovery::blocks`]).
//!
//! # Where the log ends
//! As in the kernel (fs/jbd2/recovery.c) and e2fsck, but stricter or more precise about damage in two places:
//!
//! | what is found | end | kernel |
//! |---|---|---|
//! | no block of the next transaction | [`LogEnd::Complete`] | the same |
//! | a bad checksum, and a commit block older than the commit before it | [`LogEnd::Stale`] | the same |
//! | asynchronous commits: a bad commit block in the last transaction | [`LogEnd::Interrupted`] | the same |
//! | asynchronous commits: another bad block there, which may have come last | the same | refuses (versions 2 and 3) |
//! | a bad checksum in a committed transaction | [`LogEnd::Damaged`] | refuses to mount, having replayed some |
//! | a bad data block | [`LogEnd::Damaged`]: the transaction does not count | leaves the block out, then refuses |
//! | the whole log is walked | [`LogEnd::Full`] | walks on |
//!
//! The caller decides what to do with a damaged log: the state before the damage is consistent as far as the log is
//! concerned and can be read, but acknowledged changes are lost.
//!
//! # Memory
//! At most one record per block of the log: copies, and the log blocks that hold revokes. Revoke records themselves are
//! only kept for blocks that have a copy. A copy costs at most about 90 bytes while the log is read, and its tag takes
//! at least 8 bytes in a descriptor block that must really exist: a log of maximum length that is a hole except for a
//! mebibyte of descriptors takes 12 MB (`crates/hostile/tests/giants.rs`).

mod apply;
mod convert;
mod fast_commit;
mod reader;
mod scan;
mod select;

pub use apply::{mark_empty, store_empty_superblock};
pub use convert::Changes;
pub use fast_commit::{FastCommitReplay, FastCommits};

use crate::{Damage, JournalInfo, LogMap, Result, Tid};
use reader::LogReader;
use scan::Scan;
use std::fmt;
use std::sync::Arc;
use uext4_blockdev::Device;

/// The contents of a log.
#[derive(Debug, Clone)]
pub struct Recovery {
    info: JournalInfo,
    report: RecoveryReport,
    blocks: Vec<Replay>,
}

/// A block of the volume and the copy in the log that replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replay {
    /// The block.
    pub home: u64,
    /// Block of the log's device that holds the copy.
    pub copy: u64,
    /// Whether the first four bytes of the copy replace the journal's magic number.
    pub escaped: bool,
}

/// What recovery found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// First transaction of the log.
    pub first: Tid,
    /// The transaction after the last good one: `first` if there is none.
    pub end: Tid,
    /// Good transactions.
    pub transactions: u32,
    /// Copies of blocks in good transactions.
    pub copies: u32,
    /// Blocks of the volume that recovery replaces.
    pub blocks: u32,
    /// Revoke records in good transactions.
    pub revokes: u64,
    /// Copies ignored because they were revoked.
    pub revoked: u32,
    /// Why the log ended where it did.
    pub ended: LogEnd,
    /// The fast commits after the last good transaction; `None` if the log has no area for them.
    pub fast_commits: Option<FastCommits>,
    /// The fast commit after those, counted from 1, if it is complete but its checksum is wrong: torn by the crash, as
    /// its blocks need not become durable in order, or damaged afterwards. The two cases cannot be distinguished.
    pub torn_fast_commit: Option<u32>,
}

/// Why the log ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogEnd {
    /// No block of the next transaction: the ordinary end, including a torn last transaction.
    Complete,
    /// Every block of the log was walked.
    Full,
    /// A checksum did not match, in left-overs of an older use of the log.
    Stale,
    /// A checksum did not match in the last transaction of a log with asynchronous commits: the crash came before it
    /// was completely on the medium.
    Interrupted,
    /// A committed transaction is damaged; it and all later ones are ignored.
    Damaged(Damage),
}

impl fmt::Display for LogEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogEnd::Complete => f.write_str("complete"),
            LogEnd::Full => f.write_str("the whole log was in use"),
            LogEnd::Stale => f.write_str("left-overs of an older use of the log"),
            LogEnd::Interrupted => f.write_str("the last transaction was interrupted"),
            LogEnd::Damaged(damage) => write!(f, "damaged: {damage}"),
        }
    }
}

impl LogEnd {
    /// The damage, if that ended the log.
    #[must_use]
    pub fn damage(&self) -> Option<Damage> {
        match self {
            LogEnd::Damaged(damage) => Some(*damage),
            _ => None,
        }
    }
}

impl Recovery {
    /// Reads the log that `log` maps, on its own device or on `device`, and `info` describes, whether it is empty or
    /// not. `blocks` is how many blocks the volume has.
    ///
    /// # Errors
    /// The device's, [`crate::Error::HoleInLog`], and [`crate::Error::Unsupported`] for fast commits of an unknown
    /// kind. Damage in the log is not an error: see [`RecoveryReport::ended`].
    pub fn read(
        device: &Arc<dyn Device>,
        log: &dyn LogMap,
        info: &JournalInfo,
        blocks: u64,
    ) -> Result<Recovery> {
        let mut reader = LogReader::new(&**log.device().unwrap_or(device), log, info.superblock.block_size)?;
        let mut recovery = Recovery::empty(info);
        if !info.needs_recovery() {
            return Ok(recovery);
        }
        let scan = Scan::run(&mut reader, info, blocks)?;
        select::select(scan, &mut reader, &mut recovery)?;
        if recovery.report.ended.damage().is_none() {
            let found = fast_commit::scan(&mut reader, info, recovery.report.end)?;
            recovery.report.fast_commits = found.map(|(found, _)| found);
            recovery.report.torn_fast_commit = found.and_then(|(_, torn)| torn);
        }
        Ok(recovery)
    }

    fn empty(info: &JournalInfo) -> Recovery {
        let report = RecoveryReport {
            first: info.sequence(),
            end: info.sequence(),
            transactions: 0,
            copies: 0,
            blocks: 0,
            revokes: 0,
            revoked: 0,
            ended: LogEnd::Complete,
            fast_commits: None,
            torn_fast_commit: None,
        };
        Recovery { info: info.clone(), report, blocks: Vec::new() }
    }

    /// What was found.
    #[must_use]
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// The superblock of the log.
    #[must_use]
    pub fn info(&self) -> &JournalInfo {
        &self.info
    }

    /// The blocks that recovery replaces, in order, each once.
    #[must_use]
    pub fn blocks(&self) -> &[Replay] {
        &self.blocks
    }

    /// The sequence number that the superblock of the emptied log must hold: one more than that of the first
    /// transaction that was not good, so that no left-over in the log is taken for new (as jbd2 and e2fsck do).
    #[must_use]
    pub fn empty_sequence(&self) -> Tid {
        self.report.end.next()
    }

    /// The sequence number of the log's superblock once recovery is over: [`Recovery::empty_sequence`], or the present
    /// one if the log was empty.
    #[must_use]
    pub fn settled_sequence(&self) -> Tid {
        if self.info.needs_recovery() { self.empty_sequence() } else { self.info.sequence() }
    }

    /// Passes the records of at most `commits` complete fast commits to `replay`, in order. Returns what was passed on.
    ///
    /// # Errors
    /// Those of `replay`, and of reading.
    pub fn replay_fast_commits<R: FastCommitReplay + ?Sized>(
        &self,
        device: &Arc<dyn Device>,
        log: &dyn LogMap,
        commits: u32,
        replay: &mut R,
    ) -> std::result::Result<FastCommits, R::Error> {
        let Some(found) = self.report.fast_commits.filter(|found| found.records > 0) else {
            return Ok(FastCommits::default());
        };
        let device = log.device().unwrap_or(device);
        let mut reader = LogReader::new(&**device, log, self.info.superblock.block_size)?;
        fast_commit::deliver(&mut reader, &self.info, found, commits, replay)
    }
}
