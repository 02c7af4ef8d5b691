//! Open files. The classes of the `io` module around them are Python (`package/uext4/_file.py`).

use crate::call::{Fault, Opener, Result, call, let_go};
use crate::explain::{self, Question};
use crate::memory::Pinned;
use crate::stat::Stat;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::ops::RangeInclusive;
use std::sync::Arc;
use uext4::{Fallocate, File, OpenOptions, WriteFlags};

/// How a file is opened.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct FileOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    /// `no`, `missing` or `new`.
    create: String,
    mode: u32,
    owner: (u32, u32),
    direct: bool,
    limited: bool,
}

impl FileOptions {
    pub(crate) fn options(&self) -> Result<OpenOptions> {
        let options = OpenOptions::new()
            .read(self.read)
            .write(self.write)
            .append(self.append)
            .truncate(self.truncate)
            .mode(self.mode)
            .owner(self.owner.0, self.owner.1)
            .direct(self.direct)
            .limited(self.limited);
        match &*self.create {
            "no" => Ok(options),
            "missing" => Ok(options.create(true)),
            "new" => Ok(options.create_new(true)),
            other => Err(Fault::Value(format!("create: {other}"))),
        }
    }

    pub(crate) fn appends(&self) -> bool {
        self.append
    }
}

/// A file that is open until it is closed, for those who use it: the object of Python, and queues.
pub(crate) struct Core {
    open: RwLock<Option<File>>,
    name: Box<[u8]>,
    opener: Opener,
}

impl Core {
    /// The file, which stays open meanwhile.
    pub(crate) fn get(&self) -> Result<MappedRwLockReadGuard<'_, File>> {
        self.opener.check()?;
        let open = RwLockReadGuard::try_map(self.open.read(), Option::as_ref);
        open.map_err(|_| Fault::Closed("the file"))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.open.read().is_none()
    }

    /// A failure of this file.
    pub(crate) fn fault(&self, error: uext4::Error) -> Fault {
        Fault::from(error).at(&self.name)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(file) = self.open.get_mut().take() {
            let_go(file);
        }
    }
}

/// An open file with a position.
#[pyclass(frozen, module = "uext4._uext4")]
pub(crate) struct NativeFile {
    core: Arc<Core>,
    /// Where `read` and `write` go on. Held while they do.
    cursor: Mutex<u64>,
    appends: bool,
}

impl NativeFile {
    pub(crate) fn new(file: File, name: Vec<u8>, appends: bool, opener: Opener) -> NativeFile {
        let core = Core { open: RwLock::new(Some(file)), name: name.into(), opener };
        NativeFile { core: Arc::new(core), cursor: Mutex::new(0), appends }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&File) -> uext4::Result<T> + Send,
    ) -> PyResult<T> {
        call(py, || work(&*self.core.get()?).map_err(|error| self.core.fault(error)))
    }

    /// The size in bytes. Keeps the interpreter's lock, unless another thread is closing the file: that may wait for
    /// the device.
    pub(crate) fn size_now(&self, py: Python<'_>) -> PyResult<u64> {
        self.core.opener.check()?;
        let now = self.core.open.try_read().map(|open| open.as_ref().map(File::size));
        match now {
            Some(size) => Ok(size.ok_or(Fault::Closed("the file"))?),
            None => self.size(py),
        }
    }

    /// `OSError` with this errno, about this file.
    pub(crate) fn refused(&self, errno: i32, text: &str) -> Fault {
        Fault::with_errno(errno, text).at(&self.core.name)
    }

    /// Reads from `pos` on until the memory is full or the file ends.
    pub(crate) fn read_fully_at(&self, py: Python<'_>, memory: &mut [u8], pos: u64) -> PyResult<usize> {
        self.with(py, |file| read_fully(file, memory, pos))
    }

    /// The bytes from `pos` to the end of the line (newline included) or of the file, at most `most`. Reads chunks that
    /// double in size within `chunks`.
    pub(crate) fn line_at(
        &self,
        py: Python<'_>,
        pos: u64,
        most: u64,
        chunks: RangeInclusive<u64>,
    ) -> PyResult<Vec<u8>> {
        let (mut chunk, longest) = chunks.into_inner();
        call(py, || {
            let file = self.core.get()?;
            let mut line = Vec::new();
            loop {
                let known = line.len();
                let length = chunk.min(most - known as u64) as usize;
                // A sparse file may have a line that no memory holds.
                let room = line.try_reserve(length);
                room.map_err(|_| self.refused(libc::ENOMEM, "a line longer than memory"))?;
                line.resize(known + length, 0);
                let read = read_fully(&file, &mut line[known..], pos.saturating_add(known as u64));
                let read = read.map_err(|error| self.core.fault(error))?;
                line.truncate(known + read);
                if let Some(end) = line[known..].iter().position(|byte| *byte == b'\n') {
                    line.truncate(known + end + 1);
                    return Ok(line);
                }
                if read < length || line.len() as u64 == most {
                    return Ok(line);
                }
                chunk = longest.min(2 * chunk);
            }
        })
    }

    /// Bytes from `pos` on as a new object: `size` of them, or all; fewer at the end.
    pub(crate) fn bytes_at<'py>(
        &self,
        py: Python<'py>,
        size: Option<u64>,
        pos: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let rest = self.with(py, |file| Ok(file.size().saturating_sub(pos)))?;
        let length = usize::try_from(size.unwrap_or(u64::MAX).min(rest));
        let length = length.map_err(|_| PyValueError::new_err("more bytes than memory can have"))?;
        let mut done = 0;
        let bytes = PyBytes::new_with(py, length, |memory| {
            done = self.with(py, |file| read_fully(file, memory, pos))?;
            Ok(())
        })?;
        // Cut if the file was made shorter meanwhile.
        Ok(if done == length { bytes } else { PyBytes::new(py, &bytes.as_bytes()[..done]) })
    }
}

/// Reads until the memory is full or the file ends.
fn read_fully(file: &File, memory: &mut [u8], pos: u64) -> uext4::Result<usize> {
    let mut done = 0;
    while done < memory.len() {
        match file.read_any_at(&mut memory[done..], pos + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Flags of a write.
pub(crate) fn write_flags(dsync: bool, sync: bool, nowait: bool, atomic: bool) -> WriteFlags {
    let mut flags = WriteFlags::empty();
    flags.set(WriteFlags::DSYNC, dsync);
    flags.set(WriteFlags::SYNC, sync);
    flags.set(WriteFlags::NOWAIT, nowait);
    flags.set(WriteFlags::ATOMIC, atomic);
    flags
}

/// What `fallocate` does, by the names of `uext4 fallocate`.
pub(crate) fn fallocate_mode(name: &str) -> Result<Fallocate> {
    Ok(match name {
        "allocate" => Fallocate::Allocate,
        "keep-size" => Fallocate::KeepSize,
        "punch" => Fallocate::Punch,
        "zero" => Fallocate::Zero,
        "zero-keep-size" => Fallocate::ZeroKeepSize,
        "collapse" => Fallocate::Collapse,
        "insert" => Fallocate::Insert,
        other => return Err(Fault::Value(format!("no mode of fallocate: {other}"))),
    })
}

#[pymethods]
impl NativeFile {
    fn preadinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, pos: u64) -> PyResult<usize> {
        let mut memory = Pinned::writable(buffer)?;
        let bytes = memory.bytes_mut();
        self.with(py, |file| file.read_any_at(bytes, pos))
    }

    fn pread<'py>(&self, py: Python<'py>, size: u64, pos: u64) -> PyResult<Bound<'py, PyBytes>> {
        self.bytes_at(py, Some(size), pos)
    }

    #[pyo3(signature = (data, pos, *, dsync=false, sync=false, nowait=false, atomic=false))]
    #[expect(clippy::too_many_arguments, reason = "flags are keywords in Python")]
    fn pwrite(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        pos: u64,
        dsync: bool,
        sync: bool,
        nowait: bool,
        atomic: bool,
    ) -> PyResult<usize> {
        let memory = Pinned::readable(data)?;
        let (bytes, flags) = (memory.bytes(), write_flags(dsync, sync, nowait, atomic));
        self.with(py, |file| file.write_any_at(bytes, pos, flags))
    }

    /// At the end of a file that was opened for appending. Returns where the bytes are.
    #[pyo3(signature = (data, *, dsync=false, sync=false))]
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>, dsync: bool, sync: bool) -> PyResult<u64> {
        let memory = Pinned::readable(data)?;
        let (bytes, flags) = (memory.bytes(), write_flags(dsync, sync, false, false));
        self.with(py, |file| file.append(bytes, flags))
    }

    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut memory = Pinned::writable(buffer)?;
        let bytes = memory.bytes_mut();
        self.with(py, |file| {
            let mut cursor = self.cursor.lock();
            let read = file.read_any_at(bytes, *cursor)?;
            *cursor += read as u64;
            Ok(read)
        })
    }

    fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let pos = self.tell(py)?;
        let bytes = self.bytes_at(py, None, pos)?;
        self.seek(py, pos.saturating_add(bytes.as_bytes().len() as u64))?;
        Ok(bytes)
    }

    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let memory = Pinned::readable(data)?;
        let bytes = memory.bytes();
        self.with(py, |file| {
            let mut cursor = self.cursor.lock();
            let written = match self.appends {
                true => {
                    *cursor = file.append(bytes, WriteFlags::empty())?;
                    bytes.len()
                }
                false => file.write_any_at(bytes, *cursor, WriteFlags::empty())?,
            };
            *cursor += written as u64;
            Ok(written)
        })
    }

    fn seek(&self, py: Python<'_>, pos: u64) -> PyResult<u64> {
        self.with(py, |_| {
            *self.cursor.lock() = pos;
            Ok(pos)
        })
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |_| Ok(*self.cursor.lock()))
    }

    /// From here, forwards or backwards.
    fn seek_by(&self, py: Python<'_>, offset: i64) -> PyResult<u64> {
        self.with(py, |_| {
            let mut cursor = self.cursor.lock();
            let to = cursor.checked_add_signed(offset);
            *cursor = to.ok_or_else(|| uext4::Error::Invalid("a position before the file".into()))?;
            Ok(*cursor)
        })
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |file| Ok(file.size()))
    }

    #[getter]
    fn inode(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |file| Ok(file.ino().get()))
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |file| file.set_len(size))
    }

    fn fallocate(&self, py: Python<'_>, mode: &str, pos: u64, length: u64) -> PyResult<()> {
        let mode = fallocate_mode(mode)?;
        self.with(py, |file| file.fallocate(mode, pos, length))
    }

    fn prepare(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |file| file.prepare(size))
    }

    /// With `data_only` as `fdatasync`, else as `fsync`.
    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        self.with(py, |file| if data_only { file.sync_data() } else { file.sync_all() })
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.with(py, |file| Ok(Stat::new(file.metadata(), &file.volume())))
    }

    /// The first byte of data, or of a hole, at or after this one.
    pub(crate) fn seek_data(&self, py: Python<'_>, pos: u64, hole: bool) -> PyResult<Option<u64>> {
        self.with(py, |file| if hole { file.seek_hole(pos) } else { file.seek_data(pos) })
    }

    /// Pieces of the map: (byte of the file, byte of the device, length, state).
    fn map(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64, u64, &'static str)>> {
        self.with(py, |file| {
            let piece =
                |piece: uext4::Piece| (piece.logical, piece.physical, piece.length, piece.state.name());
            file.map().map(|found| found.map(piece)).collect()
        })
    }

    fn explain<'py>(&self, py: Python<'py>, question: Question) -> PyResult<Bound<'py, PyDict>> {
        let query = question.query()?;
        let explanation = self.with(py, |file| file.explain(&query))?;
        explain::told(py, &explanation)
    }

    /// In a child process it does nothing.
    fn close(&self, py: Python<'_>) {
        if self.core.opener.is_here() {
            py.detach(|| drop(self.core.open.write().take()));
        }
    }
}
