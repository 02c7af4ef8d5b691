//! A file with a position, for code that knows only `std::io`.

use crate::face::file::File;
use crate::ground::error::{Error, Result};
use std::io;
use uext4_iomap::{Pieces, Range, State, WriteFlags};

/// Furthest position, in bytes: the kernel's.
const POS_MAX: u64 = i64::MAX as u64;

/// A file with a position, from [`File::cursor`]: [`io::Read`], [`io::Write`] and [`io::Seek`] for any bytes in any
/// memory. A [`File`] has no position, so threads cannot share one by accident: each takes a cursor of its own. A clone
/// starts where the first one stands, and moves on its own.
///
/// - **Position**: in bytes, from 0 to 2⁶³ - 1; it may lie past the end of the file. It advances by the bytes read or
///   written; a failed call does not move it.
/// - **End of the file**: a read at or past it returns 0 bytes.
/// - **`write`** writes all of its bytes, in holes and past the end too. A volume that gets no blocks refuses that with
///   [`Error::NeedsAllocation`], and nothing changed.
/// - **`flush`** does nothing: the cursor has no buffer of its own. [`File::write_any_at`] says when bytes reach the
///   device.
/// - **Durability** comes from [`File::sync_data`] and [`File::sync_all`] ([`Cursor::file`]), as after every write
///   without flags.
/// - **Errors**: the [`io::Error`] carries an [`Error`].
///
/// If a `write` fails in the middle, any part of its bytes may have been written. Reads and writes go over pages, as
/// with [`File::read_any_at`] and [`File::write_any_at`]; on a file opened with
/// [`OpenOptions::direct`](crate::OpenOptions::direct) each costs at least one device request.
#[derive(Debug, Clone)]
pub struct Cursor {
    file: File,
    pos: u64,
}

impl File {
    /// A cursor on this file at byte 0, for [`io::Read`], [`io::Write`] and [`io::Seek`]. It can read and write if the
    /// file was opened for that.
    pub fn cursor(&self) -> Cursor {
        Cursor { file: self.clone(), pos: 0 }
    }
}

impl Cursor {
    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The position in bytes.
    pub fn position(&self) -> u64 {
        self.pos
    }

    /// The end of the hole or unwritten range at the position, or `None` in data: for sparse copies. The end
    /// of the file ends a hole.
    pub fn hole_end(&self) -> Result<Option<u64>> {
        let size = self.file.size();
        let mut pos = self.pos;
        while pos < size {
            let mut pieces = Pieces::new();
            let range = Range { pos, length: size - pos };
            self.file.pieces(range, &mut pieces)?;
            for piece in &pieces {
                if matches!(piece.state, State::Written | State::Inline) {
                    return Ok((pos > self.pos).then_some(pos));
                }
                pos = piece.end();
            }
        }
        Ok((pos > self.pos).then_some(pos.min(size)))
    }
}

impl io::Read for Cursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Clip the request at the largest position.
        let room = usize::try_from(POS_MAX - self.pos).unwrap_or(usize::MAX).min(buf.len());
        let read = self.file.read_any_at(&mut buf[..room], self.pos)?;
        self.pos += read as u64;
        Ok(read)
    }
}

impl io::Write for Cursor {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.file.write_any_at(buf, self.pos, WriteFlags::empty())?;
        self.pos += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for Cursor {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let pos = match to {
            io::SeekFrom::Start(pos) => Some(pos),
            io::SeekFrom::End(offset) => self.file.size().checked_add_signed(offset),
            io::SeekFrom::Current(offset) => self.pos.checked_add_signed(offset),
        };
        let outside = || Error::Invalid("a position before byte 0 or behind byte 2^63 - 1".into());
        self.pos = pos.filter(|&pos| pos <= POS_MAX).ok_or_else(outside)?;
        Ok(self.pos)
    }
}
