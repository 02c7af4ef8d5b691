//! Counters of routes, one line per writer, summed when somebody asks.
//!
//! A measurement whose counters show the wrong route is worthless, so every route counts itself. Counting
//! costs a load, an add and a store on a line that only this thread or queue writes. Queued simple reads and overwrites
//! decided before (`queue/window.rs`) are counted in batches when they are over, all others when they are sent.

use crate::thread_slot::{SHARED_SLOT, thread_slot};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// What is counted.
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
    /// Overwrites that were mapped without a journal handle: the switch is on, or the volume has no journal.
    OverwritesWithoutHandle => "overwrites_without_handle",
    /// Requests counted in flight: all that transfer something but copies of mapped memory (unless `dax-no-dio-count`
    /// is off) and synchronous writes that hold the gate alone.
    DioCounted => "dio_counted",
    /// Copies from or to mapped memory; those through a bounce buffer are [`Counter::Bounces`].
    DaxCopies => "dax_copies",
    /// Writes whose device requests all carry FUA; one with several pieces counts once.
    FuaWrites => "fua_writes",
    /// Sub-block overwrites under the shared gate.
    SharedSubblockWrites => "shared_subblock_writes",
    /// Reads through the general iterator: `simple-read` is off, or several mappings, zeros to fill in, the end of the
    /// file, a mapping that has to be loaded first.
    GeneralReads => "general_reads",
    /// Reads that the file system served from the inode.
    InlineReads => "inline_reads",
    /// Journal handles started, or steps of a volume without a journal: whatever changes metadata, and each write on
    /// the plain route of `overwrite-no-transaction`, refused ones included.
    HandlesStarted => "handles_started",
    /// Journal commits, or batches of changes that went home.
    Commits => "commits",
    /// Cache flushes sent: by syncs, commits and checkpoints.
    Flushes => "flushes",
    /// Writes that took the gate exclusively.
    ExclusiveWrites => "exclusive_writes",
    /// Requests that went through a bounce buffer.
    Bounces => "bounces",
    /// Metadata look-ups that filled unknown parts of a mapping snapshot.
    MapLoads => "map_loads",
    /// Waits of over a second for a queue that only its owner may drive.
    DrainStalls => "drain_stalls",
    /// Writes refused because they need allocation.
    AllocationsRefused => "allocations_refused",
    /// Writes that had blocks allocated for their holes. (One that makes its file longer may get them with its size.)
    Allocations => "allocations",
    /// Conversions of unwritten blocks into written ones, each of one inode: of one write, or of all of a batch.
    Conversions => "conversions",
    /// Writes that made their file longer.
    Extensions => "extensions",
    /// Blocks that commits wrote into the log. (The file system counts this and what follows.)
    BlocksLogged => "blocks_logged",
    /// Times that log space was freed by writing blocks home.
    Checkpoints => "checkpoints",
    /// Blocks of metadata that were written home.
    HomeWrites => "home_writes",
    /// Writes that took set-user-id, set-group-id or capabilities from their file first.
    PrivilegesDropped => "privileges_dropped",
}

const COUNT: usize = Counter::ALL.len();

/// What a queued simple read or an overwrite decided before counts when it is over, as one number: one store for a
/// batch of them.
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
#[derive(Debug, Default)]
pub struct CounterLine {
    tallies: [AtomicU64; TALLIES],
    single: [AtomicU64; COUNT],
}

impl CounterLine {
    /// Counts one. Only the line's single writer may call this.
    #[inline(always)]
    pub fn bump(&self, counter: Counter) {
        let value = &self.single[counter as usize];
        value.store(value.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts `requests` of everything that `tally` stands for. Only the line's single writer may call this.
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

/// All counters of a volume.
#[derive(Debug)]
pub struct Counters {
    threads: Box<[CachePadded<CounterLine>; SHARED_SLOT + 1]>,
    queues: Mutex<Vec<Arc<CachePadded<CounterLine>>>>,
}

impl Default for Counters {
    fn default() -> Self {
        let threads = Box::new(std::array::from_fn(|_| CachePadded::default()));
        Counters { threads, queues: Mutex::new(Vec::new()) }
    }
}

impl Counters {
    /// Counts one for this thread.
    #[inline]
    pub fn bump(&self, counter: Counter) {
        self.bump_at(thread_slot(), counter);
    }

    /// Counts one for the thread that owns `slot`, which is the caller.
    #[inline(always)]
    pub(crate) fn bump_at(&self, slot: usize, counter: Counter) {
        if slot < SHARED_SLOT {
            self.threads[slot].bump(counter);
        } else {
            self.threads[SHARED_SLOT].add_shared(counter, 1);
        }
    }

    /// The line of the thread that owns `slot`, if it owns one.
    #[inline(always)]
    pub(crate) fn owned_line(&self, slot: usize) -> Option<&CounterLine> {
        if slot < SHARED_SLOT { Some(&self.threads[slot]) } else { None }
    }

    /// A line for a queue. It is kept until [`Counters::retire`].
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

    /// Sums over all lines. Exact when nobody counts meanwhile and nothing is in flight: most queued requests are
    /// counted when they are over.
    pub fn stats(&self) -> Stats {
        let mut sums = [0; COUNT];
        let queues = self.queues.lock();
        self.threads.iter().for_each(|line| line.add_to(&mut sums));
        queues.iter().for_each(|line| line.add_to(&mut sums));
        Stats(sums)
    }
}

/// A reading of all counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats([u64; COUNT]);

impl Stats {
    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// The same with another value of one counter.
    #[must_use]
    pub fn with(mut self, counter: Counter, value: u64) -> Stats {
        self.0[counter as usize] = value;
        self
    }

    /// Names and values in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter.name(), self.get(counter)))
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Stats) -> Stats {
        Stats(std::array::from_fn(|index| self.0[index].saturating_sub(earlier.0[index])))
    }
}
