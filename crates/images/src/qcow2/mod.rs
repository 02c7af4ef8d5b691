//! qcow2 images.

mod compressed;
mod create;
mod device;
mod entry;
mod header;
mod image;
mod queue;
mod refcounts;
mod settle;
mod table;
mod write;

pub use create::{Qcow2Options, create, create_at, format_of_new};
pub(crate) use device::Qcow2Device;
pub(crate) use image::open;
