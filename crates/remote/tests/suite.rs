//! Tests of the devices of servers.

mod conformance;
mod nbd;
mod nbd_hostile;
mod nbd_lost;
mod rbd;
mod rbd_fork;
mod rbd_keys;
mod rbd_locks;
