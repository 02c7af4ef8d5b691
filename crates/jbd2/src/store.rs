//! The superblock of the log on the device, which records where recovery begins.
//!
//! Every change is made under one lock and written as a whole. Fields not used here are preserved.

use crate::io::{transfer_buffer, write_blocks, write_durable};
use crate::space::Tail;
use crate::{Error, JournalInfo, JournalOptions, Result, Tid};
use std::fmt;
use uext4_blockdev::{Buffer, Device};
use uext4_ondisk::jbd2::{JournalCompat, JournalIncompat, JournalSuperblock, SuperblockVersion};
use uext4_ondisk::{Corrupt, CorruptKind, Pblk};

/// crc32c, as the superblock calls it.
const CHECKSUM_CRC32C: u8 = 4;
/// Offset at which version 2 differs from version 1.
const SECOND_VERSION_AT: usize = 36;
/// Bytes of the superblock in its block.
const SUPERBLOCK_SIZE: usize = 1024;
/// Fewest blocks of a log beside an area for fast commits (`JBD2_MIN_JOURNAL_BLOCKS`).
const SHORTEST: u32 = 1024;

pub(crate) struct Store {
    block: u64,
    bytes: Buffer,
    /// `bytes`, decoded.
    superblock: JournalSuperblock,
}

/// The superblock for a log that will be written: version 2, with the features that the options ask for. The log is
/// empty, so nothing in it can be misread.
pub(crate) fn prepared(info: &JournalInfo, options: &JournalOptions, blocks: u64) -> JournalSuperblock {
    let mut superblock = info.superblock.clone();
    if superblock.version == SuperblockVersion::V1 {
        superblock.version = SuperblockVersion::V2;
        superblock.users = 1;
        superblock.ignored = JournalIncompat::empty();
    }
    let features = &mut superblock.features;
    features.incompat.insert(JournalIncompat::REVOKE);
    if options.wide || blocks > u64::from(u32::MAX) {
        features.incompat.insert(JournalIncompat::BIT64);
    }
    if options.checksums {
        features.incompat.remove(JournalIncompat::CSUM_V2);
        features.incompat.insert(JournalIncompat::CSUM_V3);
        features.compat.remove(JournalCompat::CHECKSUM);
        superblock.checksum_type = CHECKSUM_CRC32C;
    }
    if options.fast_commits {
        superblock.features.incompat.insert(JournalIncompat::FAST_COMMIT);
        if superblock.log_end() < SHORTEST {
            let had = info.superblock.features.incompat.contains(JournalIncompat::FAST_COMMIT);
            superblock.features.incompat.set(JournalIncompat::FAST_COMMIT, had);
        }
    }
    superblock
}

impl Store {
    /// A store with the present contents `bytes`, which the next write changes to `superblock`.
    pub(crate) fn new(info: &JournalInfo, bytes: &[u8], superblock: JournalSuperblock) -> Result<Store> {
        let mut buffer = transfer_buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        if info.superblock.version == SuperblockVersion::V1
            && let Some(rest) = buffer.get_mut(SECOND_VERSION_AT..SUPERBLOCK_SIZE)
        {
            rest.fill(0);
        }
        Ok(Store { block: info.block, bytes: buffer, superblock })
    }

    /// Sets where the log begins; durable after the next flush.
    pub(crate) fn begin(&mut self, device: &dyn Device, tail: Tail) -> Result<()> {
        self.put(tail.log_block, tail.sequence)?;
        write_blocks(device, self.block, &self.bytes, self.bytes.len())
    }

    /// Sets where the log begins; durable on return.
    pub(crate) fn set_tail(&mut self, device: &dyn Device, tail: Tail) -> Result<()> {
        self.put(tail.log_block, tail.sequence)?;
        write_durable(device, self.block, &self.bytes)
    }

    /// Marks the log as empty; its next transaction follows `sequence`. Durable on return.
    pub(crate) fn set_empty(&mut self, device: &dyn Device, sequence: Tid) -> Result<()> {
        self.put(0, sequence)?;
        write_durable(device, self.block, &self.bytes)
    }

    /// Records the error that stopped the journal. The log itself is unchanged.
    pub(crate) fn set_error(&mut self, device: &dyn Device, errno: i32) -> Result<()> {
        // Negative, as the kernel stores it.
        self.superblock.errno = -errno.abs();
        self.encode()?;
        write_durable(device, self.block, &self.bytes)
    }

    fn put(&mut self, start: u32, sequence: Tid) -> Result<()> {
        self.superblock.start = start;
        self.superblock.sequence = sequence.sequence();
        // Only used in an empty log, which begins at its first block.
        self.superblock.head = 0;
        self.encode()
    }

    fn encode(&mut self) -> Result<()> {
        // Decoded values can be encoded; anything else is a bug, reported without a panic.
        let unencodable =
            |_| Error::from(Corrupt::from(CorruptKind::JournalField("layout")).at_block(Pblk(self.block)));
        self.superblock.encode(&mut self.bytes).map_err(unencodable)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("block", &self.block).finish_non_exhaustive()
    }
}
