//! The integration tests of this crate are one program.

mod common;
mod device;
mod durability;
mod handshake;
mod hostile;
mod lifetime;
mod transmission;
