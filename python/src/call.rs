//! What calls take and return: names, faults, and the interpreter's lock let go meanwhile.

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString, PyType};
use pyo3::{Borrowed, PyErr};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use uext4::device::Process;
use uext4::{DeviceSpec, ToDevice};

/// "Structure needs cleaning": what Linux returns for damage.
const EUCLEAN: i32 = 117;

/// Why a call fails.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It was closed before.
    Closed(&'static str),
    /// An argument that makes no sense.
    Value(String),
    /// An error with an errno.
    System(Box<System>),
}

/// An error with an errno.
#[derive(Debug)]
pub(crate) struct System {
    errno: i32,
    text: String,
    block: Option<u64>,
    inode: Option<u32>,
    /// The names that it is about.
    names: [Option<Vec<u8>>; 2],
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    /// An error of another crate.
    pub(crate) fn with_errno(errno: i32, text: impl Into<String>) -> Fault {
        let (block, inode) = (None, None);
        Fault::System(Box::new(System { errno, text: text.into(), block, inode, names: [None, None] }))
    }

    /// With the name that it is about.
    #[must_use]
    pub(crate) fn at(mut self, name: &[u8]) -> Fault {
        if let Fault::System(system) = &mut self {
            system.names[0] = Some(name.to_vec());
        }
        self
    }

    /// With a name, unless it has one of its own.
    #[must_use]
    pub(crate) fn about(self, name: &[u8]) -> Fault {
        match &self {
            Fault::System(system) if system.names[0].is_none() => self.at(name),
            _ => self,
        }
    }

    /// With both names of a link or a rename.
    #[must_use]
    pub(crate) fn between(self, from: &[u8], to: &[u8]) -> Fault {
        let mut fault = self.at(from);
        if let Fault::System(system) = &mut fault {
            system.names[1] = Some(to.to_vec());
        }
        fault
    }
}

impl From<uext4::Error> for Fault {
    fn from(error: uext4::Error) -> Fault {
        let (block, inode) = (error.block(), error.inode());
        let (errno, text) = (error.errno(), error.to_string());
        Fault::System(Box::new(System { errno, text, block, inode, names: [None, None] }))
    }
}

impl From<uext4::device::Error> for Fault {
    fn from(error: uext4::device::Error) -> Fault {
        uext4::Error::from(error).into()
    }
}

impl From<uext4::mkfs::Error> for Fault {
    fn from(error: uext4::mkfs::Error) -> Fault {
        match error {
            uext4::mkfs::Error::Option(text) => Fault::Value(text),
            uext4::mkfs::Error::Device(error) => error.into(),
            other => Fault::with_errno(other.errno(), other.to_string()),
        }
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> PyErr {
        match fault {
            Fault::Closed(what) => PyValueError::new_err(format!("{what} is closed")),
            Fault::Value(text) => PyValueError::new_err(text),
            Fault::System(system) => {
                Python::attach(|py| system.exception(py).map_or_else(|error| error, PyErr::from_value))
            }
        }
    }
}

impl System {
    /// `OSError(errno, text, name, None, name)`, which is the subclass of the errno, or `CorruptError` for damage.
    fn exception(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let class = if self.errno == EUCLEAN { corrupt_error(py)? } else { py.get_type::<PyOSError>() };
        let [first, second] = self.names.map(|name| name.map(OsString::from_vec));
        let exception = match (first, second) {
            (None, _) => class.call1((self.errno, self.text))?,
            (Some(name), None) => class.call1((self.errno, self.text, name))?,
            (Some(from), Some(to)) => class.call1((self.errno, self.text, from, py.None(), to))?,
        };
        // A device that fails at a block of metadata says at which, too.
        if let Some(block) = self.block {
            exception.setattr("block", block)?;
        }
        if let Some(inode) = self.inode {
            exception.setattr("inode", inode)?;
        }
        Ok(exception)
    }
}

fn corrupt_error(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "uext4._errors", "CorruptError").cloned()
}

/// Runs the work of a call without the interpreter's lock.
pub(crate) fn call<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    Ok(py.detach(work)?)
}

/// The process that opened something. In a child of it, locks may be held by threads that do not exist there: so it is
/// asked before any is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opener(Process);

impl Opener {
    pub(crate) fn here() -> Result<Opener> {
        Ok(Opener(Process::current()?))
    }

    pub(crate) fn is_here(self) -> bool {
        self.0.is_here()
    }

    pub(crate) fn check(self) -> Result<()> {
        Ok(self.0.check()?)
    }
}

/// Lets something go without the interpreter's lock: that may be I/O.
pub(crate) fn let_go<T: Send>(what: T) {
    Python::attach(|py| py.detach(|| drop(what)));
}

/// A name or a path: `str`, whose surrogates are bytes (`os.fsencode`), or `bytes`.
#[derive(Debug, Clone)]
pub(crate) struct Name(pub(crate) Vec<u8>);

impl Name {
    pub(crate) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl FromPyObject<'_, '_> for Name {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Name> {
        let bytes = if let Ok(bytes) = object.cast::<PyBytes>() {
            bytes.as_bytes().to_vec()
        } else if object.is_instance_of::<PyString>() {
            object.extract::<OsString>()?.into_vec()
        } else {
            return Err(PyTypeError::new_err(format!("a name is str or bytes, not {}", object.get_type())));
        };
        if bytes.contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        Ok(Name(bytes))
    }
}

/// A device: `str` and `bytes` are text in the device grammar, other paths (`os.PathLike`) a file or block device whose
/// name is taken as it is.
#[derive(Debug)]
pub(crate) struct DeviceName {
    name: Name,
    is_path: bool,
}

impl DeviceName {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.name.0
    }

    pub(crate) fn spec(&self) -> Result<DeviceSpec> {
        let spec = match self.is_path {
            true => self.name.path().to_device(),
            false => DeviceSpec::parse_bytes(self.bytes()).map_err(uext4::Error::from),
        };
        spec.map_err(|error| Fault::from(error).at(self.bytes()))
    }
}

impl FromPyObject<'_, '_> for DeviceName {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<DeviceName> {
        let is_path = !(object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>());
        let name = if is_path {
            object.py().import("os")?.call_method1("fspath", (object,))?.extract()?
        } else {
            object.extract()?
        };
        Ok(DeviceName { name, is_path })
    }
}

/// Bytes of a name as `str`, as `os.fsdecode` gives it.
pub(crate) fn decoded<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyString>> {
    Ok(OsStr::from_bytes(name).into_pyobject(py)?)
}
