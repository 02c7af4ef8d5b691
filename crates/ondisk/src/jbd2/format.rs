//! What the features of a log say about the layout of its blocks, and the checksums over them.
//!
//! A log has one of four kinds of checksum (Documentation/filesystems/ext4/journal.rst; the behaviour is that of
//! fs/jbd2/recovery.c): none; *transaction*, a crc32 over the descriptor and data blocks of a transaction in its
//! commit block; and *v2* and *v3*, crc32c in every metadata block and in the tag of every data block.

use zerocopy::big_endian::U32;

use super::superblock::{JournalCompat, JournalIncompat, JournalSuperblock};
use crate::bytes::{array_at, index, put};
use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind, EncodeError};

/// Bytes of the checksum at the end of descriptor and revoke blocks.
const TAIL_SIZE: usize = 4;

/// Which checksums a log carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogChecksums {
    /// None.
    None,
    /// A crc32 of each transaction in its commit block (compatible feature `journal_checksum`).
    Transaction,
    /// crc32c of each metadata block, 16 bits of it in tags.
    V2,
    /// crc32c of each metadata block, 32 bits of it in tags.
    V3,
}

/// How the blocks of a log are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFormat {
    /// Bytes of a block.
    pub block_size: u32,
    /// Whether block numbers have 64 bits.
    pub wide: bool,
    /// Which checksums there are.
    pub checksums: LogChecksums,
    /// Whether a commit block may reach the medium before the blocks it commits.
    pub async_commit: bool,
    /// Seed of crc32c checksums.
    pub seed: u32,
}

impl LogFormat {
    /// The format that a superblock describes.
    pub fn of(superblock: &JournalSuperblock) -> LogFormat {
        let features = &superblock.features;
        let checksums = if features.incompat.contains(JournalIncompat::CSUM_V3) {
            LogChecksums::V3
        } else if features.incompat.contains(JournalIncompat::CSUM_V2) {
            LogChecksums::V2
        } else if features.compat.contains(JournalCompat::CHECKSUM) {
            LogChecksums::Transaction
        } else {
            LogChecksums::None
        };
        LogFormat {
            block_size: superblock.block_size,
            wide: features.incompat.contains(JournalIncompat::BIT64),
            checksums,
            async_commit: features.incompat.contains(JournalIncompat::ASYNC_COMMIT),
            seed: superblock.checksum_seed(),
        }
    }

    /// Whether metadata blocks and tags carry crc32c checksums.
    pub fn metadata_checksums(&self) -> bool {
        matches!(self.checksums, LogChecksums::V2 | LogChecksums::V3)
    }

    /// Bytes of one tag, the UUID that may follow it not counted.
    pub fn tag_size(&self) -> u32 {
        match (self.checksums, self.wide) {
            (LogChecksums::V3, _) => 16,
            (LogChecksums::V2, true) => 14,
            (LogChecksums::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// The bytes of a descriptor or revoke block that records may use.
    pub(super) fn record_end(&self) -> usize {
        let end = index(self.block_size);
        if self.metadata_checksums() { end.saturating_sub(TAIL_SIZE) } else { end }
    }

    fn tail_of(&self, block: &[u8]) -> Option<(u32, u32)> {
        let end = index(self.block_size);
        let position = end.checked_sub(TAIL_SIZE)?;
        let stored = U32::from_bytes(*array_at(block, position)?).get();
        let sum = csum(csum(self.seed, block.get(..position)?), &[0; TAIL_SIZE]);
        Some((stored, sum))
    }

    /// Checks the checksum at the end of a descriptor or revoke block, if there is one.
    pub fn verify_tail(&self, block: &[u8]) -> Result<(), Corrupt> {
        if !self.metadata_checksums() {
            return Ok(());
        }
        match self.tail_of(block) {
            Some((stored, sum)) if stored == sum => Ok(()),
            Some(_) => Err(CorruptKind::JournalBlockChecksum.into()),
            None => Err(CorruptKind::Truncated("journal block").into()),
        }
    }

    /// Brings the checksum at the end of a descriptor or revoke block up to date.
    pub fn seal_tail(&self, block: &mut [u8]) -> Result<(), EncodeError> {
        if !self.metadata_checksums() {
            return Ok(());
        }
        let (_, sum) = self.tail_of(block).ok_or(EncodeError::too_short("journal block"))?;
        let position = index(self.block_size).saturating_sub(TAIL_SIZE);
        put(block, position, &U32::new(sum).to_bytes(), "journal block")
    }

    /// crc32c of a data block of transaction `sequence`, as it stands in the log (escaped).
    pub fn data_checksum(&self, sequence: u32, data: &[u8]) -> u32 {
        csum(csum(self.seed, &U32::new(sequence).to_bytes()), data)
    }
}
