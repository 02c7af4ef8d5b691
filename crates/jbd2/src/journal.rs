//! The journal: the running, committing and logged transactions; opening, quiescing, aborting, queries.

use crate::fast_area::FastArea;
use crate::hooks::{CommitHooks, FULL_COMMITS};
use crate::log_map::device_of;
use crate::log_writer::LogWriter;
use crate::space::{Limits, LogSpace, Ring, Tail};
use crate::store::{Store, prepared};
use crate::superblock::{JournalInfo, read_superblock};
use crate::sync::{AtomicU64, Ordering};
use crate::transaction::Transaction;
use crate::turn::CommitTurn;
use crate::wait::WaitQueue;
use crate::{AbortCause, Error, ExtendRefusal, FullCommit, JournalOptions, LogMap, Result, Tid};
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uext4_blockdev::Device;
use uext4_buffer::{BufferCache, BufferPin};
use uext4_ondisk::jbd2::{JournalSuperblock, LogFormat};

/// An open journal. See the crate documentation.
pub struct Journal {
    pub(crate) cache: BufferCache,
    pub(crate) log: Arc<dyn LogMap>,
    info: JournalInfo,
    /// The superblock of the log as this journal writes it.
    pub(crate) superblock: JournalSuperblock,
    pub(crate) format: LogFormat,
    pub(crate) limits: Limits,
    pub(crate) ring: Ring,
    pub(crate) state: RwLock<State>,
    /// Number of the last committed transaction. Shared with code that checks whether a change is durable.
    pub(crate) committed: Arc<AtomicU64>,
    aborted: OnceLock<AbortCause>,
    /// Wait for credits, for an unlocked transaction, for the end of a quiesce.
    pub(crate) starters: WaitQueue,
    /// Wait for active handles to stop.
    pub(crate) quiescers: WaitQueue,
    /// The right to commit.
    pub(crate) turn: CommitTurn,
    /// Used by the thread that has the turn.
    pub(crate) writer: Mutex<LogWriter>,
    /// The right to free log space.
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) store: Mutex<Store>,
    pub(crate) hooks: OnceLock<Arc<dyn CommitHooks>>,
    pub(crate) reserved: Arc<Reserved>,
    /// Where fast commits go, if the log has an area for them.
    pub(crate) fast: Option<Box<FastArea>>,
    /// Whether this journal makes any.
    makes_fast: bool,
    pub(crate) counters: Counters,
}

/// The transactions. Locked shared to start and extend handles, exclusively to change anything else.
#[derive(Debug)]
pub(crate) struct State {
    pub running: Option<Running>,
    /// The transaction that is being written.
    pub committing: Option<Place>,
    /// Committed transactions whose log blocks are in use, oldest first.
    pub logged: VecDeque<Logged>,
    /// Number of the next transaction.
    pub next: Tid,
    /// Holders of [`UpdatesLocked`].
    pub quiesced: u32,
    /// Log block where the next transaction to commit begins.
    pub head: u32,
    pub tail: Tail,
    pub space: LogSpace,
    /// Whether the superblock marks the log as in use.
    pub begun: bool,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub transaction: Arc<Transaction>,
    /// Whether it is about to commit: active handles finish, none starts or extends.
    pub locked: bool,
}

/// Where a transaction is in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub tid: Tid,
    pub start: u32,
    pub blocks: u32,
}

/// A committed transaction, some of whose blocks may not be written home yet.
#[derive(Debug)]
pub(crate) struct Logged {
    pub place: Place,
    /// All blocks that it changed, in order.
    pub pins: Vec<BufferPin>,
}

/// Log blocks reserved for handles that must not wait. Changed with the state locked shared.
#[derive(Debug, Default)]
pub(crate) struct Reserved(std::sync::atomic::AtomicU32);

impl Reserved {
    pub(crate) fn blocks(&self) -> u32 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Reserves `blocks` if the total then is at most `most`; otherwise returns the blocks already reserved.
    pub(crate) fn take(&self, blocks: u32, most: u32) -> std::result::Result<(), u32> {
        let within = |reserved: u32| reserved.checked_add(blocks).filter(|sum| *sum <= most);
        let order = std::sync::atomic::Ordering::SeqCst;
        self.0.fetch_update(order, order, within).map(drop)
    }

    pub(crate) fn give_back(&self, blocks: u32) {
        self.0.fetch_sub(blocks, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Event counters, and flushes started and completed.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub transactions_created: Count,
    /// Handles of earlier transactions.
    pub handles_started: Count,
    pub handles_joined: Count,
    pub start_waits: Count,
    pub quiesces: Count,
    pub commits: Count,
    pub blocks_logged: Count,
    pub checkpoints: Count,
    pub home_writes: Count,
    /// Flushes started, and the latest one that has completed.
    pub flushes: Count,
    pub flushed: Count,
    /// Of commits: together, and the latest.
    pub commit_nanoseconds: Count,
    pub last_commit_nanoseconds: Count,
    pub fast: Box<FastCounters>,
}

/// Of fast commits. Apart from the others, which are used more often.
#[derive(Debug, Default)]
pub(crate) struct FastCounters {
    pub commits: Count,
    pub blocks: Count,
    /// Full commits made instead, by reason ([`crate::FullCommit`]).
    pub full: [Count; FULL_COMMITS],
}

/// A counter. Only the duration of the latest commit is set anew.
#[derive(Debug, Default)]
pub(crate) struct Count(std::sync::atomic::AtomicU64);

impl Count {
    pub(crate) fn add(&self, events: u64) -> u64 {
        self.0.fetch_add(events, std::sync::atomic::Ordering::SeqCst) + events
    }

    pub(crate) fn set(&self, to: u64) {
        self.0.store(to, std::sync::atomic::Ordering::SeqCst);
    }

    pub(crate) fn raise(&self, to: u64) {
        self.0.fetch_max(to, std::sync::atomic::Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Counters and state of the journal. Read without stopping other threads, so approximate while they work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct JournalStats {
    /// Handles started.
    pub handles_started: u64,
    /// Nested uses of a handle.
    pub handles_joined: u64,
    /// Handles active now.
    pub handles_active: u32,
    /// Transactions started.
    pub transactions_created: u64,
    /// Times a start had to sleep, to commit or to free log space.
    pub start_waits: u64,
    /// Times the journal was quiesced.
    pub quiesces: u64,
    /// Transactions committed.
    pub commits: u64,
    /// How long they took together, from the end of a transaction until it is durable.
    pub commit_nanoseconds: u64,
    /// How long the latest one took.
    pub last_commit_nanoseconds: u64,
    /// Log blocks written for them.
    pub blocks_logged: u64,
    /// Fast commits.
    pub fast_commits: u64,
    /// Blocks of the fast-commit area written for them.
    pub fast_commit_blocks: u64,
    /// Syncs that found no room in the fast-commit area.
    pub full_for_area: u64,
    /// Syncs that committed in full because a change was not declared for fast commits.
    pub full_for_undeclared: u64,
    /// Syncs that committed in full because no record describes what a file has become.
    pub full_for_file: u64,
    /// Syncs that committed in full because the log was not in use yet.
    pub full_for_unused: u64,
    /// Times log space was freed.
    pub checkpoints: u64,
    /// Blocks written home for that.
    pub home_writes: u64,
    /// Device flushes that commits and checkpoints asked for.
    pub flushes: u64,
    /// Free log blocks, usable before a checkpoint is needed.
    pub free_blocks: u32,
    /// Log blocks reserved for handles that must not wait.
    pub reserved_blocks: u32,
    /// Outstanding credits of the running transaction, its overhead included; 0 if none runs.
    pub outstanding_credits: u32,
    /// Blocks the running transaction has changed.
    pub modified_blocks: u32,
}

impl Journal {
    /// [`Journal::open_with`] default options, which keep the log's format.
    ///
    /// # Errors
    /// As there.
    pub fn open(cache: BufferCache, log: Arc<dyn LogMap>, committed: Arc<AtomicU64>) -> Result<Journal> {
        Journal::open_with(cache, log, committed, &JournalOptions::default())
    }

    /// Opens the journal in the blocks given by `log`, on its own device or that of `cache`, for changing metadata.
    /// Reads the superblock; nothing is written before the first commit. `committed` holds the number of the last
    /// committed transaction from now on ([`Journal::last_committed`]).
    ///
    /// The caller that opens a volume for writing [settles](uext4_blockdev::Device::settle) its devices first.
    ///
    /// # Errors
    /// [`Error::NeedsRecovery`] if the log is not empty; the errors of [`JournalInfo::read`]; [`Error::LogSpace`] if
    /// the log is too small for its own largest transaction.
    pub fn open_with(
        cache: BufferCache,
        log: Arc<dyn LogMap>,
        committed: Arc<AtomicU64>,
        options: &JournalOptions,
    ) -> Result<Journal> {
        let info = JournalInfo::read(&cache, &*log)?;
        if info.needs_recovery() {
            return Err(Error::NeedsRecovery { start: info.superblock.start, sequence: info.sequence() });
        }
        let superblock = prepared(&info, options, cache.blocks());
        // Blocks that cannot be evicted may take at most half of the cache's budget.
        let in_use = cache.stats().budget_bytes / 2 / u64::from(superblock.block_size);
        let limits = Limits::new(&superblock, u32::try_from(in_use).unwrap_or(u32::MAX));
        let space = LogSpace::empty(&limits);
        space.check(&limits)?;
        let store = Store::new(&info, &read_superblock(&cache, &*log, info.block)?, superblock.clone())?;
        // The superblock of an empty log holds the number of the last transaction that was in it. (So jbd2
        // reads it.)
        let next = info.sequence().next();
        committed.store(info.sequence().0, Ordering::Release);
        let first = superblock.first;
        let state = State {
            running: None,
            committing: None,
            logged: VecDeque::new(),
            next,
            quiesced: 0,
            head: first,
            tail: Tail { log_block: first, sequence: next },
            space,
            begun: false,
        };
        Ok(Journal {
            cache,
            log,
            info,
            format: LogFormat::of(&superblock),
            limits,
            ring: Ring { first, end: superblock.log_end() },
            fast: FastArea::of(&superblock).map(Box::new),
            makes_fast: options.fast_commits,
            superblock,
            state: RwLock::new(state),
            committed,
            aborted: OnceLock::new(),
            starters: WaitQueue::new(),
            quiescers: WaitQueue::new(),
            turn: CommitTurn::new(),
            writer: Mutex::new(LogWriter::new(options.time)),
            checkpointing: Mutex::new(()),
            store: Mutex::new(store),
            hooks: OnceLock::new(),
            reserved: Arc::default(),
            counters: Counters::default(),
        })
    }

    /// Sets the hooks that commits call. Call once, before the first handle; a second call changes nothing.
    pub fn set_hooks(&self, hooks: Arc<dyn CommitHooks>) {
        let _first_stays = self.hooks.set(hooks);
    }

    /// The superblock of the log as read at open.
    #[must_use]
    pub fn info(&self) -> &JournalInfo {
        &self.info
    }

    /// The cache that holds the blocks this journal protects.
    #[must_use]
    pub fn cache(&self) -> &BufferCache {
        &self.cache
    }

    /// Whether [`Journal::sync`] may make fast commits: they were asked for, and the log has an area for them.
    #[must_use]
    pub fn makes_fast_commits(&self) -> bool {
        self.makes_fast && self.fast.is_some()
    }

    /// Where the blocks of the log are.
    #[must_use]
    pub fn log_map(&self) -> &Arc<dyn LogMap> {
        &self.log
    }

    /// Maximum credits of one handle.
    #[must_use]
    pub fn max_handle_credits(&self) -> u32 {
        self.limits.handle()
    }

    /// Maximum outstanding credits of a transaction, including its overhead.
    #[must_use]
    pub fn max_transaction_credits(&self) -> u32 {
        self.limits.transaction
    }

    pub(crate) fn extend(&self, transaction: &Arc<Transaction>, credits: u32) -> Result<()> {
        let state = self.state.read();
        self.check_alive()?;
        let refused = |refusal| Err(Error::ExtendRefused { tid: transaction.tid, wanted: credits, refusal });
        let running = state.running.as_ref().filter(|running| Arc::ptr_eq(&running.transaction, transaction));
        if state.quiesced > 0 || running.is_none_or(|running| running.locked) {
            return refused(ExtendRefusal::Locked);
        }
        if transaction.account.reserve(credits, self.limits.transaction) {
            Ok(())
        } else {
            refused(ExtendRefusal::TransactionFull)
        }
    }

    pub(crate) fn stop(&self, transaction: &Transaction, credits: u32) {
        transaction.account.end(credits);
        self.starters.announce();
        self.quiescers.announce();
    }

    pub(crate) fn count_joined(&self) {
        self.counters.handles_joined.add(1);
    }

    /// Quiesces the journal: waits until no handle is active; none starts until the result is dropped.
    /// Several holders may overlap. The caller holds no handle.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn lock_updates(&self) -> Result<UpdatesLocked<'_>> {
        self.check_alive()?;
        let transaction = {
            let mut state = self.state.write();
            state.quiesced += 1;
            state.running.as_ref().map(|running| Arc::clone(&running.transaction))
        };
        self.counters.quiesces.add(1);
        let locked = UpdatesLocked { journal: self };
        if let Some(transaction) = transaction {
            self.await_updates(&transaction)?;
        }
        Ok(locked)
    }

    /// Waits until no handle of the transaction is active. None can start.
    pub(crate) fn await_updates(&self, transaction: &Transaction) -> Result<()> {
        loop {
            let ticket = self.quiescers.enter();
            self.check_alive()?;
            if transaction.account.updates() == 0 {
                // A handle that fails in the middle aborts before it stops.
                return self.check_alive();
            }
            ticket.sleep();
        }
    }

    fn unlock_updates(&self) {
        self.state.write().quiesced -= 1;
        self.starters.announce_always();
    }

    /// The transaction that new handles join, if there is one.
    #[must_use]
    pub fn running_tid(&self) -> Option<Tid> {
        self.state.read().running.as_ref().map(|running| running.transaction.tid)
    }

    /// The blocks that the running transaction revokes, in order: once it is committed, older copies of them must not
    /// be replayed.
    #[must_use]
    pub fn revoked(&self) -> Vec<u64> {
        let state = self.state.read();
        state.running.as_ref().map_or_else(Vec::new, |running| running.transaction.revoked())
    }

    /// The number the next new transaction gets.
    #[must_use]
    pub fn sequence(&self) -> Tid {
        self.state.read().next
    }

    /// The oldest part of the log that is still needed.
    #[must_use]
    pub fn tail(&self) -> Tail {
        self.state.read().tail
    }

    /// The last committed transaction: its changes and those of all before it are durable. It only grows.
    ///
    /// The load acquires what [`Journal::committed`] released: a thread that reads a number here sees everything done
    /// before that commit.
    #[must_use]
    pub fn last_committed(&self) -> Tid {
        Tid(self.committed.load(Ordering::Acquire))
    }

    /// Makes transaction `tid` and all before it count as committed, whether or not they are: for tests of what becomes
    /// durable with a commit. Commits do this themselves once the commit block is durable and **never before**: from
    /// then on an `O_DSYNC` write over blocks that the transaction converted relies on FUA alone.
    ///
    /// # Errors
    /// [`Error::UnknownTransaction`] for a number that was never given out; [`Error::Aborted`]. In each case no further
    /// transaction counts as committed.
    pub fn committed(&self, tid: Tid) -> Result<()> {
        self.check_alive()?;
        if tid >= self.sequence() {
            return Err(Error::UnknownTransaction { tid });
        }
        self.note_committed(tid);
        Ok(())
    }

    pub(crate) fn note_committed(&self, tid: Tid) {
        self.committed.fetch_max(tid.0, Ordering::AcqRel);
    }

    /// The newest transaction that changed something and is not committed. Blocks read from the volume may contain
    /// changes of it or of an earlier one.
    #[must_use]
    pub fn newest_uncommitted(&self) -> Option<Tid> {
        let state = self.state.read();
        let running = state.running.as_ref().filter(|running| running.transaction.has_work());
        let newest = running.map(|running| running.transaction.tid);
        let newest = newest.or(state.committing.map(|place| place.tid));
        newest.filter(|newest| *newest > self.last_committed())
    }

    /// Whether changes of transaction `tid`, or of one before it, are not durable yet. An empty transaction needs no
    /// commit, but the one committing before it still counts: a caller that passes the number of its latest change has
    /// older ones too.
    #[must_use]
    pub fn commit_needed(&self, tid: Tid) -> bool {
        if tid <= self.last_committed() {
            return false;
        }
        let state = self.state.read();
        let running = state.running.as_ref().filter(|running| running.transaction.tid == tid);
        running.is_some_and(|running| running.transaction.has_work())
            || state.committing.is_some_and(|place| place.tid > self.last_committed())
    }

    /// Whether the log holds transactions, or will once the changes so far are committed.
    #[must_use]
    pub fn in_use(&self) -> bool {
        let state = self.state.read();
        let running = state.running.as_ref();
        state.begun
            || state.committing.is_some()
            || running.is_some_and(|running| running.transaction.has_work())
    }

    /// Age of the running transaction, an upper bound on how long its changes have waited for a commit. `None` if it
    /// has none.
    #[must_use]
    pub fn running_for(&self) -> Option<Duration> {
        let state = self.state.read();
        let running = state.running.as_ref().filter(|running| running.transaction.has_work());
        running.map(|running| running.transaction.begun.elapsed())
    }

    /// Stops the journal for good: every later start, extension, change and sync fails with the cause, and all waiters
    /// are woken. Only the first cause counts. Active handles can still be stopped. The error is recorded in the log's
    /// superblock if that can be written.
    pub fn abort(&self, cause: AbortCause) {
        let errno = cause.errno;
        if self.stop_for(cause) && !self.log_device().capabilities().read_only {
            // Ignore a failure to record it: the first cause counts.
            let _recorded = self.with_store(|store, device| store.set_error(device, errno));
        }
    }

    /// As [`Journal::abort`], but nothing is recorded: the device belongs to another process.
    pub fn abandon(&self, cause: AbortCause) {
        self.stop_for(cause);
    }

    /// Stops the journal, unless it is stopped. Returns whether this call did.
    fn stop_for(&self, cause: AbortCause) -> bool {
        let first = self.aborted.set(cause).is_ok();
        if first {
            self.starters.announce_always();
            self.quiescers.announce_always();
            self.turn.wake();
            if let (Some(hooks), Some(cause)) = (self.hooks.get(), self.aborted.get()) {
                hooks.aborted(cause);
            }
        }
        first
    }

    /// Aborts because of an error in the journal's own work, and returns the error that all callers get from now on.
    #[cold]
    pub(crate) fn fail(&self, doing: &str, error: Error) -> Error {
        let cause = match &error {
            // A cause from the file system, or the first cause.
            Error::Aborted(cause) => cause.clone(),
            error => AbortCause { what: format!("{doing}: {error}").into(), errno: error.errno() },
        };
        self.abort(cause);
        self.check_alive().err().unwrap_or(error)
    }

    /// A guard that aborts the journal if a panic drops it: the guarded work is incomplete.
    pub(crate) fn abort_if_panicking(&self) -> Unfinished<'_> {
        Unfinished(self)
    }

    /// Changes the superblock of the log.
    pub(crate) fn with_store(
        &self,
        change: impl FnOnce(&mut Store, &dyn Device) -> Result<()>,
    ) -> Result<()> {
        let changed = change(&mut self.store.lock(), &**self.log_device());
        if self.log.device().is_none() {
            // Forget the cached block: its contents are out of date.
            self.cache.forget(self.info.block)?;
        }
        changed
    }

    /// The device that holds the log.
    pub(crate) fn log_device(&self) -> &Arc<dyn Device> {
        device_of(&*self.log, &self.cache)
    }

    /// Why the journal was aborted, if it was.
    #[must_use]
    pub fn aborted(&self) -> Option<&AbortCause> {
        self.aborted.get()
    }

    /// Fails if the journal was aborted.
    ///
    /// # Errors
    /// [`Error::Aborted`] with the first cause.
    #[inline]
    pub fn check_alive(&self) -> Result<()> {
        match self.aborted.get() {
            None => Ok(()),
            Some(cause) => Err(Error::Aborted(cause.clone())),
        }
    }

    /// Counters and the running transaction.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        let counters = &self.counters;
        let full = |reason: FullCommit| counters.fast.full[reason as usize].get();
        let state = self.state.read();
        let mut stats = JournalStats {
            handles_started: counters.handles_started.get(),
            handles_joined: counters.handles_joined.get(),
            transactions_created: counters.transactions_created.get(),
            start_waits: counters.start_waits.get(),
            quiesces: counters.quiesces.get(),
            commits: counters.commits.get(),
            commit_nanoseconds: counters.commit_nanoseconds.get(),
            last_commit_nanoseconds: counters.last_commit_nanoseconds.get(),
            blocks_logged: counters.blocks_logged.get(),
            checkpoints: counters.checkpoints.get(),
            home_writes: counters.home_writes.get(),
            flushes: counters.flushes.get(),
            fast_commits: counters.fast.commits.get(),
            fast_commit_blocks: counters.fast.blocks.get(),
            full_for_area: full(FullCommit::AreaFull),
            full_for_undeclared: full(FullCommit::Undeclared),
            full_for_file: full(FullCommit::File),
            full_for_unused: full(FullCommit::LogUnused),
            free_blocks: state.space.free,
            reserved_blocks: self.reserved.blocks(),
            ..JournalStats::default()
        };
        if let Some(Running { transaction, .. }) = &state.running {
            stats.handles_started += transaction.account.handles();
            stats.handles_active = transaction.account.updates();
            stats.outstanding_credits = transaction.account.outstanding();
            stats.modified_blocks = transaction.modified();
        }
        stats
    }
}

/// See [`Journal::abort_if_panicking`].
pub(crate) struct Unfinished<'j>(&'j Journal);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort(AbortCause { what: "a panic in the middle of a change".into(), errno: libc::EIO });
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(Running { transaction, .. }) = &self.state.get_mut().running {
            transaction.release_unmodified(&self.cache);
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("info", &self.info)
            .field("limits", &self.limits)
            .field("state", &self.state)
            .field("aborted", &self.aborted)
            .finish_non_exhaustive()
    }
}

/// A quiesced journal: no handle is active and none starts until this is dropped.
#[derive(Debug)]
#[must_use = "the journal runs again as soon as this is dropped"]
pub struct UpdatesLocked<'j> {
    journal: &'j Journal,
}

impl Drop for UpdatesLocked<'_> {
    fn drop(&mut self) {
        self.journal.unlock_updates();
    }
}
