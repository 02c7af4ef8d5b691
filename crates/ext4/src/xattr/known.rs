//! The attribute blocks and the inodes with values that edits have seen, found by their hash: a file that gets the same
//! attributes shares the block, and one that gets the same value the inode. As Linux's `mbcache`, each within a budget
//! of bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use uext4_ondisk::{Ino, Pblk};

/// Most bytes of memory.
const BUDGET: usize = 1 << 20;
/// Bytes of memory for one place: an entry in each of three tables.
const ENTRY_BYTES: usize = 128;
/// Most places.
const MOST: usize = BUDGET / ENTRY_BYTES;

/// What changes of attributes know of each other. Locked from the first look at a reference count until it is changed.
#[derive(Debug, Default)]
pub(crate) struct KnownAttributes {
    /// Attribute blocks, by the hash of their attributes.
    pub(crate) blocks: Known<Pblk>,
    /// Inodes of values, by the checksum of the value.
    pub(crate) values: Known<Ino>,
    /// Those that were made for an attribute and have no reference yet: they are orphans.
    pub(crate) unused: BTreeSet<Ino>,
}

/// Places by hash. Whoever frees or changes one calls [`Known::forget`] before, under the lock of the table: so
/// everything here is such a place.
#[derive(Debug)]
pub(crate) struct Known<K> {
    by_hash: BTreeSet<(u32, K)>,
    /// Hash, and when it was last used.
    by_place: HashMap<K, (u32, u64)>,
    by_use: BTreeMap<u64, K>,
    uses: u64,
}

impl<K> Default for Known<K> {
    fn default() -> Self {
        Known { by_hash: BTreeSet::new(), by_place: HashMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }
}

impl<K: Copy + Ord + Hash + Default> Known<K> {
    /// A place of this hash exists, and is the one used last. 0 is the hash of what is not shared.
    pub(crate) fn note(&mut self, hash: u32, place: K) {
        self.forget(place);
        if hash == 0 {
            return;
        }
        while self.by_use.len() >= MOST {
            let Some((_, oldest)) = self.by_use.first_key_value() else { break };
            self.forget(*oldest);
        }
        self.uses += 1;
        self.by_hash.insert((hash, place));
        self.by_place.insert(place, (hash, self.uses));
        self.by_use.insert(self.uses, place);
    }

    /// The place is freed, or gets other contents.
    pub(crate) fn forget(&mut self, place: K) {
        if let Some((hash, used)) = self.by_place.remove(&place) {
            self.by_hash.remove(&(hash, place));
            self.by_use.remove(&used);
        }
    }

    /// The places of this hash.
    pub(crate) fn of(&self, hash: u32) -> Vec<K> {
        let behind = self.by_hash.range((hash, K::default())..);
        behind.take_while(|(other, _)| *other == hash).map(|(_, place)| *place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut known = Known::default();
        let blocks = MOST as u64;
        (1..=blocks).for_each(|block| known.note(7, Pblk(block)));
        known.note(7, Pblk(1));
        known.note(8, Pblk(blocks + 1));
        assert_eq!(known.of(7).len(), MOST - 1);
        assert!(known.of(7).contains(&Pblk(1)) && !known.of(7).contains(&Pblk(2)));
        assert_eq!(known.of(8), [Pblk(blocks + 1)]);
        assert_eq!((known.by_place.len(), known.by_use.len()), (MOST, MOST));
    }

    #[test]
    fn a_block_has_one_hash_and_zero_is_none() {
        let mut known = Known::default();
        known.note(1, Pblk(5));
        known.note(2, Pblk(5));
        assert_eq!((known.of(1), known.of(2)), (vec![], vec![Pblk(5)]));
        known.note(0, Pblk(5));
        assert!(known.of(2).is_empty() && known.of(0).is_empty() && known.by_use.is_empty());
    }
}
