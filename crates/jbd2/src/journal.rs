//! The journal: opening, starting handles, quiescing, aborting, syncing.

use crate::space::{Limits, LogSpace};
use crate::superblock::JournalInfo;
use crate::sync::{AtomicU64, Ordering};
use crate::transaction::{Phase, Transaction};
use crate::wait::WaitQueue;
use crate::{AbortCause, Error, ExtendRefusal, LogMap, Result, Tid};
use parking_lot::RwLock;
use std::fmt;
use std::sync::{Arc, OnceLock};
use uext4_buffer::BufferCache;

/// An open journal. See the crate documentation.
pub struct Journal {
    cache: BufferCache,
    log: Arc<dyn LogMap>,
    info: JournalInfo,
    limits: Limits,
    state: RwLock<State>,
    /// Number of the last committed transaction. Shared with whoever asks whether a change is durable.
    committed: Arc<AtomicU64>,
    aborted: OnceLock<AbortCause>,
    /// Wait for credits, for an unlocked transaction, for the end of a quiesce.
    starters: WaitQueue,
    /// Wait for active handles to stop.
    quiescers: WaitQueue,
    counters: Counters,
}

/// What is running. Shared: start and extend handles. Exclusive: change any of it.
#[derive(Debug)]
struct State {
    running: Option<Running>,
    /// Number of the next transaction.
    next: Tid,
    /// Holders of [`UpdatesLocked`].
    quiesced: u32,
    tail: Tail,
    space: LogSpace,
}

#[derive(Debug)]
struct Running {
    transaction: Arc<Transaction>,
    phase: Phase,
}

#[derive(Debug)]
struct Counters {
    transactions_created: AtomicU64,
    handles_joined: AtomicU64,
    start_waits: AtomicU64,
    quiesces: AtomicU64,
}

/// Oldest part of the log that is still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Log block.
    pub log_block: u32,
    /// Transaction that is or will be there.
    pub sequence: Tid,
}

/// What a sync found to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyncOutcome {
    /// Every change of the transaction is durable as far as the log is concerned: it changed no metadata, or
    /// it was committed before. Data writes still need the device flush that the caller owes them.
    NothingToCommit,
}

/// What the journal did and holds. Read without stopping anything, so approximate while others work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct JournalStats {
    /// Handles started.
    pub handles_started: u64,
    /// Nested uses of a handle.
    pub handles_joined: u64,
    /// Handles active now.
    pub handles_active: u32,
    /// Transactions begun.
    pub transactions_created: u64,
    /// Times a start had to sleep.
    pub start_waits: u64,
    /// Times the journal was quiesced.
    pub quiesces: u64,
    /// Outstanding credits of the running transaction, its overhead included; 0 if none runs.
    pub outstanding_credits: u32,
    /// Blocks the running transaction has changed.
    pub modified_blocks: u32,
}

/// How an attempt to start a handle ended.
enum Attempt {
    Started(Arc<Transaction>),
    /// No transaction runs.
    Create,
    /// Somebody must act first: release the journal or the transaction, or return credits.
    Wait,
}

impl Journal {
    /// Opens the journal whose blocks `log` tells, for changing metadata. Reads the superblock; writes
    /// nothing. `committed` holds the number of the last committed transaction from now on
    /// ([`Journal::last_committed`]).
    ///
    /// # Errors
    /// [`Error::NeedsRecovery`] if the log is not empty; what [`JournalInfo::read`] refuses;
    /// [`Error::LogSpace`] if the log is too small for its own largest transaction.
    pub fn open(cache: BufferCache, log: Arc<dyn LogMap>, committed: Arc<AtomicU64>) -> Result<Journal> {
        let info = JournalInfo::read(&cache, &*log)?;
        if info.needs_recovery() {
            return Err(Error::NeedsRecovery { start: info.superblock.start, sequence: info.sequence() });
        }
        info.check_room()?;
        let limits = Limits::new(&info);
        let space = LogSpace::empty(&limits);
        // The superblock of an empty log holds the number of the last transaction that was in it. (So jbd2
        // reads it.)
        let next = info.sequence().next();
        committed.store(info.sequence().0, Ordering::Release);
        let tail = Tail { log_block: info.superblock.first, sequence: next };
        Ok(Journal {
            cache,
            log,
            info,
            limits,
            state: RwLock::new(State { running: None, next, quiesced: 0, tail, space }),
            committed,
            aborted: OnceLock::new(),
            starters: WaitQueue::new(),
            quiescers: WaitQueue::new(),
            counters: Counters {
                transactions_created: AtomicU64::new(0),
                handles_joined: AtomicU64::new(0),
                start_waits: AtomicU64::new(0),
                quiesces: AtomicU64::new(0),
            },
        })
    }

    /// What the superblock of the log says.
    #[must_use]
    pub fn info(&self) -> &JournalInfo {
        &self.info
    }

    /// The cache that holds the blocks this journal protects.
    #[must_use]
    pub fn cache(&self) -> &BufferCache {
        &self.cache
    }

    /// Where the blocks of the log are.
    #[must_use]
    pub fn log_map(&self) -> &Arc<dyn LogMap> {
        &self.log
    }

    /// Most credits one handle can have.
    #[must_use]
    pub fn max_handle_credits(&self) -> u32 {
        self.limits.handle()
    }

    /// Most outstanding credits of a transaction, its overhead included.
    #[must_use]
    pub fn max_transaction_credits(&self) -> u32 {
        self.limits.transaction
    }

    /// Begins an update with `credits` reserved, in the running transaction or a new one: [`Journal::start`].
    pub(crate) fn begin(&self, credits: u32) -> Result<Arc<Transaction>> {
        let maximum = self.limits.handle();
        if credits > maximum {
            return Err(Error::TooManyCredits { wanted: credits, maximum });
        }
        loop {
            match self.try_start(credits)? {
                Attempt::Started(transaction) => return Ok(transaction),
                Attempt::Create => self.create_transaction(),
                Attempt::Wait => {
                    if let Some(transaction) = self.wait_to_start(credits)? {
                        return Ok(transaction);
                    }
                }
            }
        }
    }

    fn try_start(&self, credits: u32) -> Result<Attempt> {
        let state = self.state.read();
        self.check_alive()?;
        if state.quiesced > 0 {
            return Ok(Attempt::Wait);
        }
        let Some(Running { transaction, phase }) = &state.running else { return Ok(Attempt::Create) };
        if *phase != Phase::Running {
            return Ok(Attempt::Wait);
        }
        state.space.check(&self.limits)?;
        if !transaction.account.reserve(credits, self.limits.transaction) {
            return Ok(Attempt::Wait);
        }
        // Still shared: whoever locks the transaction (exclusive) either comes before and was seen above, or
        // comes after and sees this update.
        transaction.account.begin();
        Ok(Attempt::Started(Arc::clone(transaction)))
    }

    #[cold]
    fn wait_to_start(&self, credits: u32) -> Result<Option<Arc<Transaction>>> {
        let ticket = self.starters.enter();
        match self.try_start(credits)? {
            Attempt::Started(transaction) => return Ok(Some(transaction)),
            Attempt::Create => return Ok(None),
            Attempt::Wait => self.check_waiting_helps(credits)?,
        }
        self.counters.start_waits.fetch_add(1, Ordering::Relaxed);
        ticket.sleep();
        Ok(None)
    }

    /// Waiting for credits is in vain once no active handle can return any.
    fn check_waiting_helps(&self, credits: u32) -> Result<()> {
        // Exclusive: no handle starts meanwhile, so "no active handle" stays true while the credits are
        // looked at.
        let state = self.state.write();
        let Some(Running { transaction, phase: Phase::Running }) = &state.running else { return Ok(()) };
        let account = &transaction.account;
        let in_vain = state.quiesced == 0
            && account.updates() == 0
            && account.outstanding().saturating_add(credits) > self.limits.transaction;
        if in_vain { Err(Error::CommitUnavailable { tid: transaction.tid }) } else { Ok(()) }
    }

    #[cold]
    fn create_transaction(&self) {
        let mut state = self.state.write();
        if state.running.is_some() || state.quiesced > 0 {
            return;
        }
        let transaction = Arc::new(Transaction::new(state.next, &self.limits));
        state.next = state.next.next();
        state.running = Some(Running { transaction, phase: Phase::Running });
        self.counters.transactions_created.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn extend(&self, transaction: &Arc<Transaction>, credits: u32) -> Result<()> {
        let state = self.state.read();
        self.check_alive()?;
        let refused = |refusal| Err(Error::ExtendRefused { tid: transaction.tid, wanted: credits, refusal });
        let running = state.running.as_ref().filter(|running| Arc::ptr_eq(&running.transaction, transaction));
        if !running.is_some_and(|running| running.phase == Phase::Running) {
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
        self.counters.handles_joined.fetch_add(1, Ordering::Relaxed);
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
            state.running.as_mut().map(|running| {
                running.phase = Phase::Locked;
                Arc::clone(&running.transaction)
            })
        };
        self.counters.quiesces.fetch_add(1, Ordering::Relaxed);
        let locked = UpdatesLocked { journal: self };
        if let Some(transaction) = transaction {
            loop {
                let ticket = self.quiescers.enter();
                self.check_alive()?;
                if transaction.account.updates() == 0 {
                    break;
                }
                ticket.sleep();
            }
        }
        Ok(locked)
    }

    fn unlock_updates(&self) {
        let mut state = self.state.write();
        state.quiesced -= 1;
        if state.quiesced == 0
            && let Some(running) = &mut state.running
        {
            running.phase = Phase::Running;
        }
        drop(state);
        self.starters.announce_always();
    }

    /// The transaction that new handles join, if there is one.
    #[must_use]
    pub fn running_tid(&self) -> Option<Tid> {
        self.state.read().running.as_ref().map(|running| running.transaction.tid)
    }

    /// The blocks that the running transaction freed: no older copy of them may be replayed once it is committed. In
    /// order.
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
    /// The load acquires what [`Journal::committed`] released: who sees a number here sees all that was done
    /// before that commit.
    #[must_use]
    pub fn last_committed(&self) -> Tid {
        Tid(self.committed.load(Ordering::Acquire))
    }

    /// Transaction `tid` and all before it are committed. Whoever commits calls it, for a transaction that takes no
    /// handle any more, once the commit block is durable and **never before**: from then on an `O_DSYNC` write over
    /// what the transaction converted takes FUA for enough.
    ///
    /// # Errors
    /// [`Error::UnknownTransaction`] for a number that was never given out; [`Error::Aborted`]. Nothing counts as
    /// committed then that did not before.
    pub fn committed(&self, tid: Tid) -> Result<()> {
        self.check_alive()?;
        if tid >= self.sequence() {
            return Err(Error::UnknownTransaction { tid });
        }
        self.committed.fetch_max(tid.0, Ordering::AcqRel);
        Ok(())
    }

    /// The newest transaction that changed something and is not committed. What is read from the volume's blocks may
    /// hold changes of it, or of one before it.
    #[must_use]
    pub fn newest_uncommitted(&self) -> Option<Tid> {
        let state = self.state.read();
        let mut newest = state.next.previous();
        if state.running.as_ref().is_some_and(|running| running.transaction.modified() == 0) {
            newest = newest.previous();
        }
        (newest > self.last_committed()).then_some(newest)
    }

    /// Whether changes of transaction `tid` are not durable yet. An empty transaction needs no commit.
    #[must_use]
    pub fn commit_needed(&self, tid: Tid) -> bool {
        if tid <= self.last_committed() {
            return false;
        }
        let state = self.state.read();
        let running = state.running.as_ref().filter(|running| running.transaction.tid == tid);
        running.is_some_and(|running| running.transaction.modified() > 0)
    }

    /// Makes the changes that stopped handles made in transaction `tid` durable, as far as the log is
    /// concerned.
    ///
    /// # Errors
    /// [`Error::CommitUnavailable`] if the transaction changed something; [`Error::UnknownTransaction`] for a
    /// number that was never given out; [`Error::Aborted`].
    pub fn datasync(&self, tid: Tid) -> Result<SyncOutcome> {
        self.check_alive()?;
        if self.commit_needed(tid) {
            return Err(Error::CommitUnavailable { tid });
        }
        if tid >= self.sequence() {
            return Err(Error::UnknownTransaction { tid });
        }
        Ok(SyncOutcome::NothingToCommit)
    }

    /// Stops the journal for good: every later start, extension, change and sync fails with the cause, and
    /// everybody who waits is woken. Only the first cause counts. Active handles can still be stopped.
    pub fn abort(&self, cause: AbortCause) {
        if self.aborted.set(cause).is_ok() {
            self.starters.announce_always();
            self.quiescers.announce_always();
        }
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
        let mut stats = JournalStats {
            handles_joined: counters.handles_joined.load(Ordering::Relaxed),
            transactions_created: counters.transactions_created.load(Ordering::Relaxed),
            start_waits: counters.start_waits.load(Ordering::Relaxed),
            quiesces: counters.quiesces.load(Ordering::Relaxed),
            ..JournalStats::default()
        };
        if let Some(Running { transaction, .. }) = &self.state.read().running {
            stats.handles_started = transaction.account.handles();
            stats.handles_active = transaction.account.updates();
            stats.outstanding_credits = transaction.account.outstanding();
            stats.modified_blocks = transaction.modified();
        }
        stats
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

/// The journal is quiesced: no handle is active and none starts. Dropping it ends that.
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
