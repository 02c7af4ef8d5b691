//! The disk that an image shows, for what reads it piece by piece.

use crate::bytes::Bytes;
use std::fmt::Debug;
use std::sync::Arc;
use uext4_blockdev::{Driving, Geometry, Queue, QueueOptions, Result};

/// A disk to be read.
pub(crate) trait Disk: Send + Sync + Debug {
    /// Bytes.
    fn size(&self) -> u64;

    /// Fills `buf` from byte `pos`, all inside the disk.
    fn read(&self, buf: &mut [u8], pos: u64) -> Result<()>;

    /// Whether these bytes, all inside the disk, are known to be zeros.
    fn reads_zeros(&self, pos: u64, length: u64) -> bool;

    /// Makes durable what was written to its files by others.
    fn settle(&self) -> Result<()>;

    /// What it is, for `info`: format and files, the outermost first.
    fn names(&self) -> Vec<String>;

    /// A queue that reads it, and what its requests have to fit. `None`: it is only read by calls.
    fn queue(self: Arc<Self>, _: &QueueOptions) -> Result<Option<(Queue, Geometry)>> {
        Ok(None)
    }
}

/// Reads a disk that may be shorter: behind its end are zeros.
pub(crate) fn read_padded(disk: &dyn Disk, buf: &mut [u8], pos: u64) -> Result<()> {
    let inside = disk.size().saturating_sub(pos).min(buf.len() as u64) as usize;
    let (here, behind) = buf.split_at_mut(inside);
    behind.fill(0);
    if here.is_empty() { Ok(()) } else { disk.read(here, pos) }
}

/// Whether such bytes are known to be zeros.
pub(crate) fn padded_zeros(disk: &dyn Disk, pos: u64, length: u64) -> bool {
    let inside = disk.size().saturating_sub(pos).min(length);
    inside == 0 || disk.reads_zeros(pos, inside)
}

/// The geometry of a disk of `size` bytes in such files, whose transfers have to suit all of them.
pub(crate) fn geometry(size: u64, files: impl IntoIterator<Item = Geometry>) -> Geometry {
    let none = Geometry { size, logical_block: 512, memory_align: 1 };
    let all = files.into_iter().fold(none, |all, file| Geometry {
        size,
        logical_block: all.logical_block.max(file.logical_block),
        memory_align: all.memory_align.max(file.memory_align),
    });
    Geometry { size: size - size % u64::from(all.logical_block), ..all }
}

/// What executes queued requests that are not passed on.
pub(crate) const READS: Driving = Driving::Inline;

/// A raw image below another.
#[derive(Debug)]
pub(crate) struct RawDisk {
    name: String,
    bytes: Bytes,
    size: u64,
}

impl RawDisk {
    pub(crate) fn open(name: String, bytes: Bytes) -> Result<Self> {
        let size = bytes.store().length()?;
        Ok(RawDisk { name, bytes, size })
    }
}

impl Disk for RawDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.bytes.read(buf, pos)
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        self.bytes.store().reads_zeros(pos, length)
    }

    fn settle(&self) -> Result<()> {
        self.bytes.store().settle()
    }

    fn names(&self) -> Vec<String> {
        vec![format!("raw {}", self.name)]
    }

    fn queue(self: Arc<Self>, options: &QueueOptions) -> Result<Option<(Queue, Geometry)>> {
        let store = self.bytes.store();
        Ok(Some((store.queue(options)?, geometry(self.size, [store.geometry()]))))
    }
}
