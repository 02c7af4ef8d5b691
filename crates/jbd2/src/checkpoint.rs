//! Checkpoint: writes committed blocks home to free their log space.
//!
//! A committed transaction keeps the list of its blocks. Each buffer records the transaction that committed the block
//! last, until that image is written home; only blocks that name this transaction are still due for it. So a block that
//! a later transaction committed again leaves the older list without a search, while a block that a later transaction
//! has only changed stays on it.
//!
//! The order: home writes (in block order, neighbours together), a flush, then a durable write of the superblock with
//! the new tail. Only then are the log blocks before the tail reused.

use crate::journal::{Journal, Place, State};
use crate::space::Tail;
use crate::{Result, Tid};
use parking_lot::MutexGuard;

impl Journal {
    /// Frees log space until `goal` blocks are free or no committed transaction is left. Returns false if there was
    /// none.
    pub(crate) fn retire(&self, checkpointing: &MutexGuard<'_, ()>, goal: u32) -> Result<bool> {
        self.check_alive()?;
        let _unfinished = self.abort_if_panicking();
        self.try_retire(checkpointing, goal).map_err(|error| self.fail("checkpoint", error))
    }

    fn try_retire(&self, _: &MutexGuard<'_, ()>, goal: u32) -> Result<bool> {
        let mut pins = Vec::new();
        let (mut transactions, mut freed, mut newest) = (0, 0, Tid(0));
        {
            let mut state = self.state.write();
            let free = state.space.free;
            for logged in &mut state.logged {
                if free + freed >= goal {
                    break;
                }
                // Its place stays in the list, so that the tail cannot pass it before all home writes are done.
                pins.append(&mut logged.pins);
                (transactions, newest) = (transactions + 1, logged.place.tid);
                freed += logged.place.blocks;
            }
        }
        if transactions == 0 {
            return Ok(false);
        }
        pins.sort_unstable_by_key(uext4_buffer::BufferPin::block);
        pins.dedup_by_key(|pin| pin.block());
        let written = self.cache.write_committed(&pins, newest)?;
        drop(pins);
        // This also covers blocks that other threads wrote home.
        self.flush_device()?;
        self.check_alive()?;
        let tail = tail_behind(&self.state.read(), transactions);
        self.with_store(|store, device| store.set_tail(device, tail))?;
        let mut state = self.state.write();
        state.logged.drain(..transactions);
        state.space.free += freed;
        state.tail = tail;
        drop(state);
        self.counters.checkpoints.add(1);
        self.counters.home_writes.add(written);
        self.starters.announce_always();
        Ok(true)
    }

    /// Writes everything committed home and moves the tail past it. Transactions that commit during the call may stay
    /// in the log.
    ///
    /// # Errors
    /// [`crate::Error::Aborted`].
    pub fn checkpoint(&self) -> Result<()> {
        let checkpointing = self.checkpointing.lock();
        self.retire(&checkpointing, u32::MAX).map(drop)
    }

    /// Commits and writes home everything, then makes an empty log durable: the volume needs no recovery afterwards.
    /// Waits until no handle is active; none starts until it returns. The caller holds no handle. For closing, and
    /// before the volume is read without this journal; the journal can be used again afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Aborted`].
    pub fn empty_log(&self) -> Result<()> {
        let _quiet = self.lock_updates()?;
        self.commit_all()?;
        let checkpointing = self.checkpointing.lock();
        self.retire(&checkpointing, u32::MAX)?;
        let (begun, sequence) = {
            let state = self.state.read();
            (state.begun, next_to_commit(&state))
        };
        if !begun {
            return Ok(());
        }
        let emptied = self.with_store(|store, device| store.set_empty(device, sequence));
        emptied.map_err(|error| self.fail("emptying the log", error))?;
        let mut state = self.state.write();
        state.begun = false;
        state.head = self.ring.first;
        state.tail = Tail { log_block: self.ring.first, sequence };
        Ok(())
    }
}

/// The tail of the log once its oldest `transactions` are removed.
fn tail_behind(state: &State, transactions: usize) -> Tail {
    let oldest = state.logged.get(transactions).map(|logged| logged.place);
    let of_place = |place: Place| Tail { log_block: place.start, sequence: place.tid };
    let next = || Tail { log_block: state.head, sequence: next_to_commit(state) };
    oldest.or(state.committing).map_or_else(next, of_place)
}

/// The transaction that commits next, if none is committing.
fn next_to_commit(state: &State) -> Tid {
    state.running.as_ref().map_or(state.next, |running| running.transaction.tid)
}
