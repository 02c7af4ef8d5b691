//! qcow2 images.

mod compressed;
mod cost;
mod create;
mod device;
mod discard;
mod entry;
mod header;
mod image;
#[cfg(test)]
mod overlap;
mod queue;
mod refcounts;
mod settle;
#[cfg(test)]
mod split;
mod table;
mod uses;
mod write;

pub use create::{Qcow2Options, create, create_at, format_of_new};
pub(crate) use device::Qcow2Device;
pub(crate) use image::open;
