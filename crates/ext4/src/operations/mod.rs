//! Operations on the directory tree: look-up, and creating, replacing and removing files.
//!
//! | file | what |
//! |---|---|
//! | `path.rs` | from a path to a directory and a name |
//! | `directories.rs` | the names of one directory or several, locked |
//! | `entry.rs` | the one way to change names, in one handle |
//! | `create.rs`, `replace.rs`, `unlink.rs` | operations |

pub(crate) mod create;
#[allow(dead_code)] // Operations on two directories come next.
pub(crate) mod directories;
#[allow(dead_code)] // The operations that use the rest of it come next.
pub(crate) mod entry;
pub(crate) mod path;
pub(crate) mod replace;
pub(crate) mod unlink;
