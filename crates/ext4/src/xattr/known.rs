//! The attribute blocks that edits have seen, found by the hash of their attributes: a file that gets the same ones
//! shares the block. As Linux's `mbcache`, within a budget of bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use uext4_ondisk::Pblk;

/// Most bytes of memory.
const BUDGET: usize = 1 << 20;
/// Bytes of memory for one block: an entry in each of three tables.
const ENTRY_BYTES: usize = 128;
/// Most blocks.
const MOST: usize = BUDGET / ENTRY_BYTES;

/// Attribute blocks by hash. Whoever frees or changes an attribute block calls [`KnownBlocks::forget`] before, under
/// the lock of this table: so every block here is an attribute block.
#[derive(Debug, Default)]
pub(crate) struct KnownBlocks {
    by_hash: BTreeSet<(u32, Pblk)>,
    /// Hash, and when it was last used.
    by_block: HashMap<Pblk, (u32, u64)>,
    by_use: BTreeMap<u64, Pblk>,
    uses: u64,
}

impl KnownBlocks {
    /// A block with attributes of this hash exists, and is the one used last. 0 is the hash of blocks that are not
    /// shared.
    pub(crate) fn note(&mut self, hash: u32, block: Pblk) {
        self.forget(block);
        if hash == 0 {
            return;
        }
        while self.by_use.len() >= MOST {
            let Some((_, oldest)) = self.by_use.first_key_value() else { break };
            self.forget(*oldest);
        }
        self.uses += 1;
        self.by_hash.insert((hash, block));
        self.by_block.insert(block, (hash, self.uses));
        self.by_use.insert(self.uses, block);
    }

    /// The block is freed, or gets other attributes.
    pub(crate) fn forget(&mut self, block: Pblk) {
        if let Some((hash, used)) = self.by_block.remove(&block) {
            self.by_hash.remove(&(hash, block));
            self.by_use.remove(&used);
        }
    }

    /// The blocks of this hash.
    pub(crate) fn of(&self, hash: u32) -> Vec<Pblk> {
        let same = self.by_hash.range((hash, Pblk(0))..=(hash, Pblk(u64::MAX)));
        same.map(|(_, block)| *block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut known = KnownBlocks::default();
        let blocks = MOST as u64;
        (1..=blocks).for_each(|block| known.note(7, Pblk(block)));
        known.note(7, Pblk(1));
        known.note(8, Pblk(blocks + 1));
        assert_eq!(known.of(7).len(), MOST - 1);
        assert!(known.of(7).contains(&Pblk(1)) && !known.of(7).contains(&Pblk(2)));
        assert_eq!(known.of(8), [Pblk(blocks + 1)]);
        assert_eq!((known.by_block.len(), known.by_use.len()), (MOST, MOST));
    }

    #[test]
    fn a_block_has_one_hash_and_zero_is_none() {
        let mut known = KnownBlocks::default();
        known.note(1, Pblk(5));
        known.note(2, Pblk(5));
        assert_eq!((known.of(1), known.of(2)), (vec![], vec![Pblk(5)]));
        known.note(0, Pblk(5));
        assert!(known.of(2).is_empty() && known.of(0).is_empty() && known.by_use.is_empty());
    }
}
