//! The superblock of a journal device, which is no volume: it says what the device is, and how large.

use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

use super::raw::RawSuperblock;
use super::{CHECKSUM_CRC32C, MAGIC, STRUCTURE, checksum_of, verify};
use crate::bytes::{join32, low32, record, record_mut};
use crate::error::{Corrupt, CorruptKind, EncodeError};
use crate::ext4::features::{Incompat, RoCompat};

/// The superblock of a device that holds a journal (feature `journal_dev`), of which nothing else has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalDeviceSuperblock {
    /// Identity of the journal (`s_uuid`), which the superblock of its volume repeats (`s_journal_uuid`).
    pub uuid: [u8; 16],
    /// Label, padded with NUL (`s_volume_name`).
    pub label: [u8; 16],
    /// Bytes in a block: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Blocks of the device, those before the log's superblock included.
    pub blocks: u64,
    /// Seconds since 1970 when it was made (`s_mkfs_time`).
    pub created: u32,
    /// Whether it has a checksum (feature `metadata_csum`).
    pub checksummed: bool,
}

/// `s_log_block_size` of 64 KiB.
const LOG_BLOCK_SIZE_MAX: u32 = 6;

impl JournalDeviceSuperblock {
    /// Decodes the 1024 bytes of a superblock. `None` if it is a volume's.
    ///
    /// # Errors
    /// Wrong magic number or checksum, and an impossible block size.
    pub fn decode(bytes: &[u8]) -> Result<Option<JournalDeviceSuperblock>, Corrupt> {
        let raw: &RawSuperblock = record(bytes, STRUCTURE)?;
        let features = verify(raw)?;
        if !features.incompat.contains(Incompat::JOURNAL_DEV) {
            return Ok(None);
        }
        let log = raw.log_block_size.get();
        if log > LOG_BLOCK_SIZE_MAX {
            return Err(CorruptKind::SuperblockField("log_block_size").into());
        }
        let wide = features.incompat.contains(Incompat::BIT64);
        let high = if wide { raw.blocks_count_hi } else { U32::ZERO };
        Ok(Some(JournalDeviceSuperblock {
            uuid: raw.uuid,
            label: raw.label_raw,
            block_size: 1024 << log,
            blocks: join32(raw.blocks_count_lo.get(), high.get()),
            created: raw.mkfs_time.get(),
            checksummed: features.ro_compat.contains(RoCompat::METADATA_CSUM),
        }))
    }

    /// Writes the 1024 bytes as mke2fs does: fields without a meaning here have the values of a volume without inodes.
    ///
    /// # Errors
    /// Too few bytes, or a block size or count that cannot be stored.
    pub fn encode(&self, bytes: &mut [u8]) -> Result<(), EncodeError> {
        let log = self.block_size.checked_ilog2().and_then(|log| log.checked_sub(10));
        let log = log.filter(|log| *log <= LOG_BLOCK_SIZE_MAX && self.block_size.is_power_of_two());
        let log = log.ok_or(EncodeError::new(STRUCTURE, "log_block_size"))?;
        if self.blocks > u64::from(u32::MAX) {
            return Err(EncodeError::new(STRUCTURE, "blocks_count"));
        }
        let raw: &mut RawSuperblock = record_mut(bytes, STRUCTURE)?;
        raw.zero();
        raw.magic.set(MAGIC);
        (raw.uuid, raw.label_raw) = (self.uuid, self.label);
        raw.blocks_count_lo.set(low32(self.blocks));
        raw.first_data_block.set(u32::from(log == 0));
        raw.log_block_size.set(log);
        raw.log_cluster_size.set(log);
        let group = self.block_size.saturating_mul(8).min(65_528);
        raw.blocks_per_group.set(group);
        raw.clusters_per_group.set(group);
        for time in [&mut raw.write_time, &mut raw.check_time, &mut raw.mkfs_time] {
            time.set(self.created);
        }
        raw.max_mount_count.set(u16::MAX);
        (raw.state, raw.on_error_raw) = (1.into(), 1.into());
        raw.revision.set(1);
        raw.first_inode.set(11);
        raw.inode_size.set(256);
        raw.incompat.set(Incompat::JOURNAL_DEV.bits());
        if self.checksummed {
            raw.ro_compat.set(RoCompat::METADATA_CSUM.bits());
            raw.checksum_type = CHECKSUM_CRC32C;
            raw.checksum = U32::new(checksum_of(raw));
        }
        Ok(())
    }
}
