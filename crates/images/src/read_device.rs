//! A disk that is only read, as a device.

use crate::disk::{self, Disk};
use std::sync::Arc;
use uext4_blockdev::layer::wrap::{Fate, QueueLayer, Wrapped};
use uext4_blockdev::{
    Capabilities, Cost, Description, Device, Error, Geometry, Op, Queue, QueueOptions, Request, Result,
    Store, Way, WriteDurability,
};

/// A disk that also has a file whose queue carries what the disk answers.
pub(crate) trait FileDisk: Disk {
    /// What the file is.
    fn format(&self) -> &'static str;

    /// A file of it.
    fn store(&self) -> &Arc<dyn Store>;
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ReadDevice<D> {
    disk: Arc<D>,
    geometry: Geometry,
}

impl<D: FileDisk + 'static> ReadDevice<D> {
    pub(crate) fn new(disk: Arc<D>) -> Result<Self> {
        let geometry = disk::geometry(disk.size(), [disk.store().geometry()]);
        Ok(ReadDevice { disk, geometry })
    }
}

impl<D: FileDisk + 'static> Device for ReadDevice<D> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn capabilities(&self) -> Capabilities {
        let file = self.disk.store().capabilities();
        Capabilities { read_only: true, discard: false, dax: None, ..file }
    }

    fn describe(&self) -> Description {
        let mut description = self.disk.store().describe();
        description.layers.extend(self.disk.names());
        description.driving = disk::READS;
        description
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.geometry.check_transfer(buf, pos)?;
        self.disk.read(buf, pos)
    }

    fn read_nowait(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.geometry.check_transfer(buf, pos)?;
        Err(Error::Io { op: Op::Read.name(), pos, length: buf.len() as u64, errno: libc::EAGAIN })
    }

    fn write_at(&self, _: &[u8], _: u64, _: WriteDurability) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.disk.settle()
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        self.geometry.check(pos, length).is_ok() && self.disk.reads_zeros(pos, length)
    }

    fn cost(&self, op: Op, _: u64, _: u64) -> Option<Cost> {
        (op == Op::Read).then_some(Cost { format: self.disk.format(), way: Way::Inline })
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let inner = self.disk.store().queue(options)?;
        Ok(Wrapped::queue(inner, ReadQueue { disk: Arc::clone(&self.disk), geometry: self.geometry }))
    }
}

struct ReadQueue<D> {
    disk: Arc<D>,
    geometry: Geometry,
}

impl<D: Disk> QueueLayer for ReadQueue<D> {
    fn meet(&mut self, request: &Request) -> Fate {
        let checked = self.geometry.check(request.pos, u64::from(request.length));
        match (request.op, checked) {
            (Op::Flush, _) => Fate::Answer(0),
            (_, Err(error)) => Fate::Answer(-error.errno()),
            (Op::Write | Op::Discard, _) => Fate::Answer(-Error::ReadOnly.errno()),
            (Op::Read, _) if request.nowait => Fate::Answer(-libc::EAGAIN),
            (Op::Read, _) => Fate::Fill,
        }
    }

    fn fill(&mut self, memory: &mut [u8], pos: u64) -> i32 {
        match self.disk.read(memory, pos) {
            Ok(()) => i32::try_from(memory.len()).unwrap_or(i32::MAX),
            Err(error) => -error.errno(),
        }
    }
}
