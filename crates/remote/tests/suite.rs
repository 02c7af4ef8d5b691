//! Tests of the devices of servers.

mod conformance;
mod nbd;
mod nbd_lost;
mod nbd_tls;
mod rbd;
mod rbd_fork;
mod rbd_keys;
mod rbd_locks;
