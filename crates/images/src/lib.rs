//! Disks inside images: qcow2, and VMDK for reading, as devices of [`uext4_blockdev`].
//!
//! [`open`] is [`uext4_blockdev::open_with`] these formats. A file is recognised by its content unless the device says
//! `?format=`. What the image maps goes through the queue of the file itself, at the place where the image has it; the
//! rest (holes, backing files, compressed clusters, writes that allocate) is done by the call that submits it.
//!
//! Images are not trusted: [`Named`](uext4_blockdev::spec::Named) says which of the files that they name are opened,
//! every number is checked before it is used, and all memory is bounded.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod bytes;
mod cache;
mod disk;
mod door;
mod fault;
mod named;
mod order;
mod qcow2;
mod read_device;
mod recognise;
mod vmdk;

pub use door::{KNOWN, Known, format_of, open};
pub use qcow2::{Qcow2Options, create, create_at, format_of_new};
