//! Options of a cache and their checks.

use crate::{Error, Result};
use uext4_blockdev::Geometry;

/// Smallest block size of ext4, in bytes.
pub const MIN_BLOCK_SIZE: u32 = 1024;
/// Largest block size of ext4, in bytes.
pub const MAX_BLOCK_SIZE: u32 = 65536;
/// Most bytes that reading ahead takes in one request.
pub const READ_AHEAD_BYTES: u32 = 256 << 10;

/// Default budget in bytes.
const DEFAULT_BUDGET: u64 = 64 << 20;

/// How a cache is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheOptions {
    /// Bytes per block, a power of two in [`MIN_BLOCK_SIZE`] ..= [`MAX_BLOCK_SIZE`].
    pub block_size: u32,
    /// Blocks of the volume; 0 takes every whole block of the device.
    pub blocks: u64,
    /// Bytes of block contents to keep, at least one block. See the crate documentation for what is counted.
    pub budget_bytes: u64,
}

impl CacheOptions {
    /// All whole blocks of the device, 64 MiB budget.
    #[must_use]
    pub fn new(block_size: u32) -> Self {
        CacheOptions { block_size, blocks: 0, budget_bytes: DEFAULT_BUDGET }
    }

    /// Checks the options against a device and fills in the number of blocks.
    pub(crate) fn resolve(&self, geometry: &Geometry) -> Result<Resolved> {
        let bad = |option, value, reason| Err(Error::BadOption { option, value, reason });
        let size = self.block_size;
        if !size.is_power_of_two() || !(MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&size) {
            return bad("block_size", u64::from(size), "not a power of two from 1024 to 65536");
        }
        let whole = geometry.size / u64::from(size);
        if self.blocks > whole {
            return bad("blocks", self.blocks, "more than the device holds");
        }
        let blocks = if self.blocks == 0 { whole } else { self.blocks };
        Ok(Resolved { block_size: size, blocks, budget_blocks: budget_blocks(self.budget_bytes, size)? })
    }
}

/// Checked options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resolved {
    pub block_size: u32,
    pub blocks: u64,
    pub budget_blocks: usize,
}

/// Whole blocks in a budget, at least one.
pub(crate) fn budget_blocks(bytes: u64, block_size: u32) -> Result<usize> {
    match usize::try_from(bytes / u64::from(block_size)) {
        Ok(0) => {
            Err(Error::BadOption { option: "budget_bytes", value: bytes, reason: "less than one block" })
        }
        Ok(blocks) => Ok(blocks),
        Err(_) => Ok(usize::MAX),
    }
}
