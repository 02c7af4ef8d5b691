//! Tests of the devices of servers.
