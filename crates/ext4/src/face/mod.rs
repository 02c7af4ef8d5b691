//! The face: the public API of the crate.

mod attributes;
pub(crate) mod cursor;
pub mod device;
pub mod explain;
mod explain_inline;
mod explain_journal;
pub(crate) mod file;
pub mod format;
pub(crate) mod held;
pub(crate) mod info;
pub mod journal;
mod names;
pub(crate) mod node;
pub mod plan;
pub(crate) mod queue;
pub(crate) mod read_dir;
pub(crate) mod replace;
pub(crate) mod shape;
pub(crate) mod statfs;
pub(crate) mod target;
pub(crate) mod tick;
pub(crate) mod to_device;
mod trim;
pub(crate) mod volume;
pub(crate) mod walk;
pub(crate) mod whole;
pub(crate) mod xattrs;
