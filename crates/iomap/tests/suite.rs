//! The integration tests of this crate are one program: it links once, and tests share the volumes they made.

#![cfg(not(loom))]

mod between;
mod common;
mod durable;
mod gate;
mod pipeline;
mod plan;
mod publication;
mod snapshot;
mod stale;
mod wake;
mod window;
