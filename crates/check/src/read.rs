//! Reads blocks of the device in large pieces, with a separate buffer per thread.

use std::sync::Arc;
use uext4::device::{Buffer, BufferPool, Device};
use uext4::{Error, Result};

/// Reads blocks and caches the last piece.
pub(crate) struct Reader<'d> {
    device: &'d dyn Device,
    block_size: u64,
    /// Blocks of the volume.
    blocks: u64,
    buffer: Buffer,
    first: u64,
    held: u64,
}

impl<'d> Reader<'d> {
    /// A reader with a buffer of `bytes`, at least one block.
    pub(crate) fn new(device: &'d dyn Device, block_size: u32, blocks: u64, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(block_size as usize);
        let buffer = BufferPool::with_limit(bytes, bytes)?.take(bytes)?;
        Ok(Reader { device, block_size: u64::from(block_size), blocks, buffer, first: 0, held: 0 })
    }

    /// Maximum blocks per read.
    pub(crate) fn capacity(&self) -> u64 {
        self.buffer.len() as u64 / self.block_size
    }

    /// `count` blocks from `block` on.
    pub(crate) fn run(&mut self, block: u64, count: u64) -> Result<&[u8]> {
        let held = self.first + self.held;
        if block < self.first || block + count > held {
            self.fill(block, count)?;
        }
        let start = ((block - self.first) * self.block_size) as usize;
        Ok(&self.buffer[start..start + (count * self.block_size) as usize])
    }

    /// One block. If it must be read, up to `ahead` following blocks are read with it.
    pub(crate) fn block(&mut self, block: u64, ahead: u64) -> Result<&[u8]> {
        if block < self.first || block >= self.first + self.held {
            let most = self.capacity().min(self.blocks.saturating_sub(block)).max(1);
            self.fill(block, most.min(1 + ahead))?;
        }
        self.run(block, 1)
    }

    fn fill(&mut self, block: u64, count: u64) -> Result<()> {
        self.held = 0;
        if block.checked_add(count).is_none_or(|end| end > self.blocks) {
            return Err(Error::Invalid(format!("block {block} is past the end of the volume")));
        }
        let length = (count * self.block_size) as usize;
        self.device
            .read_at(&mut self.buffer[..length], block * self.block_size)
            .map_err(|source| Error::MetadataIo { block, source: Arc::new(source) })?;
        (self.first, self.held) = (block, count);
        Ok(())
    }
}
