//! The integration tests of this crate are one program. `qemu-img` and `qemu-io` make images and judge them.

#[path = "../../blockdev/tests/common/mod.rs"]
mod common;
mod cost;
mod crash;
mod discard;
mod faults;
mod hostile;
mod kinds;
mod locks;
mod model;
mod names;
mod tables;
mod tools;
mod vmdk;
