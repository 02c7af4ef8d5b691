//! Tests of the devices of servers.

mod conformance;
mod rbd;
mod rbd_fork;
mod rbd_locks;
