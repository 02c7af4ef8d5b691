//! Any byte sequence may be the volume: the proof.
//!
//! [`images`] are small sound volumes that together hold every structure; `uext4_testkit::mutate` changes them
//! and repairs their checksums; [`targets`] do with the result what programs do with volumes, and accept success
//! and typed errors only; [`budget`] bounds what that may cost; [`patch`] keeps what once failed. The targets are
//! plain functions, and so are [`gather`], which takes archives instead of volumes, [`disk_image`], which takes
//! images of disks, and [`nbd_client`], which takes what a client of a server says: the tests of this package run them
//! over seeds, `fuzz/` runs them under libFuzzer.
#![deny(missing_docs)]

pub mod budget;
pub mod disk_image;
pub mod gather;
mod gather_script;
pub mod heap;
pub mod images;
pub mod nbd_client;
pub mod operate;
pub mod patch;
pub mod targets;
mod typed;
mod walk;
