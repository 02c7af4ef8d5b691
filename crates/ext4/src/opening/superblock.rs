//! The primary superblock, and whether the device can hold what it describes.

use crate::ground::error::{Error, Result};
use crate::ground::features;
use crate::opening::on_device::{encode, superblock_bytes, write_bytes};
use std::sync::Arc;
use uext4_blockdev::layer::OverlayDevice;
use uext4_blockdev::{BufferPool, Device};
use uext4_ondisk::ext4::{Incompat, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind};

/// The low byte of the incompatible features in the superblock.
const INCOMPAT_OFFSET: usize = 0x60;

/// Reads and checks the primary superblock, its features first.
pub(crate) fn read_superblock(device: &dyn Device) -> Result<Superblock> {
    let geometry = device.geometry();
    let needed = SUPERBLOCK_OFFSET + u64::from(SUPERBLOCK_SIZE);
    let length = needed.next_multiple_of(u64::from(geometry.logical_block));
    if geometry.size < length {
        return Err(Corrupt::from(CorruptKind::Truncated("superblock")).into());
    }
    let mut buffer = BufferPool::new(length as usize)?.take(length as usize)?;
    device.read_at(&mut buffer, 0)?;
    let start = SUPERBLOCK_OFFSET as usize;
    let bytes = &buffer[start..start + SUPERBLOCK_SIZE as usize];
    features::check_readable(&Superblock::peek_features(bytes)?)?;
    Ok(Superblock::decode(bytes)?)
}

/// A device whose superblock is whole. The flag that the log is in use and the checksum lie in two sectors of 512
/// bytes: a power cut while the flag was written (`close.rs`) may leave one of them old. Then the flag counts as set, which is
/// always right: when it is written the log is empty, or about to be used for the first time. A writer mends the
/// superblock on the device, a reader in memory.
pub(crate) fn mend_torn_flag(device: Arc<dyn Device>, write: bool) -> Result<Arc<dyn Device>> {
    let Some(bytes) = torn_flag(&*device)? else { return Ok(device) };
    if write {
        write_bytes(&*device, SUPERBLOCK_OFFSET, &bytes)?;
        device.flush()?;
        return Ok(device);
    }
    let view = OverlayDevice::new(device.clone(), device.geometry().logical_block, 2 * bytes.len() as u64)?;
    view.patch(SUPERBLOCK_OFFSET, &bytes)?;
    Ok(Arc::new(view))
}

/// The superblock as it was to be, if only its flag contradicts its checksum.
fn torn_flag(device: &dyn Device) -> Result<Option<Vec<u8>>> {
    let is_short = device.geometry().size < SUPERBLOCK_OFFSET + 2 * u64::from(SUPERBLOCK_SIZE);
    if is_short || device.geometry().logical_block >= 2 * SUPERBLOCK_SIZE {
        return Ok(None);
    }
    let mut bytes = superblock_bytes(device)?;
    let is_checksum = |corrupt: &Corrupt| corrupt.kind == CorruptKind::SuperblockChecksum;
    if !Superblock::decode(&bytes).is_err_and(|corrupt| is_checksum(&corrupt)) {
        return Ok(None);
    }
    bytes[INCOMPAT_OFFSET] ^= Incompat::RECOVER.bits() as u8;
    let Ok(mut superblock) = Superblock::decode(&bytes) else { return Ok(None) };
    superblock.features.incompat |= Incompat::RECOVER;
    encode(&superblock, &mut bytes)?;
    Ok(Some(bytes))
}

/// Refuses devices that cannot hold the volume or cannot address its blocks.
pub(crate) fn check_device(superblock: &Superblock, device: &dyn Device) -> Result<()> {
    let geometry = device.geometry();
    let block = superblock.geometry.block_size();
    let bytes = superblock.geometry.blocks_count().checked_mul(u64::from(block));
    if bytes.is_none_or(|bytes| bytes > geometry.size) {
        return Err(Error::TooSmall {
            blocks: superblock.geometry.blocks_count(),
            block,
            device: geometry.size,
        });
    }
    if block < geometry.logical_block {
        let feature = format!(
            "blocks of {block} bytes, smaller than the device's logical block of {} bytes",
            geometry.logical_block
        );
        return Err(Error::Incompatible { action: "open", feature });
    }
    Ok(())
}
