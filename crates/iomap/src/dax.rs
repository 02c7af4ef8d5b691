//! Room 2, `dax-no-dio-count`: copies from and to mapped memory.
//!
//! Fast route: copy under the inode guard; nothing is counted in flight. Plain route: count up before the copy and down
//! after it. Safe because the functions take an [`InodeGuard`]: the copy is synchronous and inside the gate, so none
//! can be running while a drainer holds the gate exclusively.

use crate::engine::Engine;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::gate::InodeGuard;
use uext4_blockdev::WriteDurability;

impl<F: FileSystem> Engine<F> {
    /// Copies out of mapped memory. `counted`: count it in flight (plain route).
    #[inline(always)]
    pub(crate) fn copy_out(
        &self,
        held: &InodeGuard<'_>,
        buf: &mut [u8],
        physical: u64,
        counted: bool,
    ) -> Result<(), Error> {
        let _in_flight = counted.then(|| held.count_in_flight());
        Ok(self.device.read_at(buf, physical)?)
    }

    /// Copies into mapped memory. `counted`: count it in flight (plain route).
    #[inline(always)]
    pub(crate) fn copy_in(
        &self,
        held: &InodeGuard<'_>,
        buf: &[u8],
        physical: u64,
        durability: WriteDurability,
        counted: bool,
    ) -> Result<(), Error> {
        let _in_flight = counted.then(|| held.count_in_flight());
        Ok(self.device.write_at(buf, physical, durability)?)
    }
}
