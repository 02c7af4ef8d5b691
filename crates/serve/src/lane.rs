//! The queue of one connection: reads and writes of whole blocks, many at once, without a thread for each.

use crate::export::{Backing, Export, code};
use crate::protocol::Code;
use std::os::fd::OwnedFd;
use uext4::device::{Buffer, BufferPool};
use uext4::{FileSlot, IoQueue, QueueOptions, RawQueue, WriteFlags};

/// Most requests of a connection at once.
pub(crate) const DEPTH: u32 = 128;

/// A queue on the file or on the device. The thread of the connection makes, drives and drops it: completions then wait
/// for that thread instead of interrupting its sleep one by one.
pub(crate) enum Lane {
    File { queue: Box<IoQueue>, slot: FileSlot },
    Device { queue: Box<RawQueue>, fua: bool, volatile: bool },
}

/// A request that the lane has finished.
pub(crate) struct Landed {
    pub(crate) tag: u64,
    /// Bytes transferred.
    pub(crate) result: Result<u64, Code>,
    pub(crate) buffer: Option<Buffer>,
}

impl Lane {
    pub(crate) fn new(export: &Export) -> uext4::Result<Lane> {
        Ok(match export.backing() {
            Backing::File { file, volume } => {
                let mut queue = volume.queue(QueueOptions::depth(DEPTH).owner_driven(true))?;
                let slot = queue.attach(file)?;
                Lane::File { queue: Box::new(queue), slot }
            }
            Backing::Device { device, .. } => {
                let depth = uext4::device::QueueOptions::depth(DEPTH);
                let options = uext4::device::QueueOptions { owner_driven: true, ..depth };
                let can = device.capabilities();
                let pool = BufferPool::new(DEPTH as usize * 4096)?;
                let queue = Box::new(RawQueue::new(device, options, pool)?);
                Lane::Device { queue, fua: can.fua, volatile: can.volatile_cache }
            }
        })
    }

    /// Memory for a request.
    pub(crate) fn buffer(&self, length: usize) -> Result<Buffer, Code> {
        match self {
            Lane::File { queue, .. } => queue.buffer(length).map_err(code),
            Lane::Device { queue, .. } => queue.buffer(length).map_err(|error| code(error.into())),
        }
    }

    /// Whether a durable write can be sent through it.
    pub(crate) fn takes_durable(&self) -> bool {
        match self {
            Lane::File { .. } => true,
            Lane::Device { fua, volatile, .. } => *fua || !volatile,
        }
    }

    /// Begins a read of whole blocks.
    pub(crate) fn read(&mut self, offset: u64, buffer: Buffer, tag: u64) -> Result<(), Code> {
        match self {
            Lane::File { queue, slot } => queue.read(*slot, offset, buffer, tag).map_err(code),
            Lane::Device { queue, .. } => queue.read(offset, buffer, tag).map_err(|error| code(error.into())),
        }
    }

    /// Begins a write of whole blocks.
    pub(crate) fn write(&mut self, offset: u64, buffer: Buffer, durable: bool, tag: u64) -> Result<(), Code> {
        match self {
            Lane::File { queue, slot } => {
                let flags = if durable { WriteFlags::DSYNC } else { WriteFlags::empty() };
                queue.write(*slot, offset, buffer, flags, tag).map_err(code)
            }
            Lane::Device { queue, fua, .. } => {
                queue.write(offset, buffer, durable && *fua, tag).map_err(|error| code(error.into()))
            }
        }
    }

    /// Begins a flush. `false`: it has none, flush aside.
    pub(crate) fn flush(&mut self, tag: u64) -> Result<bool, Code> {
        match self {
            Lane::File { queue, slot } => queue.sync_data(*slot, tag).map(|()| true).map_err(code),
            Lane::Device { .. } => Ok(false),
        }
    }

    /// Sends what was begun, and takes what is finished, without waiting.
    pub(crate) fn poll(&mut self, mut take: impl FnMut(Landed)) -> uext4::Result<()> {
        match self {
            Lane::File { queue, .. } => {
                for done in queue.poll()? {
                    let result = done.result.map(|bytes| bytes as u64).map_err(|error| code(*error));
                    take(Landed { tag: done.tag, result, buffer: done.payload.into_buffer() });
                }
            }
            Lane::Device { queue, .. } => {
                for done in queue.wait(0)? {
                    let result = u64::try_from(done.result).map_err(|_| Code::of_errno(-done.result));
                    take(Landed { tag: done.tag, result, buffer: done.buffer });
                }
            }
        }
        Ok(())
    }

    /// Readable when something may be finished. `None`: the device has no such thing; poll again soon.
    pub(crate) fn event(&mut self) -> uext4::Result<Option<OwnedFd>> {
        match self {
            Lane::File { queue, .. } => queue.eventfd(),
            Lane::Device { queue, .. } => Ok(queue.eventfd()?),
        }
    }
}
