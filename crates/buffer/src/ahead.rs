//! Reading ahead: many neighbouring blocks in one device request.

use crate::cache::{BufferCache, LoadGuard};
use crate::guard::BufferPin;
use crate::options::READ_AHEAD_BYTES;
use std::sync::Arc;

impl BufferCache {
    /// Brings blocks `first .. first + count` into memory in one device request, as far as they are not there
    /// and no other thread is reading them; beyond [`READ_AHEAD_BYTES`] and the last block nothing is read.
    /// The pins keep what was read resident.
    ///
    /// Only a hint: whoever needs a block asks for it as usual, with its verification. What could not be read
    /// is missing from the answer, and its error is left to the read that needs the block.
    #[must_use]
    pub fn read_ahead(&self, first: u64, count: u32) -> Vec<BufferPin> {
        let most = READ_AHEAD_BYTES / self.block_size();
        let end = first.saturating_add(u64::from(count.min(most))).min(self.blocks());
        // A device block that holds several of ours: read_device knows how, one at a time.
        if first >= end || self.device().geometry().logical_block > self.block_size() {
            return Vec::new();
        }
        let pins: Vec<BufferPin> =
            (first..end).map(|block| self.shard(block).find_or_insert(block, self.identity())).collect();
        let mut running: Vec<LoadGuard<'_>> = pins.iter().filter_map(|pin| self.begin_load(pin)).collect();
        if let (Some(low), Some(high)) = (running.first(), running.last()) {
            let (low, high) = (low.block(), high.block());
            self.load_span(low, high, &mut running);
        }
        drop(running);
        // An empty buffer must not use the budget.
        pins.into_iter().filter_map(|pin| self.keep_if_present(pin)).collect()
    }

    /// Reads `low ..= high` at once and hands each load its block; if that fails, each is read by itself.
    fn load_span(&self, low: u64, high: u64, running: &mut [LoadGuard<'_>]) {
        let size = self.block_size() as usize;
        // At most READ_AHEAD_BYTES, in range: neither can overflow.
        let length = (high - low + 1) as usize * size;
        let whole = self.with_run(|memory| {
            let memory = &mut memory[..length];
            self.device().read_at(memory, low * size as u64)?;
            for load in running.iter_mut() {
                let start = (load.block() - low) as usize * size;
                load.finish(&Ok(Arc::from(&memory[start..start + size])));
            }
            Ok::<(), uext4_blockdev::Error>(())
        });
        if whole.is_err() {
            for load in running {
                load.finish(&self.read_device(load.block()));
            }
        }
    }
}
