//! Copies of files and trees between volumes and the host. Trees go out of volumes only.
//!
//! [`Export`] copies files and trees, with holes, hard links, attributes, and bounds on the output of a hostile
//! volume; [`stream`] writes one file to a descriptor; [`import`] and [`import_stream`] copy one into a volume. Nothing
//! is printed: an [`Observer`] receives progress, and a failure is an [`Error`] that names a path.
//!
//! Reading path: `export` (destinations) → `tree` (the walk) → `host` (creates files from untrusted names) →
//! `attributes`, `xattrs`. Beside them: `read_ahead` (the bytes), `made` (files created so far), `devices` (devices
//! that must not be written to).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod attributes;
mod devices;
mod error;
mod export;
mod host;
mod import;
mod made;
mod read_ahead;
mod target;
mod tree;
mod xattrs;

pub use devices::Devices;
pub use error::{Cause, Error, Result, Subject};
pub use export::{Export, Keep, Observer};
pub use import::{Dest, Onto, import, import_stream};
pub use read_ahead::stream;
