//! The snapshots that each thread used last.
//!
//! Borrowing the published snapshot takes two locked instructions (`arc_swap`); a kept one takes none. A kept snapshot
//! is current while the cell's version equals the version loaded before it. Keeping one changes the reference count of
//! its `Arc`, which all threads share, so a thread keeps a snapshot only when it uses the same map twice in a row.

use super::{MapCell, MapSnapshot};
use std::cell::{Cell, Ref, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of maps that a thread keeps, and so may hold in memory after all other users have dropped them.
const KEPT: usize = 4;

/// The place for the map of every `KEPT`th cell.
struct Place {
    /// Borrowed during a look-up, so that a nested look-up in another map cannot replace it.
    kept: RefCell<Kept>,
    /// The cell borrowed from since the kept map was last used; 0 if none.
    borrowed: Cell<u64>,
}

struct Kept {
    /// Number of the cell; 0 if none.
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
    // Fails while the thread is ending.
    let found = PLACES.try_with(|places| {
        let kept = places[cell.number as usize % KEPT].current_of(cell)?;
        kept.map.as_deref().map(look)
    });
    found.ok().flatten()
}

impl Place {
    /// The kept snapshot of `cell`, if it is current.
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

    /// Keeps the current snapshot if this map is worth keeping; otherwise the kept one stays.
    #[cold]
    #[inline(never)]
    fn renew(&self, cell: &MapCell) -> Option<Ref<'_, Kept>> {
        let mut kept = self.kept.try_borrow_mut().ok()?;
        if kept.number != cell.number && self.borrowed.replace(cell.number) != cell.number {
            return None;
        }
        // Drop the old map first.
        kept.map = None;
        let (version, map) = cell.current();
        *kept = Kept { number: cell.number, version, map: Some(map) };
        drop(kept);
        self.kept.try_borrow().ok()
    }
}
