//! Bytes of an archive, in order: from a file that is read in place, or from a stream.

use super::error::GatherCause;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes read at once: from a file for headers alone.
const FILE_WINDOW: usize = 32 << 10;
const STREAM_WINDOW: usize = 256 << 10;

pub enum From<'a> {
    /// A file of this size.
    File(Arc<File>, u64),
    Stream(Box<dyn Read + 'a>),
}

/// The input of an archive.
pub struct Input<'a> {
    from: From<'a>,
    window: Box<[u8]>,
    /// What of the window is not yet used.
    start: usize,
    end: usize,
    /// Of what is used next, from the archive's start.
    pos: u64,
}

impl<'a> Input<'a> {
    pub fn new(from: From<'a>) -> Self {
        let window = match from {
            From::File(..) => FILE_WINDOW,
            From::Stream(_) => STREAM_WINDOW,
        };
        Input { from, window: vec![0; window].into(), start: 0, end: 0, pos: 0 }
    }

    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// Whether contents can be read later, where they are.
    pub fn is_in_place(&self) -> bool {
        matches!(self.from, From::File(..))
    }

    fn fill(&mut self) -> Result<(), GatherCause> {
        if self.start < self.end {
            return Ok(());
        }
        loop {
            let read = match &mut self.from {
                From::File(file, _) => file.read_at(&mut self.window, self.pos),
                From::Stream(stream) => stream.read(&mut self.window),
            };
            match read {
                Ok(read) => {
                    (self.start, self.end) = (0, read);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(GatherCause::Truncated("its compressed data ends too early"));
                }
                Err(error) => return Err(GatherCause::io("read")(error)),
            }
        }
    }

    pub fn is_at_end(&mut self) -> Result<bool, GatherCause> {
        self.fill()?;
        Ok(self.start == self.end)
    }

    /// Up to so many of the next bytes, at least one, which are then used.
    pub fn next(&mut self, most: u64) -> Result<&[u8], GatherCause> {
        if self.is_at_end()? {
            return Err(GatherCause::Truncated("it ends within an entry"));
        }
        let there = self.end - self.start;
        let count = usize::try_from(most).map_or(there, |most| most.min(there));
        let bytes = &self.window[self.start..self.start + count];
        self.start += count;
        self.pos += count as u64;
        Ok(bytes)
    }

    pub fn read_exact(&mut self, mut buffer: &mut [u8]) -> Result<(), GatherCause> {
        while !buffer.is_empty() {
            let bytes = self.next(buffer.len() as u64)?;
            let (now, rest) = buffer.split_at_mut(bytes.len());
            now.copy_from_slice(bytes);
            buffer = rest;
        }
        Ok(())
    }

    /// Skips what is before a position, which is not before the current one.
    pub fn skip_to(&mut self, pos: u64) -> Result<(), GatherCause> {
        let there = (self.end - self.start) as u64;
        if let From::File(_, size) = self.from
            && pos > self.pos + there
        {
            if pos > size {
                return Err(GatherCause::Truncated("it ends within an entry"));
            }
            (self.pos, self.start, self.end) = (pos, 0, 0);
        }
        while self.pos < pos {
            self.next(pos - self.pos)?;
        }
        Ok(())
    }
}
