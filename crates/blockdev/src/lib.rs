//! Block devices for uext4: one interface, several engines, and layers that wrap a device.
//!
//! A [`Device`] answers synchronous calls from any thread and hands out per-thread [`Queue`]s for asynchronous
//! requests. Engines live in [`engine`] (`uring`, `sync`, `dax`, `nvme`, `memory`, `null`), wrappers in [`layer`]
//! (`counting`, `latency`, `mask`, `overlay`, `overlay_file`, `slice`). [`open`] turns a
//! [`spec::DeviceSpec`] into an opened device and is the only place that picks an engine; [`open_with`] is told of
//! formats of images beyond raw ones.
//!
//! Units: every position and length is in **bytes**. Positions, lengths and memory addresses of data requests obey
//! [`Geometry::logical_block`] and [`Geometry::memory_align`].
#![deny(missing_docs)]

mod cost;
mod device;
mod dispatch;
pub mod engine;
mod error;
pub mod layer;
mod memory;
mod open;
mod overlaid;
pub mod overlay;
mod own;
pub mod partition;
mod pool;
mod priority;
pub mod probes;
mod process;
mod queue;
mod registry;
mod retries;
mod scratch;
pub mod spec;
mod store;
mod sys;
mod table;
mod timer;

pub use cost::{Cost, Way};
pub use device::{
    Capabilities, DaxKind, Description, Device, Driving, Geometry, Sharing, Store, WriteDurability,
    write_zeros,
};
pub use dispatch::Queue;
pub use error::{Error, ImageFault, Misaligned, OverlayFault, Result, describe};
pub use memory::{BUFFER_ALIGN, Memory, Registered, Vector};
pub use open::{Opened, open, open_with};
pub use pool::{Buffer, BufferPool};
pub use priority::{Priority, PriorityClass};
pub use process::Process;
pub use queue::{Ask, DeviceQueue, Done, Full, Op, QueueFacts, QueueOptions, Request, Wait};
pub use registry::{Engine, OpenOptions, Registry};
pub use retries::{Retries, is_put_off};
pub use scratch::Scratch;
pub use store::{Formats, ImageOptions, RawOnly, open_store};
pub use table::Table;
