//! Where the pointer blocks of an indirect map were found: no map has one of them twice.

use std::collections::HashMap;
use uext4_ondisk::Pblk;

/// Pointer blocks remembered per inode, about 24 MiB. Beyond that it starts over, and on a volume with more pointer
/// blocks than this may miss a map that shares blocks.
const PLACES_MAX: usize = 1 << 20;

/// Where each pointer block of one inode was found.
#[derive(Debug, Default)]
pub(crate) struct PointerPlaces(parking_lot::Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    /// How often nodes of maps had left their blocks when these were found
    /// ([`Ground::nodes_left`](crate::ground::state::Ground::nodes_left)).
    left: u64,
    /// Level and first logical block under it.
    found: HashMap<Pblk, (u32, u64)>,
}

impl PointerPlaces {
    /// Bytes of memory used.
    pub(super) fn bytes(&self) -> usize {
        // An entry and its control byte.
        self.0.lock().found.capacity() * (size_of::<(Pblk, (u32, u64))>() + 1)
    }

    /// Forgets all places: the map has changed.
    pub(crate) fn forget(&self) {
        self.0.lock().found.clear();
    }

    /// Whether `block` was found at this place before, or nowhere yet. `left`: how often nodes of maps had left their
    /// blocks before the look-up began. Since then any of these may be another node, or data.
    pub(crate) fn agrees(&self, block: Pblk, place: (u32, u64), left: u64) -> bool {
        let mut places = self.0.lock();
        if left < places.left {
            return true;
        }
        if left > places.left || places.found.len() >= PLACES_MAX {
            places.found.clear();
            places.left = left;
        }
        *places.found.entry(block).or_insert(place) == place
    }
}
