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

/// Where the maps of every `KEPT`th cell are kept.
struct Place {
    /// Number of the cell whose snapshot is kept; 0 is none.
    number: Cell<u64>,
    /// Not newer than `map`.
    generation: Cell<u64>,
    /// Taken out while it is in use: whoever looks meanwhile, from within, finds none.
    map: Cell<Option<Arc<MapSnapshot>>>,
    /// The cell that was borrowed from since the kept one was looked at; 0 is none.
    borrowed: Cell<u64>,
}

thread_local! {
    static PLACES: [Place; KEPT] = const {
        [const {
            Place {
                number: Cell::new(0),
                generation: Cell::new(0),
                map: Cell::new(None),
                borrowed: Cell::new(0),
            }
        }; KEPT]
    };
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
        Some((generation, map)) => {
            let found = look(&map);
            let _ended = PLACES.try_with(|places| put_back(&places[index], cell.number, generation, map));
            found
        }
        None => look(&cell.current.load()),
    }
}

#[inline]
fn take(place: &Place, cell: &MapCell) -> Option<(u64, Arc<MapSnapshot>)> {
    let generation = cell.generation();
    if place.number.get() == cell.number && place.generation.get() == generation {
        place.borrowed.set(0);
        return place.map.take().map(|map| (generation, map));
    }
    renew(place, cell)
}

#[inline]
fn put_back(place: &Place, number: u64, generation: u64, map: Arc<MapSnapshot>) {
    // Unless somebody looked from within and kept something else here, or something newer.
    if place.number.get() == number && place.generation.get() == generation {
        place.map.set(Some(map));
    }
}

/// What is current now, if this map is worth keeping; else what was there stays.
#[cold]
fn renew(place: &Place, cell: &MapCell) -> Option<(u64, Arc<MapSnapshot>)> {
    let kept = place.number.get() == cell.number;
    if !kept && place.borrowed.replace(cell.number) != cell.number {
        return None;
    }
    place.map.take();
    let (generation, map) = cell.current();
    place.number.set(cell.number);
    place.generation.set(generation);
    Some((generation, map))
}
