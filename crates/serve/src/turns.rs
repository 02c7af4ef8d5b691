//! Writes of any bytes to a device, which reads and writes whole blocks only.
//!
//! The blocks at the edges of such a write are read, changed and written back. A write of whole blocks in between would
//! be undone by that, so both kinds take turns: whole blocks are written side by side, and a write of some bytes is
//! alone. Files of a volume have their gate for this.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a waiter looks again, should it have missed the last write's end.
const AGAIN: Duration = Duration::from_millis(5);

/// Who may write.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Writes of whole blocks in flight.
    whole: AtomicU64,
    /// Those who are alone or wait for it.
    claims: AtomicU64,
    alone: Mutex<()>,
    last: Condvar,
}

/// While it lives, no other write is under way.
pub(crate) struct Alone<'t> {
    turns: &'t Turns,
    _held: MutexGuard<'t, ()>,
}

impl Turns {
    /// Begins a write of whole blocks. `false`: not now, it must be made alone.
    pub(crate) fn begin(&self) -> bool {
        // In this order: a claimer counts itself before it looks at the writes.
        self.whole.fetch_add(1, Ordering::SeqCst);
        if self.claims.load(Ordering::SeqCst) == 0 {
            return true;
        }
        self.end();
        false
    }

    /// Ends a write that [`Turns::begin`] allowed.
    pub(crate) fn end(&self) {
        if self.whole.fetch_sub(1, Ordering::SeqCst) == 1 && self.claims.load(Ordering::SeqCst) > 0 {
            self.last.notify_all();
        }
    }

    /// Waits for its turn. The threads of other writes must go on meanwhile.
    pub(crate) fn alone(&self) -> Alone<'_> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        let mut held = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        while self.whole.load(Ordering::SeqCst) > 0 {
            held = self.last.wait_timeout(held, AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        Alone { turns: self, _held: held }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.turns.claims.fetch_sub(1, Ordering::SeqCst);
    }
}
