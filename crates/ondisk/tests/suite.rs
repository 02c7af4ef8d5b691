//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

mod acl;
mod common;
mod dir_names;
mod faults;
mod fold;
mod fold_names;
mod hash;
mod log;
mod pointers;
mod quota;
mod robustness;
mod tree;
mod values;
mod volumes;
