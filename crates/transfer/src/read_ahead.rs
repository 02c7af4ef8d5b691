//! Reads the bytes of a file in order, ahead of their use, through a queue.

use crate::error::{Cause, Error, Result};
use std::collections::VecDeque;
use std::fs::File as HostFile;
use std::io::Write;
use std::path::Path;
use uext4::{Buffer, File, FileSlot, IoQueue, Piece, QueueOptions, State, Volume};

/// Bytes per request.
const CHUNK: u64 = 1 << 20;
/// Requests in flight.
const DEPTH: u64 = 16;
/// If zeros are written, runs of zeros shorter than this are read along with the data around them.
const ZEROS_MIN: u64 = 64 << 10;
/// Size of the writes of zeros.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Where the bytes go. Calls come in file order and cover every byte once.
pub trait Sink {
    /// Data at byte `pos` of the file.
    fn data(&mut self, pos: u64, bytes: &[u8]) -> Result<()>;
    /// `length` bytes that read as zeros and have no data.
    fn zeros(&mut self, pos: u64, length: u64) -> Result<()>;
}

/// Writes without its own buffer: data comes a mebibyte at a time.
struct Stream<'a> {
    to: &'a HostFile,
    name: &'a Path,
    advance: &'a mut dyn FnMut(u64),
}

impl Sink for Stream<'_> {
    fn data(&mut self, _pos: u64, bytes: &[u8]) -> Result<()> {
        let mut to = self.to;
        to.write_all(bytes).map_err(|error| Error::refused(self.name, "write", error))?;
        (self.advance)(bytes.len() as u64);
        Ok(())
    }

    fn zeros(&mut self, pos: u64, length: u64) -> Result<()> {
        let mut rest = length;
        while rest > 0 {
            let step = rest.min(ZEROS.len() as u64);
            self.data(pos, &ZEROS[..step as usize])?;
            rest -= step;
        }
        Ok(())
    }
}

/// Writes a whole file, zeros included, to a descriptor that need not be seekable. `name` is the descriptor's name in
/// errors; `advance` is called with the bytes of each write.
pub fn stream(
    volume: &Volume,
    file: &File,
    to: &HostFile,
    name: &Path,
    advance: &mut dyn FnMut(u64),
) -> Result<()> {
    pour(b"", volume, file, ZEROS_MIN, &mut Stream { to, name, advance })
}

/// A run of the file that is data, or that reads as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileRun {
    pos: u64,
    length: u64,
    data: bool,
}

/// Joins the pieces of a map into runs. Zeros shorter than `zeros_min` count as data: reading them along is cheaper
/// than an extra request.
struct Runs<I> {
    pieces: I,
    size: u64,
    zeros_min: u64,
    next: Option<FileRun>,
}

impl<I: Iterator<Item = uext4::Result<Piece>>> Runs<I> {
    fn new(pieces: I, size: u64, zeros_min: u64) -> Self {
        Runs { pieces, size, zeros_min, next: None }
    }

    fn piece(&mut self) -> Option<uext4::Result<FileRun>> {
        let piece = match self.pieces.next()? {
            Ok(piece) => piece,
            Err(error) => return Some(Err(error)),
        };
        // The last block may reach past the end of the file.
        let length = self.size.checked_sub(piece.logical)?.min(piece.length);
        let zeros = matches!(piece.state, State::Unwritten | State::Hole);
        let data = !zeros || piece.length < self.zeros_min;
        (length > 0).then_some(Ok(FileRun { pos: piece.logical, length, data }))
    }
}

impl<I: Iterator<Item = uext4::Result<Piece>>> Iterator for Runs<I> {
    type Item = uext4::Result<FileRun>;

    fn next(&mut self) -> Option<uext4::Result<FileRun>> {
        let mut run = match self.next.take() {
            Some(run) => run,
            None => match self.piece()? {
                Ok(run) => run,
                Err(error) => return Some(Err(error)),
            },
        };
        while let Some(next) = self.piece() {
            match next {
                Err(error) => return Some(Err(error)),
                Ok(next) if next.data == run.data => run.length += next.length,
                Ok(next) => {
                    self.next = Some(next);
                    break;
                }
            }
        }
        Some(Ok(run))
    }
}

/// One part in flight to the sink.
enum Part {
    Zeros(FileRun),
    Waiting(FileRun),
    Ready(FileRun, Buffer),
}

struct ReadAhead<'f> {
    /// Path of the file, below the source.
    path: &'f [u8],
    queue: IoQueue,
    slot: FileSlot,
    /// Lengths of requests are multiples of this.
    align: u64,
    parts: VecDeque<Part>,
    /// Tag of the first part.
    first: u64,
}

/// Sends the whole file to `sink`. Zeros shorter than `zeros_min` bytes may come as data. Errors name `path`.
pub fn pour(path: &[u8], volume: &Volume, file: &File, zeros_min: u64, sink: &mut dyn Sink) -> Result<()> {
    let size = file.size();
    let depth = size.div_ceil(CHUNK).clamp(1, DEPTH);
    let at = |error: uext4::Error| Error::source(path, error);
    let align = u64::from(volume.device().geometry().logical_block);
    let largest = size.min(CHUNK).next_multiple_of(align);
    let options = QueueOptions::depth(depth as u32).buffer_bytes((depth * largest.max(4096)) as usize);
    let mut queue = volume.queue(options).map_err(at)?;
    let slot = queue.attach(file).map_err(at)?;
    let mut ahead = ReadAhead { path, queue, slot, align, parts: VecDeque::new(), first: 0 };
    for run in Runs::new(file.map(), size, zeros_min) {
        let run = run.map_err(at)?;
        let mut pos = run.pos;
        let end = run.pos + run.length;
        while pos < end {
            let stop = if run.data { ((pos / CHUNK + 1) * CHUNK).min(end) } else { end };
            while ahead.parts.len() as u64 >= depth {
                ahead.deliver(sink)?;
            }
            ahead.start(FileRun { pos, length: stop - pos, data: run.data })?;
            pos = stop;
        }
    }
    while !ahead.parts.is_empty() {
        ahead.deliver(sink)?;
    }
    Ok(())
}

impl ReadAhead<'_> {
    fn start(&mut self, run: FileRun) -> Result<()> {
        if !run.data {
            self.parts.push_back(Part::Zeros(run));
            return Ok(());
        }
        let at = |error: uext4::Error| Error::source(self.path, error);
        let tag = self.first + self.parts.len() as u64;
        let buffer = self.queue.buffer(run.length.next_multiple_of(self.align) as usize).map_err(at)?;
        self.queue.read(self.slot, run.pos, buffer, tag).map_err(at)?;
        self.queue.submit().map_err(at)?;
        self.parts.push_back(Part::Waiting(run));
        Ok(())
    }

    /// Hands the first part to the sink, once its data has been read.
    fn deliver(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while matches!(self.parts.front(), Some(Part::Waiting(_))) {
            self.collect()?;
        }
        let part = self.parts.pop_front();
        self.first += 1;
        match part {
            Some(Part::Zeros(run)) => sink.zeros(run.pos, run.length),
            Some(Part::Ready(run, buffer)) => sink.data(run.pos, &buffer[..run.length as usize]),
            Some(Part::Waiting(_)) | None => Ok(()),
        }
    }

    fn collect(&mut self) -> Result<()> {
        let path = self.path;
        for done in self.queue.wait(1).map_err(|error| Error::source(path, error))? {
            let index = (done.tag - self.first) as usize;
            let Some(&Part::Waiting(run)) = self.parts.get(index) else { continue };
            let read = done.result.as_ref().map_err(|error| Error::source(path, uext4::Error::clone(error)));
            let read = *read? as u64;
            if read < run.length {
                let short = Cause::ShortRead { pos: run.pos, read, length: run.length };
                return Err(Error::source(path, short));
            }
            let Some(buffer) = done.into_buffer() else {
                return Err(Error::source(path, Cause::NoMemory));
            };
            self.parts[index] = Part::Ready(run, buffer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(logical: u64, length: u64, state: State) -> uext4::Result<Piece> {
        Ok(Piece { logical, physical: 0, length, state })
    }

    #[test]
    fn pieces_join_into_runs_and_end_with_the_file() {
        let pieces = || {
            [
                piece(0, 4096, State::Written),
                piece(4096, 4096, State::Written),
                piece(8192, 4096, State::Hole),
                piece(12288, 8192, State::Unwritten),
                piece(20480, 4096, State::Written),
            ]
            .into_iter()
        };
        let runs = |zeros_min| -> Vec<FileRun> {
            Runs::new(pieces(), 20481, zeros_min).map(|run| run.unwrap()).collect()
        };
        let run = |pos, length, data| FileRun { pos, length, data };
        assert_eq!(runs(1), [run(0, 8192, true), run(8192, 12288, false), run(20480, 1, true)]);
        assert_eq!(runs(8192), [run(0, 12288, true), run(12288, 8192, false), run(20480, 1, true)]);
        assert_eq!(runs(1 << 20), [run(0, 20481, true)]);
    }
}
