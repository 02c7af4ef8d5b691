//! Reading and checking the superblock of the log.
//!
//! It is log block 0. [`uext4_ondisk::jbd2`] decodes the bytes; here the values are checked against the volume: its
//! block size, the blocks the log really has, the features this version knows. Limits are jbd2's, so that a log
//! accepted here is accepted by the kernel too.

use crate::io::{transfer, transfer_buffer};
use crate::{Error, LogMap, Result, Tid};
use std::borrow::Cow;
use uext4_buffer::BufferCache;
use uext4_ondisk::jbd2::{JournalSuperblock, LogFormat};
use uext4_ondisk::{Corrupt, CorruptKind, Pblk};

/// Shortest ordinary log (without superblock and fast-commit area) that jbd2 accepts is one block less than
/// this.
const MIN_BLOCKS: u32 = 1024;

/// The block with the log's superblock, as it is on the device or in the cache.
pub(crate) fn read_superblock(cache: &BufferCache, log: &dyn LogMap, block: u64) -> Result<Vec<u8>> {
    let Some(device) = log.device() else { return Ok(cache.read(block)?.to_vec()) };
    let size = cache.block_size() as usize;
    let mut buffer = transfer_buffer(size)?;
    transfer(block, |pos| device.read_at(&mut buffer, pos), size)?;
    Ok(buffer.to_vec())
}

/// The superblock of a log, checked against the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalInfo {
    /// Block of the log's device that holds the superblock.
    pub block: u64,
    /// Its fields.
    pub superblock: JournalSuperblock,
}

impl JournalInfo {
    /// Reads and checks the superblock. Does not need an empty log, so it also serves read-only opens and
    /// reports.
    ///
    /// # Errors
    /// [`Error::HoleInLog`] if the map has no block 0; [`Error::Corrupt`] if the bytes are no journal
    /// superblock; [`Error::Mismatch`] if they do not fit this volume; [`Error::Unsupported`] for features by
    /// name; [`Error::Buffer`].
    pub fn read(cache: &BufferCache, log: &dyn LogMap) -> Result<JournalInfo> {
        let block = log.superblock().ok_or(Error::HoleInLog { log_block: 0 })?;
        let bytes = read_superblock(cache, log, block)?;
        let superblock =
            JournalSuperblock::decode(&bytes).map_err(|corrupt| corrupt.at_block(Pblk(block)))?;
        let info = JournalInfo { block, superblock };
        info.check_features()?;
        info.check_sizes(cache.block_size(), log.blocks())?;
        if log.device().is_some() && u64::from(info.superblock.first) <= block {
            let reason = format!("is {}, not after the superblock", info.superblock.first);
            return Err(Error::Mismatch { block, field: "s_first", reason });
        }
        Ok(info)
    }

    /// Number of the first transaction in the log or, if the log is empty, of the last one that was in it.
    #[must_use]
    pub fn sequence(&self) -> Tid {
        Tid::of_sequence(self.superblock.sequence)
    }

    /// Whether the log holds transactions that may not be written home yet.
    #[must_use]
    pub fn needs_recovery(&self) -> bool {
        self.superblock.start != 0
    }

    /// Refuses to replay a log in use whose superblock [contradicts its
    /// version](JournalSuperblock::contradicts_version).
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn check_version(&self) -> Result<()> {
        if self.needs_recovery() && self.superblock.contradicts_version() {
            return Err(Corrupt::from(CorruptKind::JournalField("features"))
                .at_block(Pblk(self.block))
                .into());
        }
        Ok(())
    }

    /// Number of log blocks in the circular area.
    pub(crate) fn usable_blocks(&self) -> u32 {
        self.superblock.log_end().saturating_sub(self.superblock.first)
    }

    fn check_features(&self) -> Result<()> {
        let features = &self.superblock.features;
        let unknown =
            features.incompat.unknown().names().into_iter().chain(features.ro_compat.unknown().names());
        let shared =
            (self.superblock.users > 1).then_some(Cow::Borrowed("external journal with several users"));
        match unknown.chain(shared).next() {
            Some(feature) => Err(Error::Unsupported { feature }),
            None => Ok(()),
        }
    }

    fn check_sizes(&self, block_size: u32, available: u32) -> Result<()> {
        let superblock = &self.superblock;
        let mismatch = |field, reason| Err(Error::Mismatch { block: self.block, field, reason });
        if superblock.block_size != block_size {
            return mismatch(
                "s_blocksize",
                format!("is {}, the volume's is {block_size}", superblock.block_size),
            );
        }
        if superblock.blocks > available {
            return mismatch("s_maxlen", format!("is {}, the log has {available} blocks", superblock.blocks));
        }
        if self.usable_blocks() + 1 < MIN_BLOCKS {
            return mismatch(
                "s_maxlen",
                format!("leaves only {} blocks for transactions", self.usable_blocks()),
            );
        }
        Ok(())
    }

    /// Layout of the log's blocks.
    #[must_use]
    pub fn format(&self) -> LogFormat {
        LogFormat::of(&self.superblock)
    }
}
