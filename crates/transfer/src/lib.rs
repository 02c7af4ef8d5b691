//! Copies of files and trees between volumes and the host.
//!
//! [`Export`] copies files and trees out of volumes, with holes, hard links, attributes, and bounds on the output of a
//! hostile volume; [`stream`] writes one file to a descriptor. [`Import`] copies trees of the host or of volumes into a
//! volume; [`import`] and [`import_stream`] copy one file. Nothing is printed: an [`Observer`] receives progress, and a
//! failure is an [`Error`] that names a path.
//!
//! Reading path: `export` (destinations) → `tree` (the walk; `steps`: below links) → `host` (creates files from
//! untrusted names) → `attributes`, `xattrs`. Beside them: `read_ahead` (the bytes), `made` (files created so far),
//! `devices` (devices that must not be written to), `options` (what is kept).
//!
//! For new volumes: [`Gathering`] makes a tree of directories, archives and images (`build`, its own reading path).
//! Archives of a volume's trees: `pack`.
//!
//! Into volumes: `into` (its own reading path), `import` (the bytes of one file).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod attributes;
mod build;
mod devices;
mod error;
mod export;
mod host;
mod import;
mod into;
mod made;
mod options;
mod pack;
mod read_ahead;
mod steps;
mod target;
mod tree;
mod xattrs;

pub use build::{
    ArchiveInput, Failures, Fakeroot, GatherCause, GatherError, GatherOptions, Gathered, Gathering, IdRange,
};
pub use devices::Devices;
pub use error::{Cause, Error, Result, Subject};
pub use export::{Export, Observer};
pub use import::{Dest, Onto, import, import_stream};
pub use into::{From, Import, ImportOptions};
pub use options::{Follow, Holes, Keep};
pub use pack::{PackOptions, pack, pack_changes};
pub use read_ahead::stream;
