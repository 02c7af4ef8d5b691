//! How large a transaction may grow, and how much of the log must be free before a handle joins one.
//!
//! The rules are jbd2's, because a log written by one must never be too full for the other: a transaction gets at most
//! a quarter of the log, descriptor and commit blocks included, and a handle is started only while a transaction of
//! that size fits into the free log, in addition to the reservations of handles that must not wait. A transaction takes
//! its log blocks when it commits, before the next one can begin, so blocks that a start found free stay free until
//! then.

use crate::superblock::JournalInfo;
use crate::{Error, Result, Tid};
use uext4_ondisk::jbd2::{JournalSuperblock, LogFormat};

/// Blocks of the log that always stay free (jbd2 keeps them for rounding in its estimates).
const MARGIN: u32 = 32;

/// Lower bound of the usable log: the shortest log can always be used whole.
const IN_USE_LEAST: u32 = 1024;

/// Bytes at the start of every log block: magic, type, sequence.
const BLOCK_HEADER: u32 = 12;
/// Bytes of the UUID after the first tag of a descriptor block.
const DESCRIPTOR_UUID: u32 = 16;
/// Bytes of the checksum at the end of a descriptor block.
const DESCRIPTOR_TAIL: u32 = 4;
/// Bytes of a revoke record, and of the header before the first one.
const REVOKE: u32 = 8;
const REVOKE_HEADER: u32 = 16;
/// Bytes that a descriptor block leaves unused at its end.
const DESCRIPTOR_SLACK: u32 = 16;

/// The circular area of the log: from `first` up to `end`, then from `first` again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ring {
    pub first: u32,
    /// The block after the last one.
    pub end: u32,
}

impl Ring {
    /// The block `count` blocks after `block`.
    pub(crate) fn after(self, block: u32, count: u32) -> u32 {
        let length = u64::from(self.end - self.first);
        let inside = (u64::from(block - self.first) + u64::from(count)) % length;
        // Less than the length, so it fits.
        self.first + inside as u32
    }
}

/// Oldest part of the log that is still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Log block.
    pub log_block: u32,
    /// Transaction that is or will be written there.
    pub sequence: Tid,
}

/// Limits of a log, fixed while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum blocks of one transaction in the log.
    pub transaction: u32,
    /// Descriptor and commit blocks of the largest transaction, included in `transaction`.
    pub overhead: u32,
    /// Maximum log blocks that hold transactions at the same time. All blocks of the log are used in turn, but the
    /// blocks of committed transactions stay in memory until they are written home.
    pub usable: u32,
    /// Records that a revoke block holds, assuming 64-bit block numbers.
    pub revokes_per_block: usize,
    /// Copies that a descriptor block describes.
    pub copies_per_descriptor: usize,
    /// Records that a revoke block of this log actually holds.
    pub records_per_revoke: usize,
}

impl Limits {
    /// Limits of a log in which at most `in_use` blocks may hold transactions at the same time.
    pub(crate) fn new(superblock: &JournalSuperblock, in_use: u32) -> Limits {
        let format = LogFormat::of(superblock);
        let size = superblock.block_size;
        let in_use = in_use.max(IN_USE_LEAST);
        let transaction = superblock.log_end().min(in_use) / 4;
        let tail = if format.metadata_checksums() { DESCRIPTOR_TAIL } else { 0 };
        let tags = size - BLOCK_HEADER - DESCRIPTOR_UUID - tail;
        let overhead = 1 + transaction.div_ceil((tags - DESCRIPTOR_SLACK) / format.tag_size());
        let record = if format.wide { REVOKE } else { REVOKE / 2 };
        Limits {
            transaction,
            overhead,
            usable: superblock.log_end().saturating_sub(superblock.first).min(in_use),
            revokes_per_block: ((size - REVOKE_HEADER - DESCRIPTOR_TAIL) / REVOKE) as usize,
            copies_per_descriptor: (tags / format.tag_size()) as usize,
            records_per_revoke: ((size - REVOKE_HEADER - tail) / record) as usize,
        }
    }

    /// Log blocks of a transaction with `copies` copies and `revoked` revoked blocks.
    pub(crate) fn needed(&self, copies: usize, revoked: usize) -> u32 {
        let descriptors = copies.div_ceil(self.copies_per_descriptor);
        let revokes = revoked.div_ceil(self.records_per_revoke);
        // The credits bound the sum by the length of the log.
        u32::try_from(copies + descriptors + revokes + 1).unwrap_or(u32::MAX)
    }

    /// Log blocks that a reservation of `credits` credits may need in a transaction of its own: copies, descriptors and
    /// the commit block.
    pub(crate) fn reservation(&self, credits: u32) -> u32 {
        credits.saturating_add(2).saturating_add(credits / self.copies_per_descriptor as u32)
    }

    /// Maximum log blocks reserved at once: an empty log still has room for two of the largest transactions besides.
    pub(crate) fn reservable(&self) -> u32 {
        self.usable.saturating_sub(MARGIN + 2 * self.transaction)
    }

    /// Maximum credits of one handle, in an otherwise empty transaction.
    pub(crate) fn handle(&self) -> u32 {
        self.transaction.saturating_sub(self.overhead)
    }
}

/// The free space of the log.
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

    /// Whether the largest transaction fits in addition to `reserved` blocks.
    pub(crate) fn has_room(&self, limits: &Limits, reserved: u32) -> bool {
        self.free >= limits.transaction.saturating_add(MARGIN).saturating_add(reserved)
    }

    /// Maximum log blocks that can be reserved now in addition to the largest transaction.
    pub(crate) fn reservable(&self, limits: &Limits) -> u32 {
        self.free.saturating_sub(limits.transaction.saturating_add(MARGIN)).min(limits.reservable())
    }

    /// Checks that the largest transaction fits.
    pub(crate) fn check(&self, limits: &Limits) -> Result<()> {
        if self.has_room(limits, 0) {
            return Ok(());
        }
        Err(Error::LogSpace { free: self.free.saturating_sub(MARGIN), needed: limits.transaction })
    }

    /// How many blocks a checkpoint should free: more than needed, because each costs a flush and a superblock write
    /// however little it frees.
    pub(crate) fn goal(limits: &Limits, reserved: u32) -> u32 {
        let needed = limits.transaction.saturating_add(MARGIN).saturating_add(reserved);
        needed.saturating_add(limits.usable / 4).min(limits.usable)
    }
}

impl JournalInfo {
    /// Whether a journal that runs in this log, once it is empty, can hold its own largest transaction.
    ///
    /// # Errors
    /// [`Error::LogSpace`].
    pub fn check_room(&self) -> Result<()> {
        let limits = Limits::new(&self.superblock, u32::MAX);
        LogSpace::empty(&limits).check(&limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            transaction: 256,
            overhead: 6,
            usable: 1023,
            revokes_per_block: 125,
            copies_per_descriptor: 124,
            records_per_revoke: 126,
        }
    }

    #[test]
    fn the_ring_begins_again_behind_its_end() {
        let ring = Ring { first: 1, end: 11 };
        let after = |block, count| ring.after(block, count);
        assert_eq!((after(1, 0), after(1, 9), after(1, 10), after(10, 1), after(10, 25)), (1, 10, 1, 1, 5));
    }

    #[test]
    fn every_block_of_a_transaction_is_counted() {
        let limits = limits();
        assert_eq!((limits.needed(0, 0), limits.needed(1, 0), limits.needed(0, 1)), (1, 3, 2));
        assert_eq!((limits.needed(124, 126), limits.needed(125, 127)), (124 + 3, 125 + 5));
        assert_eq!((limits.reservation(1), limits.reservation(124), limits.reservable()), (3, 127, 479));
        let space = LogSpace { free: 300 };
        assert!(space.has_room(&limits, 12) && !space.has_room(&limits, 13));
        assert_eq!(LogSpace::goal(&limits, 12), 300 + 255);
    }

    #[test]
    fn free_space_must_hold_the_largest_transaction_and_the_margin() {
        let limits = limits();
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
