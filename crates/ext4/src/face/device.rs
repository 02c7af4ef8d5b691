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

pub use uext4_blockdev::engine::{
    DaxDevice, InstantQueue, MemoryDevice, MemoryOptions, Nothing, NullDevice, NullQueue, UringQueue,
};
pub use uext4_blockdev::layer::{
    BaseFacts, Counters, CountingDevice, Counts, LatencyDevice, Mask, MaskDevice, OverlayDevice, OverlayFile,
    OverlayFileDevice, SliceDevice, TraceEvent, TracePhase, TraceSink, wrap,
};
pub use uext4_blockdev::spec::{
    Cache, DeviceSpec, Locator, Scheme, SpecOptions, closest, closest_scheme, parse_scaled, parse_size,
};
pub use uext4_blockdev::{
    Ask, BUFFER_ALIGN, Buffer, BufferPool, Capabilities, DaxKind, Description, Device, DeviceQueue, Done,
    Driving, Error, Full, Geometry, Memory, Misaligned, Op, OpenOptions, Opened, OverlayFault, Priority,
    PriorityClass, Process, Queue, QueueFacts, QueueOptions, Registered, Request, Result, Sharing, Table,
    Vector, Wait, WriteDurability, describe, open,
};
pub use uext4_blockdev::{overlay, partition};
