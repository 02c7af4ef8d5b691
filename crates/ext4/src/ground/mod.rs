//! Ground: what every room stands on. The state of an open volume, its groups and zones, what may be opened, and errors.
//!
//! Nothing here knows what an inode, a map or a directory is.

pub(crate) mod blocks;
pub(crate) mod damage;
pub(crate) mod error;
pub(crate) mod features;
pub(crate) mod foreign;
pub(crate) mod groups;
mod io_error;
pub(crate) mod options;
pub(crate) mod recovered;
pub(crate) mod state;
pub(crate) mod zones;
