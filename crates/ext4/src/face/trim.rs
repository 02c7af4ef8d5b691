//! Telling the device which blocks are free.

use crate::face::volume::Volume;
use crate::ground::error::{Error, Result};
use std::ops::Range;
use uext4_iomap::FileSystem;

impl Volume {
    /// Discards the free blocks of a range of the volume (in bytes), as `fstrim` does, and returns how many bytes that
    /// were. Free runs shorter than `minimum` bytes are skipped, and so are blocks freed by a transaction that is not
    /// durable yet. It works group by group; no blocks of a group are allocated while it is trimmed.
    ///
    /// # Errors
    /// [`Error::Io`] if the device does not support discard; [`Error::ReadOnly`]; [`Error::Aborted`]; those of reading
    /// groups, and of the device. What was discarded until then stays discarded.
    pub fn trim(&self, range: Range<u64>, minimum: u64) -> Result<u64> {
        if !self.shared.is_ours() {
            return Err(uext4_blockdev::Error::Forked.into());
        }
        if !self.is_writable() {
            return Err(Error::ReadOnly("the volume was opened read-only"));
        }
        if !self.device().capabilities().discard {
            return Err(uext4_blockdev::Error::Unsupported("discard".into()).into());
        }
        let state = self.state();
        let geometry = &state.superblock.geometry;
        let size = u64::from(geometry.block_size());
        let blocks = range.start.div_ceil(size)..(range.end / size).min(geometry.blocks_count());
        self.shared.fs.close_windows();
        let mut discarded = 0;
        for group in geometry.groups() {
            self.shared.fs.check_alive()?;
            discarded += self.shared.fs.trim_group(group, &blocks, minimum.div_ceil(size))?;
        }
        Ok(discarded * size)
    }
}
