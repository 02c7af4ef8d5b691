//! The native half of the Python package `uext4`: the module `uext4._uext4`.
//!
//! Every function here translates: it takes Python's objects apart, calls `uext4`, `uext4_check` or `uext4_transfer`
//! without the interpreter's lock, and turns results into objects and errors into exceptions. What Python programs
//! see (paths, files of the `io` module, queues of asyncio, dataclasses) is Python, in `package/uext4/`.
//!
//! - `call.rs`: names, results and errors of calls; use after close and after a fork
//! - `memory.rs`: Python's buffers as memory; `buffer.rs`: our memory as a Python buffer
//! - `volume.rs`, `methods.rs`: volumes and their calls
//! - `file.rs`, `queue.rs`: I/O; `stat.rs`, `walk.rs`: attributes, listings and walks
//! - `make.rs`: new volumes, checks; `report.rs`, `explain.rs`: what calls tell, as dictionaries
//!
//! The rule of locks: nobody waits for a lock of ours while he has the interpreter's.
#![deny(unsafe_code)]
#![deny(missing_docs)]

mod buffer;
mod call;
mod explain;
mod file;
mod make;
mod memory;
mod methods;
mod queue;
mod reader;
mod report;
mod stat;
mod volume;
mod walk;

use pyo3::prelude::*;

/// The native half of uext4. Programs import `uext4`.
#[pymodule]
fn _uext4(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<file::NativeFile>()?;
    module.add_class::<queue::NativeQueue>()?;
    module.add_class::<reader::NativeReader>()?;
    module.add_class::<stat::Stat>()?;
    module.add_class::<volume::NativeVolume>()?;
    module.add_class::<walk::Entry>()?;
    module.add_class::<walk::Walker>()?;
    module.add_function(wrap_pyfunction!(make::make_volume, module)?)?;
    module.add_function(wrap_pyfunction!(make::check, module)?)?;
    Ok(())
}
