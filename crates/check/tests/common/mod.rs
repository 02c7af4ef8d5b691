//! What the tests of this package share: the volumes of the library's tests, and the check beside e2fsck.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

pub mod checked;
#[path = "../../../ext4/tests/common/mod.rs"]
mod library;

pub use library::*;
