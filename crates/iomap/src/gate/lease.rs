//! A lent gate: one thread takes it exclusively by a mark in its own cell, as a sole owner does, although others have
//! used it before and may use it again.
//!
//! `exclusive` names the borrower, between its holds too, so all other threads find the gate closed. The borrower
//! stores its mark, then checks that the word still names it. Any other thread *revokes* the lease: it sets a bit in
//! the word, executes the barrier for both sides, then reads the mark. At least one sees the other. If there is no
//! mark, the gate is opened and used like any open gate; otherwise the thread waits until the borrower leaves.
//!
//! A lease starts when a thread that held the gate in turn leaves it: the gate is lent to that thread, if no other
//! caller is inside and nothing is in flight. So a lease starts with a drained gate, and its holds need not read other
//! cells. A revoker either has the turn or is counted as inside in its cell. Either keeps the gate from being lent
//! again, so a late revoker cannot end the next lease.

use super::{CLOSED, Cell, HELD, InodeGate, InodeGuard, LENT, OPEN, is_quiet};
use crate::sync::{Ordering, heavy_fence, store_then_fence};
use crate::turns::Turns;
use std::marker::PhantomData;

/// Bit of `exclusive`: the word names a borrower.
const LEASED: u64 = 1 << 1;
/// Bit of `exclusive`: the lease is being revoked.
const REVOKED: u64 = 1 << 2;
const SLOT_SHIFT: u32 = 3;

/// Whether the gate is lent to `slot` and the lease is not being revoked.
fn is_lent_to(word: u64, slot: usize) -> bool {
    word == (slot as u64) << SLOT_SHIFT | LEASED
}

impl InodeGate {
    /// Whether the gate is lent, held or not.
    #[doc(hidden)]
    pub fn is_lent(&self) -> bool {
        self.exclusive.load(Ordering::Acquire) & LEASED != 0
    }

    /// Whether the gate is held exclusively, judged by the word alone.
    pub(super) fn is_closed(&self) -> bool {
        let word = self.exclusive.load(Ordering::SeqCst);
        match word & LEASED {
            0 => word != OPEN,
            _ => self.borrower(word).counts.load(Ordering::Relaxed) & HELD != 0,
        }
    }

    fn borrower(&self, word: u64) -> &Cell {
        self.shared_cell_of((word >> SLOT_SHIFT) as usize)
    }

    /// Whether a caller that found the gate not open, and is counted as inside in its cell, may stay. `own`: slot and
    /// cell of a thread.
    #[cold]
    pub(super) fn lets_in(&self, own: Option<(usize, &Cell)>) -> bool {
        let word = self.exclusive.load(Ordering::SeqCst);
        match own {
            // The borrower meets no other thread here; it may stay unless it holds the gate itself.
            Some((slot, cell)) if is_lent_to(word, slot) => cell.counts.load(Ordering::Relaxed) & HELD == 0,
            // A thread that closes the gate from now on reads all cells and finds this one.
            _ => word & LEASED != 0 && self.revoke(),
        }
    }

    /// Takes the gate for its borrower. Nothing is in flight then.
    pub(super) fn lock_lent(&self, slot: usize) -> Option<InodeGuard<'_>> {
        let word = self.exclusive.load(Ordering::Relaxed);
        if !is_lent_to(word, slot) {
            return None;
        }
        let cell = self.shared_cell_of(slot);
        if cell.counts.load(Ordering::Relaxed) != 0 {
            return None;
        }
        store_then_fence(|order| cell.counts.store(HELD, order));
        if self.exclusive.load(Ordering::SeqCst) != word {
            self.leave_lent(slot);
            return None;
        }
        self.turns.count_lent();
        Some(InodeGuard { gate: self, cell, slot, amount: LENT, _not_send: PhantomData })
    }

    /// Clears the borrower's mark.
    pub(super) fn leave_lent(&self, slot: usize) {
        let cell = self.shared_cell_of(slot);
        let counts = cell.counts.load(Ordering::Relaxed);
        cell.counts.store(counts & !HELD, Ordering::Release);
        // A thread that arrives at this moment soon checks again unasked.
        if !is_lent_to(self.exclusive.load(Ordering::Relaxed), slot) {
            self.shared_waiters.announce_all();
        }
    }

    /// Ends a lease. `false`: the borrower holds the gate, or another thread is revoking it. `true`: the lease has
    /// ended. The caller has the turn, or is counted as inside in its cell.
    pub(super) fn revoke(&self) -> bool {
        let word = self.exclusive.load(Ordering::SeqCst);
        if word & LEASED == 0 {
            return true;
        }
        let revoked = word | REVOKED;
        let said = word == revoked
            || self.exclusive.compare_exchange(word, revoked, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !said {
            // Another thread has just revoked it, or the lease has ended: the next check tells.
            return false;
        }
        // Each revoker needs its own fence: another one may not have reached its fence yet.
        heavy_fence();
        if self.borrower(word).counts.load(Ordering::SeqCst) & HELD != 0 {
            return false;
        }
        if self.exclusive.compare_exchange(revoked, OPEN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.shared_waiters.announce_all();
        }
        true
    }

    /// Ends a lease for a thread that has the turn, waiting while the borrower holds the gate.
    pub(super) fn end_lease(&self, help: &mut dyn FnMut()) {
        let turn = Unused(&self.turns);
        while !self.revoke() {
            self.wait_open(help);
        }
        std::mem::forget(turn);
    }

    /// Ends a hold in turn by `slot`: lends it the gate if allowed and no other thread is there, else opens the gate.
    /// Returns whether it was lent.
    pub(super) fn lend_or_open(&self, slot: usize, may_lend: bool) -> bool {
        // In models a thread may be waiting at any time.
        let wanted = cfg!(not(loom)) && self.shared_waiters.any();
        // A queue that comes later finds the gate lent (`InodeGate::register`).
        let queues = self.queues.lock();
        if !may_lend || wanted || !queues.is_empty() || !self.own_cells().all(|cell| is_quiet(cell, !0)) {
            drop(queues);
            self.open();
            return false;
        }
        debug_assert_eq!(self.exclusive.load(Ordering::Relaxed), CLOSED);
        self.exclusive.store((slot as u64) << SLOT_SHIFT | LEASED, Ordering::SeqCst);
        drop(queues);
        // Waiters find the gate lent and revoke the lease.
        self.shared_waiters.announce_all();
        true
    }
}

/// Passes the turn on if `help` panics.
struct Unused<'a>(&'a Turns);

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
