//! Operations on the tree of names: look-up, files made, names removed.

pub(crate) mod create;
pub(crate) mod path;
pub(crate) mod unlink;
