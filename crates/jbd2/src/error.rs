//! Errors of the journal.

use crate::Tid;
use std::borrow::Cow;
use std::fmt;
use uext4_ondisk::CorruptKind;

/// Result of a journal call.
pub type Result<T> = std::result::Result<T, Error>;

/// A journal error. Cheap to clone, so that one failure can be reported to every caller it affects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The block cache or the device underneath.
    #[error(transparent)]
    Buffer(#[from] uext4_buffer::Error),
    /// The log's superblock is damaged.
    #[error("journal: {0}")]
    Corrupt(#[from] uext4_ondisk::Corrupt),
    /// The log's superblock is well formed but does not fit the volume or jbd2's limits.
    #[error("journal superblock in block {block}: {field} {reason}")]
    Mismatch {
        /// Block of the volume that holds the superblock.
        block: u64,
        /// The field, as the kernel calls it.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The log uses a feature that this version does not know.
    #[error("the journal uses an unsupported feature: {feature}")]
    Unsupported {
        /// Name of the feature, or its bit.
        feature: Cow<'static, str>,
    },
    /// The log holds transactions that were not written home: it must be replayed before anything is changed.
    #[error(
        "the journal holds transactions from number {sequence} on, in log block {start}, and needs recovery"
    )]
    NeedsRecovery {
        /// First log block in use.
        start: u32,
        /// First transaction in the log.
        sequence: Tid,
    },
    /// The log is damaged in a committed transaction. The state before that transaction can be read, but nothing may be
    /// written, because the transaction's changes are lost.
    #[error("the journal is damaged: {0} (open it read-only, or run e2fsck)")]
    Damaged(Damage),
    /// The blocks that the fast commits changed do not fit in the log, so they cannot be written home safely.
    #[error("the fast commits changed {blocks} blocks, the log has room for {room}")]
    FastCommitRoom {
        /// Log blocks needed.
        blocks: u64,
        /// Log blocks available.
        room: u32,
    },
    /// The log map has no volume block for a log block.
    #[error("log block {log_block} has no place on the volume")]
    HoleInLog {
        /// The log block.
        log_block: u32,
    },
    /// The runs of a log map do not cover a range of log blocks exactly once.
    #[error("the journal's block map is broken at log block {log_block}: {reason}")]
    BadLogMap {
        /// Where.
        log_block: u32,
        /// Why.
        reason: &'static str,
    },
    /// No transaction can hold that many blocks.
    #[error("{wanted} credits were asked for, a handle can have at most {maximum}")]
    TooManyCredits {
        /// Credits asked for.
        wanted: u32,
        /// Maximum credits of one handle.
        maximum: u32,
    },
    /// The handle has no credit left for another block.
    #[error("no credit left to change block {block}")]
    OutOfCredits {
        /// The block.
        block: u64,
    },
    /// The handle's transaction was not given write access to the block.
    #[error("block {block} is changed without write access for transaction {tid}")]
    NoWriteAccess {
        /// The block.
        block: u64,
        /// Transaction of the handle.
        tid: Tid,
    },
    /// The handle cannot get more credits in its transaction; stop it and start another one.
    #[error("a handle of transaction {tid} cannot get {wanted} more credits: {refusal}")]
    ExtendRefused {
        /// Transaction of the handle.
        tid: Tid,
        /// Credits asked for.
        wanted: u32,
        /// Why not.
        refusal: ExtendRefusal,
    },
    /// The log is too small for its own largest transaction.
    #[error("the log has {free} blocks for new transactions, {needed} are needed")]
    LogSpace {
        /// Free log blocks, minus the safety margin.
        free: u32,
        /// Blocks needed.
        needed: u32,
    },
    /// Too much of the log is reserved. Start or drop another reservation first.
    #[error("cannot reserve {wanted} log blocks: {reserved} of at most {maximum} are reserved")]
    ReservesFull {
        /// Log blocks asked for.
        wanted: u32,
        /// Log blocks reserved.
        reserved: u32,
        /// Maximum that can be reserved at once.
        maximum: u32,
    },
    /// No such transaction was ever started.
    #[error("transaction {tid} was never started")]
    UnknownTransaction {
        /// The number asked for.
        tid: Tid,
    },
    /// The journal was aborted earlier and stays aborted until the volume is opened again.
    #[error("the journal was aborted: {0}")]
    Aborted(AbortCause),
}

impl Error {
    /// The one errno this error maps to.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Error::Buffer(error) => error.errno(),
            Error::Corrupt(_)
            | Error::Mismatch { .. }
            | Error::Damaged(_)
            | Error::HoleInLog { .. }
            | Error::BadLogMap { .. } => libc::EUCLEAN,
            Error::Unsupported { .. } | Error::NeedsRecovery { .. } => libc::EOPNOTSUPP,
            Error::TooManyCredits { .. }
            | Error::OutOfCredits { .. }
            | Error::ExtendRefused { .. }
            | Error::FastCommitRoom { .. }
            | Error::ReservesFull { .. }
            | Error::LogSpace { .. } => libc::ENOSPC,
            Error::NoWriteAccess { .. } | Error::UnknownTransaction { .. } => libc::EINVAL,
            Error::Aborted(_) => libc::EIO,
        }
    }
}

/// Why a handle cannot get more credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtendRefusal {
    /// The transaction is locked.
    Locked,
    /// The transaction would become too large.
    TransactionFull,
}

impl fmt::Display for ExtendRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExtendRefusal::Locked => "the transaction is locked",
            ExtendRefusal::TransactionFull => "the transaction is full",
        })
    }
}

/// Why a journal was aborted. The first cause is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbortCause {
    /// What failed, as one phrase.
    pub what: Cow<'static, str>,
    /// Error number of the failure. (Callers of an aborted journal always get `EIO`.)
    pub errno: i32,
}

impl fmt::Display for AbortCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "{} ({})", self.what, uext4_blockdev::describe(&errno))
    }
}

/// Damage in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The transaction.
    pub tid: Tid,
    /// The log block.
    pub log_block: u32,
    /// Where it is on the volume.
    pub block: u64,
    /// What is wrong.
    pub kind: CorruptKind,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { tid, log_block, block, kind } = self;
        write!(f, "transaction {tid}, log block {log_block} (block {block}): {kind}")
    }
}
