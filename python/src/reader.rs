//! Files opened for reading. A call takes or sets the position before it releases the interpreter's lock.
//!
//! DuckDB's threads share a file object and call seek, then read, with that lock held: the two must act as one step.
//! They do not in `io.BufferedReader`: its internal lock may pass to another thread in between, and that thread seeks.

use crate::file::NativeFile;
use crate::memory::Pinned;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes read at once when small reads are sequential.
const READ_AHEAD: u64 = 64 << 10;
/// The longest read that uses read-ahead.
const SMALL: u64 = 16 << 10;
/// The first chunk read in search of a newline.
const LINE: u64 = 256;

/// Bytes read ahead.
#[derive(Default)]
struct ReadAhead {
    start: u64,
    bytes: Vec<u8>,
}

impl ReadAhead {
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
    /// Number of seeks.
    seeks: AtomicU64,
    /// Where the last read ended.
    end: AtomicU64,
    /// Locked only to copy or replace the pointer.
    ahead: Mutex<Arc<ReadAhead>>,
}

impl NativeReader {
    fn here(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    fn seeks(&self) -> u64 {
        self.seeks.load(Ordering::Relaxed)
    }

    fn set(&self, pos: u64) -> u64 {
        if pos != self.here() {
            // A read after such a seek sees later writes of other handles.
            *self.ahead.lock() = Arc::default();
        }
        self.position.store(pos, Ordering::Relaxed);
        self.seeks.fetch_add(1, Ordering::Relaxed);
        pos
    }

    /// Claims up to `length` bytes at the position, and moves it behind them. Returns where they begin, and how many.
    fn claim(&self, py: Python<'_>, length: u64) -> PyResult<(u64, u64)> {
        let size = self.file.get().size_now(py)?;
        let pos = self.here();
        let length = length.min(size.saturating_sub(pos));
        self.position.store(pos + length, Ordering::Relaxed);
        Ok((pos, length))
    }

    /// Ends a read of `claimed` bytes at `pos`: the position goes behind those `read`, unless it has changed since.
    fn finish(&self, pos: u64, claimed: u64, read: usize) -> bool {
        let end = pos + read as u64;
        self.end.store(end, Ordering::Relaxed);
        self.position.compare_exchange(pos + claimed, end, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The read-ahead that serves a small read, filled anew if the read is sequential. Shorter at the end of the file.
    fn ahead(&self, py: Python<'_>, pos: u64, length: u64) -> PyResult<Option<Arc<ReadAhead>>> {
        let ahead = Arc::clone(&self.ahead.lock());
        if length == 0 || ahead.has(pos, length) {
            return Ok(Some(ahead));
        }
        if length > SMALL || pos != self.end.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let seeks = self.seeks();
        let mut bytes = vec![0; READ_AHEAD as usize];
        let read = self.file.get().read_fully_at(py, &mut bytes, pos)?;
        bytes.truncate(read);
        let ahead = Arc::new(ReadAhead { start: pos, bytes });
        // Whoever has sought since may have written, too: these bytes may be older.
        if self.seeks() == seeks {
            *self.ahead.lock() = Arc::clone(&ahead);
        }
        Ok(Some(ahead))
    }

    fn read_some<'py>(&self, py: Python<'py>, length: u64) -> PyResult<Bound<'py, PyBytes>> {
        let (pos, length) = self.claim(py, length)?;
        let bytes = match self.ahead(py, pos, length) {
            Ok(Some(ahead)) => Ok(PyBytes::new(py, ahead.from(pos, length))),
            Ok(None) => self.file.get().bytes_at(py, Some(length), pos),
            Err(error) => Err(error),
        };
        let _moved = self.finish(pos, length, bytes.as_ref().map_or(0, |bytes| bytes.as_bytes().len()));
        bytes
    }

    /// The line from `pos` on, or `most` bytes of it.
    fn line<'py>(&self, py: Python<'py>, pos: u64, most: u64) -> PyResult<Bound<'py, PyBytes>> {
        self.file.get().size_now(py)?;
        if let Some(ahead) = self.ahead(py, pos, most.min(1))? {
            let rest = ahead.from(pos, most);
            let end = rest.iter().position(|byte| *byte == b'\n');
            if let Some(length) = end.map(|end| end + 1).or((rest.len() as u64 == most).then_some(rest.len()))
            {
                return Ok(PyBytes::new(py, &rest[..length]));
            }
        }
        let line = self.file.get().line_at(py, pos, most, LINE..=READ_AHEAD)?;
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
        NativeReader { file, position: zero(), seeks: zero(), end: zero(), ahead: Mutex::default() }
    }

    #[pyo3(signature = (offset, whence=0, /))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let file = self.file.get();
        let size = file.size_now(py)?;
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => self.here(),
            libc::SEEK_END => size,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let pos = u64::try_from(offset).unwrap_or(u64::MAX);
                let found = file.seek_data(py, pos, whence == libc::SEEK_HOLE)?;
                let pos =
                    found.ok_or_else(|| file.refused(libc::ENXIO, "no data, or no hole, from there on"))?;
                return Ok(self.set(pos));
            }
            other => return Err(PyValueError::new_err(format!("invalid whence: {other}"))),
        };
        let pos = from.checked_add_signed(offset);
        let pos = pos.ok_or_else(|| file.refused(libc::EINVAL, "a position before the file"))?;
        Ok(self.set(pos))
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.file.get().size_now(py)?;
        Ok(self.here())
    }

    #[pyo3(signature = (size=None, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        self.read_some(py, limit(size).unwrap_or(u64::MAX))
    }

    #[pyo3(signature = (size=None, /))]
    fn read1<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        self.read_some(py, limit(size).unwrap_or(READ_AHEAD))
    }

    /// The next bytes, which stay the next ones.
    #[pyo3(signature = (_size=0, /))]
    fn peek<'py>(&self, py: Python<'py>, _size: i64) -> PyResult<Bound<'py, PyBytes>> {
        self.file.get().size_now(py)?;
        let pos = self.here();
        match self.ahead(py, pos, 1)? {
            Some(ahead) => Ok(PyBytes::new(py, ahead.from(pos, READ_AHEAD))),
            None => self.file.get().bytes_at(py, Some(SMALL), pos),
        }
    }

    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut memory = Pinned::writable(buffer)?;
        let (pos, length) = self.claim(py, memory.len() as u64)?;
        let bytes = &mut memory.bytes_mut()[..length as usize];
        let read = match self.ahead(py, pos, length) {
            Ok(Some(ahead)) => {
                let found = ahead.from(pos, length);
                bytes[..found.len()].copy_from_slice(found);
                Ok(found.len())
            }
            Ok(None) => self.file.get().read_fully_at(py, bytes, pos),
            Err(error) => Err(error),
        };
        let _moved = self.finish(pos, length, *read.as_ref().unwrap_or(&0));
        read
    }

    #[pyo3(signature = (size=None, /))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let most = limit(size).unwrap_or(u64::MAX);
        loop {
            let (pos, seeks) = (self.here(), self.seeks());
            let line = self.line(py, pos, most)?;
            // Otherwise another thread has read this line: take the next.
            if self.finish(pos, 0, line.as_bytes().len()) || self.seeks() != seeks {
                return Ok(line);
            }
        }
    }
}
