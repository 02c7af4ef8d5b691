//! The engines.
mod allocated;
mod dax;
mod dax_copy;
mod file;
mod memory;
mod null;
mod pages;
mod plain;
mod probe;
mod ring;
mod sync_queue;
mod uring;
pub use dax::DaxDevice;
pub(crate) use file::{FileDevice, FileEngine};
pub use memory::{MemoryDevice, MemoryOptions};
pub use null::{NullDevice, NullQueue};
pub(crate) use plain::{DoneRing, goal, grant};
pub use uring::UringQueue;
