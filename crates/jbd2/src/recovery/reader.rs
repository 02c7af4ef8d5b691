//! Reading the log: one block at a time for the caller, larger pieces for the device.

use crate::io::transfer_buffer;
use crate::{Error, LogMap, Result};
use uext4_blockdev::{Buffer, Device};

/// Bytes read at once.
const WINDOW: usize = 256 << 10;

/// Reads blocks of the log and keeps the last piece read.
pub(super) struct LogReader<'d> {
    device: &'d dyn Device,
    log: &'d dyn LogMap,
    block_size: usize,
    window: Buffer,
    /// Log block at the start of the window.
    first: u32,
    /// Blocks in the window.
    blocks: u32,
}

impl<'d> LogReader<'d> {
    pub(super) fn new(device: &'d dyn Device, log: &'d dyn LogMap, block_size: u32) -> Result<Self> {
        let bytes = WINDOW.max(block_size as usize);
        let window = transfer_buffer(bytes)?;
        Ok(LogReader { device, log, block_size: block_size as usize, window, first: 0, blocks: 0 })
    }

    /// The contents of a log block.
    pub(super) fn block(&mut self, log_block: u32) -> Result<&[u8]> {
        let held = log_block.checked_sub(self.first).is_some_and(|inside| inside < self.blocks);
        if !held {
            self.load(log_block)?;
        }
        let start = (log_block - self.first) as usize * self.block_size;
        Ok(&self.window[start..start + self.block_size])
    }

    fn load(&mut self, log_block: u32) -> Result<()> {
        let physical = self.physical(log_block)?;
        let most = (self.window.len() / self.block_size) as u32;
        let mut blocks = 1;
        let follows = |blocks: u32| {
            let next = log_block.checked_add(blocks).and_then(|next| self.log.physical(next));
            next.is_some() && next == physical.checked_add(u64::from(blocks))
        };
        while blocks < most && follows(blocks) {
            blocks += 1;
        }
        self.blocks = 0;
        let length = blocks as usize * self.block_size;
        let outside = Error::HoleInLog { log_block };
        let pos = physical.checked_mul(self.block_size as u64).ok_or(outside)?;
        if self.device.read_at(&mut self.window[..length], pos).is_err() {
            // A later block of the piece may be unreadable and irrelevant: left-overs, or data that is never used.
            blocks = 1;
            self.device
                .read_at(&mut self.window[..self.block_size], pos)
                .map_err(|source| uext4_buffer::Error::Device { block: physical, source })?;
        }
        (self.first, self.blocks) = (log_block, blocks);
        Ok(())
    }

    /// Where a log block is on the volume.
    pub(super) fn physical(&self, log_block: u32) -> Result<u64> {
        self.log.physical(log_block).ok_or(Error::HoleInLog { log_block })
    }

    /// Whether a block of the volume belongs to the log.
    pub(super) fn holds(&self, block: u64) -> bool {
        self.log.holds(block)
    }
}
