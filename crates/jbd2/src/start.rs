//! Starting handles, and the waits of a start: for credits, a commit, log space. A waiter does the work itself unless
//! another thread is doing it.

use crate::journal::{Journal, Running};
use crate::space::LogSpace;
use crate::transaction::Transaction;
use crate::{Error, Result, Tid};
use std::sync::Arc;

/// How an attempt to start a handle ended.
enum Attempt {
    Started(Arc<Transaction>),
    /// No transaction runs.
    Create,
    /// Another thread must act first: end a quiesce, or finish locking the transaction.
    Locked,
    /// The transaction has too few credits left, and something to commit.
    Full(Tid),
    /// The transaction has too few credits left because of active handles.
    Taken,
    /// The log has too little room.
    NoRoom,
}

/// Where the log blocks of a handle come from.
#[derive(Clone, Copy)]
enum Source {
    /// Free log blocks.
    Free,
    /// Log blocks reserved for it.
    Reserved,
}

impl Journal {
    /// Begins an update with `credits` reserved, in the running transaction or a new one.
    pub(crate) fn begin(&self, credits: u32) -> Result<Arc<Transaction>> {
        let maximum = self.limits.handle();
        if credits > maximum {
            return Err(Error::TooManyCredits { wanted: credits, maximum });
        }
        self.begin_from(Source::Free, credits)
    }

    /// Begins an update whose log blocks are reserved.
    pub(crate) fn begin_reserved(&self, blocks: u32) -> Result<Arc<Transaction>> {
        self.begin_from(Source::Reserved, blocks)
    }

    fn begin_from(&self, source: Source, credits: u32) -> Result<Arc<Transaction>> {
        loop {
            match self.try_start(source, credits)? {
                Attempt::Started(transaction) => return Ok(transaction),
                Attempt::Create => self.create_transaction(),
                waiting => {
                    self.counters.start_waits.add(1);
                    match waiting {
                        Attempt::Full(tid) => drop(self.datasync(tid)?),
                        Attempt::NoRoom => self.make_room(0)?,
                        _ => {
                            if let Some(transaction) = self.sleep_to_start(source, credits)? {
                                return Ok(transaction);
                            }
                        }
                    }
                }
            }
        }
    }

    fn try_start(&self, source: Source, credits: u32) -> Result<Attempt> {
        let state = self.state.read();
        self.check_alive()?;
        if state.quiesced > 0 {
            return Ok(Attempt::Locked);
        }
        let Some(Running { transaction, locked }) = &state.running else { return Ok(Attempt::Create) };
        if *locked {
            return Ok(Attempt::Locked);
        }
        let account = &transaction.account;
        match source {
            Source::Reserved => account.add(credits),
            Source::Free if !state.space.has_room(&self.limits, self.reserved.blocks()) => {
                return Ok(Attempt::NoRoom);
            }
            Source::Free if !account.reserve(credits, self.limits.transaction) => {
                let full = transaction.has_work();
                return Ok(if full { Attempt::Full(transaction.tid) } else { Attempt::Taken });
            }
            Source::Free => {}
        }
        // Still under the shared lock: a thread that locks the transaction (exclusively) either came before and was
        // seen above, or comes after and sees this update.
        account.begin();
        Ok(Attempt::Started(Arc::clone(transaction)))
    }

    /// Sleeps until a handle stops or the quiesce ends, unless that has happened.
    #[cold]
    fn sleep_to_start(&self, source: Source, credits: u32) -> Result<Option<Arc<Transaction>>> {
        let ticket = self.starters.enter();
        match self.try_start(source, credits)? {
            Attempt::Started(transaction) => return Ok(Some(transaction)),
            Attempt::Locked | Attempt::Taken => ticket.sleep(),
            Attempt::Create | Attempt::Full(_) | Attempt::NoRoom => {}
        }
        Ok(None)
    }

    #[cold]
    fn create_transaction(&self) {
        let mut state = self.state.write();
        if state.running.is_some() || state.quiesced > 0 {
            return;
        }
        let transaction = Arc::new(Transaction::new(state.next, &self.limits));
        state.next = state.next.next();
        state.running = Some(Running { transaction, locked: false });
        self.counters.transactions_created.add(1);
    }

    /// Frees log space until the largest transaction fits in addition to the reservations and `more` blocks, or makes
    /// progress towards that; the caller checks again.
    #[cold]
    pub(crate) fn make_room(&self, more: u32) -> Result<()> {
        self.check_alive()?;
        let (committing, free) = {
            let checkpointing = self.checkpointing.lock();
            let reserved = self.reserved.blocks().saturating_add(more);
            if self.state.read().space.has_room(&self.limits, reserved) {
                return Ok(());
            }
            if self.retire(&checkpointing, LogSpace::goal(&self.limits, reserved))? {
                return Ok(());
            }
            let state = self.state.read();
            (state.committing, state.space.free)
        };
        // No committed transaction is left to checkpoint: the used log space is being committed.
        match committing {
            Some(place) => self.datasync(place.tid).map(drop),
            None if free >= self.limits.usable => {
                Err(Error::LogSpace { free, needed: self.limits.transaction.saturating_add(more) })
            }
            None => Ok(()),
        }
    }
}
