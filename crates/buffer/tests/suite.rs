//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

mod ahead;
mod cache;
mod common;
mod home;
mod model;
mod write;
