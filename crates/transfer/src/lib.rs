//! Copies of files and trees between volumes and the host. Trees go out of volumes only.
//!
//! [`Export`] copies files and trees, with holes, hard links, attributes, and bounds on what a hostile volume may make
//! of them; [`stream`] pours one file into a descriptor; [`import`] and [`import_stream`] copy one into a
//! volume. Nothing is printed: an
//! [`Observer`] is told how it goes on, and what failed is an [`Error`] that names a path.
//!
//! Reading path: `export` (what goes where) → `tree` (the walk) → `host` (making things out of names that nobody
//! vouches for) → `attributes`, `xattrs`. Beside them: `read_ahead` (the bytes), `made` (what there is already),
//! `devices` (what must not be written to).
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
