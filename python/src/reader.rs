//! Files for reading whose position belongs to the interpreter: a call that sets or takes it neither lets the
//! interpreter's lock go before, nor waits for another thread.
//!
//! Threads of C and C++ that share a file seek and read while they hold that lock (DuckDB does), and take this for one
//! step. With `io.BufferedReader` it is not: its own lock may go to another thread between the two, which seeks.

use crate::file::NativeFile;
use crate::memory::Pinned;
use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are kept when small reads follow each other.
const PART: u64 = 64 << 10;
/// Larger reads are not small.
const SMALL: u64 = 16 << 10;
/// Bytes of the first look for the end of a line.
const LINE: u64 = 256;

/// Bytes of the file that were read before they were asked for.
#[derive(Default)]
struct Part {
    start: u64,
    bytes: Vec<u8>,
}

impl Part {
    /// Up to `length` of its bytes from `pos` on.
    fn from(&self, pos: u64, length: u64) -> &[u8] {
        let skipped = pos.saturating_sub(self.start).min(self.bytes.len() as u64) as usize;
        let rest = &self.bytes[skipped..];
        &rest[..length.min(rest.len() as u64) as usize]
    }

    fn has(&self, pos: u64, length: u64) -> bool {
        pos >= self.start && pos.saturating_add(length) <= self.start + self.bytes.len() as u64
    }
}

/// A position in an open file.
#[pyclass(frozen, module = "uext4._uext4")]
pub(crate) struct NativeReader {
    file: Py<NativeFile>,
    /// Changed by threads that hold the interpreter's lock.
    position: AtomicU64,
    /// How often it was set.
    seeks: AtomicU64,
    /// Where the last read ended.
    end: AtomicU64,
    /// Never locked while anything is waited for.
    part: Mutex<Arc<Part>>,
}

impl NativeReader {
    fn here(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    fn set(&self, pos: u64) -> u64 {
        if pos != self.here() {
            // Who goes back sees what was written meanwhile.
            *self.part.lock() = Arc::default();
        }
        self.position.store(pos, Ordering::Relaxed);
        self.seeks.fetch_add(1, Ordering::Relaxed);
        pos
    }

    /// Takes up to `length` bytes from the position on: the next call goes on behind them.
    fn take(&self, length: u64) -> PyResult<(u64, u64)> {
        let size = self.file.get().size_now()?;
        let pos = self.here();
        let length = length.min(size.saturating_sub(pos));
        self.position.store(pos + length, Ordering::Relaxed);
        Ok((pos, length))
    }

    /// Of the bytes that were taken from `pos` on, these were there. A position that was set meanwhile stays.
    fn took(&self, pos: u64, taken: u64, read: usize) -> bool {
        let end = pos + read as u64;
        self.end.store(end, Ordering::Relaxed);
        self.position.compare_exchange(pos + taken, end, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Bytes in memory for a small read: those that are there, or more if reads follow each other. Fewer than `length`
    /// at the end of the file.
    fn part(&self, py: Python<'_>, pos: u64, length: u64) -> PyResult<Option<Arc<Part>>> {
        let part = Arc::clone(&self.part.lock());
        if length == 0 || part.has(pos, length) {
            return Ok(Some(part));
        }
        if length > SMALL || pos != self.end.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut bytes = vec![0; PART as usize];
        let read = self.file.get().read_fully_at(py, &mut bytes, pos)?;
        bytes.truncate(read);
        let part = Arc::new(Part { start: pos, bytes });
        *self.part.lock() = Arc::clone(&part);
        Ok(Some(part))
    }

    fn read_some<'py>(&self, py: Python<'py>, length: u64) -> PyResult<Bound<'py, PyBytes>> {
        let (pos, length) = self.take(length)?;
        let bytes = match self.part(py, pos, length) {
            Ok(Some(part)) => Ok(PyBytes::new(py, part.from(pos, length))),
            Ok(None) => self.file.get().bytes_at(py, Some(length), pos),
            Err(error) => Err(error),
        };
        let _moved = self.took(pos, length, bytes.as_ref().map_or(0, |bytes| bytes.as_bytes().len()));
        bytes
    }

    /// The line from `pos` on, or `most` bytes of it.
    fn line<'py>(&self, py: Python<'py>, pos: u64, most: u64) -> PyResult<Bound<'py, PyBytes>> {
        self.file.get().size_now()?;
        if let Some(part) = self.part(py, pos, most.min(1))? {
            let rest = part.from(pos, most);
            let end = rest.iter().position(|byte| *byte == b'\n');
            if let Some(length) = end.map(|end| end + 1).or((rest.len() as u64 == most).then_some(rest.len()))
            {
                return Ok(PyBytes::new(py, &rest[..length]));
            }
        }
        let line = self.file.get().line_at(py, pos, most, LINE..=PART)?;
        Ok(PyBytes::new(py, &line))
    }
}

/// A size of `io`: none and negative ones are no limit.
fn limit(size: Option<i64>) -> Option<u64> {
    size.and_then(|size| u64::try_from(size).ok())
}

#[pymethods]
impl NativeReader {
    #[new]
    fn new(file: Py<NativeFile>) -> NativeReader {
        let zero = || AtomicU64::new(0);
        NativeReader { file, position: zero(), seeks: zero(), end: zero(), part: Mutex::default() }
    }

    #[pyo3(signature = (offset, whence=0, /))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let file = self.file.get();
        let size = file.size_now()?;
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => self.here(),
            libc::SEEK_END => size,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let pos = u64::try_from(offset).unwrap_or(u64::MAX);
                let found = file.seek_data(py, pos, whence == libc::SEEK_HOLE)?;
                let pos =
                    found.ok_or_else(|| PyOSError::new_err((libc::ENXIO, "no such bytes behind it")))?;
                return Ok(self.set(pos));
            }
            other => return Err(PyValueError::new_err(format!("invalid whence: {other}"))),
        };
        let pos = from.checked_add_signed(offset);
        let pos = pos.ok_or_else(|| PyOSError::new_err((libc::EINVAL, "a position before the file")))?;
        Ok(self.set(pos))
    }

    fn tell(&self) -> PyResult<u64> {
        self.file.get().size_now()?;
        Ok(self.here())
    }

    #[pyo3(signature = (size=None, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        self.read_some(py, limit(size).unwrap_or(u64::MAX))
    }

    #[pyo3(signature = (size=None, /))]
    fn read1<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        self.read_some(py, limit(size).unwrap_or(PART))
    }

    /// The next bytes, which stay the next ones.
    #[pyo3(signature = (_size=0, /))]
    fn peek<'py>(&self, py: Python<'py>, _size: i64) -> PyResult<Bound<'py, PyBytes>> {
        self.file.get().size_now()?;
        let pos = self.here();
        match self.part(py, pos, 1)? {
            Some(part) => Ok(PyBytes::new(py, part.from(pos, PART))),
            None => self.file.get().bytes_at(py, Some(SMALL), pos),
        }
    }

    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut memory = Pinned::writable(buffer)?;
        let (pos, length) = self.take(memory.len() as u64)?;
        let bytes = &mut memory.bytes_mut()[..length as usize];
        let read = match self.part(py, pos, length) {
            Ok(Some(part)) => {
                let found = part.from(pos, length);
                bytes[..found.len()].copy_from_slice(found);
                Ok(found.len())
            }
            Ok(None) => self.file.get().read_fully_at(py, bytes, pos),
            Err(error) => Err(error),
        };
        let _moved = self.took(pos, length, *read.as_ref().unwrap_or(&0));
        read
    }

    #[pyo3(signature = (size=None, /))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let most = limit(size).unwrap_or(u64::MAX);
        loop {
            let (pos, seeks) = (self.here(), self.seeks.load(Ordering::Relaxed));
            let line = self.line(py, pos, most)?;
            // Otherwise another thread has read it meanwhile.
            if self.took(pos, 0, line.as_bytes().len()) || self.seeks.load(Ordering::Relaxed) != seeks {
                return Ok(line);
            }
        }
    }
}
