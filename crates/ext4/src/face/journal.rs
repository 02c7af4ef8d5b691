//! Reports about a volume's journal and its recovery.

pub use uext4_buffer::Error as BufferError;
pub use uext4_jbd2::{
    AbortCause, Damage, Error, ExtendRefusal, FastCommits, JournalInfo, LogEnd, RecoveryReport, Tid,
};
pub use uext4_ondisk::jbd2::{
    JournalCompat, JournalFeatures, JournalIncompat, JournalRoCompat, JournalSuperblock, LogChecksums,
    LogFormat, SuperblockVersion,
};
