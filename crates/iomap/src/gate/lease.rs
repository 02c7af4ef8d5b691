//! A gate that is lent: one thread takes it exclusively by a mark in its own cell, as an owner alone does, though
//! others have used it before and will again.
//!
//! The word of exclusive holders names the borrower and stays so between its holds, so everybody else finds the gate
//! closed. The borrower stores its mark, then looks whether the word still names it. Whoever else comes *revokes* the
//! lease: says so in the word, pays for the barrier of both sides, then looks for the mark. At least one sees the
//! other. Is there no mark, the gate is opened, and whoever came goes on as with any open gate; otherwise he waits
//! until the borrower leaves.
//!
//! Only who holds the gate in turn lends it, when he leaves, to himself, and only if nobody is inside and nothing is in
//! flight. So a lease begins with a drained gate, and needs no look at other cells. Who revokes it either has the turn
//! or says in his cell that he is inside. Both keep others from lending the gate again, so nobody who is late ends the
//! next lease.

use super::{CLOSED, Cell, HELD, InodeGate, InodeGuard, LENT, OPEN, is_quiet};
use crate::sync::{Ordering, heavy_fence, store_then_fence};
use crate::turns::Turns;
use std::marker::PhantomData;

/// Of the word: it names a borrower, …
const LEASED: u64 = 1 << 1;
/// … and somebody looks whether it holds the gate.
const REVOKED: u64 = 1 << 2;
const SLOT_SHIFT: u32 = 3;

/// Whether the word says that the gate is lent to `slot`, and that nobody wants it back.
fn is_lent_to(word: u64, slot: usize) -> bool {
    word == (slot as u64) << SLOT_SHIFT | LEASED
}

impl InodeGate {
    /// Whether the gate is lent to somebody, who may hold it or not.
    #[doc(hidden)]
    pub fn is_lent(&self) -> bool {
        self.exclusive.load(Ordering::Acquire) & LEASED != 0
    }

    /// Whether somebody holds the gate, as far as the word tells.
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

    /// Whether somebody who found the gate not open, and whose cell says that he is inside, may stay. `own`: slot and
    /// cell of a thread.
    #[cold]
    pub(super) fn lets_in(&self, own: Option<(usize, &Cell)>) -> bool {
        let word = self.exclusive.load(Ordering::SeqCst);
        match own {
            // It does not meet others here, unless it holds the gate itself.
            Some((slot, cell)) if is_lent_to(word, slot) => cell.counts.load(Ordering::Relaxed) & HELD == 0,
            // Who closes it from now on looks at all cells and finds that one.
            _ => word & LEASED != 0 && self.revoke(),
        }
    }

    /// The gate for its borrower. Nothing is in flight then.
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

    /// Takes the borrower's mark away.
    pub(super) fn leave_lent(&self, slot: usize) {
        let cell = self.shared_cell_of(slot);
        let counts = cell.counts.load(Ordering::Relaxed);
        cell.counts.store(counts & !HELD, Ordering::Release);
        // Who comes at this moment looks again by itself soon.
        if !is_lent_to(self.exclusive.load(Ordering::Relaxed), slot) {
            self.shared_waiters.announce_all();
        }
    }

    /// Ends a lease. `false`: the borrower holds the gate, or somebody else is at it. `true`: there is none any more.
    /// The caller has the turn, or its cell says that it is inside.
    pub(super) fn revoke(&self) -> bool {
        let word = self.exclusive.load(Ordering::SeqCst);
        if word & LEASED == 0 {
            return true;
        }
        let revoked = word | REVOKED;
        let said = word == revoked
            || self.exclusive.compare_exchange(word, revoked, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !said {
            // Somebody else has just said so, or the lease has ended: the next look tells.
            return false;
        }
        // Somebody else who said so may not be as far yet: each pays for itself.
        heavy_fence();
        if self.borrower(word).counts.load(Ordering::SeqCst) & HELD != 0 {
            return false;
        }
        if self.exclusive.compare_exchange(revoked, OPEN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.shared_waiters.announce_all();
        }
        true
    }

    /// Ends a lease for somebody who has the turn, once its borrower does not hold the gate.
    pub(super) fn end_lease(&self, help: &mut dyn FnMut()) {
        let turn = Unused(&self.turns);
        while !self.revoke() {
            self.wait_open(help);
        }
        std::mem::forget(turn);
    }

    /// A hold in turn by `slot` ends: the gate is lent to it if it may be and nobody else is there, or opened. Whether
    /// it was lent.
    pub(super) fn lend_or_open(&self, slot: usize, may_lend: bool) -> bool {
        // In models somebody may always wait.
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
        // They find the gate lent, and revoke.
        self.shared_waiters.announce_all();
        true
    }
}

/// A turn that is somebody else's if `help` panics.
struct Unused<'a>(&'a Turns);

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
