//! A part of a [`CrashDevice`] that is a device of its own, with a cache of its own: a power cut meets all parts at
//! once, but a flush of one makes nothing in the others durable.

use super::CrashDevice;
use std::sync::Arc;
use uext4_blockdev::layer::wrap::{DeviceLayer, Fate, QueueLayer, What, Wrapped};
use uext4_blockdev::{Device, Geometry, Op, Queue, QueueOptions, Request, Result};

/// See the module's documentation.
#[derive(Debug)]
pub struct CrashPart {
    whole: Arc<CrashDevice>,
    range: PartRange,
}

#[derive(Debug, Clone, Copy)]
struct PartRange {
    start: u64,
    size: u64,
}

impl CrashPart {
    /// The part of `size` bytes at byte `start`, below 4 GiB.
    pub fn new(whole: &Arc<CrashDevice>, start: u64, size: u64) -> Result<Arc<CrashPart>> {
        Device::geometry(&**whole).check(start, size)?;
        Ok(Arc::new(CrashPart { whole: Arc::clone(whole), range: PartRange { start, size } }))
    }
}

impl DeviceLayer for CrashPart {
    fn inner(&self) -> &dyn Device {
        &*self.whole
    }

    fn names(&self) -> Vec<String> {
        vec![format!("part at {}", self.range.start)]
    }

    fn run(&self, what: What, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        let PartRange { start, size } = self.range;
        if what.op == Op::Flush { self.whole.flush_part(start, size) } else { call(&*self.whole) }
    }

    fn position(&self, pos: u64, length: u64) -> Result<u64> {
        DeviceLayer::geometry(self).check(pos, length)?;
        Ok(self.range.start + pos)
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.range.size, ..Device::geometry(&*self.whole) }
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Ok(Wrapped::queue(Device::queue(&*self.whole, options)?, self.range))
    }
}

impl QueueLayer for PartRange {
    const VECTORS: bool = true;

    fn meet(&mut self, request: &Request) -> Fate {
        let Request { op, pos, length, tag, .. } = *request;
        if op == Op::Flush {
            return Fate::Pass { pos: self.start, length: self.size as u32, tag };
        }
        match self.size.checked_sub(u64::from(length)).filter(|last| pos <= *last) {
            Some(_) => Fate::Pass { pos: pos + self.start, length, tag },
            None => Fate::Answer(-libc::EINVAL),
        }
    }
}
