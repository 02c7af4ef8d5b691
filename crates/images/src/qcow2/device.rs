//! The device.

use super::entry::Kind;
use super::image::Image;
use super::queue::ImageQueue;
use crate::disk::{self, Disk};
use std::sync::Arc;
use uext4_blockdev::{
    Capabilities, Cost, Description, Device, Error, Geometry, Op, Queue, QueueOptions, Result,
    WriteDurability,
};

/// The disk in a qcow2 image.
#[derive(Debug)]
pub(crate) struct Qcow2Device {
    image: Arc<Image>,
}

/// Where a range of the disk is in the file, in one piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) host: u64,
    /// It may be written there.
    pub(super) copied: bool,
}

impl Qcow2Device {
    pub(crate) fn new(image: Arc<Image>) -> Self {
        Qcow2Device { image }
    }
}

impl Image {
    pub(super) fn geometry(&self) -> Geometry {
        let files = [self.file.store().geometry(), self.data_store().geometry()];
        disk::geometry(self.header.size, files)
    }

    /// The place of `pos..end`, if the file has it in one piece.
    pub(super) fn place(&self, pos: u64, end: u64) -> Result<Option<Place>> {
        let piece = self.piece(pos, end)?;
        Ok(match piece.kind {
            Kind::Data { host, copied } if piece.end == end && self.has(host, end - pos) => {
                Some(Place { host, copied })
            }
            _ => None,
        })
    }

    fn put_off(op: Op, pos: u64, length: usize) -> Error {
        Error::Io { op: op.name(), pos, length: length as u64, errno: libc::EAGAIN }
    }
}

impl Device for Qcow2Device {
    fn geometry(&self) -> Geometry {
        self.image.geometry()
    }

    /// A completed write into a new cluster is durable only when the tables are, whatever the cache of the file: so a
    /// device that is written always has a volatile cache.
    fn capabilities(&self) -> Capabilities {
        let data = self.image.data_store().capabilities();
        let writes = self.image.writing.is_some();
        Capabilities {
            volatile_cache: data.volatile_cache || writes,
            discard: data.discard && writes,
            read_only: !writes,
            dax: None,
            ..data
        }
    }

    fn describe(&self) -> Description {
        let mut description = self.image.file.store().describe();
        description.layers.extend(self.image.names());
        description
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.image.process.check()?;
        self.geometry().check_transfer(buf, pos)?;
        let _in_use = self.image.in_use();
        match self.image.place(pos, pos + buf.len() as u64)? {
            Some(place) => self.image.data_store().read_at(buf, place.host),
            None => self.image.read_now(buf, pos),
        }
    }

    fn read_nowait(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.image.process.check()?;
        self.geometry().check_transfer(buf, pos)?;
        let _in_use = self.image.in_use();
        match self.image.place(pos, pos + buf.len() as u64)? {
            Some(place) => self.image.data_store().read_nowait(buf, place.host),
            None => Err(Image::put_off(Op::Read, pos, buf.len())),
        }
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.image.check_writable()?;
        self.geometry().check_transfer(buf, pos)?;
        let fua = durability == WriteDurability::Fua;
        if fua && !self.capabilities().fua {
            return Err(Error::Unsupported("a FUA write to a device without FUA".into()));
        }
        let in_use = self.image.in_use();
        match self.image.place_to_write(pos, pos + buf.len() as u64, fua)? {
            Some(host) => self.image.data_store().write_at(buf, host, durability),
            None => {
                drop(in_use);
                self.image.write(buf, pos, fua)
            }
        }
    }

    fn write_nowait(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.image.check_writable()?;
        self.geometry().check_transfer(buf, pos)?;
        if durability == WriteDurability::Fua {
            return self.write_at(buf, pos, durability);
        }
        let _in_use = self.image.in_use();
        match self.image.place_to_write(pos, pos + buf.len() as u64, false)? {
            Some(host) => self.image.data_store().write_nowait(buf, host, durability),
            None => Err(Image::put_off(Op::Write, pos, buf.len())),
        }
    }

    fn flush(&self) -> Result<()> {
        self.image.process.check()?;
        self.image.flush()
    }

    /// The backing files as well: what they had in a cache belongs to what this device shows.
    fn settle(&self) -> Result<()> {
        self.image.process.check()?;
        Disk::settle(&*self.image)?;
        self.image.flush()
    }

    fn merges_flushes(&self) -> bool {
        self.image.data_store().merges_flushes()
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.image.check_writable()?;
        self.geometry().check(pos, length)?;
        self.image.discard(pos, length)
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        self.geometry().check(pos, length).is_ok() && self.image.is_zeros(pos, length)
    }

    fn cost(&self, op: Op, pos: u64, length: u64) -> Option<Cost> {
        self.image.cost(op, pos, length)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        self.image.process.check()?;
        ImageQueue::open(&self.image, options)
    }
}
