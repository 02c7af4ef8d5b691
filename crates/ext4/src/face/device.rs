//! Devices below a volume: a device from text, a device of your own, and layers around a device.
//!
//! [`open`] turns a [`DeviceSpec`] (the device grammar: `dax:disk.img`, `disk.img?partition=2`) into an [`Opened`]
//! device. A program that brings its own implements [`Device`], and [`DeviceQueue`] for asynchronous requests, and
//! gives it to [`Volume::open_device`](crate::Volume::open_device). [`CountingDevice`], [`LatencyDevice`],
//! [`MaskDevice`], [`OverlayDevice`] and [`SliceDevice`] wrap any device; [`wrap`] is for layers of your own.
//! `disk.img?overlay=FILE` keeps changes in a file beside the device, which [`overlay`] merges or throws away.
//!
//! Every position and length is in bytes. Positions, lengths and memory addresses of data requests obey
//! [`Geometry::logical_block`] and [`Geometry::memory_align`].

pub use crate::ground::devices::open;
pub use uext4_blockdev::engine::{
    DaxDevice, InstantQueue, MemoryDevice, MemoryOptions, Nothing, NullDevice, NullQueue, UringQueue,
};
pub use uext4_blockdev::layer::{
    BaseFacts, Counters, CountingDevice, Counts, LatencyDevice, Mask, MaskDevice, OverlayDevice, OverlayFile,
    OverlayFileDevice, SliceDevice, TraceEvent, TracePhase, TraceSink, wrap,
};
pub use uext4_blockdev::partition;
pub use uext4_blockdev::spec::{
    Cache, DeviceSpec, Format, Locator, Named, RbdName, Remote, RemoteOptions, Scheme, SpecOptions, Tls,
    closest, closest_scheme, parse_scaled, parse_size,
};
pub use uext4_blockdev::{
    Ask, BUFFER_ALIGN, Buffer, BufferPool, Capabilities, Cost, DaxKind, Description, Device, DeviceQueue,
    Done, Driving, Error, Full, Geometry, ImageFault, Memory, Misaligned, Op, OpenOptions, Opened,
    OverlayFault, Priority, PriorityClass, Process, Queue, QueueFacts, QueueOptions, Registered, Request,
    Result, Sharing, Table, Vector, Wait, Way, WriteDurability, describe,
};
pub use uext4_images::{format_of, format_of_new};

/// What is done with an overlay file besides using it: looking at it, merging it into its base, throwing it away.
pub mod overlay {
    use super::{DeviceSpec, Result};
    use crate::ground::devices::REGISTRY;
    use std::path::Path;
    pub use uext4_blockdev::overlay::{base, discard, inspect};

    /// Writes the changes of an overlay file into `base`, or else into the base that it names, and removes the file.
    /// All is durable before it is removed, and so is its removal when this returns. A merge that was cut is finished
    /// by another; until then the base has some of the changes, and the overlay cannot be opened. Returns the bytes
    /// merged; calls `progress` with those of each step.
    ///
    /// # Errors
    /// [`Error::InUse`](super::Error::InUse) while the overlay or the base is used, by another overlay too;
    /// [`Error::Overlay`](super::Error::Overlay) if the base is another one or was changed; read and write errors.
    pub fn merge(file: &Path, base: Option<&DeviceSpec>, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        uext4_blockdev::overlay::merge(file, base, &REGISTRY, progress)
    }
}
