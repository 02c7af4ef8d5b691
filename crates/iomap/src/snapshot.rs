//! The mapping of an inode: an immutable snapshot of its extent map, plus the changes since.
//!
//! A [`MapSnapshot`] covers all logical blocks `[0, 2³²)` without gaps; blocks never looked up are *unknown* and loaded
//! on demand. Its entries are stored in one table of cache-line-sized lines; a chunk is up to [`CHUNK_MAX`] entries of
//! the table, and the root holds the first block of every chunk and a hint table that narrows the binary search. A map
//! with few extents is a single line and skips the root.
//!
//! A change is recorded beside the snapshot (`recent.rs`); when enough have accumulated, one pass merges both into a
//! new snapshot (`merge.rs`), which replaces the old one.
//!
//! **What a reader may trust.** Readers keep snapshots and use them without checking whether they are the latest. So a
//! snapshot may answer only *Written*, and only while [`MapCell::generation`], loaded inside the gate, equals the one
//! it was taken at. Holes, unwritten and unknown blocks may have changed since: they are looked up again in the current
//! map ([`MapCell::find`], [`MapCell::pieces`]) before zeros are returned or a route is chosen.
//!
//! **What a writer may publish**, always under the map lock ([`MapCell::lock`]):
//!
//! | | what | gate | generation |
//! |---|---|---|---|
//! | [`MapWriter::add`] | what a load found, blocks that were allocated | any | stays |
//! | [`converted`](crate::InodeState::converted) | unwritten blocks whose data is complete | any | stays |
//! | [`end`](crate::InodeState::end) | changes that remove or move written blocks | exclusive, drained | changes |
//! | [`MapWriter::forget`] | everything becomes unknown, to free memory | any | stays |
//!
//! The first two refuse to invalidate a *Written* answer, the third requires the gate to be held exclusively.

use crate::mapping::{Pieces, Range, Run, State};
use chunk::{Chunk, Line, Spot};
use recent::Now;
use uext4_blockdev::Table;

mod cell;
mod chunk;
mod merge;
mod recent;
#[cfg(not(loom))]
mod thread_cache;

pub use cell::{MapCell, MapWriter};

/// Maximum number of entries in a chunk.
pub const CHUNK_MAX: usize = 256;
/// Maximum number of buckets in the root's hint table, which should stay in the processor's caches.
const HINTS_MAX: usize = 8192;

const KIND_SHIFT: u32 = 62;
const KIND_WRITTEN: u64 = 0;
const KIND_UNWRITTEN: u64 = 1;
const KIND_HOLE: u64 = 2;
const KIND_UNKNOWN: u64 = 3;
const PHYSICAL_MASK: u64 = (1 << KIND_SHIFT) - 1;
/// First block past the end of every file: logical blocks are 32 bits wide.
pub const BLOCKS_END: u64 = 1 << 32;

/// A kind in the top two bits and a physical block below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Target(u64);

impl Target {
    const UNKNOWN: Target = Target(KIND_UNKNOWN << KIND_SHIFT);

    /// A target of one kind, at `physical` (modulo 2⁶²) if that kind has blocks.
    fn new(kind: u64, physical: u64) -> Self {
        let target = Target(kind << KIND_SHIFT);
        if target.has_blocks() { Target(target.0 | physical & PHYSICAL_MASK) } else { target }
    }

    fn of(run: &Run) -> Self {
        let kind = match run.state {
            State::Written => KIND_WRITTEN,
            State::Unwritten => KIND_UNWRITTEN,
            State::Hole | State::Inline => KIND_HOLE,
        };
        Target::new(kind, run.physical)
    }

    #[inline]
    fn kind(self) -> u64 {
        self.0 >> KIND_SHIFT
    }

    #[inline]
    fn physical(self) -> u64 {
        self.0 & PHYSICAL_MASK
    }

    fn has_blocks(self) -> bool {
        self.kind() <= KIND_UNWRITTEN
    }

    /// The target `blocks` further on in the same run.
    fn advanced(self, blocks: u64) -> Self {
        if self.has_blocks() { Target(self.0 + blocks) } else { self }
    }
}

/// A run of blocks with one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    first: u64,
    end: u64,
    target: Target,
}

impl Entry {
    /// The part from `block` on; `block` lies in the entry.
    fn cut_before(self, block: u64) -> Entry {
        Entry { first: block, target: self.target.advanced(block - self.first), ..self }
    }

    /// Whether `next` begins where this ends and continues its target.
    fn continues_with(&self, next: &Entry) -> bool {
        self.end == next.first && self.target.advanced(self.end - self.first) == next.target
    }

    /// The known run of this entry; `None` if it is unknown.
    fn run(&self) -> Option<Run> {
        let state = match self.target.kind() {
            KIND_WRITTEN => State::Written,
            KIND_UNWRITTEN => State::Unwritten,
            KIND_HOLE => State::Hole,
            _ => return None,
        };
        let physical = if state == State::Hole { 0 } else { self.target.physical() };
        Some(Run { first: self.first as u32, length: self.end - self.first, state, physical })
    }

    /// The run of an entry with blocks.
    fn in_bytes(&self, block_bits: u32) -> ByteRun {
        ByteRun {
            start: self.first << block_bits,
            end: self.end << block_bits,
            physical: self.target.physical() << block_bits,
        }
    }
}

/// What a look-up found, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Known: state, physical block of the block looked up, and number of blocks from it to the end of the run.
    Known {
        /// State of the run.
        state: State,
        /// Physical block (0 for a hole).
        physical: u64,
        /// Blocks to the end of the run, at least 1.
        blocks: u64,
    },
    /// Never loaded (or evicted): ask the file system.
    Unknown,
}

/// A written run in bytes, found by a look-up and valid while the generation stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteRun {
    /// First byte in the file.
    pub start: u64,
    /// First byte after the run.
    pub end: u64,
    /// Device position of `start`.
    pub physical: u64,
}

impl ByteRun {
    /// The empty run.
    pub const EMPTY: ByteRun = ByteRun { start: 0, end: 0, physical: 0 };

    /// The device position of `range`, if all of it lies in this run.
    #[inline]
    pub fn locate(&self, range: Range) -> Option<u64> {
        if range.pos < self.start || range.end() > self.end {
            None
        } else {
            Some(range.pos - self.start + self.physical)
        }
    }
}

/// An immutable snapshot of an inode's map.
#[derive(Debug)]
pub struct MapSnapshot {
    /// All entries, if one line holds them: then there are no chunks.
    only: Line,
    chunks: Box<[Chunk]>,
    /// The chunks' lines.
    table: Option<Table<Line>>,
    /// For each bucket of `block >> hint_shift`, the chunk with its first block; the last entry is the last chunk.
    hints: Box<[u32]>,
    hint_shift: u32,
}

impl MapSnapshot {
    /// A map with all blocks unknown.
    pub fn unknown() -> Self {
        Self::from_line(Line::unknown())
    }

    fn from_line(only: Line) -> Self {
        MapSnapshot { only, table: None, chunks: Box::new([]), hints: Box::new([]), hint_shift: 0 }
    }

    fn from_chunks(chunks: Vec<Chunk>, table: Table<Line>) -> Self {
        let (hints, hint_shift) = build_hints(&chunks);
        let only = Line::unknown();
        MapSnapshot { only, table: Some(table), chunks: chunks.into_boxed_slice(), hints, hint_shift }
    }

    #[inline(always)]
    fn spot(&self, block: u32) -> (&Line, Spot) {
        match &self.table {
            None => (&self.only, self.only.find(block).expect("the only line holds every block")),
            Some(table) => self.chunk(block).find(table, block),
        }
    }

    #[inline(always)]
    fn chunk(&self, block: u32) -> &Chunk {
        let bucket = (block >> self.hint_shift) as usize;
        let (low, high) = match self.hints.get(bucket..bucket + 2) {
            Some(&[low, high]) => (low as usize, high as usize),
            _ => (self.chunks.len() - 1, self.chunks.len() - 1),
        };
        if low + 1 < high {
            return self.chunk_among(low, high, block);
        }
        // Chosen without a branch, since a branch would mispredict.
        &self.chunks[if self.chunks[high].first() <= block { high } else { low }]
    }

    #[inline(never)]
    fn chunk_among(&self, low: usize, high: usize, block: u32) -> &Chunk {
        let several = &self.chunks[low..=high];
        &several[several.partition_point(|chunk| chunk.first() <= block) - 1]
    }

    /// A snapshot of the blocks `[first, end)` only, as listed in order by `runs`; gaps between the runs are holes.
    pub fn of(first: u64, end: u64, runs: &[Run]) -> Self {
        merge::of(first, end, entries_of(first, end, runs))
    }

    fn now(&self) -> Now<'_> {
        Now { base: self, recent: None }
    }

    /// Looks one logical block up.
    pub fn find(&self, block: u32) -> Found {
        self.now().find(block)
    }

    /// The device position of `range`, if it lies in one written run. The look-up of simple reads and overwrites. The
    /// run is passed to `keep` if later requests may fall into it, that is, if it is longer than this request. In a map
    /// of many runs, a run that ends with the request is not kept: it is mostly no longer than the request, and finding
    /// it again costs little more than keeping it.
    #[inline(always)]
    pub(crate) fn find_written_keeping(
        &self,
        range: Range,
        block_bits: u32,
        keep: impl FnOnce(ByteRun),
    ) -> Option<u64> {
        let block = u32::try_from(range.pos >> block_bits).ok()?;
        let Some(table) = &self.table else {
            let run = self.run_in_only(block, block_bits)?;
            if run.end - run.start > range.length {
                keep(run);
            }
            return run.locate(range);
        };
        let (line, spot) = self.chunk(block).find(table, block);
        if spot.kind != KIND_WRITTEN {
            return None;
        }
        let run_end = (u64::from(spot.last) + 1) << block_bits;
        if run_end != range.end() {
            if run_end < range.end() {
                return None;
            }
            keep(line.entry_at(&spot, block).in_bytes(block_bits));
        }
        Some((spot.physical.wrapping_sub(u64::from(block)) << block_bits).wrapping_add(range.pos))
    }

    /// The written run that holds `block`, in a map of one line.
    #[inline(never)]
    fn run_in_only(&self, block: u32, block_bits: u32) -> Option<ByteRun> {
        let spot = self.only.find(block).filter(|spot| spot.kind == KIND_WRITTEN)?;
        Some(self.only.entry_at(&spot, block).in_bytes(block_bits))
    }

    /// The device position of `range`, if it lies in one written run.
    pub fn find_written(&self, range: Range, block_bits: u32) -> Option<u64> {
        self.find_written_keeping(range, block_bits, |_| ())
    }

    /// Appends the pieces of `range` to `pieces`, stopping when it is full. `Err` names the first byte whose
    /// mapping is unknown; pieces before it were appended.
    pub fn pieces(&self, range: Range, block_bits: u32, pieces: &mut Pieces) -> Result<(), u64> {
        self.now().pieces(range, block_bits, pieces)
    }

    /// All lines in order.
    fn lines(&self) -> &[Line] {
        self.table.as_ref().map_or(std::slice::from_ref(&self.only), Table::values)
    }

    /// Bytes of memory that this snapshot keeps.
    pub fn resident_bytes(&self) -> usize {
        let lines = self.table.as_ref().map_or(0, |table| table.values().len());
        let root = size_of_val(&*self.chunks) + size_of_val(&*self.hints);
        size_of::<Self>() + lines * size_of::<Line>() + root + 64
    }

    /// All known runs, in order, for reports and tests.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.lines().iter().flat_map(Line::entries).filter_map(|entry| entry.run())
    }
}

/// The entries of the blocks `[first, end)` as given by `runs`.
fn entries_of(first: u64, end: u64, runs: &[Run]) -> Vec<Entry> {
    let hole = Target(KIND_HOLE << KIND_SHIFT);
    let mut entries = Vec::with_capacity(2 * runs.len() + 1);
    let mut next = first;
    for run in runs {
        let run_first = u64::from(run.first);
        debug_assert!(run_first >= next && run.length > 0 && run_first + run.length <= end);
        if run_first > next {
            push_merged(&mut entries, Entry { first: next, end: run_first, target: hole });
        }
        next = run_first + run.length;
        push_merged(&mut entries, Entry { first: run_first, end: next, target: Target::of(run) });
    }
    if next < end {
        push_merged(&mut entries, Entry { first: next, end, target: hole });
    }
    entries
}

fn push_merged(entries: &mut Vec<Entry>, entry: Entry) {
    if entry.first >= entry.end {
        return;
    }
    match entries.last_mut() {
        Some(last) if last.continues_with(&entry) => last.end = entry.end,
        _ => entries.push(entry),
    }
}

/// The hints of a root and the shift that makes a bucket of a block.
fn build_hints(chunks: &[Chunk]) -> (Box<[u32]>, u32) {
    let wanted = chunks.len().next_power_of_two().min(HINTS_MAX);
    let last = chunks.last().map_or(0, Chunk::first);
    let shift = (u32::BITS - last.leading_zeros()).saturating_sub(wanted.ilog2());
    let mut chunk = 0;
    let starts = (0..=last >> shift).map(|bucket| {
        // Uses the root alone: a chunk's lines may not be cached, and each load of the map runs this.
        while chunks.get(chunk + 1).is_some_and(|next| next.first() <= bucket << shift) {
            chunk += 1;
        }
        chunk as u32
    });
    let mut hints: Vec<u32> = starts.collect();
    hints.push(chunks.len().saturating_sub(1) as u32);
    (hints.into_boxed_slice(), shift)
}
