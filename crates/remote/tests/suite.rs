//! Tests of the devices of servers.

mod nbd;
mod nbd_lost;
