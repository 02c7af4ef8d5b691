//! An *overlay file* keeps the changes of a device, its *base*, in a file. The base is only read, so it may be
//! write-protected and shared by many overlays; the file holds every granule (a logical block) that was written, and a
//! map that says which.
//!
//! The data of a granule is at the same place in the file's data as in the base, and the file is sparse. Requests are
//! never smaller than a granule, so that no write has to read the base: a write is one request to the file, and a
//! request for what is in one place only is one request there. `docs/reference/overlay.md` describes the format and
//! what is durable when.

mod device;
mod file;
mod format;
mod map;
mod queue;
mod store;

pub use device::OverlayFileDevice;
pub use file::OverlayFile;
pub use format::BaseFacts;
