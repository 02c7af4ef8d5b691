//! Walks and listings with attributes.

use crate::call::{Fault, Opener, Result, call, decoded, let_go};
use crate::stat::{Stat, device_of, type_bits};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use uext4::format::Incompat;
use uext4::{FileKind, Ino, Metadata, Volume, Walk, WalkOptions};

/// Entries that are read at once, without the interpreter's lock.
const BATCH: usize = 512;

/// Bytes of their paths, which are long in a deep tree.
const BATCH_BYTES: usize = 1 << 20;

/// A name that a walk or a listing found, as `os.DirEntry`.
#[pyclass(frozen, module = "uext4")]
pub(crate) struct Entry {
    path: Box<[u8]>,
    /// Where the name begins in the path.
    name: usize,
    depth: u32,
    ino: Ino,
    kind: Option<FileKind>,
    /// Boxed, so that entries without it are small.
    metadata: Option<Box<Metadata>>,
    device: u64,
}

impl Entry {
    fn is(&self, kind: FileKind) -> bool {
        self.kind == Some(kind)
    }
}

#[pymethods]
impl Entry {
    /// The path in the volume.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        decoded(py, &self.path)
    }

    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        decoded(py, &self.path[self.name..])
    }

    /// Names between it and the start, which has depth 0.
    #[getter]
    fn depth(&self) -> u32 {
        self.depth
    }

    fn inode(&self) -> u32 {
        self.ino.get()
    }

    fn is_dir(&self) -> bool {
        self.is(FileKind::Directory)
    }

    fn is_file(&self) -> bool {
        self.is(FileKind::Regular)
    }

    fn is_symlink(&self) -> bool {
        self.is(FileKind::Symlink)
    }

    /// The bits of a mode that say the type (`stat.S_IFMT`).
    #[getter]
    fn type_bits(&self) -> u32 {
        self.kind.map_or(0, type_bits)
    }

    /// Attributes, of a symbolic link itself.
    fn stat(&self) -> PyResult<Stat> {
        let none = || PyValueError::new_err("a walk with stat=False reads no attributes");
        let metadata = self.metadata.as_ref().ok_or_else(none)?;
        Ok(Stat::on((**metadata).clone(), self.device))
    }

    fn __repr__(&self) -> String {
        format!("<uext4.Entry '{}'>", String::from_utf8_lossy(&self.path))
    }
}

/// An iterator over everything below a directory. After an error the next call goes on with the rest.
#[pyclass(frozen, module = "uext4")]
pub(crate) struct Walker {
    state: Arc<Mutex<State>>,
    opener: Opener,
    /// The object of the program that closes the volume when it is forgotten.
    _volume: Option<Py<PyAny>>,
}

/// How far a walk is.
enum State {
    Walks(Box<Walking>),
    Ended,
    /// It ended because the volume was closed.
    Closed,
}

/// A walk that holds its volume, for who closes that.
pub(crate) struct OpenWalk(Weak<Mutex<State>>);

impl OpenWalk {
    /// Whether nobody walks any more.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Ends it, after what it reads just now.
    pub(crate) fn close(&self) {
        if let Some(state) = self.0.upgrade() {
            let mut state = state.lock();
            if matches!(*state, State::Walks(_)) {
                *state = State::Closed;
            }
        }
    }
}

struct Walking {
    walk: Walk,
    /// The path of the start, without a slash at its end.
    prefix: Arc<[u8]>,
    device: u64,
    ready: VecDeque<Result<Entry>>,
}

impl Walking {
    fn new(volume: &Volume, start: Ino, prefix: &[u8], options: WalkOptions) -> Walking {
        // Without types in directories only the inode says what a name leads to.
        let types = volume.superblock().features.incompat.contains(Incompat::FILETYPE);
        let options = if types { options } else { options.stat(true) };
        let trimmed = prefix.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        Walking {
            walk: volume.walk_from(start, options),
            prefix: prefix[..trimmed].into(),
            device: device_of(volume),
            ready: VecDeque::new(),
        }
    }

    /// The path of something below the start; the start's own is as it was given.
    fn path(prefix: &[u8], below: &[u8]) -> Box<[u8]> {
        match below {
            [] if prefix.is_empty() => b"/".as_slice().into(),
            [] => prefix.into(),
            below => [prefix, b"/", below].concat().into(),
        }
    }

    fn next(&mut self) -> Option<Result<Entry>> {
        Some(match self.walk.advance()? {
            Ok(found) => {
                let path = Self::path(&self.prefix, found.path);
                Ok(Entry {
                    name: path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1),
                    path,
                    depth: found.depth,
                    ino: found.ino,
                    kind: found.kind,
                    metadata: found.metadata.map(|metadata| Box::new(metadata.clone())),
                    device: self.device,
                })
            }
            Err(failed) => {
                let path = Self::path(&self.prefix, &failed.shown());
                Err(Fault::from(failed.error).at(&path))
            }
        })
    }

    /// Reads on until there is a batch, or an error, behind which nobody may want to go on.
    fn fill(&mut self) {
        let mut bytes = 0;
        while self.ready.len() < BATCH && bytes < BATCH_BYTES {
            let Some(next) = self.next() else { return };
            let length = next.as_ref().map(|entry| entry.path.len()).ok();
            self.ready.push_back(next);
            match length {
                Some(length) => bytes += length,
                None => return,
            }
        }
    }
}

impl Walker {
    pub(crate) fn new(
        volume: &Volume,
        start: Ino,
        prefix: &[u8],
        options: WalkOptions,
        (opener, object): (Opener, Option<Py<PyAny>>),
    ) -> Walker {
        let walking = Box::new(Walking::new(volume, start, prefix, options));
        Walker { state: Arc::new(Mutex::new(State::Walks(walking))), opener, _volume: object }
    }

    pub(crate) fn open_walk(&self) -> OpenWalk {
        OpenWalk(Arc::downgrade(&self.state))
    }

    /// The entries of a directory.
    pub(crate) fn directory(volume: &Volume, start: Ino, prefix: &[u8]) -> Result<Vec<Entry>> {
        let mut walking = Walking::new(volume, start, prefix, WalkOptions::new().max_depth(1));
        let mut entries = Vec::new();
        while let Some(next) = walking.next() {
            let entry = next?;
            match entry.depth {
                0 if entry.is_dir() => {}
                0 => return Err(Fault::from(uext4::Error::NotDirectory).at(&entry.path)),
                _ => entries.push(entry),
            }
        }
        Ok(entries)
    }
}

#[pymethods]
impl Walker {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Entry>> {
        // Who has the lock is reading, without the interpreter's lock.
        let ready = self.state.try_lock().and_then(|mut state| match &mut *state {
            State::Walks(walking) => walking.ready.pop_front(),
            _ => None,
        });
        let next = match ready {
            Some(next) => Some(next),
            None => call(py, || {
                self.opener.check()?;
                let mut state = self.state.lock();
                let walking = match &mut *state {
                    State::Walks(walking) => walking,
                    State::Ended => return Ok(None),
                    State::Closed => return Err(Fault::Closed("the volume")),
                };
                if walking.ready.is_empty() {
                    walking.fill();
                }
                Ok(walking.ready.pop_front())
            })?,
        };
        Ok(next.transpose()?)
    }

    /// Ends it: the volume is no longer held. In a child process it does nothing.
    fn close(&self, py: Python<'_>) {
        if self.opener.is_here() {
            py.detach(|| *self.state.lock() = State::Ended);
        }
    }
}

impl Drop for Walker {
    fn drop(&mut self) {
        // Who closes the volume may have it a moment longer.
        let state = std::mem::replace(&mut self.state, Arc::new(Mutex::new(State::Ended)));
        let_go(state);
    }
}
