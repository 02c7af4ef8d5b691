//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

mod c_api;
mod common;
mod header;
