//! libuext4: the library for C.
//!
//! Every function here translates: it checks what C cannot promise, calls `uext4`, and turns errors into numbers. Rules
//! that hold for all of them stand at the head of the header (`include/uext4.h`, made by cbindgen from this crate; a
//! test holds it).
//!
//! - `handle.rs`: what stands behind a handle, so that a wrong one is an error
//! - `call.rs`: results and errors of calls; no panic leaves it
//! - `border.rs`: C's pointers become references
//! - `volume.rs`, `file.rs`, `names.rs`, `attributes.rs`, `tree.rs`, `queue.rs`, `quota.rs`, `replace.rs`: the calls
#![deny(missing_docs)]
#![allow(non_camel_case_types, reason = "names as C has them")]
#![allow(clippy::missing_safety_doc, reason = "the header's head has the rules of pointers")]

mod attributes;
mod border;
mod call;
mod file;
mod file_xattrs;
mod handle;
mod names;
mod queue;
mod quota;
mod replace;
mod tree;
mod volume;

pub use attributes::*;
pub use call::{uext4_last_error, uext4_last_error_block, uext4_last_error_inode};
pub use file::*;
pub use file_xattrs::*;
pub use names::*;
pub use queue::*;
pub use quota::*;
pub use replace::*;
pub use tree::*;
pub use volume::*;
