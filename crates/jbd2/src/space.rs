//! How large a transaction may grow, and how much of the log must be free before a handle joins one.
//!
//! The rules are jbd2's, because a log written by one must never be too full for the other: a transaction
//! gets at most a quarter of the log, descriptor and commit blocks included, and a handle is started only
//! while a transaction of that size fits into the free log.

use crate::superblock::JournalInfo;
use crate::{Error, Result};

/// The log is never filled by more than all but this many blocks (jbd2 keeps them for rounding in its
/// estimates).
const MARGIN: u32 = 32;

/// Bytes at the start of every log block: magic, type, sequence.
const BLOCK_HEADER: u32 = 12;
/// Bytes of the UUID after the first tag of a descriptor block.
const DESCRIPTOR_UUID: u32 = 16;
/// Bytes of the checksum at the end of a descriptor block.
const DESCRIPTOR_TAIL: u32 = 4;
/// Bytes of a revoke record, and before the first one.
const REVOKE: u32 = 8;
const REVOKE_HEADER: u32 = 16;
/// Bytes a descriptor block leaves unused at its end.
const DESCRIPTOR_SLACK: u32 = 16;

/// Limits of a log, fixed while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most blocks of one transaction in the log.
    pub transaction: u32,
    /// Of these, descriptor blocks and the commit block of the largest transaction.
    pub overhead: u32,
    /// Log blocks that transactions use in turn.
    pub usable: u32,
    /// Records that a revoke block holds, of the longer kind.
    pub revokes_per_block: usize,
}

impl Limits {
    pub(crate) fn new(info: &JournalInfo) -> Limits {
        let superblock = &info.superblock;
        let transaction = superblock.log_end() / 4;
        let tail = if superblock.features.metadata_checksums() { DESCRIPTOR_TAIL } else { 0 };
        let tag_space = superblock.block_size - BLOCK_HEADER - DESCRIPTOR_UUID - tail - DESCRIPTOR_SLACK;
        let tags_per_block = tag_space / info.tag_size();
        let overhead = 1 + transaction.div_ceil(tags_per_block);
        let revokes = (superblock.block_size - REVOKE_HEADER - DESCRIPTOR_TAIL) / REVOKE;
        Limits { transaction, overhead, usable: info.usable_blocks(), revokes_per_block: revokes as usize }
    }

    /// Most credits of one handle: an otherwise empty transaction.
    pub(crate) fn handle(&self) -> u32 {
        self.transaction.saturating_sub(self.overhead)
    }
}

/// The part of the log that is in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogSpace {
    /// Blocks that hold no transaction.
    pub free: u32,
}

impl LogSpace {
    /// An empty log.
    pub(crate) fn empty(limits: &Limits) -> LogSpace {
        LogSpace { free: limits.usable }
    }

    /// The largest transaction fits.
    pub(crate) fn check(&self, limits: &Limits) -> Result<()> {
        let free = self.free.saturating_sub(MARGIN);
        if free < limits.transaction {
            return Err(Error::LogSpace { free, needed: limits.transaction });
        }
        Ok(())
    }
}

impl JournalInfo {
    /// Whether a journal that runs in this log, once it is empty, can hold its own largest transaction.
    ///
    /// # Errors
    /// [`Error::LogSpace`].
    pub fn check_room(&self) -> Result<()> {
        let limits = Limits::new(self);
        LogSpace::empty(&limits).check(&limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_must_hold_the_largest_transaction_and_the_margin() {
        let limits = Limits { transaction: 256, overhead: 6, usable: 1023, revokes_per_block: 125 };
        assert_eq!(limits.handle(), 250);
        assert!(LogSpace::empty(&limits).check(&limits).is_ok());
        assert!(LogSpace { free: 288 }.check(&limits).is_ok());
        assert_eq!(
            LogSpace { free: 287 }.check(&limits).unwrap_err(),
            Error::LogSpace { free: 255, needed: 256 }
        );
        assert_eq!(
            LogSpace { free: 0 }.check(&limits).unwrap_err(),
            Error::LogSpace { free: 0, needed: 256 }
        );
    }
}
