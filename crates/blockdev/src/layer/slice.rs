//! A part of a device: a partition (`?partition=N`) or everything from a byte on (`?offset=B`).

use super::wrap::{DeviceLayer, Fate, Nowait, QueueLayer, Wrapped, inner_cost, inner_reads_zeros};
use crate::{Cost, Device, Geometry, Op, Queue, QueueOptions, Request, Result};
use std::sync::Arc;

/// A window of a device. Positions count from its start, and nothing outside it can be reached.
#[derive(Debug)]
pub struct SliceDevice {
    inner: Arc<dyn Device>,
    start: u64,
    geometry: Geometry,
    label: String,
}

impl SliceDevice {
    /// The window of `size` bytes at byte `start`. `label` describes it in
    /// [`Description::layers`](crate::Description::layers).
    ///
    /// # Errors
    /// [`crate::Error::Misaligned`] or [`crate::Error::OutOfRange`] unless it consists of whole logical blocks of
    /// `inner`.
    pub fn new(inner: Arc<dyn Device>, start: u64, size: u64, label: String) -> Result<Self> {
        let outer = inner.geometry();
        outer.check(start, size)?;
        Ok(SliceDevice { inner, start, geometry: Geometry { size, ..outer }, label })
    }
}

impl DeviceLayer for SliceDevice {
    const ATOMIC: bool = true;
    const ZEROS: bool = true;
    const NOWAIT: Nowait = Nowait::Passes;

    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        inner_reads_zeros(self, pos, length)
    }

    fn cost(&self, op: Op, pos: u64, length: u64) -> Option<Cost> {
        inner_cost(self, op, pos, length)
    }

    fn names(&self) -> Vec<String> {
        vec![self.label.clone()]
    }

    fn position(&self, pos: u64, length: u64) -> Result<u64> {
        self.geometry.check(pos, length)?;
        Ok(self.start + pos)
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Ok(match self.inner.queue(options)? {
            // The ring adds the start itself, so that partitions need no wrapper on the hot path.
            Queue::Uring(mut queue) => {
                queue.narrow(self.start, self.geometry.size);
                Queue::Uring(queue)
            }
            // It moves no data, so its position does not matter.
            Queue::Null(queue) => Queue::Null(queue),
            inner => Wrapped::queue(inner, SliceRange { start: self.start, size: self.geometry.size }),
        })
    }
}

/// Shifts positions, and refuses requests that leave the window.
struct SliceRange {
    start: u64,
    size: u64,
}

impl QueueLayer for SliceRange {
    const VECTORS: bool = true;

    fn meet(&mut self, request: &Request) -> Fate {
        let Request { op, pos, length, tag, .. } = *request;
        if op == Op::Flush {
            return Fate::pass(request);
        }
        let last = self.size.checked_sub(u64::from(length));
        match last.filter(|last| pos <= *last) {
            Some(_) => Fate::Pass { pos: pos + self.start, length, tag },
            None => Fate::Answer(-libc::EINVAL),
        }
    }
}
