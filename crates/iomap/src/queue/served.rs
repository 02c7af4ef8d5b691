//! Reads that the file system serves itself, because what they read has no place on the device of its own: the
//! same checks and the same face as for all other requests, and no device request.

use super::attach::FileSlot;
use super::{Core, IoQueue};
use crate::counters::Counter;
use crate::door::Payload;
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use uext4_blockdev::Buffer;

impl<F: FileSystem> Engine<F> {
    /// A direct read that `read` serves: position, length and memory obey the device's alignment all the
    /// same.
    pub fn serve_read(
        &self,
        file: &OpenFile<F>,
        buf: &mut [u8],
        pos: u64,
        read: impl FnOnce(&mut [u8], u64) -> Result<usize, F::Error>,
    ) -> Result<usize, F::Error> {
        file.check_readable()?;
        self.check_direct(pos, buf.len() as u64)?;
        if !buf.is_empty() {
            self.check_address(buf.as_ptr())?;
        }
        self.serve_read_any(file, buf, pos, read)
    }

    /// A read of any bytes that `read` serves.
    pub fn serve_read_any(
        &self,
        file: &OpenFile<F>,
        buf: &mut [u8],
        pos: u64,
        read: impl FnOnce(&mut [u8], u64) -> Result<usize, F::Error>,
    ) -> Result<usize, F::Error> {
        file.check_readable()?;
        crate::engine::check_range(pos, buf.len() as u64)?;
        if buf.is_empty() {
            return Ok(0);
        }
        if pos < file.state().size() {
            self.counters.bump(Counter::InlineReads);
        }
        read(buf, pos)
    }
}

impl<F: FileSystem> IoQueue<F> {
    /// A queued read that `read` serves, buffer by buffer; done when this returns, and delivered like others.
    pub fn serve_read(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffer: Buffer,
        tag: u64,
        read: impl FnMut(&mut [u8], u64) -> Result<usize, F::Error>,
    ) -> Result<(), F::Error> {
        self.core.lock().serve(slot, pos, Payload::One(buffer), tag, read)
    }

    /// The same into several buffers.
    pub fn serve_readv(
        &mut self,
        slot: FileSlot,
        pos: u64,
        buffers: Vec<Buffer>,
        tag: u64,
        read: impl FnMut(&mut [u8], u64) -> Result<usize, F::Error>,
    ) -> Result<(), F::Error> {
        let mut core = self.core.lock();
        core.check_vector(&buffers)?;
        core.serve(slot, pos, Payload::Many(buffers.into()), tag, read)
    }
}

impl<F: FileSystem> Core<F> {
    fn serve(
        &mut self,
        slot: FileSlot,
        pos: u64,
        mut payload: Payload,
        tag: u64,
        mut read: impl FnMut(&mut [u8], u64) -> Result<usize, F::Error>,
    ) -> Result<(), F::Error> {
        let file = &self.file(slot)?.file;
        file.check_readable()?;
        let size = file.state().size();
        let payload_length = payload.len();
        self.engine.check_direct(pos, payload_length)?;
        self.check_memory(&payload)?;
        if self.free.is_empty() {
            return Err(Error::QueueFull.into());
        }
        let buffers = match &mut payload {
            Payload::None => &mut [][..],
            Payload::One(buffer) => std::slice::from_mut(buffer),
            Payload::Many(buffers) => &mut buffers[..],
        };
        let mut result = Ok(0);
        if pos < size && payload_length > 0 {
            self.counters.bump(Counter::InlineReads);
        }
        for buffer in buffers {
            let Ok(total) = result else { break };
            let length = buffer.len();
            let part = read(buffer, pos + total as u64);
            let ended = part.as_ref().is_ok_and(|part| *part < length);
            result = part.map(|part| total + part);
            if ended {
                break;
            }
        }
        self.deliver_at_once(tag, result, payload);
        Ok(())
    }
}
