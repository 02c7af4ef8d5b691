//! The mapping snapshot of an inode: an immutable, two-level, copy-on-write picture of its extent map.
//!
//! Entries cover all logical blocks `[0, 2³²)` without gaps; what was never looked up is *unknown* and loaded on demand.
//! A chunk holds at most [`CHUNK_MAX`] entries; the root holds the first block of every chunk and a table of hints that
//! narrows its binary search. Replacing a range copies the chunks it touches and the root. A map with one extent is a
//! single chunk and skips the root search.
//!
//! Readers keep the `Arc` of a snapshot and check [`MapCell::generation`] after they entered the gate: whoever removes
//! blocks publishes the new snapshot *while holding the gate exclusively* and before anything is freed.

use crate::mapping::{Piece, Pieces, Range, Run, State};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Published};
use std::sync::Arc;

/// Most entries of a chunk.
pub const CHUNK_MAX: usize = 128;
/// Entries that a rebuilt chunk starts with, so that a neighbour's growth does not split it at once.
const CHUNK_FILL: usize = 96;
/// Most buckets of the root's hint table.
const HINTS_MAX: usize = 1024;

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

    fn of(run: &Run) -> Self {
        let kind = match run.state {
            State::Written => KIND_WRITTEN,
            State::Unwritten => KIND_UNWRITTEN,
            State::Hole => return Target(KIND_HOLE << KIND_SHIFT),
        };
        Target(kind << KIND_SHIFT | run.physical & PHYSICAL_MASK)
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

/// An entry while a map is being rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    first: u64,
    end: u64,
    target: Target,
}

#[derive(Debug)]
struct Chunk {
    /// First block of each entry, apart from the targets so that the search touches few lines.
    firsts: Box<[u32]>,
    targets: Box<[Target]>,
    end: u64,
}

impl Chunk {
    fn build(entries: &[Entry]) -> Arc<Chunk> {
        let end = entries.last().map_or(BLOCKS_END, |entry| entry.end);
        Arc::new(Chunk {
            firsts: entries.iter().map(|entry| entry.first as u32).collect(),
            targets: entries.iter().map(|entry| entry.target).collect(),
            end,
        })
    }

    #[inline]
    fn find(&self, block: u32) -> usize {
        if self.firsts.len() == 1 { 0 } else { self.firsts.partition_point(|&first| first <= block) - 1 }
    }

    #[inline]
    fn end_of(&self, index: usize) -> u64 {
        self.firsts.get(index + 1).map_or(self.end, |&next| u64::from(next))
    }

    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.firsts.len()).map(|index| Entry {
            first: u64::from(self.firsts[index]),
            end: self.end_of(index),
            target: self.targets[index],
        })
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
    firsts: Box<[u32]>,
    chunks: Box<[Arc<Chunk>]>,
    hints: Box<[u32]>,
    hint_shift: u32,
}

impl MapSnapshot {
    /// A map of which nothing is known.
    pub fn unknown() -> Self {
        let all = Entry { first: 0, end: BLOCKS_END, target: Target::UNKNOWN };
        Self::from_chunks(vec![Chunk::build(&[all])])
    }

    fn from_chunks(chunks: Vec<Arc<Chunk>>) -> Self {
        let firsts: Box<[u32]> = chunks.iter().map(|chunk| chunk.firsts[0]).collect();
        let (hints, hint_shift) = build_hints(&firsts);
        MapSnapshot { firsts, chunks: chunks.into_boxed_slice(), hints, hint_shift }
    }

    /// Looks one logical block up.
    #[inline]
    pub fn find(&self, block: u32) -> Found {
        let chunk =
            if self.chunks.len() == 1 { &self.chunks[0] } else { &self.chunks[self.find_chunk(block)] };
        let index = chunk.find(block);
        let target = chunk.targets[index];
        let offset = u64::from(block) - u64::from(chunk.firsts[index]);
        let blocks = chunk.end_of(index) - u64::from(block);
        match target.kind() {
            KIND_WRITTEN => {
                Found::Known { state: State::Written, physical: target.physical() + offset, blocks }
            }
            KIND_UNWRITTEN => {
                Found::Known { state: State::Unwritten, physical: target.physical() + offset, blocks }
            }
            KIND_HOLE => Found::Known { state: State::Hole, physical: 0, blocks },
            _ => Found::Unknown,
        }
    }

    #[inline]
    fn find_chunk(&self, block: u32) -> usize {
        let bucket = ((block >> self.hint_shift) as usize).min(self.hints.len() - 2);
        let (low, high) = (self.hints[bucket] as usize, self.hints[bucket + 1] as usize + 1);
        let part = &self.firsts[low..high];
        low + part.partition_point(|&first| first <= block) - 1
    }

    /// The written run that holds byte `pos` of the file.
    #[inline]
    pub fn written_run(&self, pos: u64, block_bits: u32) -> Option<ByteRun> {
        let block = u32::try_from(pos >> block_bits).ok()?;
        let chunk =
            if self.chunks.len() == 1 { &self.chunks[0] } else { &self.chunks[self.find_chunk(block)] };
        let index = chunk.find(block);
        let target = chunk.targets[index];
        if target.kind() != KIND_WRITTEN {
            return None;
        }
        Some(ByteRun {
            start: u64::from(chunk.firsts[index]) << block_bits,
            end: chunk.end_of(index) << block_bits,
            physical: target.physical() << block_bits,
        })
    }

    /// The device position of `range`, if it lies in one written run. The look-up of simple reads and overwrites.
    #[inline]
    pub fn find_written(&self, range: Range, block_bits: u32) -> Option<u64> {
        self.written_run(range.pos, block_bits)?.locate(range)
    }

    /// Appends the pieces of `range` to `pieces`, stopping when it is full. `Err` names the first byte whose mapping is
    /// unknown; pieces before it were appended.
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

    /// A copy with the blocks `[first, end)` replaced by `runs`, which cover them in order; gaps between the runs become
    /// holes. `None` instead of runs makes the range unknown again.
    #[must_use]
    pub fn replaced(&self, first: u64, end: u64, runs: Option<&[Run]>) -> Self {
        debug_assert!(first < end && end <= BLOCKS_END);
        let low = self.chunk_index(first);
        let high = self.chunk_index(end - 1) + 1;
        // One neighbour on each side joins the rebuild, so that runs merge across chunk borders.
        let (low, high) = (low.saturating_sub(1), (high + 1).min(self.chunks.len()));
        let old: Vec<Entry> = self.chunks[low..high].iter().flat_map(|chunk| chunk.entries()).collect();
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
        let rebuilt = entries.chunks(if entries.len() <= CHUNK_MAX { CHUNK_MAX } else { CHUNK_FILL });
        let mut chunks = Vec::with_capacity(self.chunks.len() + entries.len() / CHUNK_FILL + 1);
        chunks.extend_from_slice(&self.chunks[..low]);
        chunks.extend(rebuilt.map(Chunk::build));
        chunks.extend_from_slice(&self.chunks[high..]);
        Self::from_chunks(chunks)
    }

    fn chunk_index(&self, block: u64) -> usize {
        self.firsts.partition_point(|&first| u64::from(first) <= block).saturating_sub(1)
    }

    /// Bytes of memory that this snapshot keeps alive (shared chunks counted in full).
    pub fn resident_bytes(&self) -> usize {
        let entries: usize = self.chunks.iter().map(|chunk| chunk.firsts.len()).sum();
        entries * 12 + self.chunks.len() * (size_of::<Chunk>() + 32) + self.hints.len() * 4 + 96
    }

    /// All known runs in order, for reports and tests.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.chunks.iter().flat_map(|chunk| chunk.entries()).filter_map(|entry| {
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

/// For each bucket of `block >> shift`: the chunk that holds the bucket's first block, and one closing element.
fn build_hints(firsts: &[u32]) -> (Box<[u32]>, u32) {
    let last = firsts[firsts.len() - 1];
    if firsts.len() == 1 {
        return (Box::new([0, 0]), 31);
    }
    let wanted = firsts.len().next_power_of_two().min(HINTS_MAX) as u32;
    let mut shift = 0;
    while (last >> shift) >= wanted {
        shift += 1;
    }
    let buckets = (last >> shift) as usize + 1;
    let mut hints = Vec::with_capacity(buckets + 1);
    let mut chunk = 0usize;
    for bucket in 0..buckets {
        let start = (bucket as u32) << shift;
        while chunk + 1 < firsts.len() && firsts[chunk + 1] <= start {
            chunk += 1;
        }
        hints.push(chunk as u32);
    }
    hints.push(firsts.len() as u32 - 1);
    (hints.into_boxed_slice(), shift)
}

/// The published snapshot of one inode.
#[derive(Debug)]
pub struct MapCell {
    generation: AtomicU64,
    current: Published<MapSnapshot>,
    writer: Mutex<()>,
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
            generation: AtomicU64::new(1),
            current: Published::new(Arc::new(MapSnapshot::unknown())),
            writer: Mutex::new(()),
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

    /// Runs `look` on the current snapshot without touching a shared counter.
    #[inline]
    pub fn with<T>(&self, look: impl FnOnce(&MapSnapshot) -> T) -> T {
        look(&self.current.load())
    }

    /// The map lock: whoever changes or loads the map holds it. Never wait for a gate, a drain or a commit under it.
    pub fn lock(&self) -> MapWriter<'_> {
        MapWriter { cell: self, _held: self.writer.lock() }
    }
}

/// The right to publish into a [`MapCell`].
pub struct MapWriter<'a> {
    cell: &'a MapCell,
    _held: MutexGuard<'a, ()>,
}

impl MapWriter<'_> {
    /// The snapshot as it stands.
    pub fn current(&self) -> Arc<MapSnapshot> {
        self.cell.current.load_full()
    }

    /// Publishes `snapshot` and then a new generation.
    pub fn publish(&mut self, snapshot: MapSnapshot) {
        self.cell.current.store(Arc::new(snapshot));
        self.cell.generation.fetch_add(1, Ordering::Release);
    }
}
