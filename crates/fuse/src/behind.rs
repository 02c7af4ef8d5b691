//! Writes that are acknowledged before they are on the device, as from a page cache: the data waits in memory, and
//! threads write it, each file in order, neighbouring pieces as one, and the ends of short files together. Whoever asks
//! about a file waits for it first.
//!
//! An acknowledged write is durable after a sync, as with the kernel's cache. An error of a late write is told by the
//! next sync of each open file, once, and by the next sync of the volume. Space is certain: near the end of it, writes
//! are not late ([`Behind::grants`]).

use crate::reply::{Errno, Outcome};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uext4::{Buffer, BufferPool, File, Volume};

/// Most bytes of memory that wait to be written. Beyond that, writers wait.
const BUDGET: usize = 32 << 20;
/// Memory of a small write that follows another.
const PIECE_NEXT: usize = 256 << 10;
/// Memory of a small write, so that those that follow it find room.
const PIECE_MIN: usize = 16 << 10;
/// A write of so many bytes does not join another.
const ALONE: usize = 64 << 10;
/// Threads that write.
const THREADS: usize = 4;
/// Once so many bytes wait, they are written.
const TOGETHER: usize = 1 << 20;
/// How long fewer bytes wait for more, unless somebody waits for them.
const REST: Duration = Duration::from_millis(100);
/// Bytes of the volume that late writes leave free, at most a sixteenth: for what is made meanwhile and not counted.
const SPARE: u64 = 32 << 20;
/// How long writes are not late after one has failed: the next ones shall fail themselves.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How long a count of free space is believed.
const COUNT_AGE: Duration = Duration::from_secs(1);

/// What an open file needs for late writes.
pub(crate) struct LateFile {
    /// The node.
    pub(crate) id: u64,
    /// Where it is written.
    pub(crate) file: File,
    /// Number of the last failure that was told.
    told: AtomicU64,
}

/// Late writes of a volume.
pub(crate) struct Behind {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    pool: BufferPool,
    volume: Volume,
    space: Mutex<Space>,
    /// Held by a write from its grant until it waits, and by what takes space at once.
    taking: RwLock<()>,
    /// Bytes that a new block takes at least.
    cluster: u64,
    /// Bytes that late writes leave free.
    spare: u64,
}

struct Space {
    left: u64,
    counted: Option<Instant>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something can be written.
    work: Condvar,
    /// Something was written.
    done: Condvar,
    /// Files with something to write: asked without the lock.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct State {
    files: HashMap<u64, Late>,
    /// Those that nobody writes yet, in order, and since when.
    ready: VecDeque<(u64, Instant)>,
    /// Those of them that somebody waits for.
    urgent: VecDeque<u64>,
    /// How many callers wait for all.
    hurried: usize,
    /// Bytes of data that nobody writes yet.
    resting: usize,
    /// Bytes of memory.
    bytes: usize,
    /// Number of the latest piece.
    latest: u64,
    /// The latest failure of each node.
    failed: HashMap<u64, Failure>,
    /// Number of the latest failure.
    failures: u64,
    failed_at: Option<Instant>,
    /// The same, when the volume was synced.
    volume_told: u64,
    ending: bool,
}

struct Failure {
    number: u64,
    error: uext4::Error,
    /// A sync of the file has told it.
    told: bool,
}

/// What waits for one file.
struct Late {
    pieces: VecDeque<Piece>,
    /// Number of the oldest piece that is not written.
    oldest: u64,
    /// Its bytes lie in here.
    range: Range<u64>,
}

struct Piece {
    to: Arc<LateFile>,
    pos: u64,
    memory: Buffer,
    length: usize,
    number: u64,
}

impl LateFile {
    /// Of an open file of this node.
    pub(crate) fn new(id: u64, file: File, behind: &Behind) -> Arc<LateFile> {
        // A failure that nobody was told of yet is told to who opens the file next.
        let state = behind.shared.state.lock();
        let told = state.failed.get(&id).filter(|failure| failure.told).map_or(0, |failure| failure.number);
        Arc::new(LateFile { id, file, told: AtomicU64::new(told) })
    }
}

impl Behind {
    /// None yet.
    ///
    /// # Errors
    /// If there is no memory, or no thread.
    pub(crate) fn new(volume: &Volume) -> io::Result<Behind> {
        let shared = Arc::<Shared>::default();
        let geometry = &volume.superblock().geometry;
        let block = u64::from(geometry.block_size());
        let mut behind = Behind {
            shared: shared.clone(),
            threads: Vec::with_capacity(THREADS),
            // Sizes are rounded up to powers of two at the most.
            pool: BufferPool::with_limit(1 << 20, 4 * BUDGET).map_err(io::Error::other)?,
            volume: volume.clone(),
            space: Mutex::new(Space { left: 0, counted: None }),
            taking: RwLock::new(()),
            cluster: block * u64::from(geometry.cluster_blocks()),
            spare: SPARE.min(geometry.blocks_count() * block / 16),
        };
        for _ in 0..THREADS {
            let (shared, volume) = (shared.clone(), volume.clone());
            let write = move || shared.write_all(&volume);
            behind.threads.push(std::thread::Builder::new().name("uext4-behind".into()).spawn(write)?);
        }
        Ok(behind)
    }

    /// Memory of what waits.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.shared.state.lock().bytes
    }

    /// Counts a change that is not late, of so many bytes.
    pub(crate) fn count(&self, length: usize) {
        let _granted = self.grants(length);
    }

    /// Whether so many bytes certainly find space later. Counts them as used, and some more for names and maps.
    fn grants(&self, length: usize) -> bool {
        // Two blocks of the map at the most, if it has to be split.
        let needs = (length as u64).next_multiple_of(self.cluster) + 3 * self.cluster;
        let mut space = self.space.lock();
        let old = space.counted.is_none_or(|at| at.elapsed() > COUNT_AGE);
        if old || space.left < needs && space.counted.is_none_or(|at| at.elapsed() > COUNT_AGE / 10) {
            let block = u64::from(self.volume.superblock().geometry.block_size());
            let free = self.volume.statfs().map_or(0, |found| found.available.saturating_mul(block));
            let used = self.spare + self.shared.state.lock().bytes as u64;
            *space = Space { left: free.saturating_sub(used), counted: Some(Instant::now()) };
        }
        let granted = space.left >= needs;
        space.left = space.left.saturating_sub(needs);
        granted
    }

    /// For a change that takes much space at once: writes what waits, and until the guard is dropped no write is late.
    /// Free space is counted anew afterwards.
    pub(crate) fn takes_space(&self) -> TakesSpace<'_> {
        let guard = TakesSpace { _none_is_late: self.taking.write(), space: &self.space };
        self.wait_for_all();
        guard
    }

    /// Takes a write, after it has waited for room, if its space is certain. Returns whether it did: without memory,
    /// and after failures, the caller writes, too.
    pub(crate) fn take(&self, to: &Arc<LateFile>, pos: u64, data: &[u8]) -> bool {
        let Some(_granted_until_it_waits) = self.taking.try_read().filter(|_| self.grants(data.len())) else {
            return false;
        };
        let alone = data.len() >= ALONE;
        let mut memory = if alone { self.filled(data, data.len()) } else { None };
        let mut state = self.shared.state.lock();
        if state.bytes > BUDGET {
            self.shared.wait_hurried(&mut state, |state| state.bytes > BUDGET);
        }
        if state.failed_at.is_some_and(|then| then.elapsed() < AFTER_FAILURE) {
            return false;
        }
        if !alone && state.joins(to, pos, data) {
            self.shared.rested(&mut state, data.len());
            return true;
        }
        if !alone {
            // What follows another piece is part of something longer.
            let least = if state.files.contains_key(&to.id) { PIECE_NEXT } else { PIECE_MIN };
            memory = self.filled(data, least);
        }
        let Some(memory) = memory else { return false };
        state.latest += 1;
        state.bytes += memory.len();
        let piece = Piece { to: to.clone(), pos, memory, length: data.len(), number: state.latest };
        if state.add(piece) {
            self.shared.waiting.fetch_add(1, Ordering::Release);
        }
        self.shared.rested(&mut state, data.len());
        true
    }

    /// Memory of at least so many bytes that begins with these.
    fn filled(&self, data: &[u8], least: usize) -> Option<Buffer> {
        let mut memory = self.pool.take(data.len().max(least)).ok()?;
        memory[..data.len()].copy_from_slice(data);
        Some(memory)
    }

    /// Waits until what was taken for this node so far is written.
    pub(crate) fn wait_for(&self, id: u64) {
        if self.shared.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.shared.state.lock();
        let latest = state.latest;
        while state.files.get(&id).is_some_and(|late| late.oldest <= latest) {
            if state.hurry(id) {
                self.shared.work.notify_one();
            }
            self.shared.done.wait(&mut state);
        }
    }

    /// The same for a node that has to be found, if anything waits at all.
    pub(crate) fn wait_for_named(&self, find: impl FnOnce() -> Option<u64>) {
        if self.shared.waiting.load(Ordering::Acquire) > 0
            && let Some(id) = find()
        {
            self.wait_for(id);
        }
    }

    /// Waits until everything that was taken so far is written.
    pub(crate) fn wait_for_all(&self) {
        let mut state = self.shared.state.lock();
        let latest = state.latest;
        self.shared.wait_hurried(&mut state, |state| state.files.values().any(|late| late.oldest <= latest));
    }

    /// The range of bytes in which those lie that wait for this node.
    pub(crate) fn range_of(&self, id: u64) -> Option<Range<u64>> {
        if self.shared.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.shared.state.lock().files.get(&id).map(|late| late.range.clone())
    }

    /// The failure of a late write that this open file was not told of yet.
    ///
    /// # Errors
    /// That failure.
    pub(crate) fn tell(&self, to: &LateFile) -> Outcome<()> {
        let mut state = self.shared.state.lock();
        let Some(failure) = state.failed.get_mut(&to.id) else { return Ok(()) };
        if to.told.swap(failure.number, Ordering::Relaxed) == failure.number {
            return Ok(());
        }
        failure.told = true;
        Err(Errno(failure.error.errno()))
    }

    /// Whether a late write of any file has failed since this was asked last.
    ///
    /// # Errors
    /// The latest failure.
    pub(crate) fn tell_volume(&self) -> Outcome<()> {
        let mut state = self.shared.state.lock();
        let told = state.volume_told;
        state.volume_told = state.failures;
        let latest = state.failed.values().max_by_key(|failure| failure.number);
        latest
            .filter(|failure| failure.number > told)
            .map_or(Ok(()), |failure| Err(Errno(failure.error.errno())))
    }

    /// Writes everything.
    ///
    /// # Errors
    /// A failure that no sync has told.
    pub(crate) fn close(self) -> Result<(), uext4::Error> {
        self.wait_for_all();
        let mut state = self.shared.state.lock();
        let told = state.volume_told;
        let untold = |(_, failure): &(u64, Failure)| !failure.told && failure.number > told;
        let found = state.failed.drain().find(untold);
        drop(state);
        found.map_or(Ok(()), |(_, failure)| Err(failure.error))
    }
}

/// While it lives, no write is late.
pub(crate) struct TakesSpace<'a> {
    _none_is_late: RwLockWriteGuard<'a, ()>,
    space: &'a Mutex<Space>,
}

impl Drop for TakesSpace<'_> {
    fn drop(&mut self) {
        self.space.lock().counted = None;
    }
}

impl Drop for Behind {
    /// Writes everything.
    fn drop(&mut self) {
        self.shared.state.lock().ending = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic is in the standard error already.
            let _ended = thread.join();
        }
    }
}

impl State {
    /// Appends to the last piece of the file, if it ends where this begins and has room.
    fn joins(&mut self, to: &Arc<LateFile>, pos: u64, data: &[u8]) -> bool {
        let Some(late) = self.files.get_mut(&to.id) else { return false };
        let Some(last) = late.pieces.back_mut() else { return false };
        let follows = Arc::ptr_eq(&last.to, to) && last.pos + last.length as u64 == pos;
        let Some(room) = last.memory.get_mut(last.length..last.length + data.len()).filter(|_| follows)
        else {
            return false;
        };
        room.copy_from_slice(data);
        last.length += data.len();
        late.range.end = late.range.end.max(pos + data.len() as u64);
        true
    }

    /// Adds a piece. Returns whether nothing waited for its file before.
    fn add(&mut self, piece: Piece) -> bool {
        let (id, range) = (piece.to.id, piece.pos..piece.pos + piece.length as u64);
        match self.files.entry(id) {
            Entry::Occupied(mut late) => {
                let late = late.get_mut();
                late.pieces.push_back(piece);
                late.range = late.range.start.min(range.start)..late.range.end.max(range.end);
                false
            }
            Entry::Vacant(none) => {
                none.insert(Late { oldest: piece.number, pieces: VecDeque::from([piece]), range });
                self.ready.push_back((id, Instant::now()));
                true
            }
        }
    }

    fn note_failure(&mut self, id: u64, error: uext4::Error) {
        self.failures += 1;
        self.failed_at = Some(Instant::now());
        self.failed.insert(id, Failure { number: self.failures, error, told: false });
    }
}

/// What a thread writes next: pieces of several files, each file in order.
type Batch = Vec<(u64, VecDeque<Piece>)>;

impl State {
    /// A file that somebody waits for comes first. Returns whether nobody writes it yet.
    fn hurry(&mut self, id: u64) -> bool {
        // Those that were made last are asked for first.
        let Some(place) = self.ready.iter().rposition(|(ready, _)| *ready == id) else { return false };
        self.ready.remove(place);
        self.urgent.push_back(id);
        true
    }

    /// Takes what is to be written now, or tells when that will be.
    fn next(&mut self) -> Result<Batch, Option<Instant>> {
        if let Some(id) = self.urgent.pop_front() {
            return Ok(vec![(id, self.take(id))]);
        }
        let Some((_, since)) = self.ready.front() else { return Err(None) };
        let due = *since + REST;
        let enough = self.resting >= TOGETHER || self.hurried > 0 || self.ending;
        if !enough && due > Instant::now() {
            return Err(Some(due));
        }
        let (mut batch, mut bytes) = (Batch::new(), 0);
        while bytes < TOGETHER
            && let Some((id, _)) = self.ready.pop_front()
        {
            let pieces = self.take(id);
            bytes += pieces.iter().map(|piece| piece.length).sum::<usize>();
            batch.push((id, pieces));
        }
        Ok(batch)
    }

    /// The pieces of a file. Nobody else gets it: it is not ready again until it is written.
    fn take(&mut self, id: u64) -> VecDeque<Piece> {
        let pieces = self.files.get_mut(&id).map(|late| std::mem::take(&mut late.pieces)).unwrap_or_default();
        self.resting -= pieces.iter().map(|piece| piece.length).sum::<usize>();
        pieces
    }
}

impl Shared {
    /// So many bytes more wait. A thread is told of the first ones, and when there are enough.
    fn rested(&self, state: &mut State, bytes: usize) {
        let before = state.resting;
        state.resting += bytes;
        if before == 0 || before / TOGETHER < state.resting / TOGETHER {
            self.work.notify_one();
        }
    }

    /// Waits while this holds; nothing rests meanwhile.
    fn wait_hurried(&self, state: &mut MutexGuard<'_, State>, holds: impl Fn(&State) -> bool) {
        if !holds(state) {
            return;
        }
        state.hurried += 1;
        self.work.notify_all();
        while holds(state) {
            self.done.wait(state);
        }
        state.hurried -= 1;
    }

    /// A thread: writes what is due, until the end.
    fn write_all(&self, volume: &Volume) {
        let mut state = self.state.lock();
        loop {
            match state.next() {
                Ok(batch) => {
                    if !state.ready.is_empty() || !state.urgent.is_empty() {
                        // This thread may be long.
                        self.work.notify_one();
                    }
                    drop(state);
                    let bytes =
                        batch.iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.memory.len()).sum();
                    let ids: Vec<u64> = batch.iter().map(|(id, _)| *id).collect();
                    let failures = write_batch(volume, batch);
                    state = self.state.lock();
                    for (id, error) in failures {
                        state.note_failure(id, error);
                    }
                    self.wrote(&mut state, &ids, bytes);
                }
                Err(None) if state.ending => return,
                Err(None) => self.work.wait(&mut state),
                Err(Some(due)) => drop(self.work.wait_until(&mut state, due)),
            }
        }
    }

    /// These files' pieces are written. They are ready again if there are more.
    fn wrote(&self, state: &mut State, ids: &[u64], bytes: usize) {
        state.bytes -= bytes;
        for id in ids {
            let Some(late) = state.files.get_mut(id) else { continue };
            if let Some(next) = late.pieces.front() {
                late.oldest = next.number;
                state.ready.push_back((*id, Instant::now()));
            } else {
                state.files.remove(id);
                self.waiting.fetch_sub(1, Ordering::Release);
            }
        }
        self.done.notify_all();
    }
}

/// Writes the pieces of several files: single short ones together. Returns what failed.
fn write_batch(volume: &Volume, batch: Batch) -> Vec<(u64, uext4::Error)> {
    // A panic is a fault of this program. Whoever waits must not wait for ever.
    let panicked = || uext4::Error::Invalid("a late write panicked".into());
    let mut failures = Vec::new();
    let is_short = |pieces: &VecDeque<Piece>| pieces.len() == 1 && pieces[0].length < ALONE;
    let (short, long): (Batch, Batch) = batch.into_iter().partition(|(_, pieces)| is_short(pieces));
    let together = || {
        let writes: Vec<_> = short
            .iter()
            .flat_map(|(_, pieces)| pieces)
            .map(|piece| (&piece.to.file, &piece.memory[..piece.length], piece.pos))
            .collect();
        volume.write_noted_together(&writes)
    };
    match catch_unwind(AssertUnwindSafe(together)) {
        Ok(results) => {
            let failed = short.iter().zip(results).filter_map(|((id, _), result)| Some((*id, result.err()?)));
            failures.extend(failed);
        }
        Err(_) => failures.extend(short.iter().map(|(id, _)| (*id, panicked()))),
    }
    for (id, pieces) in long {
        let mut failure = None;
        for piece in pieces {
            let write = move || piece.to.file.write_noted_at(&piece.memory[..piece.length], piece.pos);
            if let Err(error) = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| Err(panicked())) {
                failure.get_or_insert(error);
            }
        }
        failures.extend(failure.map(|error| (id, error)));
    }
    failures
}
