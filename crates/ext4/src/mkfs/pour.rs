//! Writes the contents of the files of a new volume: large requests in the order of the blocks, from several threads.
//! The hash trees of sealed files follow when the last of their contents is written.

use super::error::{Error, Result};
use super::pieces::{Piece, Pieces};
use super::population::Population;
use super::sealing::Sealing;
use super::tree::{Contents, Source};
use super::write::REQUEST;
use crate::ground::error::Error as VolumeError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use uext4_blockdev::{BufferPool, Device, WriteDurability};

/// Threads. Reading, copying and the device overlap; more threads than this gained nothing.
const THREADS: usize = 4;

/// What the threads share.
struct Course<'c> {
    device: &'c dyn Device,
    population: &'c Population<'c>,
    source: &'c dyn Source,
    sealing: Sealing,
}

/// Writes all contents, and returns their bytes in whole blocks, with those of hash trees. Waits for all requests.
///
/// # Errors
/// [`Error::Contents`] if the source fails, [`Error::Failed`] if the device does: the first that was met.
pub(super) fn pour(
    device: &dyn Device,
    population: &Population<'_>,
    source: &dyn Source,
    mut pieces: Pieces,
) -> Result<u64> {
    let sealing = Sealing::new(std::mem::take(&mut pieces.sealed));
    let bytes = pieces.bytes() + sealing.bytes();
    let (requests, empty) = (pieces.requests(), sealing.without_contents());
    let course = Course { device, population, source, sealing };
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<()> {
        let pool = BufferPool::new(REQUEST).map_err(VolumeError::from).map_err(Error::Failed)?;
        let mut buffer = pool.take(REQUEST).map_err(VolumeError::from).map_err(Error::Failed)?;
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let done = match (requests.get(number), empty.get(number.saturating_sub(requests.len()))) {
                (Some(request), _) => course.send(request, &mut buffer),
                (None, Some(position)) => course.sealing.finish(*position, device, &mut buffer),
                (None, None) => break,
            };
            if done.is_err() {
                failed.store(true, Ordering::Relaxed);
                return done;
            }
        }
        Ok(())
    };
    if requests.len() + empty.len() < THREADS {
        return work().map(|()| bytes);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let died = || Error::Failed(VolumeError::Invalid("a thread that writes died".into()));
        let ends: Vec<_> =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(died()))).collect();
        ends.into_iter().collect::<Result<()>>().map(|()| bytes)
    })
}

impl Course<'_> {
    fn send(&self, request: &[Piece], buffer: &mut [u8]) -> Result<()> {
        let (mut filled, mut hashed) = (0, Vec::new());
        for piece in request {
            let length = piece.length as usize;
            let no_room = || Error::Failed(VolumeError::OutOfMemory { bytes: REQUEST as u64 });
            let place = buffer.get_mut(filled..filled + length).ok_or_else(no_room)?;
            let contents = self.population.contents(piece.position);
            fill(self.source, contents, piece.at, place)
                .map_err(|error| self.population.failed(piece.position, error))?;
            if self.sealing.hash(piece.position, piece.at, place)? {
                hashed.push(piece.position);
            }
            filled += length;
        }
        let start = request.first().map_or(0, |first| first.disk);
        let bytes = buffer.get(..filled).unwrap_or_default();
        let written = self.device.write_at(bytes, start, WriteDurability::Cached);
        written.map_err(VolumeError::from).map_err(Error::Failed)?;
        self.source.advance(filled as u64);
        hashed.into_iter().try_for_each(|position| self.sealing.finish(position, self.device, buffer))
    }
}

/// Fills memory with the bytes of a file from `at` on: zeros where it has holes, and behind its end.
fn fill(
    source: &dyn Source,
    contents: &Contents,
    at: u64,
    place: &mut [u8],
) -> std::result::Result<(), super::tree::SourceError> {
    let end = at + place.len() as u64;
    let mut done = at;
    let first = contents.data.partition_point(|range| range.end <= at);
    for range in contents.data.get(first..).unwrap_or_default().iter().take_while(|range| range.start < end) {
        let (from, to) = (range.start.max(at), range.end.min(end));
        place[(done - at) as usize..(from - at) as usize].fill(0);
        source.read(contents.key, from, &mut place[(from - at) as usize..(to - at) as usize])?;
        done = to;
    }
    place[(done - at) as usize..].fill(0);
    Ok(())
}
