//! The published map of one inode, and the right to publish.

use super::recent::{Now, Recent};
#[cfg(not(loom))]
use super::thread_cache;
use super::{ByteRun, Entry, Found, KIND_HOLE, KIND_UNWRITTEN, KIND_WRITTEN, MapSnapshot, Target};
use super::{entries_of, merge};
use crate::error::Error;
use crate::mapping::{Pieces, Range, Run};
use crate::pending::Pending;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Published, RwLock};
use std::ops::Range as Blocks;
use std::sync::Arc;

/// Changes that come together before a snapshot of so many lines is made anew: so many that the pass, which copies
/// most lines, is paid by them, and that none lasts longer than some milliseconds.
fn changes_max(lines: usize) -> usize {
    if cfg!(loom) { 2 } else { (lines / 2).clamp(64, 16 * 1024) }
}

/// Look-ups beside a snapshot of so many lines before it is made anew, if so many changes are beside it: a pass costs
/// as much as these look-ups (5 ns a line, some 200 ns a change; 50 ns a look-up). Where each write looks a few times
/// and then changes something, the changes alone decide.
fn detours_max(lines: usize, changes: u64) -> u64 {
    if cfg!(loom) { 1 } else { (lines as u64 / 16).clamp(4, 4096) + 4 * changes }
}

/// A snapshot of at most so many lines is made anew with each load: that takes microseconds, as the load did.
const SMALL: usize = 64;

/// The published map of one inode.
#[derive(Debug)]
pub struct MapCell {
    /// No other cell of the process had or has it.
    #[cfg(not(loom))]
    pub(super) number: u64,
    generation: AtomicU64,
    /// Counts snapshots.
    version: AtomicU64,
    current: Published<MapSnapshot>,
    /// Entries of `recent`. Written by whoever holds the map lock, after what it tells of.
    recent_len: AtomicU64,
    /// Looks at `recent` since the last snapshot.
    detours: AtomicU64,
    /// Held for one look or one change; the snapshot is exchanged under it.
    recent: RwLock<Recent>,
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
            number: thread_cache::next_number(),
            generation: AtomicU64::new(1),
            version: AtomicU64::new(1),
            current: Published::new(Arc::new(MapSnapshot::unknown())),
            recent_len: AtomicU64::new(0),
            detours: AtomicU64::new(0),
            recent: RwLock::new(Recent::default()),
            writer: Mutex::new(Pending::default()),
        }
    }

    /// Changes when a written block was taken away or moved. What was found written stays so while this does. Load it
    /// after entering the gate: then it stays until the gate is left.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Changes with every snapshot.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The snapshot and a version not newer than it. It may answer *Written* only.
    pub(crate) fn current(&self) -> (u64, Arc<MapSnapshot>) {
        let version = self.version();
        (version, self.current.load_full())
    }

    /// Looks one logical block up in the map as it is now.
    pub fn find(&self, block: u32) -> Found {
        self.look(|now| now.find(block))
    }

    /// Appends the pieces of `range`, by the map as it is now, to `pieces`, stopping when it is full. `Err` names the
    /// first byte whose mapping is unknown; pieces before it were appended.
    pub fn pieces(&self, range: Range, block_bits: u32, pieces: &mut Pieces) -> Result<(), u64> {
        self.look(|now| now.pieces(range, block_bits, pieces))
    }

    /// All known runs in order, for reports and tests.
    pub fn runs(&self) -> Vec<Run> {
        self.look(|now| now.entries(0, super::BLOCKS_END).filter_map(|entry| entry.run()).collect())
    }

    /// The device position of `range`, if it lies in one written run: by the thread's snapshot, else by the map as it
    /// is now. The run is given to `keep` if other requests may find themselves in it. Call inside the gate: what is
    /// written stays so until it is left.
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

    /// Nothing shared is written while the snapshot says all, but for the first looks at a map and at what was
    /// published since (`thread_cache.rs`).
    fn look<T>(&self, mut look: impl FnMut(&Now<'_>) -> T) -> T {
        // The length before the snapshot: whoever empties `recent` has published a snapshot with all of it before.
        let changes = self.recent_len.load(Ordering::Acquire);
        if changes == 0 {
            return match self.with_kept(|map| look(&map.now())) {
                Some(found) => found,
                None => look(&self.current.load().now()),
            };
        }
        let recent = self.recent.read();
        let base = self.current.load();
        let found = look(&Now { base: &base, recent: Some(&*recent) });
        let lines = base.lines().len();
        drop((base, recent));
        if self.detours.fetch_add(1, Ordering::Relaxed) + 1 >= detours_max(lines, changes)
            && let Some(mut writer) = self.try_lock()
        {
            writer.renew();
        }
        found
    }

    /// Runs `look` on the current snapshot if this thread keeps it, or does from now on. On `None` it did not run.
    #[inline(always)]
    pub(crate) fn with_kept<T>(&self, look: impl FnOnce(&MapSnapshot) -> T) -> Option<T> {
        #[cfg(not(loom))]
        return thread_cache::with(self, look);
        #[cfg(loom)]
        return Some(look(&self.current.load()));
    }

    /// The map lock: whoever changes or loads the map holds it. Never wait for a gate, a drain or a commit
    /// under it.
    pub fn lock(&self) -> MapWriter<'_> {
        MapWriter { cell: self, pending: self.writer.lock() }
    }

    /// Bytes of memory that the map takes, as far as can be seen without the map lock.
    pub(crate) fn resident_bytes(&self) -> usize {
        let noted = self.recent_len.load(Ordering::Acquire) as usize;
        self.current.load().resident_bytes() + noted * Recent::ENTRY_BYTES
    }

    /// The map lock, unless somebody holds it.
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
    /// The writes that nobody may read yet.
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

    /// The blocks around `block` of which nothing is known, if that is so of it: as many as are known to be.
    pub fn unknown_around(&self, block: u32) -> Blocks<u64> {
        let entry = self.now(|now| now.entry_at(block));
        entry.first..entry.end
    }

    /// Bytes of memory that the map takes.
    pub fn resident_bytes(&self) -> usize {
        self.now(|now| now.base.resident_bytes()) + self.noted() * Recent::ENTRY_BYTES
    }

    /// Changes beside the snapshot, some tens of bytes each.
    pub fn noted(&self) -> usize {
        self.now(|now| now.recent.map_or(0, Recent::len))
    }

    /// What a load found, or blocks that were allocated: the blocks `[first, end)` are as `runs` say, which cover them
    /// in order; gaps between the runs are holes. Refuses, with nothing changed, what would end a *Written* answer.
    pub fn add(&mut self, first: u64, end: u64, runs: &[Run]) -> Result<(), Error> {
        debug_assert!(first < end && end <= super::BLOCKS_END);
        let entries = entries_of(first, end, runs);
        let ended = self.now(|now| {
            now.entries(first, end).find(|old| old.target.kind() == KIND_WRITTEN && !keeps(&entries, old))
        });
        if let Some(ended) = ended {
            return Err(Error::MapConflict(ended.first));
        }
        let lines = self.note(|recent| recent.set_all(&entries));
        if lines <= SMALL {
            self.renew();
        }
        Ok(())
    }

    /// [`InodeState::converted`](crate::InodeState::converted) without the mark that it is not durable. Unknown blocks
    /// stay unknown: who loads them finds them converted.
    #[doc(hidden)]
    pub fn converted_unchecked(&mut self, blocks: &[Blocks<u64>]) -> Result<(), Error> {
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

    /// [`InodeState::end`](crate::InodeState::end) without the question whether anybody is inside the gate. `None`
    /// instead of runs makes the blocks unknown.
    #[doc(hidden)]
    pub fn end_unchecked(&mut self, first: u64, end: u64, runs: Option<&[Run]>) {
        debug_assert!(first < end && end <= super::BLOCKS_END);
        self.note(|recent| match runs {
            Some(runs) => recent.set_all(&entries_of(first, end, runs)),
            None => recent.set(Entry { first, end, target: Target::UNKNOWN }),
        });
        // In the snapshot at once: whoever keeps one of the new generation believes what it says is written.
        self.renew();
        self.cell.generation.fetch_add(1, Ordering::Release);
    }

    /// All is unknown: for memory. What readers keep stays right.
    pub fn forget(&mut self) {
        self.publish(MapSnapshot::unknown());
    }

    fn now<T>(&self, look: impl FnOnce(&Now<'_>) -> T) -> T {
        let recent = self.cell.recent.read();
        look(&Now { base: &self.cell.current.load(), recent: Some(&*recent) })
    }

    /// Notes changes beside the snapshot, which is made anew if they are many. Returns its lines before.
    fn note(&mut self, change: impl FnOnce(&mut Recent)) -> usize {
        let mut recent = self.cell.recent.write();
        change(&mut recent);
        let changes = recent.len();
        self.cell.recent_len.store(changes as u64, Ordering::Release);
        drop(recent);
        let lines = self.cell.current.load().lines().len();
        if changes >= changes_max(lines) {
            self.renew();
        }
        lines
    }

    /// Publishes a snapshot with all that is recent.
    fn renew(&mut self) {
        let made = self.now(|now| {
            let recent = now.recent.filter(|recent| recent.len() > 0)?;
            Some(merge::merged(now.base, recent))
        });
        if let Some(made) = made {
            self.publish(made);
        }
    }

    fn publish(&mut self, snapshot: MapSnapshot) {
        let cell = self.cell;
        let mut recent = cell.recent.write();
        cell.current.store(Arc::new(snapshot));
        cell.version.fetch_add(1, Ordering::Release);
        let old = std::mem::take(&mut *recent);
        cell.detours.store(0, Ordering::Relaxed);
        cell.recent_len.store(0, Ordering::Release);
        drop(recent);
        drop(old);
    }
}

/// Whether `entries`, which cover `old`, say the same of it.
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

    /// Unwritten runs of a block each, all apart.
    fn fragmented(blocks: u64) -> MapCell {
        let cell = MapCell::new();
        let run = |block: u64| Run {
            first: block as u32,
            length: 1,
            state: State::Unwritten,
            physical: 100 + block * 2,
        };
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

    /// A change beside the snapshot is no edge of a run for those who look for what is written.
    #[test]
    fn a_run_goes_on_over_what_is_beside_the_snapshot() {
        let cell = MapCell::new();
        let unwritten = Run { first: 0, length: 1 << 16, state: State::Unwritten, physical: 1000 };
        cell.lock().add(0, 1 << 16, &[unwritten]).unwrap();
        // More lines than are laid out anew with each load, or nothing would lie beside them.
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
