//! `NOWAIT` requests: the checks before anything is sent, and the flags passed to the device.

use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::mapping::{MapKind, Piece, Pieces, Range};
use crate::plan::{ReadFlags, Route, counts_copy};
use uext4_blockdev::{Error as DeviceError, WriteDurability};

/// Longest device request sent with the no-wait flag, in bytes. The kernel splits longer ones at the device's
/// `max_sectors_kb` and then always refuses them.
pub(crate) const NOWAIT_MAX: u64 = 128 << 10;

const EAGAIN: i32 = 11;

impl<F: FileSystem> Engine<F> {
    /// As [`Engine::read_at`], with flags.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with [`ReadFlags::NOWAIT`]: nothing was read.
    pub fn read_at_with(
        &self,
        file: &OpenFile<F>,
        buf: &mut [u8],
        pos: u64,
        flags: ReadFlags,
    ) -> Result<usize, F::Error> {
        if !flags.contains(ReadFlags::NOWAIT) {
            return self.read_at(file, buf, pos);
        }
        file.check_readable()?;
        self.note_access(file);
        let range = self.check_direct(pos, buf.len() as u64)?;
        if range.length == 0 {
            return Ok(0);
        }
        self.check_address(buf.as_ptr())?;
        let state = file.state();
        let counted = counts_copy(&self.capabilities, file.switches);
        let guard = state.gate.try_lock_shared(counted).map_err(|_busy| self.would_block())?;
        if state.is_cached() {
            // Its pages have a lock.
            return Err(self.would_block().into());
        }
        self.check_visible_known(file, range)?;
        let plan = self.decide_read(file, range, false);
        let one = plan.route != Route::DaxRead && range.length <= NOWAIT_MAX && range.end() <= state.size();
        if one && let Some(physical) = state.find_written(&guard, range) {
            let read = self.device.read_nowait(buf, physical);
            return Ok(read.map(|()| buf.len()).map_err(|error| self.refused_or_failed(error))?);
        }
        self.read_pieces(file, &guard, &plan, buf, range)
    }

    /// One device write with the no-wait flag.
    #[cold]
    pub(crate) fn write_nowait(&self, buf: &[u8], physical: u64, how: WriteDurability) -> Result<(), Error> {
        let written = self.device.write_nowait(buf, physical, how);
        written.map_err(|error| self.refused_or_failed(error))
    }

    /// Converts the device's error for a no-wait request.
    fn refused_or_failed(&self, error: DeviceError) -> Error {
        match error {
            DeviceError::Io { errno: EAGAIN, .. } => self.would_block(),
            error => error.into(),
        }
    }

    /// Refuses a read if some mapping inside the file is not loaded.
    pub(crate) fn check_visible_known(&self, file: &OpenFile<F>, range: Range) -> Result<(), Error> {
        let visible = file.state().size().saturating_sub(range.pos).min(range.length);
        let block = u64::from(self.geometry.logical_block);
        self.check_known(file, Range { length: visible.next_multiple_of(block), ..range })
    }

    /// Refuses a range if some mapping is not loaded: loading may wait for the device.
    pub(crate) fn check_known(&self, file: &OpenFile<F>, range: Range) -> Result<(), Error> {
        if file.state().kind() == MapKind::Inline {
            return Ok(());
        }
        let (mut pieces, mut rest) = (Pieces::new(), range);
        while rest.length > 0 {
            pieces.clear();
            let known = file.state().map.pieces(rest, file.state().block_bits(), &mut pieces);
            known.map_err(|_unknown| self.would_block())?;
            let pos = pieces.last().map_or(range.end(), Piece::end);
            rest = Range { pos, length: range.end() - pos };
        }
        Ok(())
    }

    /// Refuses if mapping the write starts a handle, which may wait for log space.
    pub(crate) fn check_no_handle(&self, file: &OpenFile<F>) -> Result<(), Error> {
        let starts = !file.switches.overwrite_no_transaction && self.fs.has_journal();
        if starts { Err(self.would_block()) } else { Ok(()) }
    }

    /// Counts a refusal and returns it.
    #[cold]
    pub(crate) fn would_block(&self) -> Error {
        self.counters.bump(Counter::WouldBlock);
        Error::WouldBlock
    }
}
