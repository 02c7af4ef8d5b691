//! Revoke blocks: blocks of the volume whose copies in this and earlier transactions must not be replayed
//! (`jbd2_journal_revoke_header_t`).

use zerocopy::big_endian::{U32, U64};

use super::format::LogFormat;
use super::header::{BlockHeader, BlockType, HEADER_SIZE};
use crate::bytes::{array_at, high32, index, length32, low32, put};
use crate::error::{Corrupt, CorruptKind, EncodeError};

const STRUCTURE: &str = "journal revoke block";
/// The header and `r_count`.
const RECORDS_AT: usize = HEADER_SIZE + 4;

/// The block numbers in a revoke block.
#[derive(Clone, Debug)]
pub struct Revokes<'a> {
    records: &'a [u8],
    wide: bool,
}

impl LogFormat {
    /// The block numbers in a revoke block. Its checksum is not looked at: [`LogFormat::verify_tail`].
    ///
    /// # Errors
    /// [`CorruptKind::JournalRevokeCount`] if `r_count` (bytes in use, the header included) is more than the
    /// block holds.
    pub fn revokes<'a>(&self, block: &'a [u8]) -> Result<Revokes<'a>, Corrupt> {
        let truncated = || Corrupt::from(CorruptKind::Truncated(STRUCTURE));
        let used = U32::from_bytes(*array_at(block, HEADER_SIZE).ok_or_else(truncated)?).get();
        if index(used) > self.record_end() {
            return Err(CorruptKind::JournalRevokeCount.into());
        }
        // A count below the header's own size means no records, as jbd2 reads it.
        let records = block.get(RECORDS_AT..index(used).max(RECORDS_AT)).ok_or_else(truncated)?;
        Ok(Revokes { records, wide: self.wide })
    }

    /// Fills `block` with a revoke block of as many of `blocks` as fit and returns how many those are. Its
    /// checksum is up to date.
    pub fn encode_revokes(
        &self,
        block: &mut [u8],
        sequence: u32,
        blocks: &[u64],
    ) -> Result<usize, EncodeError> {
        let size = if self.wide { 8 } else { 4 };
        block.fill(0);
        BlockHeader { block_type: BlockType::Revoke, sequence }.encode(block)?;
        let mut offset = RECORDS_AT;
        let mut written = 0_usize;
        for number in blocks {
            let end = offset.saturating_add(size);
            if end > self.record_end() {
                break;
            }
            if self.wide {
                put(block, offset, &U64::new(*number).to_bytes(), STRUCTURE)?;
            } else if high32(*number) == 0 {
                put(block, offset, &U32::new(low32(*number)).to_bytes(), STRUCTURE)?;
            } else {
                return Err(EncodeError::new(STRUCTURE, "block number"));
            }
            (offset, written) = (end, written.saturating_add(1));
        }
        let used = block.get(..offset).map_or(0, length32);
        put(block, HEADER_SIZE, &U32::new(used).to_bytes(), STRUCTURE)?;
        self.seal_tail(block)?;
        Ok(written)
    }
}

impl Iterator for Revokes<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.wide {
            let (record, rest) = self.records.split_first_chunk::<8>()?;
            self.records = rest;
            return Some(U64::from_bytes(*record).get());
        }
        let (record, rest) = self.records.split_first_chunk::<4>()?;
        self.records = rest;
        Some(u64::from(U32::from_bytes(*record).get()))
    }
}
