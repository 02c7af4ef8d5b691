//! Devices of servers, as devices of [`uext4_blockdev`]. The C libraries that talk to the servers are loaded when such
//! a device is opened: a program starts without them, and the error names the package that has them.
#![deny(missing_docs)]

mod library;
mod rbd;

pub use rbd::Rbd;
use uext4_blockdev::Engine;

/// The engines of this crate, for a [`Registry`](uext4_blockdev::Registry).
pub const ENGINES: &[&dyn Engine] = &[&Rbd];
