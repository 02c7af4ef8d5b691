//! Replies that wait to be sent: many go out in one call, and data goes out of the memory that the device filled.

use crate::stream::{Moved, Stream};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::rc::Rc;
use uext4::Buffer;

/// Parts of one call.
const PARTS: usize = 128;
/// Bytes of heads that are sent as one part.
const JOINED: usize = 256;

enum Part {
    /// Heads, one behind another.
    Heads(Vec<u8>),
    /// All of a buffer.
    Whole(Buffer),
    /// Some of one, which other parts may need too.
    Piece(Rc<Buffer>, Range<usize>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Part::Heads(heads) => heads,
            Part::Whole(buffer) => buffer,
            Part::Piece(buffer, range) => &buffer[range.clone()],
        }
    }

    fn held(&self) -> usize {
        match self {
            Part::Heads(heads) => heads.len(),
            Part::Whole(buffer) => buffer.len(),
            Part::Piece(buffer, _) => buffer.len(),
        }
    }
}

/// The replies of a connection.
#[derive(Default)]
pub(crate) struct Outbox {
    parts: VecDeque<Part>,
    /// Bytes of the first part that are sent.
    sent: usize,
    /// Bytes of memory that the parts keep.
    held: usize,
    /// Vectors of heads that were sent, for the next ones.
    spare: Vec<Vec<u8>>,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes of memory that wait with the replies. A buffer in several pieces counts for each.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Adds bytes of a reply.
    pub(crate) fn head(&mut self, bytes: &[u8]) {
        self.held += bytes.len();
        if let Some(Part::Heads(heads)) = self.parts.back_mut()
            && heads.len() + bytes.len() <= JOINED
        {
            heads.extend_from_slice(bytes);
            return;
        }
        let mut heads = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(JOINED));
        heads.extend_from_slice(bytes);
        self.parts.push_back(Part::Heads(heads));
    }

    /// Adds all of a buffer.
    pub(crate) fn data(&mut self, buffer: Buffer) {
        self.held += buffer.len();
        self.parts.push_back(Part::Whole(buffer));
    }

    /// Adds some of a buffer.
    pub(crate) fn piece(&mut self, buffer: &Rc<Buffer>, range: Range<usize>) {
        self.held += buffer.len();
        self.parts.push_back(Part::Piece(buffer.clone(), range));
    }

    /// Sends as much as the socket takes. [`Moved::Later`]: some is left.
    pub(crate) fn send(&mut self, stream: &Stream) -> io::Result<Moved> {
        let mut total = 0;
        while !self.parts.is_empty() {
            match self.send_some(stream)? {
                Moved::Bytes(bytes) => total += bytes,
                other => return Ok(other),
            }
        }
        Ok(Moved::Bytes(total))
    }

    fn send_some(&mut self, stream: &Stream) -> io::Result<Moved> {
        let mut slices = [IoSlice::new(&[]); PARTS];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            let skipped = if count == 0 { self.sent } else { 0 };
            *slice = IoSlice::new(&part.bytes()[skipped..]);
            count += 1;
        }
        let moved = stream.send(&slices[..count])?;
        if let Moved::Bytes(bytes) = moved {
            self.advance(bytes);
        }
        Ok(moved)
    }

    fn advance(&mut self, bytes: usize) {
        let mut left = self.sent + bytes;
        while let Some(first) = self.parts.front() {
            let length = first.bytes().len();
            if left < length {
                break;
            }
            left -= length;
            self.held -= first.held();
            if let Some(Part::Heads(mut heads)) = self.parts.pop_front()
                && self.spare.len() < PARTS
            {
                heads.clear();
                self.spare.push(heads);
            }
        }
        self.sent = left;
    }
}
