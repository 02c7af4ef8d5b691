//! Second-level tables in memory. They are changed in place while others read them: the words of an entry are read and
//! written in an order that shows it old or new.

use super::entry::{Kind, Reason, Shape};
use crate::cache::Bounded;
use crate::order::{bytes64, number};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of tables that an image keeps in memory, and that each of its queues remembers.
const TABLES_BYTES: u64 = 32 << 20;
const NEAR_BYTES: u64 = 4 << 20;

/// A table.
#[derive(Debug)]
pub(super) struct Table {
    /// Where it is in the file.
    pub(super) host: u64,
    words: Box<[AtomicU64]>,
    /// It has entries that its place in the file may not have yet. Such a table is kept in memory.
    pub(super) unsettled: AtomicBool,
}

/// A run of bytes of the disk that are found in one way, from where it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) kind: Kind,
    /// Where it ends on the disk.
    pub(super) end: u64,
}

impl Table {
    /// A table of these bytes, which begin at byte `host` of the file.
    pub(super) fn new(host: u64, bytes: &[u8]) -> Self {
        let words = bytes.as_chunks::<8>().0;
        let words = words.iter().map(|word| AtomicU64::new(number(word))).collect();
        Table { host, words, unsettled: AtomicBool::new(false) }
    }

    /// The same entries elsewhere.
    pub(super) fn moved(&self, host: u64) -> Self {
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Acquire));
        Table { host, words: self.words.iter().map(copy).collect(), unsettled: AtomicBool::new(true) }
    }

    /// Bytes `range` of it, as the file has them.
    pub(super) fn bytes(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let words = &self.words[range.start / 8..range.end / 8];
        words.iter().flat_map(|word| bytes64(word.load(Ordering::Acquire))).collect()
    }

    /// Bytes of it.
    pub(super) fn length(&self) -> usize {
        self.words.len() * 8
    }

    /// Both words of an entry; the second is 0 without subclusters.
    pub(super) fn entry(&self, shape: &Shape, index: usize) -> (u64, u64) {
        if !shape.extended {
            return (self.words[index].load(Ordering::Acquire), 0);
        }
        loop {
            let word = self.words[2 * index].load(Ordering::Acquire);
            let bitmap = self.words[2 * index + 1].load(Ordering::Acquire);
            // Otherwise the place was changed meanwhile, and the bits may be those of either.
            if self.words[2 * index].load(Ordering::Acquire) == word {
                return (word, bitmap);
            }
            std::hint::spin_loop();
        }
    }

    /// Changes an entry. Those who read it see the old or the new one: with subclusters the place comes first, unless
    /// it goes, or the old entry was of a compressed cluster, whose bits mean nothing.
    pub(super) fn set(&self, shape: &Shape, index: usize, word: u64, bitmap: u64) {
        if !shape.extended {
            return self.words[index].store(word, Ordering::Release);
        }
        let (place, bits) = (&self.words[2 * index], &self.words[2 * index + 1]);
        if word == 0 || place.load(Ordering::Relaxed) & super::entry::COMPRESSED != 0 {
            bits.store(bitmap, Ordering::Release);
            place.store(word, Ordering::Release);
        } else {
            place.store(word, Ordering::Release);
            bits.store(bitmap, Ordering::Release);
        }
    }

    /// The piece of `pos..end` that begins at `pos`. The error is the reason, and the entry's place in the file.
    #[inline]
    pub(super) fn piece(&self, shape: &Shape, pos: u64, end: u64) -> Result<Piece, (Reason, u64)> {
        let unit = shape.unit();
        let table_end = ((pos >> shape.table_bits()) + 1) << shape.table_bits();
        let end = end.min(table_end);
        let kind = match self.kind(shape, pos)? {
            Kind::Data { host, copied } => Kind::Data { host: host + (pos & (unit - 1)), copied },
            other => other,
        };
        let mut upto = (pos & !(unit - 1)) + unit;
        while upto < end {
            let next = self.kind(shape, upto)?;
            let goes_on = match (kind, next) {
                (Kind::Data { host, copied }, Kind::Data { host: next, copied: both }) => {
                    copied == both && host + (upto - pos) == next
                }
                // One compressed cluster is one piece.
                (Kind::Compressed { word }, Kind::Compressed { word: next }) => {
                    shape.extended && word == next && upto & (shape.cluster() - 1) != 0
                }
                _ => kind == next,
            };
            if !goes_on {
                break;
            }
            upto += unit;
        }
        Ok(Piece { kind, end: upto.min(end) })
    }

    #[inline]
    fn kind(&self, shape: &Shape, pos: u64) -> Result<Kind, (Reason, u64)> {
        let (_, index) = shape.split(pos);
        let (word, bitmap) = self.entry(shape, index);
        let in_cluster = pos & (shape.cluster() - 1);
        let unit = if shape.extended { in_cluster / shape.unit() } else { 0 };
        let decoded = shape.decode(word, bitmap, unit, pos - in_cluster);
        decoded.map_err(|reason| (reason, self.host + (index * shape.entry_words() * 8) as u64))
    }
}

/// The tables in memory.
#[derive(Debug)]
pub(super) struct Tables {
    loaded: RwLock<Bounded<Table>>,
    /// Counts the tables that went or were replaced: what queues remember of older ones may be wrong.
    generation: AtomicU64,
    near: usize,
}

impl Tables {
    pub(super) fn new(cluster: u64) -> Self {
        // Bounded by the sizes of clusters.
        let limit = (TABLES_BYTES / cluster).clamp(8, 16 << 10) as usize;
        let near = (NEAR_BYTES / cluster).clamp(4, 64) as usize;
        Tables {
            loaded: RwLock::new(Bounded::new(limit)),
            generation: AtomicU64::new(0),
            near: near.next_power_of_two(),
        }
    }

    pub(super) fn get(&self, index: u64) -> Option<Arc<Table>> {
        self.loaded.read().get(index)
    }

    /// The same; from now on the table is kept in memory, since the caller changes it.
    pub(super) fn get_to_change(&self, index: u64) -> Option<Arc<Table>> {
        let loaded = self.loaded.read();
        let table = loaded.get(index)?;
        table.unsettled.store(true, Ordering::Release);
        Some(table)
    }

    /// See [`Tables::add`].
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Adds a table that was read, unless another thread was quicker. `None` if tables went since `generation` was
    /// asked for: it may have been among them, and other than it was read.
    pub(super) fn add(&self, index: u64, table: Arc<Table>, generation: u64) -> Option<Arc<Table>> {
        let mut loaded = self.loaded.write();
        if let Some(there) = loaded.get(index) {
            return Some(there);
        }
        if self.generation() != generation {
            return None;
        }
        self.insert(&mut loaded, index, &table);
        Some(table)
    }

    /// Puts a table in the place of another.
    pub(super) fn replace(&self, index: u64, table: &Arc<Table>) {
        self.insert(&mut self.loaded.write(), index, table);
    }

    fn insert(&self, loaded: &mut Bounded<Table>, index: u64, table: &Arc<Table>) {
        let unsettled = |table: &Table| table.unsettled.load(Ordering::Acquire);
        if loaded.insert(index, Arc::clone(table), unsettled) {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// A table by its number.
type Known = (u64, Arc<Table>);

/// The tables that a queue remembers.
#[derive(Debug)]
pub(super) struct Near {
    generation: u64,
    slots: Box<[Option<Known>]>,
}

impl Near {
    pub(super) fn new(tables: &Tables) -> Self {
        Near { generation: 0, slots: vec![None; tables.near].into() }
    }

    /// The table of this number, if it is remembered.
    #[inline]
    pub(super) fn get(&mut self, tables: &Tables, index: u64) -> Option<&Arc<Table>> {
        let generation = tables.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.slots.fill(None);
            self.generation = generation;
            return None;
        }
        match &self.slots[index as usize & (self.slots.len() - 1)] {
            Some((known, table)) if *known == index => Some(table),
            _ => None,
        }
    }

    /// Remembers a table that `find` finds. Whatever changes meanwhile is noticed at the next look.
    pub(super) fn learn<E>(
        &mut self,
        tables: &Tables,
        index: u64,
        find: impl FnOnce() -> Result<Option<Arc<Table>>, E>,
    ) -> Result<Option<Arc<Table>>, E> {
        // Before the table is found: if it goes later, the count is another one.
        let generation = tables.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.slots.fill(None);
            self.generation = generation;
        }
        let found = find()?;
        if let Some(table) = &found {
            self.slots[index as usize & (self.slots.len() - 1)] = Some((index, Arc::clone(table)));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::{COMPRESSED, COPIED};
    use super::*;

    fn table(host: u64) -> Arc<Table> {
        Arc::new(Table::new(host, &[0; 512]))
    }

    #[test]
    fn a_table_that_was_read_before_others_went_is_not_kept() {
        let tables = Tables::new(2 << 20);
        let before = tables.generation();
        for index in 0..20 {
            tables.add(index, table(index), tables.generation()).unwrap();
        }
        assert!(tables.add(50, table(50), before).is_none() && tables.get(50).is_none());
        let before = tables.generation();
        tables.replace(19, &table(90));
        assert!(tables.add(51, table(51), before).is_none());
        assert_eq!(tables.get(19).unwrap().host, 90);
        assert!(tables.add(51, table(51), tables.generation()).is_some());
    }

    /// What is left of a cluster is freed, given another place, and so on.
    #[test]
    fn entries_are_old_or_new_while_they_change() {
        const ALL: u64 = 0xffff_ffff;
        let shape = Shape { cluster_bits: 16, l2_bits: 12, extended: true, external: false, zeros: true };
        // All of it reads as zeros.
        let table = table(0);
        let ended = AtomicBool::new(false);
        table.set(&shape, 1, 0, ALL << 32);
        std::thread::scope(|scope| {
            let (table, ended) = (&table, &ended);
            scope.spawn(move || {
                for round in 0..200_000 {
                    let places = [0x4_0000, 0x8_0000].map(|host| host | COPIED);
                    table.set(&shape, 1, places[round % 2], ALL);
                    table.set(&shape, 1, places[(round + 1) % 2], ALL);
                    table.set(&shape, 1, 0, ALL << 32);
                }
                ended.store(true, Ordering::Release);
            });
            while !ended.load(Ordering::Acquire) {
                let found = table.piece(&shape, 0x1_0000, 0x1_0800).unwrap().kind;
                let fits =
                    matches!(found, Kind::Zero | Kind::Data { host: 0x4_0000 | 0x8_0000, copied: true });
                assert!(fits, "{found:?}");
            }
        });
        // A compressed cluster has no subclusters, whatever the bits say.
        table.words[2].store(COMPRESSED | 0x12345, Ordering::Release);
        table.words[3].store(0, Ordering::Release);
        table.set(&shape, 1, COPIED | 0x4_0000, ALL);
        let found = table.piece(&shape, 0x1_0000, 0x1_0800).unwrap().kind;
        assert_eq!(found, Kind::Data { host: 0x4_0000, copied: true });
    }
}
