//! The mapping snapshot of an inode: an immutable, two-level, copy-on-write picture of its extent map.
//!
//! Entries cover all logical blocks `[0, 2³²)` without gaps; what was never looked up is *unknown* and loaded
//! on demand. A chunk holds at most [`CHUNK_MAX`] entries; the root holds the first block of every chunk and
//! a table of hints that narrows its binary search. Replacing a range writes the chunks it touches anew, behind
//! the others in the table that old and new snapshot share, and copies the root; a full table is exchanged for
//! one with room for half as much again as is in use, without what nobody needs any more. A map with few extents
//! is a single line and skips the root search.
//!
//! Readers keep the `Arc` of a snapshot and check [`MapCell::generation`] after they entered the gate:
//! whoever removes blocks publishes the new snapshot *while holding the gate exclusively* and before anything
//! is freed.

use crate::mapping::{Piece, Pieces, Range, Run, State};
use crate::pending::Pending;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Published};
use chunk::{Chunk, LINES, Line, Spot, lines_of};
use std::ops::Range as Indices;
use std::sync::Arc;
use uext4_blockdev::Table;

mod chunk;
#[cfg(not(loom))]
mod seen;

/// Most entries of a chunk.
pub const CHUNK_MAX: usize = 256;
/// Lines that a rebuilt chunk starts with, so that a neighbour's growth does not split it at once.
const FILL: usize = LINES - 1;
/// Most buckets of the root's hint table, which shall stay in the processor's caches.
const HINTS_MAX: usize = 8192;

const KIND_SHIFT: u32 = 62;
const KIND_WRITTEN: u64 = 0;
const KIND_UNWRITTEN: u64 = 1;
const KIND_HOLE: u64 = 2;
const KIND_UNKNOWN: u64 = 3;
const PHYSICAL_MASK: u64 = (1 << KIND_SHIFT) - 1;
/// First block behind every file: logical blocks are 32 bits wide.
pub const BLOCKS_END: u64 = 1 << 32;

/// A kind in the top two bits and a physical block below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Target(u64);

impl Target {
    const UNKNOWN: Target = Target(KIND_UNKNOWN << KIND_SHIFT);

    /// Of one kind, at `physical` (modulo 2⁶²) if that kind has blocks.
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
    /// Known: state, physical block of the looked-up block, and blocks from it to the end of the run.
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

/// A written run in bytes: what a look-up found and may be used again while the generation stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteRun {
    /// First byte in the file.
    pub start: u64,
    /// First byte behind the run.
    pub end: u64,
    /// Device position of `start`.
    pub physical: u64,
}

impl ByteRun {
    /// Nothing lies in it.
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

/// An immutable picture of an inode's map.
#[derive(Debug)]
pub struct MapSnapshot {
    /// All entries, if that few suffice: then there are no chunks.
    only: Line,
    chunks: Box<[Chunk]>,
    /// Where the chunks' lines are, among those of older and newer snapshots.
    table: Option<Arc<Table<Line>>>,
    /// The chunk with the first block of each bucket of `block >> hint_shift`, and the last one at the end.
    hints: Box<[u32]>,
    hint_shift: u32,
}

impl MapSnapshot {
    /// A map of which nothing is known.
    pub fn unknown() -> Self {
        Self::from_line(Line::unknown())
    }

    fn from_line(only: Line) -> Self {
        MapSnapshot { only, table: None, chunks: Box::new([]), hints: Box::new([]), hint_shift: 0 }
    }

    fn from_chunks(chunks: Vec<Chunk>, table: Arc<Table<Line>>) -> Self {
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
        // One of two, without a branch: which of them cannot be predicted.
        &self.chunks[if self.chunks[high].first() <= block { high } else { low }]
    }

    #[inline(never)]
    fn chunk_among(&self, low: usize, high: usize, block: u32) -> &Chunk {
        let several = &self.chunks[low..=high];
        &several[several.partition_point(|chunk| chunk.first() <= block) - 1]
    }

    /// Looks one logical block up.
    #[inline]
    pub fn find(&self, block: u32) -> Found {
        let (_, Spot { last, kind, physical, .. }) = self.spot(block);
        let blocks = u64::from(last - block) + 1;
        match kind {
            KIND_WRITTEN => Found::Known { state: State::Written, physical, blocks },
            KIND_UNWRITTEN => Found::Known { state: State::Unwritten, physical, blocks },
            KIND_HOLE => Found::Known { state: State::Hole, physical: 0, blocks },
            _ => Found::Unknown,
        }
    }

    /// The device position of `range`, if it lies in one written run. The look-up of simple reads and
    /// overwrites. The run is given to `keep` if other requests may find themselves in it: if it is longer than this
    /// one. Among many runs one that ends with the request is not kept: it is mostly as long, and finding it again
    /// costs little more than keeping it.
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

    /// The written run with `block`, in a map of one line.
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
        let mut pos = range.pos;
        while pos < range.end() && !pieces.is_full() {
            // Behind the last addressable block there is nothing.
            let Ok(block) = u32::try_from(pos >> block_bits) else {
                pieces.push(Piece {
                    logical: pos,
                    physical: 0,
                    length: range.end() - pos,
                    state: State::Hole,
                });
                return Ok(());
            };
            let Found::Known { state, physical, blocks } = self.find(block) else {
                return Err(pos);
            };
            let within = pos & ((1 << block_bits) - 1);
            let length = ((blocks << block_bits) - within).min(range.end() - pos);
            let physical = if state == State::Hole { 0 } else { (physical << block_bits) + within };
            match pieces.last_mut() {
                Some(last) if joins(last, physical, state) => last.length += length,
                _ => pieces.push(Piece { logical: pos, physical, length, state }),
            }
            pos += length;
        }
        Ok(())
    }

    /// A copy with the blocks `[first, end)` replaced by `runs`, which cover them in order; gaps between the
    /// runs become holes. `None` instead of runs makes the range unknown again.
    #[must_use]
    pub fn replaced(&self, first: u64, end: u64, runs: Option<&[Run]>) -> Self {
        debug_assert!(first < end && end <= BLOCKS_END);
        let low = self.chunks.partition_point(|chunk| u64::from(chunk.first()) <= first).saturating_sub(1);
        let high = self.chunks.partition_point(|chunk| u64::from(chunk.first()) < end);
        // One neighbour on each side joins the rebuild, so that runs merge across chunk borders.
        let (low, high) = (low.saturating_sub(1), (high + 1).min(self.chunks.len()));
        let old: Vec<Entry> = self.lines(low, high).flat_map(Line::entries).collect();
        let mut entries = Vec::new();
        for &entry in old.iter().filter(|entry| entry.first < first) {
            push_merged(&mut entries, Entry { end: entry.end.min(first), ..entry });
        }
        match runs {
            Some(runs) => push_runs(&mut entries, first, end, runs),
            None => push_merged(&mut entries, Entry { first, end, target: Target::UNKNOWN }),
        }
        for entry in old.iter().filter(|entry| entry.end > end) {
            let start = entry.first.max(end);
            let target = entry.target.advanced(start - entry.first);
            push_merged(&mut entries, Entry { first: start, end: entry.end, target });
        }
        self.with_lines(low, high, &lines_of(&entries))
    }

    /// A copy with `lines` in place of the chunks `low..high`.
    fn with_lines(&self, low: usize, high: usize, lines: &[Line]) -> Self {
        let (before, behind) = (&self.chunks[..low], &self.chunks[high..]);
        if let ([only], [], []) = (lines, before, behind) {
            return Self::from_line(*only);
        }
        let fill = if lines.len() <= LINES { LINES } else { FILL };
        let mut chunks = Vec::with_capacity(before.len() + lines.len() / fill + 1 + behind.len());
        chunks.extend_from_slice(before);
        chunks.extend(lines.chunks(fill).enumerate().map(|(index, lines)| Chunk::build(lines, index * fill)));
        let anew = before.len()..chunks.len();
        chunks.extend_from_slice(behind);
        if let Some(table) = &self.table
            && let Some(at) = table.append(lines)
        {
            chunks[anew].iter_mut().for_each(|chunk| *chunk = chunk.placed(at + chunk.range().start));
            return Self::from_chunks(chunks, table.clone());
        }
        let table = self.exchange(&mut chunks, anew, lines);
        Self::from_chunks(chunks, table)
    }

    /// A table with `lines` for the chunks `anew`, what the other chunks need, and room for half as much.
    fn exchange(&self, chunks: &mut [Chunk], anew: Indices<usize>, lines: &[Line]) -> Arc<Table<Line>> {
        let needed: usize = chunks.iter().map(|chunk| chunk.range().len()).sum();
        let table = Table::with_capacity((needed + needed / 2).min(u32::MAX as usize));
        for (index, chunk) in chunks.iter_mut().enumerate() {
            let old = match &self.table {
                Some(old) if !anew.contains(&index) => chunk.lines(old),
                _ => &lines[chunk.range()],
            };
            let at = table.append(old).expect("the table was made for all of them");
            *chunk = chunk.placed(at);
        }
        Arc::new(table)
    }

    /// The lines of the chunks `low..high`, or the only line.
    fn lines(&self, low: usize, high: usize) -> impl Iterator<Item = &Line> {
        let only = self.chunks.is_empty().then_some(&self.only);
        let chunks = self
            .table
            .iter()
            .flat_map(move |table| self.chunks[low..high].iter().flat_map(|chunk| chunk.lines(table)));
        only.into_iter().chain(chunks)
    }

    /// Bytes of memory that this snapshot keeps alive (what it shares with others counted in full).
    pub fn resident_bytes(&self) -> usize {
        let lines = self.table.as_ref().map_or(0, |table| table.values().len());
        let root = size_of_val(&*self.chunks) + size_of_val(&*self.hints);
        size_of::<Self>() + lines * size_of::<Line>() + root + 64
    }

    /// A copy without what other snapshots left behind in the table, if its own lines take at most three quarters of
    /// `budget` bytes: nearer to it this would be asked for again and again.
    pub fn compacted(&self, budget: usize) -> Option<Self> {
        let live: usize = self.chunks.iter().map(|chunk| chunk.range().len()).sum();
        if self.table.is_none() || live * size_of::<Line>() > budget / 4 * 3 {
            return None;
        }
        let mut chunks = self.chunks.to_vec();
        let table = self.exchange(&mut chunks, 0..0, &[]);
        Some(Self::from_chunks(chunks, table))
    }

    /// All known runs in order, for reports and tests.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.lines(0, self.chunks.len()).flat_map(Line::entries).filter_map(|entry| {
            let state = match entry.target.kind() {
                KIND_WRITTEN => State::Written,
                KIND_UNWRITTEN => State::Unwritten,
                KIND_HOLE => State::Hole,
                _ => return None,
            };
            let physical = if state == State::Hole { 0 } else { entry.target.physical() };
            Some(Run { first: entry.first as u32, length: entry.end - entry.first, state, physical })
        })
    }
}

fn joins(last: &Piece, physical: u64, state: State) -> bool {
    last.state == state && (state == State::Hole || last.physical + last.length == physical)
}

fn push_runs(entries: &mut Vec<Entry>, first: u64, end: u64, runs: &[Run]) {
    let hole = Target(KIND_HOLE << KIND_SHIFT);
    let mut next = first;
    for run in runs {
        let run_first = u64::from(run.first);
        debug_assert!(run_first >= next && run.length > 0 && run_first + run.length <= end);
        if run_first > next {
            push_merged(entries, Entry { first: next, end: run_first, target: hole });
        }
        next = run_first + run.length;
        push_merged(entries, Entry { first: run_first, end: next, target: Target::of(run) });
    }
    if next < end {
        push_merged(entries, Entry { first: next, end, target: hole });
    }
}

fn push_merged(entries: &mut Vec<Entry>, entry: Entry) {
    if entry.first >= entry.end {
        return;
    }
    if let Some(last) = entries.last_mut() {
        let continued = last.target.advanced(last.end - last.first);
        if last.end == entry.first && continued == entry.target {
            last.end = entry.end;
            return;
        }
    }
    entries.push(entry);
}

/// The hints of a root and the shift that makes a bucket of a block.
fn build_hints(chunks: &[Chunk]) -> (Box<[u32]>, u32) {
    let wanted = chunks.len().next_power_of_two().min(HINTS_MAX);
    let last = chunks.last().map_or(0, Chunk::first);
    let shift = (u32::BITS - last.leading_zeros()).saturating_sub(wanted.ilog2());
    let mut chunk = 0;
    let starts = (0..=last >> shift).map(|bucket| {
        // By the root alone: a chunk's own lines are far away, and each load of the map comes by here.
        while chunks.get(chunk + 1).is_some_and(|next| next.first() <= bucket << shift) {
            chunk += 1;
        }
        chunk as u32
    });
    let mut hints: Vec<u32> = starts.collect();
    hints.push(chunks.len().saturating_sub(1) as u32);
    (hints.into_boxed_slice(), shift)
}

/// The published snapshot of one inode.
#[derive(Debug)]
pub struct MapCell {
    /// No other cell of the process had or has it.
    #[cfg(not(loom))]
    number: u64,
    generation: AtomicU64,
    current: Published<MapSnapshot>,
    writer: Mutex<Pending>,
}

impl Default for MapCell {
    fn default() -> Self {
        Self::new()
    }
}

impl MapCell {
    /// Nothing known, generation 1: 0 is never a generation.
    pub fn new() -> Self {
        MapCell {
            #[cfg(not(loom))]
            number: seen::next_number(),
            generation: AtomicU64::new(1),
            current: Published::new(Arc::new(MapSnapshot::unknown())),
            writer: Mutex::new(Pending::default()),
        }
    }

    /// Changes with every publication. Load it after entering the gate.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The snapshot and a generation not newer than it.
    pub fn current(&self) -> (u64, Arc<MapSnapshot>) {
        let generation = self.generation();
        (generation, self.current.load_full())
    }

    /// Runs `look` on the current snapshot. Nothing shared is written, but for the first looks at a map and at what was
    /// published since. A thread keeps up to four snapshots (their memory, no blocks): one that it looked at twice
    /// running, until it does so with another that has the same of the four places, or ends.
    #[inline]
    pub fn with<T>(&self, mut look: impl FnMut(&MapSnapshot) -> T) -> T {
        match self.with_kept(&mut look) {
            Some(found) => found,
            None => self.with_borrowed(look),
        }
    }

    /// Runs `look` on the current snapshot if this thread keeps it, or does from now on. On `None` it did not run.
    #[inline(always)]
    pub(crate) fn with_kept<T>(&self, look: impl FnOnce(&MapSnapshot) -> T) -> Option<T> {
        #[cfg(not(loom))]
        return seen::with(self, look);
        #[cfg(loom)]
        return Some(look(&self.current().1));
    }

    /// Runs `look` on the current snapshot, borrowed for that.
    #[cold]
    pub(crate) fn with_borrowed<T>(&self, look: impl FnOnce(&MapSnapshot) -> T) -> T {
        look(&self.current.load())
    }

    /// The map lock: whoever changes or loads the map holds it. Never wait for a gate, a drain or a commit
    /// under it.
    pub fn lock(&self) -> MapWriter<'_> {
        MapWriter { cell: self, pending: self.writer.lock() }
    }
}

/// The right to publish into a [`MapCell`].
pub struct MapWriter<'a> {
    cell: &'a MapCell,
    pending: MutexGuard<'a, Pending>,
}

impl MapWriter<'_> {
    /// The writes that nobody may read yet.
    pub fn pending(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// The snapshot as it stands.
    pub fn current(&self) -> Arc<MapSnapshot> {
        self.cell.current.load_full()
    }

    /// Publishes `snapshot` and then a new generation. Returns what is published.
    pub fn publish(&mut self, snapshot: MapSnapshot) -> Arc<MapSnapshot> {
        let snapshot = Arc::new(snapshot);
        self.cell.current.store(snapshot.clone());
        self.cell.generation.fetch_add(1, Ordering::Release);
        snapshot
    }
}
