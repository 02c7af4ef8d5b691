//! Making a volume, as `mke2fs` does: [`format()`] with [`Options`].
//!
//! The order is what makes it safe: everything is decided and checked first, in memory (`sizes.rs`, `tables.rs`,
//! `plan.rs`). Then what the device held is wiped, the new structures are written, and after a flush the one block that
//! makes them a volume, the primary superblock (`write.rs`). A crash or an error before leaves nothing that looks like
//! a volume, old or new.
//!
//! Little is written: bitmaps and inode tables that nobody used yet are marked as such, where descriptors have
//! checksums; and what must read as zeros is written only where the device does not know that it does
//! ([`Device::reads_zeros`](crate::device::Device::reads_zeros)). Nothing is discarded unless the options ask
//! for it: what a device reads afterwards is not known, so that what must read as zeros is written then too.

mod error;
mod files;
mod image;
mod journal;
mod kinds;
mod layout;
mod make;
mod map;
mod options;
mod plan;
mod present;
mod quota;
mod sizes;
mod space;
mod tables;
mod write;

pub use error::{Error, Result};
pub use image::Image;
pub use kinds::{Defaults, Kind};
pub use make::{Made, dry_run, format};
pub use options::{Options, parse_uuid};
pub use present::refuse_occupied;
