//! The journal's structures, all big-endian but the fast-commit records.

mod commit;
mod fast_commit;
mod fast_commit_writer;
mod format;
mod header;
mod revoke;
mod superblock;
mod tag;

pub use commit::{CommitBlock, TransactionChecksum};
pub use fast_commit::{
    FastCommitChecksum, FastCommitEntry, FastCommitRecord, FastCommitRecords, Name as FastCommitName,
};
pub use fast_commit_writer::FastCommitWriter;
pub use format::{LogChecksums, LogFormat};
pub use header::{BlockHeader, BlockType, HEADER_SIZE, MAGIC};
pub use revoke::Revokes;
pub use superblock::{
    JournalCompat, JournalFeatures, JournalIncompat, JournalRoCompat, JournalSuperblock, SuperblockVersion,
};
pub use tag::{Tag, TagChecksum, TagFlags, Tags};
