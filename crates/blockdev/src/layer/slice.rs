//! A part of a device: a partition (`?partition=N`) or everything behind a byte (`?offset=B`).

use crate::{
    Capabilities, Description, Device, DeviceQueue, Done, Full, Geometry, Op, Queue, QueueFacts,
    QueueOptions, Request, Result, Wait, WriteDurability,
};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
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
    /// The window of `size` bytes at byte `start`. `label` says in [`Description::layers`] what it is.
    ///
    /// # Errors [`crate::Error::Misaligned`] or [`crate::Error::OutOfRange`] unless it is made of logical
    /// blocks of `inner`.
    pub fn new(inner: Arc<dyn Device>, start: u64, size: u64, label: String) -> Result<Self> {
        let outer = inner.geometry();
        outer.check(start, size)?;
        Ok(SliceDevice { inner, start, geometry: Geometry { size, ..outer }, label })
    }
}

impl Device for SliceDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn describe(&self) -> Description {
        let mut description = self.inner.describe();
        description.layers.push(self.label.clone());
        description
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.geometry.check(pos, buf.len() as u64)?;
        self.inner.read_at(buf, self.start + pos)
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.geometry.check(pos, buf.len() as u64)?;
        self.inner.write_at(buf, self.start + pos, durability)
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn merges_flushes(&self) -> bool {
        self.inner.merges_flushes()
    }

    fn settle(&self) -> Result<()> {
        self.inner.settle()
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.geometry.check(pos, length)?;
        self.inner.discard(self.start + pos, length)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Ok(match self.inner.queue(options)? {
            // The ring adds the start itself, so that partitions stay on the direct path.
            Queue::Uring(mut queue) => {
                queue.narrow(self.start, self.geometry.size);
                Queue::Uring(queue)
            }
            // Moves nothing, wherever it is.
            Queue::Null(queue) => Queue::Null(queue),
            Queue::Other(inner) => Queue::Other(Box::new(SliceQueue {
                ready: VecDeque::with_capacity(inner.capacity() as usize),
                inner,
                start: self.start,
                size: self.geometry.size,
            })),
        })
    }
}

/// Shifts positions, and answers requests that leave the window.
struct SliceQueue {
    inner: Box<dyn DeviceQueue>,
    start: u64,
    size: u64,
    ready: VecDeque<Done>,
}

impl DeviceQueue for SliceQueue {
    unsafe fn push(&mut self, mut request: Request) -> std::result::Result<(), Full> {
        if self.in_flight() >= self.capacity() {
            return Err(Full);
        }
        let length = u64::from(request.length);
        if request.op != Op::Flush {
            if length > self.size || request.pos > self.size - length {
                self.ready.push_back(Done { tag: request.tag, result: -libc::EINVAL });
                return Ok(());
            }
            request.pos += self.start;
        }
        // SAFETY: only the position changes; the caller's promise about the memory is passed on.
        unsafe { self.inner.push(request) }
    }

    fn submit(&mut self) -> Result<usize> {
        self.inner.submit()
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        let own = self.ready.len().min(out.capacity() - out.len());
        out.extend(self.ready.drain(..own));
        let wait = match wait {
            Wait::AtLeast(count) => Wait::AtLeast(count.saturating_sub(own as u32)),
            Wait::Timeout(_) if own > 0 => Wait::No,
            other => other,
        };
        match self.inner.reap(out, wait) {
            Ok(count) => Ok(own + count),
            Err(error) if own == 0 => Err(error),
            // What was delivered must be counted; a lasting error comes again.
            Err(_) => Ok(own),
        }
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight() + self.ready.len() as u32
    }

    fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    fn facts(&self) -> QueueFacts {
        self.inner.facts()
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.inner.event_fd()
    }
}
