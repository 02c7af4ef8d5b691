//! `rbd:pool/[namespace/]image[@snapshot]`: images of a Ceph cluster, by librbd.
//!
//! One connection and one image handle for all queues of a device, since only one handle can have the exclusive lock.
//! Requests are librbd's asynchronous ones. Its threads put the results into the inbox of the queue, which wakes the
//! thread that reaps.
//!
//! **Durability.** The cache of librbd is turned off: then a write completes when all OSDs that have the object have it
//! on their disks (`ack` means commit since Ceph 12; docs.ceph.com, "RBD config reference": with `rbd_cache` off reads
//! and writes go to the OSDs, and a write returns when it is on disk on all replicas). So there is no volatile cache,
//! and any write is as durable as FUA. If the pool or the image have `rbd_cache` set, which wins over the program's
//! configuration, only a flush makes a write durable, and the device says so.
//!
//! **One writer.** A device that is opened for writing finds other writers by their watches on the image, takes the
//! exclusive lock and keeps it. A client that lost it is refused by the OSDs (it is on their blocklist), and by librbd:
//! after the first such answer every request fails with `EIO`. The blocklist ends some time, and may be left out, so a
//! writer also asks now and then whether watch and lock are still its own (`device`).

mod api;
mod device;
mod inbox;
mod open;
mod queue;

use std::sync::Arc;
use uext4_blockdev::spec::{DeviceSpec, Scheme};
use uext4_blockdev::{Device, Engine, OpenOptions, Result};

/// The engine of `rbd:`.
#[derive(Debug, Clone, Copy)]
pub struct Rbd;

impl Engine for Rbd {
    fn schemes(&self) -> &'static [Scheme] {
        &[Scheme::Rbd]
    }

    fn open(&self, spec: &DeviceSpec, options: OpenOptions) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(open::open(spec, options)?))
    }
}
