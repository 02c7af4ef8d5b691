//! Decisions drawn from a string of bytes, so that a fuzzer that changes bytes changes decisions one at a time.

use crate::rng::Rng;

/// A script being read. Past its end every answer is 0.
#[derive(Debug)]
pub struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Reads `script` from its start.
    pub fn new(script: &'a [u8]) -> Choices<'a> {
        Choices { rest: script }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `width` bytes as a number.
    pub fn number(&mut self, width: usize) -> u64 {
        let (head, rest) = self.rest.split_at(width.min(self.rest.len()));
        self.rest = rest;
        head.iter().rev().fold(0, |sum, &byte| (sum << 8) | u64::from(byte))
    }

    /// A number below `bound` (0 if there is none), from as few bytes as can tell them apart.
    pub fn below(&mut self, bound: usize) -> usize {
        match bound {
            0 | 1 => 0,
            2..=0x100 => self.number(1) as usize % bound,
            0x101..=0x1_0000 => self.number(2) as usize % bound,
            _ => self.number(4) as usize % bound,
        }
    }

    /// One of `items`, if there is any.
    pub fn pick<'t, T>(&mut self, items: &'t [T]) -> Option<&'t T> {
        let index = self.below(items.len());
        items.get(index)
    }
}

/// The script of a seed: 6 to 70 bytes, which make one to about ten edits.
pub fn script_of(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let longest = if rng.chance(60) { 12 } else { 64 };
    let mut script = vec![0; 6 + rng.below(longest) as usize];
    rng.fill(&mut script);
    script
}
