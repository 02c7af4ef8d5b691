//! Where the pointer blocks of an indirect map were met: no map has one of them twice.

use std::collections::HashMap;
use uext4_ondisk::Pblk;

/// Places of pointer blocks that are remembered per inode: 24 MiB or so. Beyond, it starts anew; what is then
/// missed is a map that shares blocks on a volume with more of them than this.
const PLACES_MAX: usize = 1 << 20;

/// Where each pointer block of one inode was met: level and first logical block under it.
#[derive(Debug, Default)]
pub(crate) struct PointerPlaces(parking_lot::Mutex<HashMap<Pblk, (u32, u64)>>);

impl PointerPlaces {
    /// Bytes of memory that they take.
    pub(super) fn bytes(&self) -> usize {
        // An entry and its control byte.
        self.0.lock().capacity() * (size_of::<(Pblk, (u32, u64))>() + 1)
    }

    /// Nothing was met: the map is another one by now.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }

    /// Whether `block` was met here or nowhere yet.
    pub(crate) fn agrees(&self, block: Pblk, place: (u32, u64)) -> bool {
        let mut places = self.0.lock();
        if places.len() >= PLACES_MAX {
            places.clear();
        }
        *places.entry(block).or_insert(place) == place
    }
}
