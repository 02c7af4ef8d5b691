//! Atomic writes: never torn, on any device.
//!
//! Where the device promises it for an overwrite of one piece ([`uext4_blockdev::Device::write_atomic`]), that is one
//! write. Else the data goes to blocks that are claimed for it and belong to nobody. When it is complete, the gate is
//! taken exclusively and one transaction puts the blocks into the file in place of those that were there. A crash
//! before that transaction is durable leaves the old bytes, a crash after it the new ones: its commit record follows a
//! flush, so the data is on the medium by then, and the old blocks are not used again before.

use crate::carry::Carried;
use crate::counters::Counter;
use crate::engine::{Engine, check_range};
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::mapping::{MapKind, Pieces, Range, State};
use crate::pipeline::Mapping;
use crate::plan::{ATOMIC_MAX, Durability, Request, Sync, WriteFlags};
use crate::write_back::Sole;
use uext4_blockdev::{Buffer, Error as DeviceError, WriteDurability};

impl<F: FileSystem> Engine<F> {
    /// Writes `data`, consecutive buffers in any memory, all or nothing. Returns what is left to be done for its
    /// durability.
    ///
    /// # Errors
    /// [`Error::NotAtomic`]; those of [`FileSystem::swap_begin`] and of the device: the file is as before.
    #[cold]
    pub(crate) fn carry_atomic(
        &self,
        file: &OpenFile<F>,
        data: &[&[u8]],
        pos: u64,
        flags: WriteFlags,
        help: &mut dyn FnMut(),
    ) -> Result<Carried<F::Error>, F::Error> {
        self.check_process()?;
        self.fs.check_alive()?;
        file.check_writable()?;
        let range = check_range(pos, data.iter().map(|part| part.len() as u64).sum())?;
        check_shape(range, file.state().view().block_size())?;
        if flags.contains(WriteFlags::NOWAIT) {
            return Err(self.would_block().into());
        }
        let durability = match file.flags_of(flags).sync() {
            Sync::None => Durability::None,
            Sync::Data => Durability::Datasync,
            Sync::All => Durability::Fsync,
        };
        let request = Request { range, sync: file.flags_of(flags).sync(), bounced: false, queued: false };
        if let Some(done) = self.overwrite_atomic(file, data, &request, help)? {
            return Ok(done);
        }
        let bits = file.state().block_bits();
        // Claim first: it refuses what cannot be atomic before anything is changed.
        let swap = self.fs.swap_begin(&file.inode, range.pos >> bits..range.end() >> bits)?;
        let outcome = match self.write_held(file, data, range, help)? {
            true => Ok(()),
            false => self.swap(file, data, range, swap, help),
        };
        Ok((outcome, durability))
    }

    /// As [`Engine::write_any`] with [`WriteFlags::ATOMIC`].
    ///
    /// # Errors
    /// [`Error::NotAtomic`]; those of [`FileSystem::swap_begin`] and of the device: the file is as before.
    pub fn write_atomic(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        pos: u64,
        flags: WriteFlags,
    ) -> Result<usize, F::Error> {
        let (outcome, durability) = self.carry_atomic(file, &[buf], pos, flags, &mut self.helper())?;
        outcome?;
        self.make_durable_after(file, durability)?;
        Ok(buf.len())
    }

    /// One write of the device, if it promises not to tear it. `None`: it does not, or the write is no overwrite of one
    /// piece; nothing was changed.
    fn overwrite_atomic(
        &self,
        file: &OpenFile<F>,
        data: &[&[u8]],
        request: &Request,
        help: &mut dyn FnMut(),
    ) -> Result<Option<Carried<F::Error>>, F::Error> {
        let (state, range) = (file.state(), request.range);
        if range.length > self.device.atomic_max() || state.kind().is_held() {
            return Ok(None);
        }
        // Alone in the file, so that readers see all or nothing.
        let alone = self.close_gate(file, range, help)?;
        let mut pieces = Pieces::new();
        if state.view().is_extended_by(range) || state.kind().is_held() {
            return Ok(None);
        }
        self.load_pieces(file, range, &mut pieces)?;
        let place = match pieces[..] {
            [piece] if piece.state == State::Written && piece.length == range.length => piece.physical,
            _ => return Ok(None),
        };
        if !place.is_multiple_of(range.length) {
            return Ok(None);
        }
        let bytes = self.in_one(data, range.length)?;
        self.begin_atomic(file, &alone)?;
        let plan = self.decide(file, request, &mut Mapping::Due, false)?;
        let fua = plan.durability == Durability::Fua;
        let how = if fua { WriteDurability::Fua } else { WriteDurability::Cached };
        let written = match self.device.write_atomic(&bytes, place, how) {
            Err(DeviceError::Unsupported(_)) => return Ok(None),
            written => written.map_err(Error::from),
        };
        self.counters.bump(Counter::AtomicWrites);
        self.count_write(&self.counters, request, &plan, true, state.block_bits(), file.switches);
        self.counters.add(Counter::BytesWritten, range.length);
        Ok(Some((written.map_err(|error| self.write_failed(error, plan.durability)), plan.durability)))
    }

    /// The bytes in one piece of memory that the device takes.
    fn in_one<'d>(&self, data: &[&'d [u8]], length: u64) -> Result<Joined<'d>, F::Error> {
        match data {
            [one] if self.geometry.check_memory(one.as_ptr() as usize).is_ok() => Ok(Joined::Given(one)),
            _ => {
                let mut copy = self.bounce_buffer(length as usize)?;
                let mut at = 0;
                for part in data {
                    copy[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                Ok(Joined::Copied(copy))
            }
        }
    }

    /// Contents that the file system holds inline are stored in one handle, if they still fit. Returns whether they do.
    fn write_held(
        &self,
        file: &OpenFile<F>,
        data: &[&[u8]],
        range: Range,
        help: &mut dyn FnMut(),
    ) -> Result<bool, F::Error> {
        if file.state().kind() != MapKind::Inline {
            return Ok(false);
        }
        let guard = self.close_gate(file, range, help)?;
        if file.state().kind() != MapKind::Inline {
            return Ok(false);
        }
        self.begin_atomic(file, &guard)?;
        self.fs.write_inline(&file.inode, &guard, range.pos, data)
    }

    /// Writes the data to the claimed blocks, and puts them into the file.
    fn swap(
        &self,
        file: &OpenFile<F>,
        data: &[&[u8]],
        range: Range,
        swap: F::Swap,
        help: &mut dyn FnMut(),
    ) -> Result<(), F::Error> {
        self.send_apart(data, range.length, &self.fs.swap_places(&swap))?;
        let guard = self.close_gate(file, range, help)?;
        self.begin_atomic(file, &guard)?;
        let size = file.state().size();
        if range.pos > size {
            // Bytes between the old end and this write become visible.
            let block = file.state().view().block_size();
            let tail = Range { pos: size, length: size.next_multiple_of(block) - size };
            self.zero(file, &guard, tail, State::Written)?;
        }
        self.fs.swap_end(&file.inode, &guard, swap, (range.end() > size).then_some(range.end()))?;
        self.counters.bump(Counter::AtomicWrites);
        self.counters.bump(Counter::ExclusiveWrites);
        Ok(())
    }

    /// Waits until nobody else is in the file. Pages of the range are out of the way until
    /// the gate is open again: one that was changed meanwhile holds the bytes of before around the change.
    fn close_gate<'g>(
        &self,
        file: &'g OpenFile<F>,
        range: Range,
        help: &mut dyn FnMut(),
    ) -> Result<Sole<'g>, F::Error> {
        let state = file.state();
        loop {
            let cached = state.is_cached().then(|| state.make_pages(&self.pages.totals));
            let pages = cached.map(|cache| self.settle(file, cache, range, help)).transpose()?;
            let gate = state.gate.lock_exclusive(true, help);
            if !gate.is_drained() {
                gate.drain(help);
            }
            // If the pages were not locked, another thread may have begun to keep some.
            if pages.is_some() || !state.is_cached() {
                return Ok(Sole::new(gate, pages));
            }
        }
    }

    /// Clears privileges and notes the time, once nothing is left that would refuse the write.
    fn begin_atomic(&self, file: &OpenFile<F>, alone: &Sole<'_>) -> Result<(), F::Error> {
        if file.state().is_privileged() {
            self.fs.check_privileges(&file.inode)?;
            self.fs.drop_privileges(&file.inode, alone)?;
            self.counters.bump(Counter::PrivilegesDropped);
        }
        if file.notes_writes() {
            alone.mark_written();
        }
        Ok(())
    }

    /// Writes the data to these ranges of the device, in order. Their lengths add up to `length`, that of the data.
    fn send_apart(&self, data: &[&[u8]], length: u64, places: &[Range]) -> Result<(), F::Error> {
        let fits = places.iter().map(|place| place.length).sum::<u64>() == length;
        let joined = self.in_one(data, length)?;
        let mut bytes = &*joined;
        if !fits {
            return Err(Error::MapUnknown(0).into());
        }
        for place in places {
            let (part, rest) = bytes.split_at(place.length as usize);
            self.write_counted(part, place.pos, WriteDurability::Cached)?;
            bytes = rest;
        }
        Ok(())
    }
}

/// The bytes of a write in one piece.
enum Joined<'d> {
    Given(&'d [u8]),
    Copied(Buffer),
}

impl std::ops::Deref for Joined<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Joined::Given(bytes) => bytes,
            Joined::Copied(buffer) => buffer,
        }
    }
}

fn check_shape(range: Range, block: u64) -> Result<(), Error> {
    let Range { pos, length } = range;
    let fits =
        length.is_power_of_two() && (block..=ATOMIC_MAX).contains(&length) && pos.is_multiple_of(length);
    if fits { Ok(()) } else { Err(Error::NotAtomic { pos, length, least: block, most: ATOMIC_MAX }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_powers_of_two_at_multiples_of_themselves() {
        for (pos, length) in [(0, 4096), (4096, 4096), (16384, 16384), (65536, 65536), (1 << 40, 8192)] {
            check_shape(Range { pos, length }, 4096).unwrap();
        }
        for (pos, length) in [(0, 0), (0, 2048), (0, 12288), (0, 131072), (4096, 8192), (1, 4096)] {
            assert!(check_shape(Range { pos, length }, 4096).is_err(), "{pos} {length}");
        }
        check_shape(Range { pos: 65536, length: 65536 }, 65536).unwrap();
    }
}
