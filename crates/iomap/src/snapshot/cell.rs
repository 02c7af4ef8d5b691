//! The published map of one inode, and the lock that permits publishing.

use super::recent::{Now, Recent};
#[cfg(not(loom))]
use super::thread_cache;
use super::{ByteRun, Entry, Found, KIND_HOLE, KIND_UNWRITTEN, KIND_WRITTEN, MapSnapshot, Target};
use super::{entries_of, merge, push_merged};
use crate::error::Error;
use crate::mapping::{Pieces, Range, Run, State};
use crate::pending::Pending;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Published, RwLock};
use std::ops::Range as Blocks;
use std::sync::Arc;

/// Number of changes after which a snapshot of `lines` lines is rebuilt: enough to amortise the pass, which copies most
/// lines, and few enough to keep a pass within some milliseconds.
fn changes_max(lines: usize) -> usize {
    if cfg!(loom) { 2 } else { (4 * lines).clamp(256, 16 * 1024) }
}

/// Number of look-ups in `recent` after which a snapshot of `lines` lines with `changes` changes is rebuilt: a pass
/// costs as much as these look-ups (5 ns per line, about 200 ns per change; 50 ns per look-up). If each write makes a
/// few look-ups and then a change, the number of changes alone decides: a change may join others, so that several
/// writes count as one.
fn detours_max(lines: usize, changes: u64) -> u64 {
    if cfg!(loom) { 1 } else { (lines as u64 / 16).clamp(4, 4096) + 8 * changes }
}

/// A snapshot of at most this many lines is rebuilt at each load: the rebuild takes microseconds, as the load did.
const SMALL: usize = 64;

/// A change that ends more runs than this is merged at once: it frees memory, and took as long itself.
const FEW: usize = 16;

/// The published map of one inode.
#[derive(Debug)]
pub struct MapCell {
    /// Unique to this cell, never reused in this process.
    #[cfg(not(loom))]
    pub(super) number: u64,
    generation: AtomicU64,
    /// Counts snapshots.
    version: AtomicU64,
    current: Published<MapSnapshot>,
    /// Number of entries in `recent`. Stored under the map lock, after the entries themselves.
    recent_len: AtomicU64,
    /// Look-ups in `recent` since the last snapshot.
    detours: AtomicU64,
    /// Locked for one look-up or one change; the snapshot is replaced under it.
    beside: RwLock<Beside>,
    writer: Mutex<Pending>,
}

/// What is known beside the published snapshot.
#[derive(Debug)]
struct Beside {
    recent: Recent,
    /// The snapshot that `recent` changes.
    base: Arc<MapSnapshot>,
    /// It must not be used without: written blocks in it are gone. Then the published one knows nothing, and `recent`
    /// is not empty. Else it is the published one.
    is_withdrawn: bool,
}

impl Beside {
    fn of(base: Arc<MapSnapshot>) -> Beside {
        Beside { recent: Recent::default(), base, is_withdrawn: false }
    }

    /// The current map.
    fn now(&self) -> Now<'_> {
        Now { base: &self.base, recent: Some(&self.recent) }
    }
}

impl Default for MapCell {
    fn default() -> Self {
        Self::new()
    }
}

impl MapCell {
    /// A map with all blocks unknown and generation 1 (0 is never a generation).
    pub fn new() -> Self {
        let unknown = Arc::new(MapSnapshot::unknown());
        MapCell {
            #[cfg(not(loom))]
            number: thread_cache::next_number(),
            generation: AtomicU64::new(1),
            version: AtomicU64::new(1),
            current: Published::new(unknown.clone()),
            recent_len: AtomicU64::new(0),
            detours: AtomicU64::new(0),
            beside: RwLock::new(Beside::of(unknown)),
            writer: Mutex::new(Pending::default()),
        }
    }

    /// The generation: changes when a written block is removed or moved. Blocks found written stay written while it is
    /// unchanged. Load it after entering the gate: it does not change until the gate is left.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The version: changes with every snapshot.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The snapshot and a version not newer than it. It may answer *Written* only.
    pub(crate) fn current(&self) -> (u64, Arc<MapSnapshot>) {
        let version = self.version();
        (version, self.current.load_full())
    }

    /// Looks one logical block up in the current map.
    pub fn find(&self, block: u32) -> Found {
        self.look(|now| now.find(block))
    }

    /// Appends the pieces of `range` in the current map to `pieces`, stopping when it is full. `Err` names the first
    /// byte whose mapping is unknown; pieces before it were appended.
    pub fn pieces(&self, range: Range, block_bits: u32, pieces: &mut Pieces) -> Result<(), u64> {
        self.look(|now| now.pieces(range, block_bits, pieces))
    }

    /// All known runs in order, for reports and tests. A run goes on across the edge between the snapshot and the
    /// changes beside it.
    pub fn runs(&self) -> Vec<Run> {
        let mut entries = Vec::new();
        self.look(|now| now.entries(0, super::BLOCKS_END).for_each(|entry| push_merged(&mut entries, entry)));
        entries.iter().filter_map(Entry::run).collect()
    }

    /// The device position of `range`, if it lies in one written run: by the thread's snapshot, else by the current
    /// map. The run is passed to `keep` if later requests may fall into it. Call inside the gate: written blocks stay
    /// written until it is left.
    #[inline(always)]
    pub(crate) fn find_written(
        &self,
        range: Range,
        block_bits: u32,
        mut keep: impl FnMut(ByteRun),
    ) -> Option<u64> {
        match self.with_kept(|map| map.find_written_keeping(range, block_bits, &mut keep)) {
            Some(Some(physical)) => Some(physical),
            _ => self.find_written_now(range, block_bits, keep),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_written_now(&self, range: Range, block_bits: u32, keep: impl FnOnce(ByteRun)) -> Option<u64> {
        let block = u32::try_from(range.pos >> block_bits).ok()?;
        let end = range.end().div_ceil(1 << block_bits);
        let entry = self.look(|now| now.run_at(block, end));
        if entry.target.kind() != KIND_WRITTEN {
            return None;
        }
        let run = entry.in_bytes(block_bits);
        if run.end - run.start > range.length {
            keep(run);
        }
        run.locate(range)
    }

    /// While the snapshot has the answer, no shared cache line is written, except by the first look-ups in a map or in
    /// a newly published snapshot (`thread_cache.rs`).
    fn look<T>(&self, mut look: impl FnMut(&Now<'_>) -> T) -> T {
        // Load the length before the snapshot: `recent` is emptied only after a snapshot with all of it was published.
        let changes = self.recent_len.load(Ordering::Acquire);
        if changes == 0 {
            return match self.with_kept(|map| look(&map.now())) {
                Some(found) => found,
                None => look(&self.current.load().now()),
            };
        }
        let beside = self.beside.read();
        let (found, lines) = (look(&beside.now()), beside.base.lines().len());
        drop(beside);
        if self.detours.fetch_add(1, Ordering::Relaxed) + 1 >= detours_max(lines, changes)
            && let Some(mut writer) = self.try_lock()
        {
            writer.renew();
        }
        found
    }

    /// Runs `look` on the current snapshot if this thread keeps it or starts to keep it now. `None`: `look` did not
    /// run.
    #[inline(always)]
    pub(crate) fn with_kept<T>(&self, look: impl FnOnce(&MapSnapshot) -> T) -> Option<T> {
        #[cfg(not(loom))]
        return thread_cache::with(self, look);
        #[cfg(loom)]
        return Some(look(&self.current.load()));
    }

    /// The map lock, held to change or load the map. Never wait for a gate, a drain or a commit under it.
    pub fn lock(&self) -> MapWriter<'_> {
        MapWriter { cell: self, pending: self.writer.lock() }
    }

    /// Bytes of memory that the map takes; approximate, since it is read without the map lock.
    pub(crate) fn resident_bytes(&self) -> usize {
        let beside = self.beside.read();
        beside.base.resident_bytes() + beside.recent.len() * Recent::ENTRY_BYTES
    }

    /// Takes the map lock if it is free.
    pub fn try_lock(&self) -> Option<MapWriter<'_>> {
        Some(MapWriter { cell: self, pending: self.writer.try_lock()? })
    }
}

/// The map lock, with the right to publish.
pub struct MapWriter<'a> {
    cell: &'a MapCell,
    pending: MutexGuard<'a, Pending>,
}

impl MapWriter<'_> {
    /// The writes whose data may not be read yet.
    pub fn pending(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// Whether this is the lock of `cell`.
    pub(crate) fn is_of(&self, cell: &MapCell) -> bool {
        std::ptr::eq(self.cell, cell)
    }

    /// Looks one logical block up. The answer holds as long as the lock.
    pub fn find(&self, block: u32) -> Found {
        self.now(|now| now.find(block))
    }

    /// The unknown blocks around `block`, as far as they are known to extend; empty if `block` is known.
    pub fn unknown_around(&self, block: u32) -> Blocks<u64> {
        let entry = self.now(|now| now.entry_at(block));
        entry.first..entry.end
    }

    /// A known run around `block`, which may go on before and behind it.
    pub fn run_around(&self, block: u32) -> Option<Run> {
        self.now(|now| now.entry_at(block)).run()
    }

    /// Bytes of memory that the map takes.
    pub fn resident_bytes(&self) -> usize {
        self.now(|now| now.base.resident_bytes()) + self.noted() * Recent::ENTRY_BYTES
    }

    /// Number of changes beside the snapshot, a few dozen bytes each.
    pub fn noted(&self) -> usize {
        self.now(|now| now.recent.map_or(0, Recent::len))
    }

    /// Publishes what a load found: `runs` list the blocks `[first, end)` in order; gaps
    /// between the runs are holes. Fails, with nothing changed, if it would invalidate a *Written* answer.
    pub fn add(&mut self, first: u64, end: u64, runs: &[Run]) -> Result<(), Error> {
        if self.add_beside(first, end, runs)? <= SMALL {
            self.renew();
        }
        Ok(())
    }

    /// The same of newly allocated blocks, which no look-up of written ones asks for: they stay beside the snapshot.
    ///
    /// # Errors
    /// As of [`MapWriter::add`].
    pub fn allocated(&mut self, first: u64, end: u64, runs: &[Run]) -> Result<(), Error> {
        self.add_beside(first, end, runs).map(drop)
    }

    /// The same of blocks of a hole that was looked up under this lock.
    pub fn claimed(&mut self, run: &Run) {
        debug_assert!(self.run_around(run.first).is_some_and(|hole| hole.state == State::Hole));
        let first = u64::from(run.first);
        self.note(|recent| recent.set(Entry { first, end: first + run.length, target: Target::of(run) }));
    }

    /// Returns the number of lines of the snapshot.
    fn add_beside(&mut self, first: u64, end: u64, runs: &[Run]) -> Result<usize, Error> {
        debug_assert!(first < end && end <= super::BLOCKS_END);
        let entries = entries_of(first, end, runs);
        let ended = self.now(|now| {
            now.entries(first, end).find(|old| old.target.kind() == KIND_WRITTEN && !keeps(&entries, old))
        });
        if let Some(ended) = ended {
            return Err(Error::MapConflict(ended.first));
        }
        Ok(self.note(|recent| recent.set_all(&entries)))
    }

    /// [`InodeState::converted`](crate::InodeState::converted) without marking the inode datasync-dirty. Unknown blocks
    /// stay unknown: loading them finds them converted.
    #[doc(hidden)]
    pub fn converted_unchecked(&mut self, blocks: &[Blocks<u64>]) -> Result<(), Error> {
        if let [blocks] = blocks
            && let Ok(block) = u32::try_from(blocks.start)
        {
            let entry = self.now(|now| now.entry_at(block)).cut_before(blocks.start);
            if entry.end >= blocks.end && entry.target.kind() == KIND_UNWRITTEN {
                let target = Target::new(KIND_WRITTEN, entry.target.physical());
                self.note(|recent| recent.set(Entry { end: blocks.end, target, ..entry }));
                return Ok(());
            }
        }
        let mut entries = Vec::with_capacity(blocks.len());
        let hole = self.now(|now| {
            let all = blocks.iter().flat_map(|blocks| now.entries(blocks.start, blocks.end));
            for entry in all {
                match entry.target.kind() {
                    KIND_UNWRITTEN => {
                        let target = Target::new(KIND_WRITTEN, entry.target.physical());
                        entries.push(Entry { target, ..entry });
                    }
                    KIND_HOLE => return Some(entry.first),
                    _ => {}
                }
            }
            None
        });
        if let Some(hole) = hole {
            return Err(Error::MapConflict(hole));
        }
        self.note(|recent| entries.into_iter().for_each(|entry| recent.set(entry)));
        Ok(())
    }

    /// [`InodeState::end`](crate::InodeState::end) without the check that the gate is held exclusively. `None` instead
    /// of runs makes the blocks unknown.
    #[doc(hidden)]
    pub fn end_unchecked(&mut self, first: u64, end: u64, runs: Option<&[Run]>) {
        debug_assert!(first < end && end <= super::BLOCKS_END);
        let few = self.now(|now| {
            let is_short = end - first <= FEW as u64;
            now.base.lines().len() > SMALL && (is_short || now.entries(first, end).nth(FEW).is_none())
        });
        self.note(|recent| match runs {
            Some(runs) => recent.set_all(&entries_of(first, end, runs)),
            None => recent.set(Entry { first, end, target: Target::UNKNOWN }),
        });
        // Readers trust the *Written* answers of any snapshot of the new generation. So merge it into the snapshot, or,
        // if that is large and loses little, publish one that has no answers until the next merge.
        if few {
            self.stand_in();
        } else {
            self.renew();
        }
        self.cell.generation.fetch_add(1, Ordering::Release);
    }

    /// Makes all blocks unknown, to free memory. Snapshots that readers keep stay valid.
    pub fn forget(&mut self) {
        self.publish(MapSnapshot::unknown());
    }

    fn now<T>(&self, look: impl FnOnce(&Now<'_>) -> T) -> T {
        look(&self.cell.beside.read().now())
    }

    /// Records changes beside the snapshot and rebuilds it if there are many. Returns its previous number of lines.
    fn note(&mut self, change: impl FnOnce(&mut Recent)) -> usize {
        let mut beside = self.cell.beside.write();
        change(&mut beside.recent);
        let changes = beside.recent.len();
        self.cell.recent_len.store(changes as u64, Ordering::Release);
        let lines = beside.base.lines().len();
        drop(beside);
        if changes >= changes_max(lines) {
            self.renew();
        }
        lines
    }

    /// Publishes a snapshot with everything in `recent`.
    fn renew(&mut self) {
        let made = self.now(|now| {
            let recent = now.recent.filter(|recent| recent.len() > 0)?;
            Some(merge::merged(now.base, recent))
        });
        if let Some(made) = made {
            self.publish(made);
        }
    }

    /// Publishes a snapshot that knows nothing, and keeps the one before for those who look at the changes too.
    fn stand_in(&mut self) {
        let cell = self.cell;
        let mut beside = cell.beside.write();
        // Without changes the snapshot has them all.
        if !beside.is_withdrawn && beside.recent.len() > 0 {
            beside.is_withdrawn = true;
            cell.current.store(Arc::new(MapSnapshot::unknown()));
            cell.version.fetch_add(1, Ordering::Release);
        }
    }

    fn publish(&mut self, snapshot: MapSnapshot) {
        let cell = self.cell;
        let mut beside = cell.beside.write();
        let snapshot = Arc::new(snapshot);
        cell.current.store(snapshot.clone());
        cell.version.fetch_add(1, Ordering::Release);
        let old = std::mem::replace(&mut *beside, Beside::of(snapshot));
        cell.detours.store(0, Ordering::Relaxed);
        cell.recent_len.store(0, Ordering::Release);
        drop(beside);
        drop(old);
    }
}

/// Whether `entries`, which cover `old`, agree with it.
fn keeps(entries: &[Entry], old: &Entry) -> bool {
    let first = entries.partition_point(|entry| entry.end <= old.first);
    entries[first..].iter().take_while(|entry| entry.first < old.end).all(|entry| {
        let from = entry.first.max(old.first);
        entry.cut_before(from).target == old.cut_before(from).target
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mapping::State;
    use std::slice::from_ref;

    fn run(block: u64) -> Run {
        Run { first: block as u32, length: 1, state: State::Unwritten, physical: 100 + block * 2 }
    }

    /// Unwritten runs of one block each, none adjacent.
    fn fragmented(blocks: u64) -> MapCell {
        let cell = MapCell::new();
        let runs: Vec<_> = (0..blocks).map(run).collect();
        cell.lock().add(0, blocks, &runs).unwrap();
        cell.find(0);
        cell
    }

    fn snapshots(cell: &MapCell, work: impl FnOnce()) -> u64 {
        cell.lock().renew();
        let before = cell.version();
        work();
        cell.version() - before
    }

    /// A large map is not laid out for each block that it loses, and nobody finds such a block meanwhile.
    #[test]
    fn what_ends_is_gone_at_once_and_merged_later() {
        let written = |block: u64| Run { state: State::Written, ..run(block) };
        for blocks in [100, 10_000] {
            let cell = MapCell::new();
            let runs: Vec<_> = (0..blocks).map(written).collect();
            cell.lock().add(0, blocks, &runs).unwrap();
            let found = |block: u64| {
                let bytes = Range { pos: block << 12, length: 4096 };
                cell.find_written(bytes, 12, |_| ()).map(|pos| pos >> 12)
            };
            let ended: Vec<u64> = (0..60).map(|number| number * 97 % blocks).collect();
            let before = (cell.version(), cell.generation());
            for (number, block) in ended.iter().enumerate() {
                assert_eq!(found(*block), Some(100 + block * 2));
                let hole = Run { state: State::Hole, ..run(*block) };
                let runs = [hole];
                cell.lock().end_unchecked(*block, block + 1, (number % 2 == 0).then_some(&runs[..]));
                assert_eq!(
                    (found(*block), cell.current().1.find(*block as u32)),
                    match blocks {
                        100 => (None, cell.find(*block as u32)),
                        _ => (None, Found::Unknown),
                    }
                );
                let other = (block + 1) % blocks;
                assert_eq!(found(other).is_some(), !ended[..=number].contains(&other), "{other}");
            }
            assert_eq!(cell.generation() - before.1, ended.len() as u64);
            let made = cell.version() - before.0;
            assert!(made == 60 || blocks > 100 && made < 8, "{made} snapshots of {blocks} blocks");
            cell.lock().renew();
            for block in 0..blocks {
                let expected = (!ended.contains(&block)).then_some(100 + block * 2);
                assert_eq!(found(block), expected, "{block}");
            }
        }
    }

    #[test]
    fn writes_that_look_a_few_times_do_not_lay_it_out_for_each_few_changes() {
        let cell = fragmented(4096);
        let made = snapshots(&cell, || {
            for block in 0..1024u64 {
                (0..3).for_each(|_| assert_ne!(cell.find(block as u32), Found::Unknown));
                cell.lock().converted_unchecked(from_ref(&(block..block + 1))).unwrap();
            }
        });
        assert!(made <= 1024 / 64, "{made} snapshots for 1024 changes");
    }

    /// A change beside the snapshot does not split a run for look-ups of written blocks.
    #[test]
    fn a_run_goes_on_over_what_is_beside_the_snapshot() {
        let cell = MapCell::new();
        let unwritten = Run { first: 0, length: 1 << 16, state: State::Unwritten, physical: 1000 };
        cell.lock().add(0, 1 << 16, &[unwritten]).unwrap();
        // More lines than are rebuilt at each load, or no change would stay in `recent`.
        let apart = (0..4096u64).map(|block| 2 * block..2 * block + 1).collect::<Vec<_>>();
        cell.lock().converted_unchecked(&apart).unwrap();
        cell.lock().renew();
        cell.lock().converted_unchecked(from_ref(&(11..12))).unwrap();
        assert_eq!(cell.lock().noted(), 1);
        let found = |first: u64, blocks: u64| {
            cell.find_written_now(Range { pos: first << 12, length: blocks << 12 }, 12, |_| ())
        };
        assert_eq!(found(10, 3), Some((1000 + 10) << 12), "over both edges");
        assert_eq!(found(11, 2), Some((1000 + 11) << 12));
        assert_eq!(found(10, 4), None, "block 13 is unwritten");
        assert_eq!(found(9, 2), None);
    }

    #[test]
    fn readers_alone_come_back_to_a_snapshot() {
        let cell = fragmented(4096);
        let made = snapshots(&cell, || {
            cell.lock().converted_unchecked(from_ref(&(7..8))).unwrap();
            (0..4096).for_each(|block| assert_ne!(cell.find(block), Found::Unknown));
        });
        assert_eq!((made, cell.lock().noted()), (1, 0));
    }
}
