//! Route counters: one cache line per writer, summed on demand.
//!
//! Every route is counted, because a measurement is worthless if the requests took another route. Counting costs a
//! load, an add and a store on a line that only this thread or queue writes. Queued simple reads and overwrites that
//! reuse a plan (`queue/window.rs`) are counted in batches on completion, all others on submission.

use crate::thread_slot::{SHARED_SLOT, thread_slot};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// One counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Counter { $($(#[$doc])* $variant,)* }

        impl Counter {
            /// All counters, in the order of their discriminants.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// Name in `--json` and tables.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }
        }
    };
}

counters! {
    /// Reads on the short path.
    SimpleReads => "simple_reads",
    /// Overwrites mapped without a journal handle, because the switch is on or the volume has no journal.
    OverwritesWithoutHandle => "overwrites_without_handle",
    /// Requests counted in flight: all that transfer data, except copies of mapped memory (unless `dax-no-dio-count` is
    /// off) and synchronous writes that hold the gate exclusively.
    DioCounted => "dio_counted",
    /// Bytes that the device wrote for files: data, and zeros around it. Copies into mapped memory are none.
    BytesWritten => "bytes_written",
    /// Copies from or to mapped memory; those through a bounce buffer are [`Counter::Bounces`].
    DaxCopies => "dax_copies",
    /// Writes whose device requests all carry FUA; one with several pieces counts once.
    FuaWrites => "fua_writes",
    /// Sub-block overwrites under the shared gate.
    SharedSubblockWrites => "shared_subblock_writes",
    /// Reads through the general iterator: `simple-read` is off, or the read covers several mappings, needs zeros,
    /// reaches the end of the file or needs a mapping to be loaded.
    GeneralReads => "general_reads",
    /// Reads that the file system served from the inode.
    InlineReads => "inline_reads",
    /// Writes that the file system stored in the inode.
    InlineWrites => "inline_writes",
    /// Journal handles started (on a volume without a journal: metadata changes), plus one for each write on the plain
    /// route of `overwrite-no-transaction`, including refused writes.
    HandlesStarted => "handles_started",
    /// Journal commits; without a journal, batches of metadata changes written home.
    Commits => "commits",
    /// Cache flushes sent: by syncs, commits and checkpoints.
    Flushes => "flushes",
    /// Writes that took the gate exclusively.
    ExclusiveWrites => "exclusive_writes",
    /// Requests that went through a bounce buffer.
    Bounces => "bounces",
    /// Metadata look-ups that filled unknown parts of a mapping snapshot.
    MapLoads => "map_loads",
    /// Waits longer than a second for a queue that only its owner can drive.
    DrainStalls => "drain_stalls",
    /// Writes refused because they need allocation.
    AllocationsRefused => "allocations_refused",
    /// `NOWAIT` requests refused because they would have blocked.
    WouldBlock => "would_block",
    /// Writes that first cleared the file's set-user-id bit, set-group-id bit or capabilities.
    PrivilegesDropped => "privileges_dropped",
    /// Writes whose holes were allocated before the data was sent. Most extending writes allocate together with the new
    /// size and count as [`Counter::Extensions`] only.
    Allocations => "allocations",
    /// Conversions of unwritten blocks to written, one per inode: for a single write or for a whole batch.
    Conversions => "conversions",
    /// Writes that extended their file.
    Extensions => "extensions",
    /// Atomic writes: their blocks replaced those of the file.
    AtomicWrites => "atomic_writes",
    /// Reads of any bytes that were served over pages.
    BufferedReads => "buffered_reads",
    /// Writes of any bytes that went into pages.
    BufferedWrites => "buffered_writes",
    /// Pages read from the device.
    PageReads => "page_reads",
    /// Pages written home.
    PageWrites => "page_writes",
    /// Clean pages dropped for others.
    PageDrops => "page_drops",
    /// Failures to write pages home. The next sync of each open file tells them.
    LateFailures => "late_failures",
    /// Blocks that commits wrote to the log. (The file system maintains this counter and those below.)
    BlocksLogged => "blocks_logged",
    /// Checkpoints: log space freed by writing blocks home.
    Checkpoints => "checkpoints",
    /// Metadata blocks written home.
    HomeWrites => "home_writes",
}

const COUNT: usize = Counter::ALL.len();

/// What a queued simple read, or an overwrite that reuses a plan, counts on completion, packed into one number so that
/// a batch needs one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally(u8);

const TALLIES: usize = 5;

impl Tally {
    /// A queued simple read.
    pub(crate) const SIMPLE_READ: Tally = Tally(4);

    /// A queued overwrite under the shared gate without a handle.
    #[inline(always)]
    pub(crate) fn overwrite(fua: bool, subblock: bool) -> Tally {
        Tally(u8::from(fua) | u8::from(subblock) << 1)
    }

    fn counters(self) -> &'static [Counter] {
        use Counter::{DioCounted, FuaWrites, OverwritesWithoutHandle, SharedSubblockWrites, SimpleReads};
        match self.0 {
            0 => &[OverwritesWithoutHandle, DioCounted],
            1 => &[OverwritesWithoutHandle, DioCounted, FuaWrites],
            2 => &[OverwritesWithoutHandle, DioCounted, SharedSubblockWrites],
            3 => &[OverwritesWithoutHandle, DioCounted, SharedSubblockWrites, FuaWrites],
            _ => &[SimpleReads, DioCounted],
        }
    }
}

/// One writer's counters.
// Lines lie in an array: a size that is a power of two makes their addresses cheap.
#[derive(Debug)]
#[repr(align(512))]
pub struct CounterLine {
    tallies: [AtomicU64; TALLIES],
    single: [AtomicU64; COUNT],
}

impl Default for CounterLine {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        CounterLine { tallies: std::array::from_fn(|_| zero()), single: std::array::from_fn(|_| zero()) }
    }
}

impl CounterLine {
    /// Counts one. Only the line's single writer may call this.
    #[inline(always)]
    pub fn bump(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds to a counter. Only the line's single writer may call this.
    #[inline(always)]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        let value = &self.single[counter as usize];
        value.store(value.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    /// Adds `requests` to every counter in `tally`. Only the line's single writer may call this.
    #[inline]
    pub(crate) fn bump_all(&self, tally: Tally, requests: u16) {
        let value = &self.tallies[usize::from(tally.0)];
        value.store(value.load(Ordering::Relaxed) + u64::from(requests), Ordering::Relaxed);
    }

    fn add_shared(&self, counter: Counter, amount: u64) {
        self.single[counter as usize].fetch_add(amount, Ordering::Relaxed);
    }

    fn add_to(&self, sums: &mut [u64; COUNT]) {
        for (sum, value) in sums.iter_mut().zip(&self.single) {
            *sum += value.load(Ordering::Relaxed);
        }
        for (tally, value) in (0..).map(Tally).zip(&self.tallies) {
            let value = value.load(Ordering::Relaxed);
            tally.counters().iter().for_each(|&counter| sums[counter as usize] += value);
        }
    }
}

/// All counters of a volume. Clones share them.
#[derive(Debug, Clone)]
pub struct Counters {
    threads: Arc<[CachePadded<CounterLine>; SHARED_SLOT + 1]>,
    queues: Arc<Mutex<Vec<Arc<CachePadded<CounterLine>>>>>,
}

impl Default for Counters {
    fn default() -> Self {
        let threads = Arc::new(std::array::from_fn(|_| CachePadded::default()));
        Counters { threads, queues: Arc::default() }
    }
}

impl Counters {
    /// Counts one for this thread.
    #[inline]
    pub fn bump(&self, counter: Counter) {
        self.bump_at(thread_slot(), counter);
    }

    /// Adds to a counter for this thread.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        self.add_at(thread_slot(), counter, amount);
    }

    /// Counts one for the thread that owns `slot`, which is the caller.
    #[inline(always)]
    pub(crate) fn bump_at(&self, slot: usize, counter: Counter) {
        self.add_at(slot, counter, 1);
    }

    #[inline(always)]
    fn add_at(&self, slot: usize, counter: Counter, amount: u64) {
        if slot < SHARED_SLOT {
            self.threads[slot].add(counter, amount);
        } else {
            self.threads[SHARED_SLOT].add_shared(counter, amount);
        }
    }

    /// The line of `slot`; `None` for threads that share the last line.
    #[inline(always)]
    pub(crate) fn owned_line(&self, slot: usize) -> Option<&CounterLine> {
        if slot < SHARED_SLOT { Some(&self.threads[slot]) } else { None }
    }

    /// Registers a line for a queue; it stays until [`Counters::retire`].
    pub fn register(&self) -> Arc<CachePadded<CounterLine>> {
        let line = Arc::new(CachePadded::new(CounterLine::default()));
        self.queues.lock().push(line.clone());
        line
    }

    /// Folds the line of a dropped queue into the shared one.
    pub fn retire(&self, line: &Arc<CachePadded<CounterLine>>) {
        let mut queues = self.queues.lock();
        queues.retain(|other| !Arc::ptr_eq(other, line));
        let mut sums = [0; COUNT];
        line.add_to(&mut sums);
        for &counter in Counter::ALL {
            self.threads[SHARED_SLOT].add_shared(counter, sums[counter as usize]);
        }
    }

    /// Sums all lines. Exact only when nothing is being counted and nothing is in flight: most queued requests are
    /// counted on completion.
    pub fn stats(&self) -> Stats {
        let mut sums = [0; COUNT];
        let queues = self.queues.lock();
        self.threads.iter().for_each(|line| line.add_to(&mut sums));
        queues.iter().for_each(|line| line.add_to(&mut sums));
        Stats(sums)
    }
}

/// A snapshot of all counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats([u64; COUNT]);

impl Default for Stats {
    fn default() -> Self {
        Stats([0; COUNT])
    }
}

impl Stats {
    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// This snapshot with one counter replaced.
    #[must_use]
    pub fn with(mut self, counter: Counter, value: u64) -> Stats {
        self.0[counter as usize] = value;
        self
    }

    /// Names and values in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter.name(), self.get(counter)))
    }

    /// The difference from `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Stats) -> Stats {
        Stats(std::array::from_fn(|index| self.0[index].saturating_sub(earlier.0[index])))
    }
}
