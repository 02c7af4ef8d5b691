//! The snapshots that each thread looked at last.
//!
//! Borrowing the published one takes two instructions with a lock (`arc_swap`). A kept one takes none. It is current
//! while the cell's version is the one that was loaded before it. Keeping one changes the count of its `Arc`, which all
//! threads share. So a thread keeps a snapshot only when it looks at the same map twice in a row.

use super::{MapCell, MapSnapshot};
use std::cell::{Cell, Ref, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maps that a thread keeps at most, which is what it may hold in memory after nobody else needs it.
const KEPT: usize = 4;

/// Where the map of every `KEPT`th cell may be kept.
struct Place {
    /// Borrowed while somebody looks: whoever looks at another map meanwhile, from within, cannot change it.
    kept: RefCell<Kept>,
    /// The cell that was borrowed from since the kept one was looked at; 0 is none.
    borrowed: Cell<u64>,
}

struct Kept {
    /// Number of the cell; 0 is none.
    number: u64,
    /// Not newer than `map`.
    version: u64,
    map: Option<Arc<MapSnapshot>>,
}

impl Kept {
    #[inline]
    fn is_of(&self, cell: &MapCell) -> bool {
        self.number == cell.number && self.version == cell.version()
    }
}

thread_local! {
    static PLACES: [Place; KEPT] = const {
        [const {
            Place { kept: RefCell::new(Kept { number: 0, version: 0, map: None }), borrowed: Cell::new(0) }
        }; KEPT]
    };
}

/// A number for a new cell, never 0.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs `look` on the current snapshot of `cell` if it is kept, or worth keeping from now on.
#[inline(always)]
pub(super) fn with<T>(cell: &MapCell, look: impl FnOnce(&MapSnapshot) -> T) -> Option<T> {
    // Not while the thread ends.
    let found = PLACES.try_with(|places| {
        let kept = places[cell.number as usize % KEPT].current_of(cell)?;
        kept.map.as_deref().map(look)
    });
    found.ok().flatten()
}

impl Place {
    /// What is kept of `cell`, if it is current.
    #[inline(always)]
    fn current_of(&self, cell: &MapCell) -> Option<Ref<'_, Kept>> {
        match self.kept.try_borrow() {
            Ok(kept) if kept.is_of(cell) => {
                self.borrowed.set(0);
                Some(kept)
            }
            other => {
                drop(other);
                self.renew(cell)
            }
        }
    }

    /// What is current now, if this map is worth keeping; else what was there stays.
    #[cold]
    #[inline(never)]
    fn renew(&self, cell: &MapCell) -> Option<Ref<'_, Kept>> {
        let mut kept = self.kept.try_borrow_mut().ok()?;
        if kept.number != cell.number && self.borrowed.replace(cell.number) != cell.number {
            return None;
        }
        // What is not needed any more goes first.
        kept.map = None;
        let (version, map) = cell.current();
        *kept = Kept { number: cell.number, version, map: Some(map) };
        drop(kept);
        self.kept.try_borrow().ok()
    }
}
