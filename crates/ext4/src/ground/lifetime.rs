//! What the superblock says of all writes: when the last one was, and how much was written in the volume's life.
//!
//! Linux sets both whenever it writes the superblock on its own: at mount, when it reports an error, at unmount. Here
//! that is when the log comes into use, when a close ends that, and at recovery. Changes of the superblock in a
//! transaction leave both, as in Linux.

use super::clock::Clock;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_iomap::{Counter, Counters};
use uext4_ondisk::ext4::Superblock;

/// What was written since the volume was opened. Blocks of the log and of the cache count in the journal.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The engine's counters, once there is an engine.
    engine: OnceLock<Counters>,
    /// Bytes past both engine and cache.
    beside: AtomicU64,
}

impl Written {
    /// Connects the engine's counters.
    pub(crate) fn connect(&self, engine: Counters) {
        let _first_stays = self.engine.set(engine);
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        let engine = self.engine.get().map_or(0, |counters| counters.stats().get(Counter::BytesWritten));
        engine + self.beside.load(Ordering::Relaxed)
    }

    /// Counts bytes that were written to the device past engine and cache.
    pub(crate) fn add(&self, bytes: u64) {
        self.beside.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Sets the write time of a superblock that is about to be written.
///
/// Leaves it if its high byte would change: that byte lies in the second sector, and the checksum does not survive a
/// power cut between two changed sectors (`seal.rs`). The byte is the same until the year 2106.
pub(crate) fn stamp_time(superblock: &mut Superblock, clock: Clock) {
    let now = clock.seconds();
    if now >> 32 == superblock.times.written >> 32 {
        superblock.times.written = now;
    }
}
