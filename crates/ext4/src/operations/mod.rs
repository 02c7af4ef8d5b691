//! Operations on the directory tree: look-up, and creating, linking, renaming, replacing and removing.
//!
//! | file | what |
//! |---|---|
//! | `path.rs` | from a path to a directory and a name |
//! | `directories.rs` | the names of one directory or several, locked |
//! | `entry.rs` | the one way to change names, in one handle |
//! | `create.rs`, `unnamed.rs`, `link.rs`, `rename.rs`, `replace.rs`, `unlink.rs`, `remove_dir.rs` | operations |
//! | `contents.rs` | what a new inode contains |

pub(crate) mod contents;
pub(crate) mod create;
pub(crate) mod directories;
pub(crate) mod entry;
pub(crate) mod link;
pub(crate) mod path;
pub(crate) mod remove_dir;
pub(crate) mod rename;
pub(crate) mod replace;
pub(crate) mod unlink;
pub(crate) mod unnamed;
