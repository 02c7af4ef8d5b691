//! Which granules of the base an overlay file holds, in memory.
//!
//! A granule is *present* as soon as its data is in the file, and *durable* once the file's map says so on the medium.
//! Bits are only ever set. Readers take no lock.

use super::format::{BLOCK_UNITS, Layout, UNIT_BITS, WORDS};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Units that hang on one entry of the index.
const CHUNK: u64 = 256;

/// The bits of a unit of the map.
#[derive(Debug)]
struct Unit {
    present: [AtomicU64; WORDS],
    durable: [AtomicU64; WORDS],
}

type Chunk = Box<[OnceLock<Box<Unit>>]>;

/// The bits of all units that have any.
#[derive(Debug)]
pub(super) struct Map {
    granules: u64,
    chunks: Box<[OnceLock<Chunk>]>,
    /// Blocks of the map with granules that are present and were not durable when they were set.
    dirty: Mutex<BTreeSet<u64>>,
}

impl Unit {
    fn new() -> Box<Self> {
        let zeros = || [const { AtomicU64::new(0) }; WORDS];
        Box::new(Unit { present: zeros(), durable: zeros() })
    }
}

/// The words that a range of granules touches, as (unit, word, mask).
fn words(granules: Range<u64>) -> impl Iterator<Item = (u64, usize, u64)> {
    let mut at = granules.start;
    std::iter::from_fn(move || {
        if at >= granules.end {
            return None;
        }
        // Units are whole words, so bits of a word are neighbours.
        let (unit, bit) = (at / UNIT_BITS, at % UNIT_BITS);
        let count = (64 - bit % 64).min(granules.end - at);
        at += count;
        Some((unit, (bit / 64) as usize, (u64::MAX >> (64 - count)) << (bit % 64)))
    })
}

impl Map {
    /// No granule is present.
    pub(super) fn new(layout: &Layout) -> Self {
        let chunks = (0..layout.units.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Map { granules: layout.granules, chunks, dirty: Mutex::default() }
    }

    fn unit(&self, unit: u64) -> Option<&Unit> {
        let chunk = self.chunks.get((unit / CHUNK) as usize)?.get()?;
        chunk.get((unit % CHUNK) as usize)?.get().map(|unit| &**unit)
    }

    /// The same, made if there is none. `unit` is one of the map's.
    fn unit_made(&self, unit: u64) -> &Unit {
        let empty = || (0..CHUNK).map(|_| OnceLock::new()).collect();
        let chunk = self.chunks[(unit / CHUNK) as usize].get_or_init(empty);
        chunk[(unit % CHUNK) as usize].get_or_init(Unit::new)
    }

    /// Takes over what the file says of a unit.
    pub(super) fn load(&self, unit: u64, bits: &[u64; WORDS]) {
        let unit = self.unit_made(unit);
        for (at, bits) in bits.iter().enumerate() {
            unit.present[at].store(*bits, Ordering::Release);
            unit.durable[at].store(*bits, Ordering::Release);
        }
    }

    /// The end of the run of granules from `start` on that are present, or are not, and which of them it is.
    /// `start < end`.
    pub(super) fn run(&self, start: u64, end: u64) -> (bool, u64) {
        let end = end.min(self.granules);
        let bit = start % UNIT_BITS;
        let first = self
            .unit(start / UNIT_BITS)
            .map_or(0, |unit| unit.present[(bit / 64) as usize].load(Ordering::Acquire) >> (bit % 64));
        let present = first & 1 != 0;
        let mut at = start;
        while at < end {
            let (number, bit) = (at / UNIT_BITS, at % UNIT_BITS);
            let Some(unit) = self.unit(number) else {
                if present {
                    break;
                }
                at = (number + 1) * UNIT_BITS;
                continue;
            };
            let word = unit.present[(bit / 64) as usize].load(Ordering::Acquire);
            let other = (if present { !word } else { word }) >> (bit % 64);
            if other != 0 {
                at += u64::from(other.trailing_zeros());
                break;
            }
            at += 64 - bit % 64;
        }
        // Another thread may have set the first bit meanwhile.
        (present, at.clamp(start + 1, end.max(start + 1)))
    }

    /// Whether all these granules are durable.
    pub(super) fn is_durable(&self, granules: Range<u64>) -> bool {
        words(granules).all(|(unit, word, mask)| {
            let bits = self.unit(unit).map_or(0, |unit| unit.durable[word].load(Ordering::Acquire));
            bits & mask == mask
        })
    }

    /// The data of these granules is in the file.
    pub(super) fn set_present(&self, granules: Range<u64>) {
        for (number, word, mask) in words(granules) {
            let unit = self.unit_made(number);
            unit.present[word].fetch_or(mask, Ordering::AcqRel);
            // After the bits: whoever takes the entry sees them.
            if unit.durable[word].load(Ordering::Acquire) & mask != mask {
                self.dirty.lock().insert(number / BLOCK_UNITS);
            }
        }
    }

    /// The same, and the data is durable: all that is left to do is to say so on the medium. Adds the blocks of the map
    /// that do not say so yet to `blocks`.
    pub(super) fn set_present_settled(&self, granules: Range<u64>, blocks: &mut BTreeSet<u64>) {
        for (number, word, mask) in words(granules) {
            let unit = self.unit_made(number);
            unit.present[word].fetch_or(mask, Ordering::AcqRel);
            if unit.durable[word].load(Ordering::Acquire) & mask != mask {
                blocks.insert(number / BLOCK_UNITS);
            }
        }
    }

    /// Whether no block of the map needs to be written.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty.lock().is_empty()
    }

    /// Takes up to `most` blocks of the map that need to be written.
    pub(super) fn take_dirty(&self, most: usize) -> BTreeSet<u64> {
        let mut dirty = self.dirty.lock();
        match dirty.iter().nth(most).copied() {
            Some(rest) => {
                let rest = dirty.split_off(&rest);
                std::mem::replace(&mut *dirty, rest)
            }
            None => std::mem::take(&mut *dirty),
        }
    }

    /// The bits of a unit that are present now; `None` if there are none.
    pub(super) fn present_bits(&self, unit: u64) -> Option<[u64; WORDS]> {
        self.unit(unit).map(|unit| std::array::from_fn(|at| unit.present[at].load(Ordering::Acquire)))
    }

    /// The bits of a unit that are durable.
    pub(super) fn durable_bits(&self, unit: u64) -> Option<[u64; WORDS]> {
        self.unit(unit).map(|unit| std::array::from_fn(|at| unit.durable[at].load(Ordering::Acquire)))
    }

    /// The medium says that these granules of a unit are present.
    pub(super) fn set_durable(&self, unit: u64, bits: &[u64; WORDS]) {
        let unit = self.unit_made(unit);
        for (durable, bits) in unit.durable.iter().zip(bits) {
            durable.fetch_or(*bits, Ordering::AcqRel);
        }
    }

    /// Number of granules present.
    pub(super) fn count(&self) -> u64 {
        let units = self.chunks.iter().filter_map(OnceLock::get).flatten().filter_map(OnceLock::get);
        let words = units.flat_map(|unit| &unit.present);
        words.map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// The first run of present granules at `start` or after it.
    pub(super) fn next_present(&self, start: u64) -> Option<Range<u64>> {
        let mut at = start;
        while at < self.granules {
            let (present, end) = self.run(at, self.granules);
            if present {
                return Some(at..end);
            }
            at = end;
        }
        None
    }
}

/// Adds the granules of `granules` that lie in `unit` to its bits.
pub(super) fn add(bits: &mut [u64; WORDS], unit: u64, granules: &Range<u64>) {
    let inside = granules.start.max(unit * UNIT_BITS)..granules.end.min((unit + 1) * UNIT_BITS);
    for (_, word, mask) in words(inside) {
        bits[word] |= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_a_list_of_bits() {
        let layout = Layout::of(5000 * 512 * 300, 512).unwrap();
        let map = Map::new(&layout);
        let mut bits = vec![false; layout.granules as usize];
        let mut seed = 7u64;
        for _ in 0..400 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (seed >> 20) % layout.granules;
            let end = (start + (seed >> 8) % 300 + 1).min(layout.granules);
            map.set_present(start..end);
            bits[start as usize..end as usize].fill(true);
        }
        map.set_present(UNIT_BITS - 3..UNIT_BITS * 3 + 1);
        bits[UNIT_BITS as usize - 3..UNIT_BITS as usize * 3 + 1].fill(true);
        assert_eq!(map.count() as usize, bits.iter().filter(|bit| **bit).count());
        let mut at = 0;
        while at < layout.granules {
            let (present, end) = map.run(at, layout.granules);
            assert!(bits[at as usize..end as usize].iter().all(|bit| *bit == present), "{at}..{end}");
            assert!(end == layout.granules || bits[end as usize] != present, "{at}..{end}");
            at = end;
        }
        assert_eq!(map.run(UNIT_BITS, UNIT_BITS + 5), (true, UNIT_BITS + 5));
        assert!(!map.is_durable(UNIT_BITS..UNIT_BITS + 1) && !map.is_clean());
        let taken = map.take_dirty(1);
        assert_eq!(taken.len(), 1);
        let rest = map.take_dirty(usize::MAX);
        assert!(map.is_clean() && rest.iter().all(|block| !taken.contains(block)));
    }

    #[test]
    fn durable_bits_are_not_dirty_again() {
        let map = Map::new(&Layout::of(1 << 30, 512).unwrap());
        map.set_present(10..80);
        assert_eq!(map.take_dirty(9), BTreeSet::from([0]));
        map.set_durable(0, &map.present_bits(0).unwrap());
        assert!(map.is_durable(10..80) && !map.is_durable(10..81));
        map.set_present(20..70);
        assert!(map.is_clean());
        let mut blocks = BTreeSet::new();
        map.set_present_settled(70..81, &mut blocks);
        assert_eq!((blocks, map.is_clean()), (BTreeSet::from([0]), true));
        let mut bits = [0; WORDS];
        add(&mut bits, 0, &(62..66));
        assert_eq!(bits[..2], [3 << 62, 3]);
        assert_eq!(map.next_present(3), Some(10..81));
        assert_eq!(map.next_present(81), None);
    }
}
