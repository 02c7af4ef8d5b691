//! Operations on the tree of names. Only look-up, until volumes can be changed.

pub(crate) mod path;
