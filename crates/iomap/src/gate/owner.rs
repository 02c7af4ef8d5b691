//! How a thread comes to own a gate, and gives it up.
//!
//! Whoever opens a file often looks at it or changes its size, and then another thread reads and writes it. So a look
//! or a change is a *visit*: who owns the gate by a visit only gives it up at the end, and the thread that comes next
//! owns it.

use super::{HELD, InodeGate, InodeGuard, NOBODY, VISIT};
use crate::sync::Ordering;
use crate::thread_slot::{OWNED_SLOTS, thread_slot};

impl InodeGate {
    /// Makes the calling thread the owner of a gate that nobody has used yet.
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

    /// Ends a visit of the calling thread: if it owns the gate and nobody else has come, the next one
    /// that comes owns it.
    pub fn end_visit(&self) {
        let slot = thread_slot();
        let owner = slot as u64 + 1;
        let owned = self.owner.load(Ordering::Relaxed) == slot as u64;
        // Of a gate that others use the owner stays: a lease may name its slot, and whoever revokes it looks for its
        // cell.
        if !owned || self.users.load(Ordering::Relaxed) != owner {
            return;
        }
        if self.first.counts.load(Ordering::Relaxed) != 0 {
            return;
        }
        // Before the word of users: from then on it may be another thread's.
        self.owner.store(NOBODY, Ordering::Relaxed);
        if self.users.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.owner.store(slot as u64, Ordering::Relaxed);
        }
    }
}
