//! Checkpoint: committed blocks go home, so that their log space is free.
//!
//! A committed transaction keeps the list of its blocks. Which of them are still due for it each buffer knows: the
//! transaction that committed the block last, as long as that image is not home. So a block that a younger transaction
//! committed again is off the older list without a search, and one that it merely changed is not.
//!
//! The order: home writes (in block order, neighbours together), flush, the superblock with the new tail, durable. Only
//! then are the log blocks before the tail used again.

use crate::journal::{Journal, Place, State};
use crate::space::Tail;
use crate::{Result, Tid};
use parking_lot::MutexGuard;

impl Journal {
    /// Frees log space until `goal` blocks are free or no committed transaction is left. False if there was none.
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
                // Its place stays in the list, so the tail cannot pass it before all is done.
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
        // Also for what others wrote home.
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

    /// Writes home everything that is committed, and moves the tail behind it. What commits meanwhile may stay.
    ///
    /// # Errors
    /// [`crate::Error::Aborted`].
    pub fn checkpoint(&self) -> Result<()> {
        let checkpointing = self.checkpointing.lock();
        self.retire(&checkpointing, u32::MAX).map(drop)
    }

    /// Commits and writes home everything, then makes an empty log durable: the volume needs no recovery afterwards.
    /// Waits until no handle is active; none starts meanwhile. The caller holds no handle. For closing, and for
    /// whoever reads the volume past this journal; it can be used again afterwards.
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

/// What the log begins with once its oldest transactions are off it.
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
