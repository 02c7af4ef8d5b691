//! Ground: the base of all other modules. The state of an open volume, its groups and zones, which volumes may be
//! opened, and errors.
//!
//! Nothing here knows about inodes, maps or directories.

pub(crate) mod blocks;
pub(crate) mod caller;
pub(crate) mod canvas;
pub(crate) mod clock;
#[allow(dead_code)] // The operations that use it come next.
pub(crate) mod credits;
pub(crate) mod damage;
pub(crate) mod devices;
#[allow(dead_code)] // The operations that use it come next.
pub(crate) mod direct;
pub(crate) mod durable;
pub(crate) mod error;
pub(crate) mod features;
pub(crate) mod foreign;
pub(crate) mod groups;
mod io_error;
#[allow(dead_code)] // The operations that use it come next.
pub(crate) mod journaled;
pub(crate) mod known;
pub(crate) mod last_descriptor;
pub(crate) mod lifetime;
pub(crate) mod options;
pub(crate) mod order;
pub(crate) mod primary;
pub(crate) mod quota;
pub(crate) mod recovered;
pub(crate) mod seal;
pub(crate) mod state;
pub(crate) mod totals;
pub mod trace;
pub(crate) mod tracking;
pub(crate) mod unlogged;
pub(crate) mod zones;
