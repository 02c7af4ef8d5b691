//! Reads and writes of any byte range from any memory, beside the direct calls.
//!
//! Only whole device blocks in aligned memory can be transferred directly; the rest goes through a bounce
//! buffer. A bounced write is a read-modify-write of device blocks, so it holds the gate exclusively and
//! drains first.

use crate::counters::Counter;
use crate::engine::{Engine, check_range};
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::gate::InodeGuard;
use crate::mapping::{Range, State};
use crate::plan::{Plan, Request};
use crate::queue::WriteFlags;
use uext4_blockdev::{Buffer, WriteDurability};

/// Largest bounce buffer in bytes: longer unaligned requests go through it in steps.
const BOUNCE_MAX: u64 = 256 * 1024;

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
        self.fs.check_alive()?;
        file.check_readable()?;
        check_range(pos, buf.len() as u64)?;
        let state = file.state();
        let guard = self.enter(state, true);
        let visible = state.size().saturating_sub(pos).min(buf.len() as u64);
        if visible == 0 {
            return Ok(0);
        }
        self.counters.bump(Counter::Bounces);
        let mut done = 0;
        while done < visible {
            let part = &mut buf[done as usize..visible as usize];
            done += self.read_step(file, &guard, part, pos + done)?;
        }
        Ok(visible as usize)
    }

    /// Reads the first bytes of `buf`: directly if position and memory happen to be aligned there, else
    /// bounced.
    fn read_step(
        &self,
        file: &OpenFile<F>,
        guard: &InodeGuard<'_>,
        buf: &mut [u8],
        pos: u64,
    ) -> Result<u64, F::Error> {
        let block = u64::from(self.geometry.logical_block);
        let whole = buf.len() as u64 / block * block;
        if pos.is_multiple_of(block) && whole > 0 && self.is_direct(pos, &buf[..whole as usize]) {
            let range = Range { pos, length: whole };
            return Ok(self.read_pieces(file, guard, &mut buf[..whole as usize], range, |_, buf, at| {
                Ok(self.device.read_at(buf, at)?)
            })? as u64);
        }
        let window = self.window(pos, buf.len() as u64);
        let bounce = self.read_window(file, window)?;
        let start = (pos - window.pos) as usize;
        let length = (bounce.len() - start).min(buf.len());
        buf[..length].copy_from_slice(&bounce[start..start + length]);
        Ok(length as u64)
    }

    /// The whole device blocks around `[pos, pos + length)`, or a first part of them.
    fn window(&self, pos: u64, length: u64) -> Range {
        let block = u64::from(self.geometry.logical_block);
        let start = pos / block * block;
        let end = (pos + length).min(start + BOUNCE_MAX).next_multiple_of(block);
        Range { pos: start, length: end - start }
    }

    /// Whole device blocks of the file in aligned memory; zeros where nothing is written.
    fn read_window(&self, file: &OpenFile<F>, window: Range) -> Result<Buffer, F::Error> {
        let mut bounce = self.bounce_buffer(window.length as usize)?;
        self.for_each_piece(file, window, |piece| {
            let start = (piece.logical - window.pos) as usize;
            let part = &mut bounce[start..start + piece.length as usize];
            match piece.state {
                State::Written => self.device.read_at(part, piece.physical).map_err(Error::from)?,
                State::Unwritten | State::Hole | State::Inline => part.fill(0),
            }
            Ok(())
        })?;
        Ok(bounce)
    }

    /// Writes any bytes from any memory over written blocks.
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
        self.fs.check_alive()?;
        file.check_writable()?;
        let range = check_range(pos, buf.len() as u64)?;
        if range.length == 0 {
            return Ok(0);
        }
        if flags.contains(WriteFlags::NOWAIT) {
            return Err(Error::WouldBlock.into());
        }
        let state = file.state();
        let guard = state.gate.lock_exclusive(true, &mut self.pump());
        let request = Request { range, sync: flags.sync(), bounced: true, queued: false };
        let mut pieces = crate::mapping::Pieces::new();
        let plan = self.decide(file, &guard, &request, file.switches, &mut pieces)?;
        self.counters.bump(Counter::Bounces);
        self.counters.bump(Counter::ExclusiveWrites);
        let mut done = 0;
        while done < range.length {
            done += self.write_step(file, &plan, &buf[done as usize..], pos + done)?;
        }
        guard.mark_written();
        drop(guard);
        self.complete_durability(file, &plan)?;
        Ok(buf.len())
    }

    /// Writes the first bytes of `buf` and returns how many.
    fn write_step(&self, file: &OpenFile<F>, plan: &Plan, buf: &[u8], pos: u64) -> Result<u64, F::Error> {
        let block = u64::from(self.geometry.logical_block);
        let whole = buf.len() as u64 / block * block;
        if pos.is_multiple_of(block) && whole > 0 && self.is_direct(pos, &buf[..whole as usize]) {
            self.write_window(file, plan, Range { pos, length: whole }, &buf[..whole as usize])?;
            return Ok(whole);
        }
        let window = self.window(pos, buf.len() as u64);
        let start = (pos - window.pos) as usize;
        let length = (window.length as usize - start).min(buf.len());
        let covered = start == 0 && length as u64 == window.length;
        let mut bounce = if covered { self.bounce_buffer(length)? } else { self.read_window(file, window)? };
        bounce[start..start + length].copy_from_slice(&buf[..length]);
        self.write_window(file, plan, window, &bounce)?;
        Ok(length as u64)
    }

    /// Writes whole device blocks from aligned memory.
    fn write_window(
        &self,
        file: &OpenFile<F>,
        plan: &Plan,
        window: Range,
        data: &[u8],
    ) -> Result<(), F::Error> {
        let fua = plan.durability == crate::plan::Durability::Fua;
        let durability = if fua { WriteDurability::Fua } else { WriteDurability::Cached };
        self.for_each_piece(file, window, |piece| {
            let start = (piece.logical - window.pos) as usize;
            let part = &data[start..start + piece.length as usize];
            if fua {
                self.counters.bump(Counter::FuaWrites);
            }
            self.device.write_at(part, piece.physical, durability).map_err(|error| {
                let error = Error::from(error);
                if fua { self.fatal(error) } else { error.into() }
            })
        })
    }

    fn bounce_buffer(&self, length: usize) -> Result<Buffer, F::Error> {
        Ok(self.bounces.take(length).map_err(Error::from)?)
    }
}
