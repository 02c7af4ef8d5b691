//! For file-system operations other than reads and writes: taking a file's gate exclusively, and zeroing on the device.

use crate::counters::Counter;
use crate::engine::{Engine, check_range};
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::gate::InodeGuard;
use crate::mapping::{Piece, Range, State};
use crate::write_back::Sole;
use uext4_blockdev::WriteDurability;

/// Maximum bytes of a write of zeros.
const ZEROS: u64 = 256 * 1024;

impl<F: FileSystem> Engine<F> {
    /// The gate of a file that is open for writing, held exclusively; its pages are written home and dropped. With
    /// `drain`, nothing is in flight on it either.
    ///
    /// # Errors
    /// [`Error::BadMode`] if it is not open for writing; errors of an aborted volume or a forked child; those of
    /// writing pages home, which stay then.
    pub fn lock_exclusive<'g>(&self, file: &'g OpenFile<F>, drain: bool) -> Result<Sole<'g>, F::Error> {
        self.check_process()?;
        self.fs.check_alive()?;
        file.check_writable()?;
        self.be_alone(file, drain, &mut self.helper())
    }

    /// Zeroes a range on the device wherever its blocks are in `state`. A range over unwritten blocks must cover whole
    /// blocks: their other bytes are not preserved. Durable after the next flush.
    ///
    /// # Errors
    /// [`Error::NotExclusive`] if the gate is not held exclusively; errors of the map and the device, after which part
    /// of the range may be zeroed.
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
        check_range(bytes.pos, bytes.length)?;
        let by_writes = |start: u64, end: u64| {
            self.zero_by(file, Range { pos: start, length: end - start }, state, |zeros, piece| {
                Ok(self.write_counted(zeros, piece.physical, WriteDurability::Cached)?)
            })
        };
        let block = u64::from(self.geometry.logical_block);
        let (start, end) = (bytes.pos.next_multiple_of(block), bytes.end() / block * block);
        if end.saturating_sub(start) <= ZEROS {
            return by_writes(bytes.pos, bytes.end());
        }
        by_writes(bytes.pos, start)?;
        self.zero_blocks(file, Range { pos: start, length: end - start }, state)?;
        by_writes(end, bytes.end())
    }

    /// The same for whole blocks of the device, by its own way to make zeros.
    fn zero_blocks(&self, file: &OpenFile<F>, bytes: Range, state: State) -> Result<(), F::Error> {
        self.for_each_piece(file, bytes, |piece| {
            if piece.state != state {
                return Ok(());
            }
            self.device.write_zeros(piece.physical, piece.length).map_err(Error::from)?;
            if self.capabilities.dax.is_none() {
                self.counters.add(Counter::BytesWritten, piece.length);
            }
            Ok(())
        })
    }

    /// The same under an exclusive hold, with `write` called to write each piece. The bytes around the range in its
    /// first and last device block are read first.
    pub(crate) fn zero_by(
        &self,
        file: &OpenFile<F>,
        bytes: Range,
        state: State,
        mut write: impl FnMut(&[u8], &Piece) -> Result<(), F::Error>,
    ) -> Result<(), F::Error> {
        let (block, end) = (u64::from(self.geometry.logical_block), bytes.end());
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
                let within = |pos: u64| pos.saturating_sub(piece.logical).min(piece.length);
                let (from, to) = (within(pos), within(next));
                for edge in [from, to].into_iter().filter(|edge| edge % block != 0) {
                    let at = edge - edge % block;
                    let part = &mut zeros[at as usize..(at + block) as usize];
                    self.device.read_at(part, piece.physical + at).map_err(Error::from)?;
                }
                zeros[from as usize..to as usize].fill(0);
                write(&zeros, piece)
            })?;
            pos = next;
        }
        Ok(())
    }
}
