//! An NBD server: a file inside a volume, or a whole device, as a block device for QEMU, the kernel, and every other
//! client of the protocol (<https://github.com/NetworkBlockDevice/nbd>).
//!
//! An [`Export`] is what is served, a [`Server`] listens on sockets and serves it until a [`Stopper`] ends it. Each
//! client has a thread with a queue of the library. It receives as many requests as have come in one call, sends them
//! to the device together, and answers them together. What a client wrote and then flushed, or wrote with FUA, survives
//! a crash of client, server and machine; a flush covers the completed writes of all clients.
//!
//! | what | limit |
//! |---|---|
//! | one read or write | 32 MiB |
//! | requests of a client at once | 128, and 64 MiB of memory; what is more waits in the socket |
//! | answers that a client has not taken | 32 MiB and what is under way; then nothing of it is read |
//! | handshake | 10 seconds, 256 options, 64 KiB of data in one |
//!
//! Reading path: `protocol` (bytes, and what a request may be), `server` (clients), `handshake`, `connection` (the loop
//! of a client) with `inbox`, `lane` (its queue), `aside` (its helper) and `outbox`, `export` (what is served).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod aside;
mod connection;
mod export;
mod fault;
mod handshake;
mod inbox;
mod lane;
mod outbox;
mod protocol;
mod server;
mod sparse;
mod stop;
mod stream;
mod turns;

pub use export::Export;
pub use fault::{Error, Fault};
pub use server::{Server, ServerOptions};
pub use stop::Stopper;
