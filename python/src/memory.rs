//! Python's buffers (`bytes`, `bytearray`, `memoryview`, arrays of numpy, …) as memory of requests.
//!
//! A view of the buffer protocol pins the memory: as long as it is held, its object can be neither freed nor resized.
#![allow(unsafe_code, reason = "memory that Python describes")]

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ptr::NonNull;
use uext4::Buffer;

/// Pinned memory of a Python object, of any shape: `pyo3::buffer` has none for what has no dimensions, such as
/// structures of ctypes.
pub(crate) struct Pinned(Box<ffi::Py_buffer>);

// SAFETY: the view is only changed when it is released, for which `drop` attaches to the interpreter.
unsafe impl Send for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the view was filled by `PyObject_GetBuffer`, and is released once. Without an interpreter, whose end
        // took the memory with it, nothing is left to do.
        let _ended = Python::try_attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

impl Pinned {
    /// Memory to read from.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Pinned> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive, and the view is ours to fill.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let pinned = Pinned(view);
        // SAFETY: the view is filled. `C`: the last index counts bytes one after the other.
        if unsafe { ffi::PyBuffer_IsContiguous(&raw const *pinned.0, b'C' as std::ffi::c_char) } == 0 {
            return Err(PyBufferError::new_err("memory of a request is contiguous"));
        }
        Ok(pinned)
    }

    /// Memory to write to.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Pinned> {
        let pinned = Self::readable(object)?;
        if pinned.is_readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        Ok(pinned)
    }

    fn is_readonly(&self) -> bool {
        self.0.readonly != 0
    }

    pub(crate) fn len(&self) -> usize {
        // Never negative.
        self.0.len.unsigned_abs()
    }

    fn address(&self) -> NonNull<u8> {
        NonNull::new(self.0.buf.cast()).unwrap_or(NonNull::dangling())
    }

    /// Whether the address of the memory is a multiple of this many bytes.
    pub(crate) fn is_aligned(&self, align: u32) -> bool {
        self.address().addr().get().is_multiple_of(align as usize)
    }

    /// The memory of a buffer to read from.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the exporter says that `len` contiguous bytes are there, and keeps them there while the view is held.
        // Whether another thread of the program writes to them meanwhile is up to the program, as for `os.pwrite`.
        unsafe { std::slice::from_raw_parts(self.address().as_ptr(), self.len()) }
    }

    /// The memory of a buffer to write to.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(!self.is_readonly());
        // SAFETY: as in `bytes`, and the exporter says that it can be written to; as for `os.preadv`.
        unsafe { std::slice::from_raw_parts_mut(self.address().as_ptr(), self.len()) }
    }

    /// The memory as a buffer of a queue, and what pins it, which must be kept until the request is over. `home`: where
    /// the memory may be registered. `spare`: of a request that is over.
    pub(crate) fn lend(self, home: Option<&Buffer>, spare: Option<Buffer>) -> Option<Loan> {
        let length = u32::try_from(self.len()).ok()?;
        let registered = home.and_then(|home| home.registered_at(self.address(), length));
        // SAFETY: the memory is there while the view is held, and who takes the loan keeps the view until the buffer is
        // gone (`queue.rs`). The program promises to leave the memory alone meanwhile, as for `os.preadv` in another
        // thread. A registered place is the one that the address lies in.
        let buffer = unsafe { Buffer::foreign(self.address(), length, registered, spare) };
        Some(Loan { buffer, pinned: self })
    }
}

/// Memory on its way to a queue.
pub(crate) struct Loan {
    pub(crate) buffer: Buffer,
    pub(crate) pinned: Pinned,
}
