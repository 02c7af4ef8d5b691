//! Journals on devices of their own: making one, and giving it to a new volume.

use super::error::{Error, Result};
use super::kinds;
use super::make::{Made, format_on, ids};
use super::options::{JournalIdentity, Options};
use super::plan::label;
use super::present;
use super::write::Writer;
use crate::ground::error::Error as VolumeError;
use crate::opening::external::Header;
use crate::opening::on_device::{read_bytes, write_bytes};
use uext4_blockdev::Device;
use uext4_ondisk::ext4::{Incompat, JournalDeviceSuperblock, RoCompat, SUPERBLOCK_OFFSET};
use uext4_ondisk::jbd2::{JournalFeatures, JournalIncompat, JournalSuperblock, SuperblockVersion};

/// Fewest blocks that the log may have, without what stands before its first one (jbd2's limit).
const LOG_MIN: u64 = 1023;

/// A journal device that was made, or that a dry run would make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MadeJournal {
    /// Its UUID, by which volumes name it.
    pub uuid: [u8; 16],
    /// Bytes of a block: those of the volumes that can use it.
    pub block_size: u32,
    /// Blocks of the device.
    pub blocks: u32,
}

/// Makes an empty journal that fills a device, for one volume, as `mke2fs -O journal_dev` does. Of the options those
/// for size, block size, label, UUID, time and force count, and the feature `metadata_csum`. The device must be open
/// for writing, exclusively.
///
/// # Errors
/// See [`Error`]: all but [`Error::Failed`] leave the device unchanged.
pub fn format_journal(device: &dyn Device, options: &Options) -> Result<MadeJournal> {
    if device.capabilities().read_only {
        return Err(VolumeError::ReadOnly("the device").into());
    }
    let (header, made) = plan(device, options)?;
    present::check(device, options.force)?;
    write(device, &header).map_err(Error::Failed)?;
    Ok(made)
}

/// Makes a volume whose journal is on `journal`, which [`format_journal`] or mke2fs made and no volume uses. Both
/// devices must be open for writing, exclusively. `number` is the device number that Linux looks for at a mount without
/// the option `journal_path` (major and minor as in the lower 32 bits of `st_rdev`), 0 for an image file.
///
/// The block size is the journal's unless the options have one.
///
/// # Errors
/// See [`Error`]; [`Error::Occupied`] if another volume uses the journal. All but [`Error::Failed`] leave the devices
/// unchanged. After a failure the journal may count as used by the volume that was not made.
pub fn format_with_journal(
    device: &dyn Device,
    journal: &dyn Device,
    number: u32,
    options: &Options,
) -> Result<Made> {
    if journal.capabilities().read_only {
        return Err(VolumeError::ReadOnly("the journal device").into());
    }
    let header = Header::read(journal)?;
    let size = header.fields.block_size;
    let mut options = options.clone();
    let block_size = *options.block_size.get_or_insert(size);
    if block_size != size {
        return Err(Error::Option(format!(
            "blocks of {block_size} bytes, but those of the journal have {size}"
        )));
    }
    let bytes = read_bytes(journal, header.log_superblock() * u64::from(size), size as usize)?;
    let mut log = JournalSuperblock::decode(&bytes).map_err(|error| Error::from(VolumeError::from(error)))?;
    if log.users > 0 || log.start != 0 {
        return Err(Error::Occupied(
            "the journal is used by another volume (make it anew for this one)".into(),
        ));
    }
    options.extended.journal = Some(JournalIdentity { uuid: header.fields.uuid, number });
    // The same for the superblock and for the list of users.
    options.uuid = Some(ids(&options)?.uuid);
    format_on(device, &options, |superblock| {
        (log.users, log.user) = (1, superblock.uuid);
        let mut bytes = bytes.clone();
        log.encode(&mut bytes)?;
        write_bytes(journal, header.log_superblock() * u64::from(size), &bytes)?;
        Ok(journal.flush()?)
    })
}

fn plan(device: &dyn Device, options: &Options) -> Result<(JournalDeviceSuperblock, MadeJournal)> {
    let geometry = device.geometry();
    if let Some(size) = options.size.filter(|&size| size > geometry.size) {
        return Err(Error::TooSmall {
            have: format!("the device's {} bytes", geometry.size),
            reason: format!("the journal is to have {size}"),
        });
    }
    let bytes = options.size.unwrap_or(geometry.size);
    let usual = kinds::usual(&options.usages, bytes).block.max(geometry.logical_block);
    let block_size = options.block_size.unwrap_or(usual);
    if !block_size.is_power_of_two() || !(1024..=65_536).contains(&block_size) {
        let text = format!("{block_size} bytes are no block size: it is a power of two from 1024 to 65536");
        return Err(Error::Option(text));
    }
    if block_size < geometry.logical_block {
        let unit = geometry.logical_block;
        let text = format!("blocks of {block_size} bytes are smaller than the device's of {unit}");
        return Err(Error::Option(text));
    }
    let blocks = bytes / u64::from(block_size);
    let before = Header::log_superblock_of(block_size) + 1;
    if blocks < before + LOG_MIN {
        return Err(Error::TooSmall {
            have: format!("{blocks} blocks of {block_size} bytes"),
            reason: format!("a journal has at least {}", before + LOG_MIN),
        });
    }
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    let ids = ids(options)?;
    let header = JournalDeviceSuperblock {
        uuid: ids.uuid,
        label: label(options)?,
        block_size,
        blocks: u64::from(blocks),
        created: u32::try_from(ids.time).unwrap_or(u32::MAX),
        checksummed: options.asks_for_checksums(),
    };
    Ok((header, MadeJournal { uuid: ids.uuid, block_size, blocks }))
}

/// What is there goes first, so that no old block is taken for a part of the log, then the log's superblock, then the
/// one that makes it a journal.
fn write(device: &dyn Device, header: &JournalDeviceSuperblock) -> std::result::Result<(), VolumeError> {
    let size = header.block_size as usize;
    let mut writer = Writer::new(device, size);
    writer.wipe(SUPERBLOCK_OFFSET.max(size as u64))?;
    device.flush()?;
    writer.zero(0, header.blocks * u64::from(header.block_size))?;
    let place = Header::log_superblock_of(header.block_size);
    let mut bytes = vec![0; size];
    empty_log(header, place).encode(&mut bytes)?;
    writer.put(place, &bytes)?;
    writer.send()?;
    device.flush()?;
    let mut bytes = vec![0; 1024];
    header.encode(&mut bytes)?;
    write_bytes(device, SUPERBLOCK_OFFSET, &bytes)?;
    Ok(device.flush()?)
}

fn empty_log(header: &JournalDeviceSuperblock, place: u64) -> JournalSuperblock {
    JournalSuperblock {
        version: SuperblockVersion::V2,
        block_size: header.block_size,
        blocks: header.blocks as u32,
        first: place as u32 + 1,
        sequence: 1,
        start: 0,
        errno: 0,
        features: JournalFeatures::default(),
        ignored: JournalIncompat::empty(),
        uuid: header.uuid,
        users: 0,
        user: [0; 16],
        max_transaction: 0,
        max_transaction_data: 0,
        checksum_type: 0,
        fast_commit_blocks_raw: 0,
        head: 0,
    }
}

impl Options {
    /// Whether `-O journal_dev` was given: a journal is wanted, not a volume ([`format_journal`]).
    pub fn is_journal(&self) -> bool {
        self.feature_words().incompat.contains(Incompat::JOURNAL_DEV)
    }

    /// A journal device has a checksum only if the feature is asked for, as in mke2fs.
    fn asks_for_checksums(&self) -> bool {
        self.feature_words().ro_compat.contains(RoCompat::METADATA_CSUM)
    }
}
