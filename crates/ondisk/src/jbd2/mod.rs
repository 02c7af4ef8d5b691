//! The journal's structures, all big-endian.

mod header;
mod superblock;

pub use header::{BlockHeader, BlockType, HEADER_SIZE};
pub use superblock::{
    JournalCompat, JournalFeatures, JournalIncompat, JournalRoCompat, JournalSuperblock, SuperblockVersion,
};
