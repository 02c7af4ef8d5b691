//! What a client sends: headers come many at once into a window, and long payloads go past it into their own memory.

use crate::protocol::{REQUEST_BYTES, Request};
use crate::stream::{Moved, Stream};
use std::io::{self, IoSliceMut};
use uext4::Buffer;

/// Bytes received in one call, besides a payload: all of 32 writes of 4 KiB, twice.
const WINDOW: usize = 256 << 10;

/// Bytes that came and are not taken yet.
pub(crate) struct Inbox {
    window: Box<[u8]>,
    /// Where they begin and end in the window.
    start: usize,
    end: usize,
}

/// A write whose payload is coming.
pub(crate) struct Incoming {
    pub(crate) request: Request,
    pub(crate) buffer: Buffer,
    /// Bytes of the payload that are in the buffer.
    filled: usize,
}

impl Incoming {
    pub(crate) fn new(request: Request, buffer: Buffer) -> Incoming {
        Incoming { request, buffer, filled: 0 }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.filled == self.buffer.len()
    }
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox { window: vec![0; WINDOW].into(), start: 0, end: 0 }
    }

    fn waiting(&self) -> &[u8] {
        &self.window[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Receives once: the rest of a payload, and what follows it.
    pub(crate) fn receive(
        &mut self,
        stream: &mut Stream,
        incoming: Option<&mut Incoming>,
    ) -> io::Result<Moved> {
        if self.start > 0 {
            self.window.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let free = &mut self.window[self.end..];
        let Some(incoming) = incoming else {
            let moved = stream.receive(&mut [IoSliceMut::new(free)])?;
            if let Moved::Bytes(bytes) = moved {
                self.end += bytes;
            }
            return Ok(moved);
        };
        let rest = &mut incoming.buffer[incoming.filled..];
        let wanted = rest.len();
        let moved = stream.receive(&mut [IoSliceMut::new(rest), IoSliceMut::new(free)])?;
        if let Moved::Bytes(bytes) = moved {
            incoming.filled += bytes.min(wanted);
            self.end += bytes.saturating_sub(wanted);
        }
        Ok(moved)
    }

    /// The next header, which stays. `None`: not all of it has come. `Some(None)`: it is none.
    pub(crate) fn header(&self) -> Option<Option<Request>> {
        self.waiting().first_chunk::<REQUEST_BYTES>().map(Request::decode)
    }

    /// Takes the header away.
    pub(crate) fn take_header(&mut self) {
        self.start += REQUEST_BYTES;
    }

    /// Moves what has come of a payload into its memory.
    pub(crate) fn fill(&mut self, incoming: &mut Incoming) {
        let rest = &mut incoming.buffer[incoming.filled..];
        let bytes = rest.len().min(self.end - self.start);
        rest[..bytes].copy_from_slice(&self.window[self.start..self.start + bytes]);
        incoming.filled += bytes;
        self.start += bytes;
    }

    /// Throws away up to `bytes` bytes; returns how many.
    pub(crate) fn skip(&mut self, bytes: u64) -> u64 {
        let skipped = bytes.min((self.end - self.start) as u64);
        self.start += skipped as usize;
        skipped
    }
}
