//! Storage of a snapshot's entries: lines of a cache line each, and chunks of lines.
//!
//! The cost of a look-up among many extents is memory access, not comparison: with a million extents, the root stays in
//! the processor's caches and the line does not. So a root entry is small (four per cache line), a line holds many
//! extents and answers a look-up completely, and a chunk guesses the line instead of searching for it: extents of
//! similar length lie on a straight line through (block, index). A wrong guess is corrected by galloping from it, at
//! most 2·log₂ of the lines of a chunk.

use super::{BLOCKS_END, Entry, PHYSICAL_MASK, Target};
use std::ops::Range;
use uext4_blockdev::Table;

/// Entries of a close line.
const CLOSE: usize = 16;
/// Entries of a near line.
const NEAR: usize = 8;
/// Entries of a wide line.
const WIDE: usize = 4;
/// Maximum number of lines in a chunk.
pub(super) const LINES: usize = super::CHUNK_MAX / CLOSE;
/// The origins of a close line's entries lie within this many blocks.
const CLOSE_SPREAD: u64 = 1 << u16::BITS;
/// The origins of a near line's entries lie within this many blocks.
const NEAR_SPREAD: u64 = 1 << NEAR_KIND_SHIFT;
const NEAR_KIND_SHIFT: u32 = 30;
/// Physical blocks have 48 bits, and a close line stores only 48 bits of its lowest origin.
const CLOSE_BASE_END: u64 = 1 << 48;

/// Neighbouring entries in one cache line. Slots after the last entry are empty: they end where it ends.
///
/// `before` is the block before the first entry (wrapping). Ends are inclusive, because the end of the last possible
/// entry, 2³², does not fit. Physical blocks are stored as each entry's *origin*: its physical block minus its distance
/// from the line's first block (in a wide line, from block 0). A look-up adds the block's own distance and need not
/// know where the entry begins.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) enum Line {
    /// Up to sixteen entries that span at most 2⁸ blocks and have origins within 2¹⁶ blocks of the device: files that
    /// grew block by block beside each other, and files that fill gaps between others.
    Close {
        before: u32,
        /// The lowest origin, which the distances count from: its low 32 bits and the 16 above.
        base: u32,
        base_high: u16,
        /// Two bits for each entry, the first lowest.
        kinds: u32,
        /// Last block of each entry, relative to the line's first block.
        ends: [u8; CLOSE],
        distances: [u16; CLOSE],
    },
    /// Up to eight entries that span at most 2¹⁶ blocks and have origins within 2³⁰ blocks of the device.
    Near {
        before: u32,
        /// The lowest origin, which the targets count from.
        base: u64,
        /// Last block of each entry, relative to the line's first block.
        ends: [u16; NEAR],
        /// A kind in the top two bits and a distance from `base` below.
        targets: [u32; NEAR],
    },
    /// Up to four entries of any length, anywhere. Physical blocks count modulo 2⁶².
    Wide { before: u32, ends: [u32; WIDE], targets: [Target; WIDE] },
}

const _: () = assert!(size_of::<Line>() == 64);

/// What a line knows about one block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    /// Index of the entry in the line.
    index: usize,
    /// Last block of the entry.
    pub(super) last: u32,
    pub(super) kind: u64,
    /// The block's physical block; arbitrary if its kind has no blocks.
    pub(super) physical: u64,
}

impl Line {
    /// A line of the first of `entries` (at least one, without gaps), and how many of them it holds.
    pub(super) fn take(entries: &[Entry]) -> (Line, usize) {
        let close = prefix(entries, CLOSE, u64::from(u8::MAX), CLOSE_SPREAD, CLOSE_BASE_END);
        let near = prefix(entries, NEAR, u64::from(u16::MAX), NEAR_SPREAD, u64::MAX);
        let wide = entries.len().min(WIDE);
        if close > near {
            (Line::close(&entries[..close]), close)
        } else if near >= wide {
            (Line::near(&entries[..near]), near)
        } else {
            (Line::wide(&entries[..wide]), wide)
        }
    }

    fn close(entries: &[Entry]) -> Line {
        let (first, lowest) = (entries[0].first, lowest_origin(entries));
        let last = (entries[entries.len() - 1].end - 1 - first) as u8;
        let (mut ends, mut distances, mut kinds) = ([last; CLOSE], [0; CLOSE], 0);
        for (index, entry) in entries.iter().enumerate() {
            ends[index] = (entry.end - 1 - first) as u8;
            distances[index] = origin(entry, first).map_or(0, |origin| (origin - lowest) as u16);
            kinds |= (entry.target.kind() as u32) << (2 * index);
        }
        let (base, base_high) = (lowest as u32, (lowest >> u32::BITS) as u16);
        Line::Close { before: (first as u32).wrapping_sub(1), base, base_high, kinds, ends, distances }
    }

    fn near(entries: &[Entry]) -> Line {
        let (first, base) = (entries[0].first, lowest_origin(entries));
        let last = (entries[entries.len() - 1].end - 1 - first) as u16;
        let (mut ends, mut targets) = ([last; NEAR], [0; NEAR]);
        for (index, entry) in entries.iter().enumerate() {
            ends[index] = (entry.end - 1 - first) as u16;
            let distance = origin(entry, first).map_or(0, |origin| (origin - base) as u32);
            targets[index] = (entry.target.kind() as u32) << NEAR_KIND_SHIFT | distance;
        }
        Line::Near { before: (first as u32).wrapping_sub(1), base, ends, targets }
    }

    fn wide(entries: &[Entry]) -> Line {
        let last = entries.last().map_or(BLOCKS_END, |entry| entry.end).wrapping_sub(1) as u32;
        let (mut ends, mut targets) = ([last; WIDE], [Target::UNKNOWN; WIDE]);
        for (index, entry) in entries.iter().enumerate() {
            ends[index] = (entry.end - 1) as u32;
            targets[index] =
                Target::new(entry.target.kind(), entry.target.physical().wrapping_sub(entry.first));
        }
        let before = entries.first().map_or(0, |entry| entry.first as u32).wrapping_sub(1);
        Line::Wide { before, ends, targets }
    }

    /// A line with all blocks unknown.
    pub(super) fn unknown() -> Line {
        Line::wide(&[Entry { first: 0, end: BLOCKS_END, target: Target::UNKNOWN }])
    }

    #[inline]
    pub(super) fn first(&self) -> u32 {
        match self {
            Line::Close { before, .. } | Line::Near { before, .. } | Line::Wide { before, .. } => {
                before.wrapping_add(1)
            }
        }
    }

    #[inline]
    pub(super) fn last(&self) -> u32 {
        match self {
            Line::Close { before, ends, .. } => before.wrapping_add(1) + u32::from(ends[CLOSE - 1]),
            Line::Near { before, ends, .. } => before.wrapping_add(1) + u32::from(ends[NEAR - 1]),
            Line::Wide { ends, .. } => ends[WIDE - 1],
        }
    }

    /// Looks `block` up, if it lies in this line.
    #[inline(always)]
    pub(super) fn find(&self, block: u32) -> Option<Spot> {
        // Counted without branches, since a branch would mispredict. The last end is compared too, although no block of
        // this line lies past it, so that the compiler compares all at once.
        match self {
            Line::Close { before, base, base_high, kinds, ends, distances } => {
                let first = before.wrapping_add(1);
                let offset = block.wrapping_sub(first);
                if offset > u32::from(ends[CLOSE - 1]) {
                    return None;
                }
                let index = behind(ends, offset as u8);
                let base = u64::from(*base_high) << u32::BITS | u64::from(*base);
                let physical = base + u64::from(distances[index]) + u64::from(offset);
                let kind = u64::from(kinds >> (2 * index) & 3);
                Some(Spot { index, last: first + u32::from(ends[index]), kind, physical })
            }
            Line::Near { before, base, ends, targets } => {
                let first = before.wrapping_add(1);
                let offset = block.wrapping_sub(first);
                if offset > u32::from(ends[NEAR - 1]) {
                    return None;
                }
                let index = usize::from(ends.iter().map(|&end| u16::from(end < offset as u16)).sum::<u16>());
                let distance = targets[index] & (NEAR_SPREAD as u32 - 1);
                let physical = base + u64::from(distance) + u64::from(offset);
                let kind = u64::from(targets[index] >> NEAR_KIND_SHIFT);
                Some(Spot { index, last: first + u32::from(ends[index]), kind, physical })
            }
            Line::Wide { before, ends, targets } => {
                if block < before.wrapping_add(1) || block > ends[WIDE - 1] {
                    return None;
                }
                let index = ends.iter().map(|&end| u32::from(end < block)).sum::<u32>() as usize;
                let physical = (targets[index].0 + u64::from(block)) & PHYSICAL_MASK;
                Some(Spot { index, last: ends[index], kind: targets[index].kind(), physical })
            }
        }
    }

    /// First block of the entry at `index`.
    #[inline]
    fn start(&self, index: usize) -> u32 {
        if index == 0 {
            return self.first();
        }
        match self {
            Line::Close { before, ends, .. } => before.wrapping_add(2) + u32::from(ends[index - 1]),
            Line::Near { before, ends, .. } => before.wrapping_add(2) + u32::from(ends[index - 1]),
            Line::Wide { ends, .. } => ends[index - 1] + 1,
        }
    }

    /// The whole entry that `spot` of `block` belongs to.
    pub(super) fn entry_at(&self, spot: &Spot, block: u32) -> Entry {
        let first = self.start(spot.index);
        let target = Target::new(spot.kind, spot.physical.wrapping_sub(u64::from(block - first)));
        Entry { first: u64::from(first), end: u64::from(spot.last) + 1, target }
    }

    fn len(&self) -> usize {
        match self {
            Line::Close { ends, .. } => 1 + ends.iter().take_while(|&&end| end < ends[CLOSE - 1]).count(),
            Line::Near { ends, .. } => 1 + ends.iter().take_while(|&&end| end < ends[NEAR - 1]).count(),
            Line::Wide { ends, .. } => 1 + ends.iter().take_while(|&&end| end < ends[WIDE - 1]).count(),
        }
    }

    /// Whether it holds two entries at most.
    pub(super) fn is_sparse(&self) -> bool {
        match self {
            Line::Close { ends, .. } => ends[1] == ends[CLOSE - 1],
            Line::Near { ends, .. } => ends[1] == ends[NEAR - 1],
            Line::Wide { ends, .. } => ends[1] == ends[WIDE - 1],
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.len()).map(|index| {
            let first = self.start(index);
            let spot = self.find(first).expect("an entry's first block lies in its line");
            self.entry_at(&spot, first)
        })
    }
}

/// How many of `ends`, which ascend, lie before `offset`, which is at most the last: a branch-free binary search, since
/// comparing all at once takes more instructions without a population count in the baseline instruction set.
#[inline(always)]
fn behind(ends: &[u8; CLOSE], offset: u8) -> usize {
    let mut index = 0;
    for half in [8, 4, 2, 1] {
        index += half * usize::from(ends[(index + half - 1) % CLOSE] < offset);
    }
    index
}

/// The origin of `entry` in a line that begins at block `first`; `None` if it has no blocks, or if its physical block
/// is smaller than its distance from the line's first block.
fn origin(entry: &Entry, first: u64) -> Option<u64> {
    let physical = entry.target.has_blocks().then(|| entry.target.physical())?;
    physical.checked_sub(entry.first - first)
}

/// The lowest origin of the `entries` of a close or near line; 0 if none has any.
fn lowest_origin(entries: &[Entry]) -> u64 {
    entries.iter().filter_map(|entry| origin(entry, entries[0].first)).min().unwrap_or(0)
}

/// The number of leading entries, at most `most`, that end within `span` blocks of the first block and have origins
/// less than `spread` apart, all below `end`.
fn prefix(entries: &[Entry], most: usize, span: u64, spread: u64, end: u64) -> usize {
    let first = entries[0].first;
    let (mut low, mut high) = (u64::MAX, 0);
    let fits = |entry: &&Entry| {
        if entry.target.has_blocks() {
            let Some(origin) = origin(entry, first) else { return false };
            low = low.min(origin);
            high = high.max(origin);
        }
        entry.end - 1 - first <= span && high.saturating_sub(low) < spread && high < end
    };
    entries.iter().take(most).take_while(fits).count()
}

/// A root entry: neighbouring lines of the table, and what is needed to guess the right one.
#[derive(Debug, Clone, Copy)]
#[repr(align(16))]
pub(super) struct Chunk {
    first: u32,
    /// Lines per block, in 2⁻³².
    slope: u32,
    /// Index of its first line in the table.
    at: u32,
    /// At most [`LINES`].
    count: u32,
}

// Four per cache line, none straddling two.
const _: () = assert!(size_of::<Chunk>() == 16);

impl Chunk {
    /// `lines`: 1 to [`LINES`] lines without gaps, stored in the table from index `at`.
    pub(super) fn build(lines: &[Line], at: usize) -> Chunk {
        Chunk { first: lines[0].first(), slope: slope(lines), at: at as u32, count: lines.len() as u32 }
    }

    /// The table indices of its lines.
    fn range(&self) -> Range<usize> {
        let at = self.at as usize;
        at..at + self.count as usize
    }

    #[inline]
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// The line that holds `block`, which lies in this chunk, and what it knows about it.
    #[inline(always)]
    pub(super) fn find<'a>(&self, table: &'a Table<Line>, block: u32) -> (&'a Line, Spot) {
        let offset = u64::from(block - self.first);
        let guess = ((offset * u64::from(self.slope)) >> 32) as usize;
        let guess = guess.min(self.count as usize - 1);
        let line = &table.values()[self.at as usize + guess];
        match line.find(block) {
            Some(spot) => (line, spot),
            None => gallop(table.slice(self.range()), block, guess),
        }
    }
}

#[inline(never)]
fn gallop(lines: &[Line], block: u32, guess: usize) -> (&Line, Spot) {
    let line = gallop_to(lines, block, guess);
    (line, line.find(block).expect("the lines of a chunk have no gaps"))
}

fn gallop_to(lines: &[Line], block: u32, guess: usize) -> &Line {
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
            let behind = &lines[probe + 1..=high];
            return &lines[probe + behind.partition_point(|line| line.first() <= block)];
        }
        (high, step) = (probe, step * 2);
    }
}

/// Lines per block in 2⁻³², rounded up so that every guess is right among lines of equal length, up to about 2¹⁴
/// blocks. The last line is ignored: it is often only partly filled, or the long hole past a file's data.
fn slope(lines: &[Line]) -> u32 {
    let span = u64::from(lines[lines.len() - 1].first() - lines[0].first());
    if span == 0 {
        return 0;
    }
    let slope = ((lines.len() as u64 - 1) << 32).div_ceil(span);
    u32::try_from(slope).unwrap_or(u32::MAX)
}
