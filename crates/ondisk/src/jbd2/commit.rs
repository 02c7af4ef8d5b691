//! Commit blocks (`struct commit_header`): the end of a transaction.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::format::LogFormat;
use super::header::{BlockHeader, BlockType};
use crate::bytes::{index, load, put, record};
use crate::checksum::{crc32_be, csum};
use crate::error::{Corrupt, CorruptKind, EncodeError};

const STRUCTURE: &str = "journal commit block";
/// `h_chksum[0]`
const CHECKSUM_AT: usize = 16;
const TYPE_CRC32: u8 = 1;
const SIZE_CRC32: u8 = 4;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCommit {
    header: [U32; 3],
    checksum_type: u8,
    checksum_size: u8,
    padding: [u8; 2],
    checksum: [U32; 8],
    seconds: U64,
    nanoseconds: U32,
}

const _: () = assert!(size_of::<RawCommit>() == 60);
const _: () = assert!(std::mem::offset_of!(RawCommit, checksum) == CHECKSUM_AT);

/// A decoded commit block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitBlock {
    /// Transaction that ends here.
    pub sequence: u32,
    /// Algorithm of a transaction checksum (`h_chksum_type`): 1 crc32, 0 none.
    pub checksum_type: u8,
    /// Bytes of a transaction checksum (`h_chksum_size`).
    pub checksum_size: u8,
    /// The transaction's crc32 or the block's own crc32c (`h_chksum[0]`).
    pub checksum: u32,
    /// Time of the commit: seconds since 1970 …
    pub seconds: u64,
    /// … and nanoseconds.
    pub nanoseconds: u32,
}

/// The running crc32 (most significant bit first, no inversion) over the blocks of one transaction: its
/// descriptor blocks and their data blocks in the order of the log, without revoke blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionChecksum(u32);

impl Default for TransactionChecksum {
    fn default() -> TransactionChecksum {
        TransactionChecksum(u32::MAX)
    }
}

impl TransactionChecksum {
    /// Takes in the next block.
    pub fn update(&mut self, block: &[u8]) {
        self.0 = crc32_be(self.0, block);
    }

    /// The value that a commit block stores.
    pub fn value(self) -> u32 {
        self.0
    }
}

impl CommitBlock {
    /// Decodes a block whose header says that it is a commit block; checksums are not looked at.
    pub fn decode(bytes: &[u8]) -> Result<CommitBlock, Corrupt> {
        let raw: &RawCommit = record(bytes, STRUCTURE)?;
        let [checksum, ..] = raw.checksum;
        Ok(load!(CommitBlock from raw {
            same: checksum_type, checksum_size, seconds, nanoseconds;
            sequence: BlockHeader::decode(bytes)?.sequence,
            checksum: checksum.get(),
        }))
    }

    /// Whether the transaction checksum is the right one, or absent as it may be.
    pub fn matches(&self, transaction: TransactionChecksum) -> bool {
        let kind = (self.checksum_type, self.checksum_size);
        (kind == (TYPE_CRC32, SIZE_CRC32) && self.checksum == transaction.value())
            || (kind == (0, 0) && self.checksum == 0)
    }

    /// Records a transaction checksum.
    #[must_use]
    pub fn with_checksum(self, transaction: TransactionChecksum) -> CommitBlock {
        CommitBlock {
            checksum_type: TYPE_CRC32,
            checksum_size: SIZE_CRC32,
            checksum: transaction.value(),
            ..self
        }
    }

    /// Fills `block` with this commit block; [`LogFormat::seal_commit`] follows.
    pub fn encode(&self, block: &mut [u8]) -> Result<(), EncodeError> {
        let zero = U32::new(0);
        let raw = RawCommit {
            header: [zero; 3],
            checksum_type: self.checksum_type,
            checksum_size: self.checksum_size,
            padding: [0; 2],
            checksum: [U32::new(self.checksum), zero, zero, zero, zero, zero, zero, zero],
            seconds: U64::new(self.seconds),
            nanoseconds: U32::new(self.nanoseconds),
        };
        block.fill(0);
        put(block, 0, raw.as_bytes(), STRUCTURE)?;
        BlockHeader { block_type: BlockType::Commit, sequence: self.sequence }.encode(block)
    }
}

impl LogFormat {
    fn commit_checksum(&self, block: &[u8]) -> Option<u32> {
        let before = block.get(..CHECKSUM_AT)?;
        let after = block.get(CHECKSUM_AT.saturating_add(4)..index(self.block_size))?;
        Some(csum(csum(csum(self.seed, before), &[0; 4]), after))
    }

    /// Checks the crc32c of a commit block, if the log has them.
    pub fn verify_commit(&self, block: &[u8]) -> Result<(), Corrupt> {
        if !self.metadata_checksums() {
            return Ok(());
        }
        let stored = CommitBlock::decode(block)?.checksum;
        match self.commit_checksum(block) {
            Some(sum) if sum == stored => Ok(()),
            Some(_) => Err(CorruptKind::JournalCommitChecksum.into()),
            None => Err(CorruptKind::Truncated(STRUCTURE).into()),
        }
    }

    /// Brings the crc32c of a commit block up to date, if the log has them.
    pub fn seal_commit(&self, block: &mut [u8]) -> Result<(), EncodeError> {
        if !self.metadata_checksums() {
            return Ok(());
        }
        let sum = self.commit_checksum(block).ok_or(EncodeError::too_short(STRUCTURE))?;
        put(block, CHECKSUM_AT, &U32::new(sum).to_bytes(), STRUCTURE)
    }
}
