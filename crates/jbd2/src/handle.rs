//! One operation's membership in the running transaction.

use crate::transaction::Transaction;
use crate::{AbortCause, Error, FreedRun, Journal, Reservation, Result, Tid};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4_buffer::{BufferPin, Owner};

/// A handle: the right to change up to [`Handle::credits`] more blocks in one transaction. Made by
/// [`Journal::start`], ended by [`Handle::stop`].
///
/// The changes of a handle must be complete when it stops. A handle dropped after its first change, by an error return
/// or a panic, leaves a partial change in the transaction: the journal is aborted, and the transaction is not
/// committed. Before the first change it may be dropped.
///
/// The transaction cannot commit while a handle is active, so hold one only for the change itself: never
/// across a wait for a gate, a drain, a sync or another handle.
#[derive(Debug)]
#[must_use = "a handle that is dropped at once covers nothing"]
pub struct Handle<'j> {
    journal: &'j Journal,
    transaction: Arc<Transaction>,
    credits: u32,
    /// Whether something was changed. (Atomic only so that a handle can be shared; there is one writer.)
    changed: AtomicBool,
    /// Whether fast commits describe everything that it changes. (Atomic only so that `Option<Handle>` has its mark in
    /// the reference: with a `bool` here, overwrites that start no handle copy their results in pieces.)
    declared: AtomicBool,
}

impl Journal {
    /// Starts a handle that may change `credits` blocks, in the running transaction or a new one.
    ///
    /// Waits while the journal is quiesced, and while the transaction or the log is full: it commits and checkpoints
    /// itself unless another thread is doing so. The caller holds no handle and no lock that comes after handles.
    ///
    /// # Errors
    /// [`Error::Aborted`]; [`Error::TooManyCredits`] if no transaction can hold that many.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        Ok(Handle::new(self, self.begin(credits)?, credits))
    }

    /// Starts a handle whose log blocks were reserved. Waits while the journal is quiesced and while active handles of
    /// a transaction that is about to commit finish, but never for room in the log.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn start_reserved(&self, reservation: Reservation) -> Result<Handle<'_>> {
        let transaction = self.begin_reserved(reservation.blocks())?;
        Ok(Handle::new(self, transaction, reservation.credits()))
    }
}

impl<'j> Handle<'j> {
    fn new(journal: &'j Journal, transaction: Arc<Transaction>, credits: u32) -> Self {
        Handle {
            journal,
            transaction,
            credits,
            changed: AtomicBool::new(false),
            declared: AtomicBool::new(false),
        }
    }

    /// The transaction. Pass it to [`Journal::datasync`] to make the change durable.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.transaction.tid
    }

    /// Credits left: blocks that may still be changed for the first time in this transaction.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// A nested use of the same handle, for an inner operation that would start its own: shares the credits
    /// and does not end the handle.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn join(&mut self) -> Result<Joined<'_, 'j>> {
        self.journal.check_alive()?;
        self.journal.count_joined();
        Ok(Joined { outer: self })
    }

    /// Declares that the records which the file system gives for a fast commit of this transaction
    /// ([`crate::CommitHooks::describe`]) describe everything that this handle has changed and will change. After a
    /// handle that changes something without it the transaction is only committed in full.
    pub fn declare(&mut self) {
        *self.declared.get_mut() = true;
    }

    /// Asks for more credits in the same transaction. Never waits.
    ///
    /// # Errors
    /// [`Error::ExtendRefused`] if the transaction is locked or full: stop the handle and start another one.
    /// [`Error::Aborted`].
    pub fn extend(&mut self, credits: u32) -> Result<()> {
        self.journal.extend(&self.transaction, credits)?;
        self.credits += credits;
        Ok(())
    }

    /// Stops this handle and starts another one, with `credits`: in the same transaction, or in a later one if that is
    /// full or about to commit. The changes so far must be complete, since the two handles may not become durable
    /// together. Waits as [`Journal::start`] does; the caller holds no lock that comes after handles.
    ///
    /// # Errors
    /// As [`Journal::start`]; the handle has stopped in that case too.
    pub fn restart(self, credits: u32) -> Result<Handle<'j>> {
        let journal = self.journal;
        self.stop()?;
        journal.start(credits)
    }

    /// The data of this inode must be complete before the transaction commits ([`crate::CommitHooks::send_ordered`]).
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn order(&mut self, inode: u64) -> Result<()> {
        self.journal.check_alive()?;
        self.transaction.note_undeclared();
        self.transaction.order(inode);
        Ok(())
    }

    /// Records freed blocks, which may be allocated once the transaction is committed
    /// ([`crate::CommitHooks::committed`]). Metadata blocks must also be [revoked](Handle::revoke).
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn free_at_commit(&mut self, run: FreedRun) -> Result<()> {
        self.journal.check_alive()?;
        self.transaction.free(run);
        Ok(())
    }

    /// Files a buffer under the transaction, before it is changed. Costs no credit.
    ///
    /// # Errors
    /// [`Error::Aborted`]; [`Error::Buffer`] if the cache refuses (wrong cache, read-only device, device
    /// blocks larger than blocks).
    pub fn get_write_access(&mut self, pin: &BufferPin) -> Result<()> {
        self.journal.check_alive()?;
        self.journal.cache().join(pin, self.tid())?;
        self.transaction.add_member(pin);
        Ok(())
    }

    /// [`Handle::get_write_access`], then [`Handle::dirty_for`]: in one step if the transaction has changed the buffer
    /// before.
    ///
    /// # Errors
    /// As there.
    pub fn change_for<R>(
        &mut self,
        pin: &BufferPin,
        whom: u128,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.journal.check_alive()?;
        if !self.transaction.has_changed(pin.block()) {
            self.get_write_access(pin)?;
            return self.dirty_for(pin, whom, f);
        }
        let owner = Owner::Transaction(self.tid());
        let change = |bytes: &mut [u8]| {
            // Before the change, which may panic in the middle.
            self.changed.store(true, Ordering::Relaxed);
            f(bytes)
        };
        self.journal.cache().modify_for(pin, owner, whom, change).map_err(Error::from)
    }

    /// Changes a buffer that has write access, reading it first if it is not in memory. The first change of a
    /// block by the transaction costs one credit. `f` runs with the buffer locked and must not use the cache
    /// or the handle.
    ///
    /// # Errors
    /// [`Error::NoWriteAccess`], [`Error::OutOfCredits`], [`Error::Aborted`], or [`Error::Buffer`] if the block cannot
    /// be read. In each case `f` was not run and no credit is charged.
    pub fn dirty<R>(&mut self, pin: &BufferPin, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.dirty_for(pin, 0, f)
    }

    /// The same of contents that are sound for `whom` afterwards, as they were before
    /// ([`uext4_buffer::BufferCache::modify_for`]).
    ///
    /// # Errors
    /// As [`Handle::dirty`].
    pub fn dirty_for<R>(&mut self, pin: &BufferPin, whom: u128, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.admit(pin)?;
        let owner = Owner::Transaction(self.tid());
        let change = self.charged(pin.block(), f);
        self.journal.cache().modify_for(pin, owner, whom, change).map_err(Error::from).map(
            |(paid, result)| {
                self.credits -= paid;
                result
            },
        )
    }

    /// Gives a buffer that has write access entirely new contents: `f` gets zeroes and the block is not read.
    /// Otherwise as [`Handle::dirty`].
    ///
    /// # Errors
    /// As [`Handle::dirty`].
    pub fn overwrite<R>(&mut self, pin: &BufferPin, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.admit(pin)?;
        let owner = Owner::Transaction(self.tid());
        let change = self.charged(pin.block(), f);
        self.journal.cache().overwrite(pin, owner, change).map_err(Error::from).map(|(paid, result)| {
            self.credits -= paid;
            result
        })
    }

    /// Revokes a block that is no longer metadata, which ends its write access. Older copies of it in the log must not
    /// be replayed: the transaction keeps the block on its revoke list until it gets write access again. A revoke block
    /// of the log holds many records; the handle that starts one pays a credit.
    ///
    /// The commit writes the list and then forgets the buffers; until then the cache keeps them, and the block must not
    /// be reused.
    ///
    /// # Errors
    /// [`Error::OutOfCredits`], [`Error::Aborted`], or [`Error::Buffer`] for a block outside the volume. In each case
    /// nothing was recorded.
    pub fn revoke(&mut self, block: u64) -> Result<()> {
        self.journal.check_alive()?;
        let blocks = self.journal.cache().blocks();
        if block >= blocks {
            return Err(uext4_buffer::Error::OutOfRange { block, blocks }.into());
        }
        let mut left = self.credits;
        let credit = || left.checked_sub(1).map(|rest| left = rest).is_some();
        if !self.transaction.revoke(block, credit) {
            return Err(Error::OutOfCredits { block });
        }
        self.credits = left;
        self.changed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the handle and returns its unused credits.
    ///
    /// # Errors
    /// [`Error::Aborted`] if the journal was aborted while the handle was active: its changes will not become
    /// durable. The handle has ended in any case.
    pub fn stop(self) -> Result<()> {
        self.note_undeclared();
        self.changed.store(false, Ordering::Relaxed);
        self.journal.check_alive()
    }

    /// Before the handle stops counting as active, so that a fast commit that waits for it sees this.
    fn note_undeclared(&self) {
        if !self.declared.load(Ordering::Relaxed) && self.changed.load(Ordering::Relaxed) {
            self.transaction.note_undeclared();
        }
    }

    /// Checks that the block may be changed and, for its first change, that a credit is left.
    fn admit(&self, pin: &BufferPin) -> Result<()> {
        self.journal.check_alive()?;
        let block = pin.block();
        if !self.transaction.is_modified(block)? && self.credits == 0 {
            return Err(Error::OutOfCredits { block });
        }
        Ok(())
    }

    /// Wraps a change so that the transaction records it if and only if it is made; also returns the credits it cost.
    fn charged<R>(&self, block: u64, f: impl FnOnce(&mut [u8]) -> R) -> impl FnOnce(&mut [u8]) -> (u32, R) {
        move |bytes| {
            // Before the change, which may panic in the middle.
            self.changed.store(true, Ordering::Relaxed);
            let first = self.transaction.mark_modified(block);
            (u32::from(first), f(bytes))
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if self.changed.load(Ordering::Relaxed) {
            let panicked = std::thread::panicking();
            let what = if panicked { "a panic in a handle" } else { "a handle dropped without a stop" };
            // Abort before the handle stops counting as active, so that a waiting commit does not proceed.
            self.journal.abort(AbortCause { what: what.into(), errno: libc::EIO });
        }
        self.journal.stop(&self.transaction, self.credits);
    }
}

/// A nested use of a [`Handle`] (see [`Handle::join`]). Dropping it leaves the handle active.
#[derive(Debug)]
pub struct Joined<'h, 'j> {
    outer: &'h mut Handle<'j>,
}

impl<'j> Deref for Joined<'_, 'j> {
    type Target = Handle<'j>;
    fn deref(&self) -> &Handle<'j> {
        self.outer
    }
}

impl<'j> DerefMut for Joined<'_, 'j> {
    fn deref_mut(&mut self) -> &mut Handle<'j> {
        self.outer
    }
}
