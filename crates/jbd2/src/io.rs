//! Transfers between memory and blocks of the volume, and durable writes.

use crate::Result;
use uext4_blockdev::{Buffer, BufferPool, Device, WriteDurability};
use uext4_ondisk::jbd2::MAGIC;

/// The original first four bytes of an escaped block.
pub(crate) fn escaped_head() -> [u8; 4] {
    // Journal structures are big-endian: most significant byte first.
    [24, 16, 8, 0].map(|shift| (MAGIC >> shift) as u8)
}

/// Memory that the device can transfer to.
pub(crate) fn transfer_buffer(bytes: usize) -> Result<Buffer> {
    let failed = |source| uext4_buffer::Error::Device { block: 0, source };
    Ok(BufferPool::new(bytes).and_then(|pool| pool.take(bytes)).map_err(failed)?)
}

/// Runs a transfer at the device position of `block`.
pub(crate) fn transfer(
    block: u64,
    run: impl FnOnce(u64) -> uext4_blockdev::Result<()>,
    block_size: usize,
) -> Result<()> {
    let outside = || uext4_buffer::Error::OutOfRange { block, blocks: u64::MAX / block_size as u64 };
    let pos = block.checked_mul(block_size as u64).ok_or_else(outside)?;
    run(pos).map_err(|source| uext4_buffer::Error::Device { block, source }.into())
}

/// Writes neighbouring blocks from `block` on, durable after the next flush.
pub(crate) fn write_blocks(device: &dyn Device, block: u64, bytes: &[u8], block_size: usize) -> Result<()> {
    transfer(block, |pos| device.write_at(bytes, pos, WriteDurability::Cached), block_size)
}

/// Writes neighbouring blocks from `block` on, then makes them and all earlier writes durable.
pub(crate) fn write_and_flush(
    device: &dyn Device,
    block: u64,
    bytes: &[u8],
    block_size: usize,
) -> Result<()> {
    transfer(block, |pos| device.write_and_flush(bytes, pos), block_size)
}

/// Writes one block, durable when the call returns.
pub(crate) fn write_durable(device: &dyn Device, block: u64, bytes: &[u8]) -> Result<()> {
    transfer(block, |pos| device.write_durable(bytes, pos), bytes.len())
}

/// Makes all earlier writes durable.
pub(crate) fn flush(device: &dyn Device) -> Result<()> {
    Ok(device.flush().map_err(uext4_buffer::Error::Flush)?)
}
