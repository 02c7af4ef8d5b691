//! One shard of the table: block number → buffer, and the CLOCK hand that evicts.

use crate::buffer::{Buffer, Content};
use crate::guard::BufferPin;
use crate::stats::Counters;
use crate::sync::RwLock;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::Arc;

/// A shard has at least this many blocks of budget, so that a small cache is one exact CLOCK.
const MIN_BLOCKS_PER_SHARD: usize = 64;
const MAX_SHARDS: usize = 64;

/// Number of shards (a power of two) for a budget.
pub(crate) fn shard_count(budget_blocks: usize) -> usize {
    let wanted = (budget_blocks / MIN_BLOCKS_PER_SHARD).clamp(1, MAX_SHARDS);
    1 << wanted.ilog2()
}

#[derive(Debug)]
pub(crate) struct Shard {
    table: RwLock<Table>,
    pub counters: Counters,
}

#[derive(Debug)]
struct Table {
    /// Block → position in `ring`.
    index: HashMap<u64, usize, RandomState>,
    ring: Vec<Arc<Buffer>>,
    hand: usize,
    /// Buffers to keep at most, if they can be evicted.
    capacity: usize,
}

impl Shard {
    pub(crate) fn new(capacity: usize) -> Self {
        Shard {
            table: RwLock::new(Table { index: HashMap::default(), ring: Vec::new(), hand: 0, capacity }),
            counters: Counters::default(),
        }
    }

    /// Pins a resident buffer.
    pub(crate) fn find(&self, block: u64) -> Option<BufferPin> {
        let table = self.table.read();
        let buffer = table.get(block)?;
        buffer.touch();
        Some(BufferPin::new(buffer))
    }

    /// Pins a buffer, making room and an empty one if it is not resident.
    pub(crate) fn find_or_insert(&self, block: u64, cache: u64) -> BufferPin {
        if let Some(pin) = self.find(block) {
            return pin;
        }
        let mut table = self.table.write();
        if let Some(buffer) = table.get(block) {
            return BufferPin::new(buffer);
        }
        let room = table.capacity.saturating_sub(1);
        self.evict_to(&mut table, room);
        let buffer = Arc::new(Buffer::new(block, cache));
        let pin = BufferPin::new(&buffer);
        let position = table.ring.len();
        table.ring.push(buffer);
        table.index.insert(block, position);
        pin
    }

    /// Removes a buffer that nobody pins and that holds nothing.
    pub(crate) fn remove_if_empty(&self, block: u64) {
        let mut table = self.table.write();
        let Some(&position) = table.index.get(&block) else {
            return;
        };
        let buffer = &table.ring[position];
        if buffer.is_pinned() {
            return;
        }
        let empty = {
            let state = buffer.lock();
            state.is_evictable() && matches!(state.content, Content::Empty)
        };
        if empty {
            table.remove(position);
        }
    }

    /// Changes the capacity and evicts down to it.
    pub(crate) fn set_capacity(&self, capacity: usize) {
        let mut table = self.table.write();
        table.capacity = capacity;
        self.evict_to(&mut table, capacity);
    }

    /// Evicts down to the capacity, after buffers became evictable.
    pub(crate) fn trim(&self) {
        let excess = {
            let table = self.table.read();
            table.ring.len() > table.capacity
        };
        if excess {
            let mut table = self.table.write();
            let capacity = table.capacity;
            self.evict_to(&mut table, capacity);
        }
    }

    /// Buffers in the shard.
    pub(crate) fn len(&self) -> usize {
        self.table.read().ring.len()
    }

    /// The buffers, unpinned: they may leave the table meanwhile. The table is not locked while the caller
    /// looks.
    pub(crate) fn buffers(&self) -> Vec<Arc<Buffer>> {
        self.table.read().ring.clone()
    }

    /// Pins every buffer.
    pub(crate) fn pin_all(&self) -> Vec<BufferPin> {
        self.table.read().ring.iter().map(BufferPin::new).collect()
    }

    /// CLOCK: the hand goes round, spares what was used since it last passed, and drops what was not. Two
    /// looks see a buffer without its mark; what is left when all had them cannot be evicted.
    fn evict_to(&self, table: &mut Table, target: usize) {
        // A buffer is looked at twice before it goes. Removals move buffers, so that some are looked at once more.
        let mut steps = table.ring.len() * 3;
        while table.ring.len() > target && steps > 0 {
            steps -= 1;
            if table.hand >= table.ring.len() {
                table.hand = 0;
            }
            let buffer = &table.ring[table.hand];
            // The state lock is free: it is only taken by holders of a pin (or briefly by `stats`).
            if buffer.is_pinned() || buffer.take_referenced() || !buffer.lock().is_evictable() {
                table.hand += 1;
            } else {
                table.remove(table.hand);
                self.counters.evictions.count();
            }
        }
    }
}

impl Table {
    fn get(&self, block: u64) -> Option<&Arc<Buffer>> {
        self.index.get(&block).map(|position| &self.ring[*position])
    }

    /// Takes a buffer out; the last one of the ring moves into its place.
    fn remove(&mut self, position: usize) {
        let removed = self.ring.swap_remove(position);
        self.index.remove(&removed.block);
        if let Some(moved) = self.ring.get(position) {
            self.index.insert(moved.block, position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_follow_the_budget() {
        assert_eq!(shard_count(1), 1);
        assert_eq!(shard_count(127), 1);
        assert_eq!(shard_count(128), 2);
        assert_eq!(shard_count(1000), 8);
        assert_eq!(shard_count(usize::MAX), 64);
    }

    #[test]
    fn hand_spares_what_was_used() {
        let shard = Shard::new(3);
        for block in 0..3 {
            drop(shard.find_or_insert(block, 0));
        }
        assert!(shard.find(0).is_some());
        drop(shard.find_or_insert(3, 0));
        assert!(shard.find(0).is_some(), "block 0 was used a second time and stays");
        assert!(shard.find(1).is_none(), "block 1 was the first unused one under the hand");
        assert_eq!(shard.len(), 3);
    }

    #[test]
    fn pinned_buffers_stay_and_the_shard_shrinks_later() {
        let shard = Shard::new(2);
        let pins: Vec<_> = (0..5).map(|block| shard.find_or_insert(block, 0)).collect();
        assert_eq!(shard.len(), 5);
        drop(pins);
        drop(shard.find_or_insert(9, 0));
        assert_eq!(shard.len(), 2);
    }
}
