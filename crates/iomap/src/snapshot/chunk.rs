//! Storage of a snapshot's entries: lines of a cache line each, and chunks of lines.
//!
//! A look-up among many extents costs what it touches in memory, not what it compares. So a line answers a
//! look-up completely, and a chunk guesses the line instead of searching for it: extents of similar length
//! lie on a straight line through (block, index). A wrong guess is corrected by galloping from it, at most
//! 2·log₂ of the lines of a chunk.

use super::{BLOCKS_END, Entry, Target};
use std::sync::Arc;

/// Entries of a line.
pub(super) const LINE_ENTRIES: usize = 5;

/// Up to five neighbouring entries in one cache line. Those behind the last one are empty: they end where it
/// ends.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line {
    /// The block in front of the first entry (wrapping), then the last block of each entry: inclusive,
    /// because the end of the last possible entry, 2³², does not fit.
    bounds: [u32; LINE_ENTRIES + 1],
    targets: [Target; LINE_ENTRIES],
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    /// `entries`: 1 to [`LINE_ENTRIES`], without gaps.
    pub(super) fn of(entries: &[Entry]) -> Line {
        let last = entries.last().map_or(BLOCKS_END, |entry| entry.end).wrapping_sub(1) as u32;
        let mut line = Line { bounds: [last; LINE_ENTRIES + 1], targets: [Target::UNKNOWN; LINE_ENTRIES] };
        line.bounds[0] = entries.first().map_or(0, |entry| entry.first as u32).wrapping_sub(1);
        for (index, entry) in entries.iter().enumerate() {
            line.bounds[index + 1] = (entry.end - 1) as u32;
            line.targets[index] = entry.target;
        }
        line
    }

    #[inline]
    pub(super) fn first(&self) -> u32 {
        self.bounds[0].wrapping_add(1)
    }

    #[inline]
    pub(super) fn last(&self) -> u32 {
        self.bounds[LINE_ENTRIES]
    }

    #[inline]
    fn holds(&self, block: u32) -> bool {
        self.first() <= block && block <= self.last()
    }

    /// First block, end and target of the entry with `block`, which lies in this line.
    #[inline]
    pub(super) fn find(&self, block: u32) -> Entry {
        // Counted without branches: which of five neighbours it is cannot be predicted.
        let [_, a, b, c, d, _] = self.bounds.map(|last| usize::from(last < block));
        self.entry(a + b + c + d)
    }

    #[inline]
    fn entry(&self, index: usize) -> Entry {
        Entry {
            first: u64::from(self.bounds[index].wrapping_add(1)),
            end: u64::from(self.bounds[index + 1]) + 1,
            target: self.targets[index],
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let used = (1..LINE_ENTRIES).find(|&index| self.bounds[index] == self.last());
        (0..used.unwrap_or(LINE_ENTRIES)).map(|index| self.entry(index))
    }
}

/// A shared array of lines and, beside the pointer, what it takes to guess the right one. It lies in the
/// root.
#[derive(Debug, Clone)]
#[repr(align(32))]
pub(super) struct Chunk {
    first: u32,
    last: u32,
    /// Lines per block, in 2⁻³².
    slope: u32,
    lines: Arc<[Line]>,
}

// Two in a cache line, none across two.
const _: () = assert!(size_of::<Chunk>() == 32);

impl Chunk {
    /// `entries`: at least one, without gaps.
    pub(super) fn build(entries: &[Entry]) -> Chunk {
        let lines: Arc<[Line]> = entries.chunks(LINE_ENTRIES).map(Line::of).collect();
        Chunk { first: lines[0].first(), last: lines[lines.len() - 1].last(), slope: slope(entries), lines }
    }

    #[inline]
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    #[inline]
    pub(super) fn last(&self) -> u32 {
        self.last
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The line with `block`, which lies in this chunk.
    #[inline]
    pub(super) fn line(&self, block: u32) -> &Line {
        let offset = u64::from(block - self.first);
        let guess = ((offset * u64::from(self.slope)) >> 32) as usize;
        let guess = guess.min(self.lines.len() - 1);
        let line = &self.lines[guess];
        if line.holds(block) { line } else { self.gallop(block, guess) }
    }

    #[inline(never)]
    fn gallop(&self, block: u32, guess: usize) -> &Line {
        let lines = &*self.lines;
        let mut step = 1;
        if lines[guess].last() < block {
            let mut low = guess + 1;
            loop {
                let probe = (low + step).min(lines.len()) - 1;
                if block <= lines[probe].last() {
                    return &lines[low + lines[low..probe].partition_point(|line| line.last() < block)];
                }
                (low, step) = (probe + 1, step * 2);
            }
        }
        let mut high = guess;
        loop {
            let probe = high.saturating_sub(step);
            if lines[probe].first() <= block {
                let behind = &lines[probe + 1..high];
                return &lines[probe + behind.partition_point(|line| line.first() <= block)];
            }
            (high, step) = (probe, step * 2);
        }
    }
}

/// Lines per block in 2⁻³², rounded up so that among extents of one length every guess is right. The last
/// entry does not count: it is often the long hole behind a file's data.
fn slope(entries: &[Entry]) -> u32 {
    let [first, .., last] = entries else { return 0 };
    let span = (last.first - first.first) * LINE_ENTRIES as u64;
    // Below 2³²: every entry has a block.
    ((entries.len() as u64 - 1) << 32).div_ceil(span) as u32
}
