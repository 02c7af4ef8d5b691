//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

mod bench;
mod change;
mod check;
mod common;
mod copy;
mod copy_attributes;
mod copy_links;
mod copy_trees;
mod descriptors;
mod dirty;
mod documents;
mod extents;
mod io;
mod json;
mod layouts;
mod look;
mod misuse;
mod mkfs;
mod mmp;
mod names;
mod probes;
mod several;
mod trees;
mod trim;
mod xattr;
