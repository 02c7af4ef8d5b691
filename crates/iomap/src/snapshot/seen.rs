//! The snapshots that each thread looked at last.
//!
//! Borrowing the published one takes two instructions with a lock (`arc_swap`). The rule for one that is kept is that
//! of a queue, which keeps an `Arc` per file: it is current as long as the cell's generation is the one that was loaded
//! before it. Keeping and giving up change the count of the `Arc`, which all threads share, so a snapshot is borrowed
//! until a thread has looked at the same map twice running.

use super::{MapCell, MapSnapshot};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maps that a thread keeps at most, which is what it may hold in memory after nobody else needs it.
const KEPT: usize = 4;

struct Seen {
    /// Of the cell.
    number: u64,
    /// Not newer than `map`.
    generation: u64,
    map: Arc<MapSnapshot>,
}

/// Where the maps of every `KEPT`th cell are kept.
struct Place {
    /// Taken out while it is in use: whoever looks meanwhile, from within, finds none.
    seen: Cell<Option<Seen>>,
    /// The cell that was borrowed from since the kept one was looked at; 0 is none.
    borrowed: Cell<u64>,
}

thread_local! {
    static PLACES: [Place; KEPT] =
        const { [const { Place { seen: Cell::new(None), borrowed: Cell::new(0) } }; KEPT] };
}

/// A number for a new cell, never 0.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs `look` on the current snapshot of `cell`.
#[inline]
pub(super) fn with<T>(cell: &MapCell, look: impl FnOnce(&MapSnapshot) -> T) -> T {
    let index = cell.number as usize % KEPT;
    // None while the thread ends.
    match PLACES.try_with(|places| take(&places[index], cell)).ok().flatten() {
        Some(seen) => {
            let found = look(&seen.map);
            let _ended = PLACES.try_with(|places| places[index].seen.set(Some(seen)));
            found
        }
        None => look(&cell.current.load()),
    }
}

#[inline]
fn take(place: &Place, cell: &MapCell) -> Option<Seen> {
    let seen = place.seen.take();
    match &seen {
        Some(it) if it.number == cell.number && it.generation == cell.generation() => {
            place.borrowed.set(0);
            seen
        }
        _ => renew(place, cell, seen),
    }
}

/// What is current now, if this map is worth keeping; else what was there stays.
#[cold]
fn renew(place: &Place, cell: &MapCell, stale: Option<Seen>) -> Option<Seen> {
    let kept = stale.as_ref().is_some_and(|seen| seen.number == cell.number);
    if !kept && place.borrowed.replace(cell.number) != cell.number {
        place.seen.set(stale);
        return None;
    }
    drop(stale);
    let (generation, map) = cell.current();
    Some(Seen { number: cell.number, generation, map })
}
