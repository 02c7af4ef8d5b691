//! For a file system that changes a file outside of reads and writes: its gate held alone, and zeros on the device.

use crate::engine::{Engine, check_range};
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::gate::InodeGuard;
use crate::mapping::{Range, State};
use uext4_blockdev::WriteDurability;

/// Most bytes that are zeroed at a time.
const ZEROS: u64 = 256 * 1024;

impl<F: FileSystem> Engine<F> {
    /// The gate of a file that is open for writing, held alone. With `drain` nothing of it is in flight either.
    ///
    /// # Errors
    /// [`Error::BadMode`] if it is not open for writing; those of an aborted volume, and of a child process.
    pub fn lock_alone<'g>(&self, file: &'g OpenFile<F>, drain: bool) -> Result<InodeGuard<'g>, F::Error> {
        self.check_process()?;
        self.fs.check_alive()?;
        file.check_writable()?;
        Ok(file.state().gate.visit_exclusive(drain, &mut self.helper()))
    }

    /// Zeroes the bytes of a range on the device, where its blocks are in this state. Of unwritten ones all must be
    /// zeroed, to whole blocks: what lies around is not kept. Not durable before the next flush.
    ///
    /// # Errors
    /// [`Error::NotExclusive`] if the gate is not held alone; those of the map and the device. Some may be zeroed then.
    pub fn zero(
        &self,
        file: &OpenFile<F>,
        held: &InodeGuard<'_>,
        bytes: Range,
        state: State,
    ) -> Result<(), F::Error> {
        if !held.is_exclusive() || !held.is_of(&file.state().gate) {
            return Err(Error::NotExclusive.into());
        }
        let (block, end) = (u64::from(self.geometry.logical_block), bytes.end());
        check_range(bytes.pos, bytes.length)?;
        let mut pos = bytes.pos;
        while pos < end {
            let first = pos / block * block;
            let next = end.min(first + ZEROS);
            let window = Range { pos: first, length: next.next_multiple_of(block) - first };
            self.for_each_piece(file, window, |piece| {
                if piece.state != state {
                    return Ok(());
                }
                let mut zeros = self.bounce_buffer(piece.length as usize)?;
                let from = pos.saturating_sub(piece.logical).min(piece.length) as usize;
                let to = next.saturating_sub(piece.logical).min(piece.length) as usize;
                if from > 0 || (to as u64) < piece.length {
                    self.device.read_at(&mut zeros, piece.physical).map_err(Error::from)?;
                }
                zeros[from..to].fill(0);
                let how = WriteDurability::Cached;
                Ok(self.device.write_at(&zeros, piece.physical, how).map_err(Error::from)?)
            })?;
            pos = next;
        }
        Ok(())
    }
}
