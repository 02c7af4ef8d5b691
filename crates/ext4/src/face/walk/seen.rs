//! A set of inode numbers: a bitmap in pieces allocated on demand.

use std::collections::HashMap;
use uext4_ondisk::Ino;

/// log2 of the numbers in a piece.
const PIECE_LOG: u32 = 9;

/// A set of inode numbers. Directories of a group have neighbouring numbers, so bitmap pieces take less memory than a
/// hash table of numbers. The number of pieces is bounded by the volume's inode count.
#[derive(Debug, Default)]
pub(super) struct InoSet {
    pieces: HashMap<u32, [u64; 1 << (PIECE_LOG - 6)]>,
}

impl InoSet {
    /// Adds a number. Returns whether it is new.
    pub(super) fn insert(&mut self, ino: Ino) -> bool {
        let number = ino.get();
        let piece = self.pieces.entry(number >> PIECE_LOG).or_default();
        let word = &mut piece[((number >> 6) & ((1 << (PIECE_LOG - 6)) - 1)) as usize];
        let bit = 1u64 << (number & 63);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_once() {
        let mut seen = InoSet::default();
        let numbers = [0, 1, 63, 64, 511, 512, 513, 1 << 20, u32::MAX - 1, u32::MAX];
        assert!(numbers.iter().all(|&number| seen.insert(Ino(number))));
        assert!(!numbers.iter().any(|&number| seen.insert(Ino(number))));
    }
}
