//! Committing: writes one transaction to the log while the next one runs.
//!
//! | step | meanwhile |
//! |---|---|
//! | the running transaction is locked; its handles stop | no handle starts |
//! | its buffers are frozen, its log blocks are taken | |
//! | ordered data, revoke blocks, descriptors and copies are written | the next transaction runs |
//! | one flush, then the commit block, durable | |
//! | home writes are due, freed blocks forgotten, the number of the last commit advances | |
//! | the file system is told, waiters return | |

use crate::io::flush;
use crate::journal::{Journal, Logged, Place};
use crate::log_writer::{Contents, Target};
use crate::probes;
use crate::space::Tail;
use crate::transaction::{Frozen, Transaction};
use crate::{AbortCause, Error, Result, Tid};
use std::sync::Arc;
use std::time::Instant;
use uext4_buffer::BufferPin;

/// The result of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyncOutcome {
    /// Nothing had to be committed: the transaction changed no metadata, or it was committed before. The caller must
    /// still flush the device for its data writes.
    NothingToCommit,
    /// The transaction was committed by this call, or by another thread during it.
    Committed {
        /// Whether a device flush that started after this call began is complete: then data writes that completed
        /// before the call are durable too.
        flushed: bool,
    },
}

impl Journal {
    /// Makes the changes that stopped handles made in transaction `tid` durable, as far as the log is concerned:
    /// commits it on this thread, or waits for another thread's commit. The caller holds no handle.
    ///
    /// # Errors
    /// [`Error::UnknownTransaction`] for a number that was never given out; [`Error::Aborted`].
    pub fn datasync(&self, tid: Tid) -> Result<SyncOutcome> {
        self.check_alive()?;
        if !self.commit_needed(tid) {
            let known = tid < self.sequence();
            return if known {
                Ok(SyncOutcome::NothingToCommit)
            } else {
                Err(Error::UnknownTransaction { tid })
            };
        }
        let flushes = self.counters.flushes.get();
        let done = || !self.commit_needed(tid) || self.aborted().is_some();
        while let Some(turn) = self.turn.take_unless(done) {
            // On a panic, abort before the turn is released: no other commit may follow.
            let _unfinished = self.abort_if_panicking();
            let committed = self.commit_running().map_err(|error| self.fail("commit", error));
            drop(turn);
            committed?;
        }
        self.check_alive()?;
        Ok(SyncOutcome::Committed { flushed: self.counters.flushed.get() > flushes })
    }

    /// Commits what has been changed so far, in the running transaction and the one that is committing. When it
    /// returns, the file system has been told of all commits.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn commit_all(&self) -> Result<SyncOutcome> {
        self.check_alive()?;
        let newest = {
            let state = self.state.read();
            let running = state.running.as_ref().filter(|running| running.transaction.has_work());
            running.map(|running| running.transaction.tid).or(state.committing.map(|place| place.tid))
        };
        let Some(newest) = newest else { return Ok(SyncOutcome::NothingToCommit) };
        let outcome = self.datasync(newest)?;
        // It counts as committed slightly before the work that follows a commit is done.
        let over = || self.state.read().committing.is_none() || self.aborted().is_some();
        drop(self.turn.take_unless(over));
        self.check_alive()?;
        Ok(outcome)
    }

    /// The running transaction becomes a committed one. The caller has the turn.
    fn commit_running(&self) -> Result<()> {
        let Some(transaction) = self.lock_running() else { return Ok(()) };
        let began = Instant::now();
        probes::commit_start(transaction.tid);
        self.await_updates(&transaction)?;
        let frozen = transaction.freeze(&self.cache)?;
        let place = self.switch(&transaction, &frozen)?;
        self.write_log(place, &frozen)?;
        self.end_fast_commits()?;
        probes::commit(place.tid, place.blocks);
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counters.commit_nanoseconds.add(took);
        self.counters.last_commit_nanoseconds.set(took);
        self.finish(place, frozen)
    }

    /// Locks the running transaction: no handle starts until the switch.
    fn lock_running(&self) -> Option<Arc<Transaction>> {
        let mut state = self.state.write();
        let running = state.running.as_mut().filter(|running| running.transaction.has_work())?;
        running.locked = true;
        Some(Arc::clone(&running.transaction))
    }

    /// Takes the transaction's log blocks; then the next one may begin.
    fn switch(&self, transaction: &Transaction, frozen: &Frozen) -> Result<Place> {
        let needed = self.limits.needed(frozen.copies.len(), frozen.revoked.len());
        let mut state = self.state.write();
        let free = state.space.free;
        // The credits guarantee it.
        state.space.free = free.checked_sub(needed).ok_or(Error::LogSpace { free, needed })?;
        let place = Place { tid: transaction.tid, start: state.head, blocks: needed };
        state.head = self.ring.after(state.head, needed);
        state.committing = Some(place);
        state.running = None;
        drop(state);
        self.counters.handles_started.add(transaction.account.handles());
        self.starters.announce_always();
        Ok(place)
    }

    fn write_log(&self, place: Place, frozen: &Frozen) -> Result<()> {
        let device = &**self.log_device();
        let mut writer = self.writer.lock();
        let target = Target {
            device,
            log: &*self.log,
            format: self.format,
            limits: &self.limits,
            ring: self.ring,
            uuid: self.superblock.uuid,
        };
        self.begin_log(place)?;
        self.ask(|hooks| hooks.send_ordered(place.tid, &frozen.ordered), frozen)?;
        let contents = Contents {
            sequence: place.tid.sequence(),
            revoked: &frozen.revoked,
            copies: &frozen.copies,
            home: BufferPin::block,
        };
        let shared = self.log.device().is_none();
        let ending = if frozen.ordered.is_empty() && shared {
            // No data to wait for: the flush can follow the last log block at once.
            self.flush_by(|| writer.write(&target, place.start, &contents, true))?
        } else {
            let ending = writer.write(&target, place.start, &contents, false)?;
            self.ask(|hooks| hooks.await_ordered(place.tid, &frozen.ordered), frozen)?;
            self.flush_devices()?;
            ending
        };
        self.check_alive()?;
        writer.commit(&target, ending)
    }

    /// Marks the log as in use in its superblock, durable with the flush before the commit block.
    fn begin_log(&self, place: Place) -> Result<()> {
        if self.state.read().begun {
            return Ok(());
        }
        if let Some(hooks) = self.hooks.get() {
            hooks.log_begins().map_err(Error::Aborted)?;
        }
        let tail = Tail { log_block: place.start, sequence: place.tid };
        self.erase_fast_commits()?;
        self.with_store(|store, device| store.begin(device, tail))?;
        let mut state = self.state.write();
        state.begun = true;
        state.tail = tail;
        Ok(())
    }

    fn ask(
        &self,
        call: impl FnOnce(&dyn crate::CommitHooks) -> std::result::Result<(), AbortCause>,
        frozen: &Frozen,
    ) -> Result<()> {
        match self.hooks.get() {
            Some(hooks) if !frozen.ordered.is_empty() => call(&**hooks).map_err(Error::Aborted),
            _ => Ok(()),
        }
    }

    /// Flushes the device of the volume, then that of the log if it is another one.
    pub(crate) fn flush_devices(&self) -> Result<()> {
        self.flush_device()?;
        self.log.device().map_or(Ok(()), |device| flush(&**device))
    }

    /// Flushes the device of the volume, counted so that other threads can tell whether it covers their data.
    pub(crate) fn flush_device(&self) -> Result<()> {
        self.flush_by(|| flush(&**self.cache.device()))
    }

    /// The same for an operation that ends with a flush.
    fn flush_by<T>(&self, flush: impl FnOnce() -> Result<T>) -> Result<T> {
        let number = self.counters.flushes.add(1);
        let flushed = flush()?;
        self.counters.flushed.raise(number);
        Ok(flushed)
    }

    /// Finishes a commit whose commit block is durable.
    fn finish(&self, place: Place, frozen: Frozen) -> Result<()> {
        let Frozen { copies, revoked, freed, .. } = frozen;
        let mut pins = Vec::with_capacity(copies.len());
        for (pin, image) in copies {
            // Release the image, so that the next change of the block need not copy it.
            drop(image);
            self.cache.committed(&pin, place.tid)?;
            pins.push(pin);
        }
        for block in revoked {
            self.cache.forget_freed(block)?;
        }
        self.note_committed(place.tid);
        self.counters.commits.add(1);
        self.counters.blocks_logged.add(u64::from(place.blocks));
        if let Some(hooks) = self.hooks.get() {
            hooks.committed(place.tid, &freed);
        }
        let mut state = self.state.write();
        state.logged.push_back(Logged { place, pins });
        state.committing = None;
        Ok(())
    }
}
