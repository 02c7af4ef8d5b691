//! Reads and writes of any byte range, to or from any memory.
//!
//! Only whole device blocks in aligned memory can be transferred directly; the rest goes through a bounce
//! buffer. A bounced write is a read-modify-write of device blocks, so it holds the gate exclusively and
//! drains first.

use crate::engine::{Engine, check_range};
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::gate::InodeGuard;
use crate::mapping::Range;
use crate::pipeline::Mapping;
use crate::plan::{Plan, Request, WriteFlags, counts_copy};
use uext4_blockdev::{Buffer, Geometry};

/// Largest bounce buffer in bytes. Longer unaligned requests are split into steps.
pub(crate) const BOUNCE_MAX: u64 = 256 * 1024;

/// One step of a bounced request: one device transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the request that this step transfers.
    pub part: Range,
    /// Bytes of the file that the device transfers for it: `part`, rounded out to logical blocks.
    pub window: Range,
    /// Whether the transfer uses the caller's memory directly. Otherwise it goes through a bounce buffer, and a write
    /// reads the window first unless it covers it.
    pub direct: bool,
}

impl Step {
    /// Whether the request covers the window, so that a write need not read it first.
    pub fn covers_window(&self) -> bool {
        self.part == self.window
    }
}

/// The next step of a bounced request. `rest` (not empty) is the part still to transfer, `address` its memory. Whole
/// blocks go directly if both position and memory are aligned; anything else goes through a bounce buffer.
pub fn next_step(geometry: &Geometry, rest: Range, address: usize) -> Step {
    let block = u64::from(geometry.logical_block);
    let whole = rest.length / block * block;
    if rest.pos.is_multiple_of(block) && whole > 0 && geometry.check_memory(address).is_ok() {
        let part = Range { pos: rest.pos, length: whole };
        return Step { part, window: part, direct: true };
    }
    let start = rest.pos / block * block;
    let end = rest.end().min(start + BOUNCE_MAX).next_multiple_of(block);
    let part = Range { pos: rest.pos, length: rest.end().min(end) - rest.pos };
    Step { part, window: Range { pos: start, length: end - start }, direct: false }
}

impl<F: FileSystem> Engine<F> {
    /// Whether a request can go directly as it is.
    fn is_direct(&self, pos: u64, buf: &[u8]) -> bool {
        self.check_direct(pos, buf.len() as u64).is_ok()
            && self.geometry.check_memory(buf.as_ptr() as usize).is_ok()
    }

    /// Reads any bytes into any memory; returns the bytes read, fewer at the end of the file.
    pub fn read_any(&self, file: &OpenFile<F>, buf: &mut [u8], pos: u64) -> Result<usize, F::Error> {
        if self.is_direct(pos, buf) {
            return self.read_at(file, buf, pos);
        }
        self.check_process()?;
        file.check_readable()?;
        self.note_access(file);
        let range = check_range(pos, buf.len() as u64)?;
        let state = file.state();
        let counted = counts_copy(&self.capabilities, file.switches);
        let guard = loop {
            if state.is_cached()
                && let Some(read) = self.read_over_pages(file, buf, pos)?
            {
                return Ok(read);
            }
            let guard = self.enter(state, counted)?;
            if !state.is_cached() {
                break guard;
            }
        };
        let visible = state.size().saturating_sub(pos).min(buf.len() as u64);
        if visible == 0 {
            return Ok(0);
        }
        let plan = self.decide_read(file, range, true);
        let mut done = 0;
        while done < visible {
            let part = &mut buf[done as usize..visible as usize];
            done += self.read_step(file, &guard, &plan, part, pos + done)?;
        }
        Ok(visible as usize)
    }

    /// Reads one step into the front of `buf` and returns its length.
    fn read_step(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        plan: &Plan,
        buf: &mut [u8],
        pos: u64,
    ) -> Result<u64, F::Error> {
        let rest = Range { pos, length: buf.len() as u64 };
        let step = next_step(&self.geometry, rest, buf.as_ptr() as usize);
        let length = step.part.length as usize;
        if step.direct {
            return Ok(self.read_pieces(file, guard, plan, &mut buf[..length], step.part)? as u64);
        }
        let bounce = self.read_window(file, step.window)?;
        let start = (pos - step.window.pos) as usize;
        buf[..length].copy_from_slice(&bounce[start..start + length]);
        Ok(step.part.length)
    }

    /// Reads whole device blocks of the file into aligned memory; holes and unwritten blocks read as zeros.
    pub(crate) fn read_window(&self, file: &OpenFile<F>, window: Range) -> Result<Buffer, F::Error> {
        let mut bounce = self.bounce_buffer(window.length as usize)?;
        self.for_each_piece(file, window, |piece| {
            let start = (piece.logical - window.pos) as usize;
            self.read_piece(file, piece, &mut bounce[start..start + piece.length as usize])
        })?;
        Ok(bounce)
    }

    /// Writes any bytes from any memory.
    pub fn write_any(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        pos: u64,
        flags: WriteFlags,
    ) -> Result<usize, F::Error> {
        if self.is_direct(pos, buf) {
            return self.write_at(file, buf, pos, flags);
        }
        self.write_general(file, buf, pos, flags, true)
    }

    /// Writes by the general path. `bounced`: the bytes are not aligned as the device wants it.
    fn write_general(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        pos: u64,
        flags: WriteFlags,
        bounced: bool,
    ) -> Result<usize, F::Error> {
        self.check_process()?;
        self.fs.check_alive()?;
        file.check_writable()?;
        let range = check_range(pos, buf.len() as u64)?;
        if range.length == 0 {
            return Ok(0);
        }
        let flags = file.flags_of(flags);
        let request = Request { range, sync: flags.sync(), bounced, queued: false };
        self.write_waiting(file, &[buf], &request, flags, Mapping::Due)
    }

    /// Notes a write at this moment in the times of the file, for bytes that [`Engine::write_noted`] writes later.
    pub fn note_write(&self, file: &OpenFile<F>) {
        file.state().gate.note_write_now();
    }

    /// As [`Engine::write_any`] without flags, but leaves the times of the file: the write was noted before.
    ///
    /// # Errors
    /// Those of [`Engine::write_any`].
    pub fn write_noted(&self, file: &OpenFile<F>, buf: &[u8], pos: u64) -> Result<usize, F::Error> {
        let bounced = !self.is_direct(pos, buf);
        self.write_general(&file.without_times(), buf, pos, WriteFlags::empty(), bounced)
    }

    pub(crate) fn bounce_buffer(&self, length: usize) -> Result<Buffer, F::Error> {
        Ok(self.bounces.take(length).map_err(Error::from)?)
    }
}
