//! The primary superblock, and whether the device is large enough for the volume.

use crate::ground::error::{Error, Result};
use crate::ground::features;
use uext4_blockdev::{BufferPool, Device};
use uext4_ondisk::ext4::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind};

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
