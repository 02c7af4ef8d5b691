//! The snapshot that each thread looked at last.
//!
//! Borrowing the published one takes two instructions with a lock (`arc_swap`), which cost as much as the rest of
//! a look-up whose line is in the processor's caches. The rule is that of a queue, which keeps an `Arc` per file:
//! a kept snapshot is current as long as the cell's generation is the one that was loaded before it.

use super::{MapCell, MapSnapshot};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Seen {
    /// Of the cell.
    number: u64,
    /// Not newer than `map`.
    generation: u64,
    map: Arc<MapSnapshot>,
}

thread_local! {
    /// Taken out while it is in use: whoever looks meanwhile, from within or while the thread ends, finds none.
    static LAST: Cell<Option<Seen>> = const { Cell::new(None) };
}

/// A number for a new cell.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs `look` on the current snapshot of `cell`.
#[inline]
pub(super) fn with<T>(cell: &MapCell, look: impl FnOnce(&MapSnapshot) -> T) -> T {
    let seen = match LAST.try_with(Cell::take) {
        Ok(Some(seen)) if seen.number == cell.number && seen.generation == cell.generation() => seen,
        Ok(other) => load(cell, other),
        Err(_ending) => load(cell, None),
    };
    let found = look(&seen.map);
    // A thread that is ending keeps nothing any more.
    let _ended = LAST.try_with(|last| last.set(Some(seen)));
    found
}

/// What is current now, instead of what was.
#[cold]
fn load(cell: &MapCell, stale: Option<Seen>) -> Seen {
    drop(stale);
    let (generation, map) = cell.current();
    Seen { number: cell.number, generation, map }
}
