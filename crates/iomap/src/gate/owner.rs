//! How a thread becomes the owner of a gate, and gives it up.
//!
//! Often one thread opens a file and looks at it or changes its size, and another then reads and writes it. So a look
//! or a size change is a *visit*: a thread that became owner by a visit gives the gate up when the visit ends, and the
//! next thread becomes the owner.

use super::{CLOSED, HELD, InodeGate, InodeGuard, NOBODY, VISIT};
use crate::sync::{Ordering, heavy_fence};
use crate::thread_slot::{OWNED_SLOTS, thread_slot};
use std::marker::PhantomData;

impl InodeGate {
    /// Makes the calling thread the owner of an unused gate.
    pub(super) fn claim(&self, slot: usize) -> bool {
        let owner = slot as u64 + 1;
        let claimed = slot < OWNED_SLOTS
            && self.users.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if claimed {
            self.owner.store(slot as u64, Ordering::Relaxed);
        }
        claimed
    }

    /// [`InodeGate::lock_exclusive`] for a visit.
    pub fn visit_exclusive(&self, drain: bool, help: &mut dyn FnMut()) -> InodeGuard<'_> {
        let mut held = self.lock_exclusive(drain, help);
        if held.amount == HELD {
            held.amount |= VISIT;
        }
        held
    }

    /// [`InodeGate::visit_exclusive`] with nothing in flight, unless it had to wait for another thread.
    pub fn try_visit_exclusive(&self) -> Option<InodeGuard<'_>> {
        let slot = thread_slot();
        if let Some(mut held) = self.lock_alone(slot).or_else(|| self.lock_lent(slot)) {
            if held.amount == HELD {
                held.amount |= VISIT;
            }
            return Some(held);
        }
        if !self.join() || !self.turns.try_take() {
            return None;
        }
        if !self.revoke() {
            self.turns.give_up();
            return None;
        }
        // As of a hold in turn.
        self.exclusive.store(CLOSED, Ordering::SeqCst);
        heavy_fence();
        let cell = self.shared_cell_of(slot);
        let guard = InodeGuard { gate: self, cell, slot, amount: 0, _not_send: PhantomData };
        self.quiet(!0).then_some(guard)
    }

    /// Ends a visit of the calling thread: if it owns the gate and no other thread has used it, the next thread becomes
    /// the owner.
    pub fn end_visit(&self) {
        let slot = thread_slot();
        let owner = slot as u64 + 1;
        let owned = self.owner.load(Ordering::Relaxed) == slot as u64;
        // A shared gate keeps its owner, so that a revoker never sees `owner` change. No model needs this check: a
        // borrower that is here holds nothing, and sees the mark of the revoker at its next hold.
        if !owned || self.users.load(Ordering::Relaxed) != owner {
            return;
        }
        if self.first.counts.load(Ordering::Relaxed) != 0 {
            return;
        }
        // Before `users` is changed: after that the gate may have another owner.
        self.owner.store(NOBODY, Ordering::Relaxed);
        if self.users.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.owner.store(slot as u64, Ordering::Relaxed);
        }
    }
}
