//! When a file was last written: noted by its writers, each in its own cell.

use super::{Cell, InodeGate, MARKED};
use crate::sync::Ordering;

impl InodeGate {
    /// Notes a write through a queue's cell at `now_ns` (coarse real time since 1970).
    #[inline]
    pub fn note_write(&self, cell: &Cell, now_ns: u64) {
        cell.modified_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Notes a write at this moment, by a thread that does not hold the gate.
    pub fn note_write_now(&self) {
        self.left_modified_ns.fetch_max(crate::clock::coarse_now_ns(), Ordering::Relaxed);
    }

    /// Time of the latest write through any cell in nanoseconds since 1970, or 0 if there was none. Where the times of
    /// a file are told or stored, this one counts if it is later.
    pub fn last_write_ns(&self) -> u64 {
        let of = |cell: &Cell| {
            if cell.modified_ns.load(Ordering::Relaxed) != MARKED {
                return cell.modified_ns.load(Ordering::Relaxed);
            }
            let now = crate::clock::coarse_now_ns();
            // If the owner marks the cell again in between, that mark stays and is resolved next time.
            let _marked_again =
                cell.modified_ns.compare_exchange(MARKED, now, Ordering::Relaxed, Ordering::Relaxed);
            now
        };
        let queues = self.queues.lock();
        let latest = self.own_cells().map(of).chain(queues.iter().map(|cell| of(cell))).max().unwrap_or(0);
        latest.max(self.left_modified_ns.load(Ordering::Relaxed))
    }

    /// Forgets the times of all writes so far, because the file is given another time. A write during the call may be
    /// forgotten or not; later writes count even if the clock has not advanced.
    pub fn forget_writes(&self) {
        let queues = self.queues.lock();
        let cells = self.own_cells().chain(queues.iter().map(|cell| &***cell));
        cells.for_each(|cell| cell.modified_ns.store(0, Ordering::Relaxed));
        self.left_modified_ns.store(0, Ordering::Relaxed);
    }
}
