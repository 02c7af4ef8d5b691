//! Aligned memory for direct I/O, as a Python buffer.
#![allow(unsafe_code, reason = "the buffer protocol hands out the address of our memory")]

use crate::call::{Fault, call};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use uext4::BufferPool;

/// Memory that begins at a multiple of 4096 bytes, zeros at first: what direct I/O and queues need. It has the buffer
/// protocol: `memoryview(buffer)`, `numpy.frombuffer(buffer)`.
#[pyclass(frozen, module = "uext4")]
pub(crate) struct Buffer {
    /// Only its address is used, never its bytes: Python's views write to them.
    memory: uext4::Buffer,
    length: usize,
}

impl Buffer {
    pub(crate) fn new(memory: uext4::Buffer, length: usize) -> Buffer {
        Buffer { memory, length }
    }

    /// Where its memory may be registered.
    pub(crate) fn home(&self) -> &uext4::Buffer {
        &self.memory
    }
}

#[pymethods]
impl Buffer {
    #[new]
    fn allocate(py: Python<'_>, length: usize) -> PyResult<Buffer> {
        call(py, || {
            let pool = BufferPool::with_limit(length, length).map_err(Fault::from)?;
            Ok(Buffer::new(pool.take(length).map_err(Fault::from)?, length))
        })
    }

    fn __len__(&self) -> usize {
        self.length
    }

    fn __repr__(&self) -> String {
        format!("<uext4.Buffer of {} bytes>", self.length)
    }

    /// # Safety
    /// Called by Python, with a view to fill or NULL.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view"));
        }
        let buffer = slf.get();
        let address = buffer.memory.address().as_ptr();
        let length = isize::try_from(buffer.length).map_err(|_| PyBufferError::new_err("too long"))?;
        // SAFETY: the view is not NULL, and the memory lies there as long as the object, which the view holds.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address.cast(), length, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
