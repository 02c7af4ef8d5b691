//! A FUSE server for ext4 volumes: mounts a [`Volume`](uext4::Volume) of the library, so that every program can use it.
//!
//! [`mount`](fn@mount) asks the kernel for a mount (by `fusermount3` if the user is not root), [`Session::start`]
//! serves it with threads until it is unmounted, and [`Session::close`] writes everything home. The kernel
//! caches what is read; writes that need not be durable wait a moment in memory (`behind`).
//!
//! Reading path: `session` (begin and end), `readers` and `queues` (threads, on `/dev/fuse` and on rings), `work` (what
//! they share, interrupts), `request` and `reply` (the protocol), `server` (one function per operation), `memory` (the
//! same without a volume, to measure against), `table` (what the kernel knows by number), `behind` (late writes).
#![deny(unsafe_code)]
#![deny(missing_docs)]

#[allow(unsafe_code)]
mod aside;
mod behind;
mod dev;
#[allow(unsafe_code)]
mod memory;
mod mount;
mod mountinfo;
mod options;
mod owners;
mod queues;
mod readers;
mod reply;
mod request;
#[allow(unsafe_code)]
mod ring;
mod sandbox;
mod server;
mod session;
mod socket;
mod stats;
mod table;
mod transport;
mod wire;
mod work;

pub use mount::{Connection, MountError, MountOptions, mount, unmount};
pub use mountinfo::MountEntry;
pub use options::{ServeOptions, Transport};
pub use sandbox::{Needs, Sandbox};
pub use session::{Ended, Session, Stopper, rings_are_offered};
pub use socket::{Answering, Ending, NotClean, Server, Socket, Waiting};
