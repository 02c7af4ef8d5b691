//! A bitmap shared by threads, in pieces allocated when a bit in them is first set: a volume that claims to be huge
//! costs memory only for the blocks it uses.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words in a piece: 4 KiB, 32768 bits.
const PIECE: usize = 512;
const PIECE_BITS: u64 = PIECE as u64 * 64;

/// See the module.
pub(crate) struct Bits {
    pieces: Vec<OnceLock<Box<[AtomicU64]>>>,
}

/// The lowest `count` bits.
pub(crate) fn low_mask(count: u64) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

impl Bits {
    /// `bits` zeros.
    pub(crate) fn new(bits: u64) -> Bits {
        let pieces = bits.div_ceil(PIECE_BITS) as usize;
        Bits { pieces: (0..pieces).map(|_| OnceLock::new()).collect() }
    }

    fn set_word(&self, bit: u64, mask: u64) -> u64 {
        let Some(piece) = self.pieces.get((bit / PIECE_BITS) as usize) else { return 0 };
        let words = piece.get_or_init(|| (0..PIECE).map(|_| AtomicU64::new(0)).collect());
        let word = &words[(bit % PIECE_BITS / 64) as usize];
        // Different threads count different blocks, and nothing depends on these bits before the threads end.
        word.fetch_or(mask, Ordering::Relaxed)
    }

    /// Sets `count` bits from `first` on, and in `twice` those that were set before.
    pub(crate) fn set(&self, first: u64, count: u64, twice: Option<&Bits>) {
        let end = first.saturating_add(count);
        let mut bit = first;
        while bit < end {
            let offset = bit % 64;
            let length = (64 - offset).min(end - bit);
            let mask = low_mask(length) << offset;
            let again = self.set_word(bit, mask) & mask;
            if again != 0
                && let Some(twice) = twice
            {
                twice.set_word(bit, again);
            }
            bit += length;
        }
    }

    fn aligned(&self, word: u64) -> u64 {
        let piece = self.pieces.get((word / PIECE as u64) as usize).and_then(OnceLock::get);
        piece.map_or(0, |words| words[(word % PIECE as u64) as usize].load(Ordering::Relaxed))
    }

    /// The 64 bits from `bit` on; zeros past the end.
    pub(crate) fn word(&self, bit: u64) -> u64 {
        let (word, offset) = (bit / 64, bit % 64);
        let low = self.aligned(word) >> offset;
        if offset == 0 { low } else { low | self.aligned(word + 1) << (64 - offset) }
    }

    /// Whether a bit was ever set.
    pub(crate) fn any(&self) -> bool {
        self.pieces.iter().any(|piece| piece.get().is_some())
    }

    /// Set bits among `count` from `first` on: the first of them, and how many.
    pub(crate) fn overlap(&self, first: u64, count: u64) -> Option<(u64, u64)> {
        let (mut found, mut total) = (None, 0);
        let end = first.saturating_add(count);
        let mut bit = first;
        while bit < end {
            let length = (end - bit).min(64);
            let word = self.word(bit) & low_mask(length);
            if word != 0 {
                found.get_or_insert(bit + u64::from(word.trailing_zeros()));
                total += u64::from(word.count_ones());
            }
            bit += length;
        }
        found.map(|found| (found, total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_seen_twice_and_found_again() {
        let (bits, twice) = (Bits::new(1 << 20), Bits::new(1 << 20));
        bits.set(5, 200, Some(&twice));
        assert!(!twice.any());
        bits.set(100, 1, Some(&twice));
        bits.set(200, 10, Some(&twice));
        assert_eq!(twice.overlap(0, 1 << 20), Some((100, 6)));
        assert_eq!(twice.overlap(101, 99), None);
        assert_eq!(bits.overlap(0, 1 << 20), Some((5, 205)));
        assert_eq!(bits.overlap(7, 3), Some((7, 3)));
        assert_eq!(bits.word(1), u64::MAX << 4);
        assert_eq!(bits.word(209), 1);
        assert_eq!(bits.word(u64::MAX / 2), 0);
        bits.set(32_760, 20, None);
        assert_eq!(bits.overlap(32_000, 2000), Some((32_760, 20)));
        assert_eq!(bits.word(32_764), low_mask(16));
    }

    #[test]
    fn an_empty_bitmap_of_a_huge_volume_is_small() {
        let bits = Bits::new(1 << 32);
        assert!(bits.pieces.capacity() * size_of::<OnceLock<Box<[AtomicU64]>>>() < 4 << 20);
        assert!(!bits.any());
    }
}
