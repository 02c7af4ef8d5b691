//! The device: reads from the base or the overlay file, writes to the file.

use super::format::{BaseFacts, Header};
use super::queue::OverlayFileQueue;
use super::store::{self, Store};
use crate::error::OverlayFault;
use crate::{
    Capabilities, Description, Device, Error, Geometry, Op, Process, Queue, QueueOptions, Result,
    WriteDurability,
};
use std::ops::Range;
use std::sync::Arc;

/// State shared by an overlay file's device and its queues.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) base: Arc<dyn Device>,
    pub(super) store: Store,
    pub(super) geometry: Geometry,
    pub(super) read_only: bool,
    pub(super) process: Process,
}

/// A device whose changes are kept in an overlay file, beside a base that is only read. See the module.
#[derive(Debug)]
pub struct OverlayFileDevice {
    shared: Arc<Shared>,
}

impl OverlayFileDevice {
    /// Makes an empty overlay file of `store`, which must read as zeros and have [`OverlayFileDevice::size`] bytes at
    /// least. The header is durable when this returns. `spelling`: how the base is named.
    ///
    /// # Errors
    /// [`Error::Overlay`] if the name is longer than 3 kB or the base larger than 1 PiB, and write errors.
    pub fn format(
        store: &dyn Device,
        base: &BaseFacts,
        granule: u32,
        spelling: &[u8],
        id: [u8; 16],
    ) -> Result<()> {
        let header = Header { id, granule, base: *base, spelling: spelling.to_vec() };
        store::format(store, &header, &store.describe().locator)
    }

    /// Bytes that the overlay file of a base of `base_size` bytes needs, most of them holes.
    ///
    /// # Errors
    /// [`Error::Overlay`] for an impossible granule and a base larger than 1 PiB.
    pub fn size(base_size: u64, granule: u32) -> Result<u64> {
        let layout = super::format::Layout::of(base_size, granule);
        layout.map(|layout| layout.size).map_err(|fault| Error::Overlay { path: String::new(), fault })
    }

    /// Facts about a base. `changed`: when its file was last changed, if it is one.
    ///
    /// # Errors
    /// Read errors.
    pub fn facts(base: &dyn Device, changed: Option<(i64, u32)>) -> Result<BaseFacts> {
        let sample = store::sample(base, super::format::SAMPLE, |_| false)?;
        Ok(BaseFacts { size: base.geometry().size, changed, sample })
    }

    /// Opens the overlay file on `store` over `base`, of which `facts` tells. It is read-only if `store` is.
    ///
    /// # Errors
    /// [`Error::Overlay`] for what is not an overlay file, or is damaged, or belongs to another base or another state
    /// of it, or was being merged, and read errors.
    pub fn open(
        base: Arc<dyn Device>,
        facts: &BaseFacts,
        store: Arc<dyn Device>,
        name: String,
    ) -> Result<Self> {
        let store = Store::open(store, name)?;
        if store.is_merging() {
            return Err(store.fault(OverlayFault::Merging));
        }
        store.check_base(facts)?;
        let (below, above) = (base.geometry(), store.device.geometry());
        let logical_block = below.logical_block.max(above.logical_block).max(store.layout.granule);
        let size = below.size - below.size % u64::from(logical_block);
        let memory_align = below.memory_align.max(above.memory_align);
        let geometry = Geometry { size, logical_block, memory_align };
        let read_only = store.device.capabilities().read_only;
        Ok(OverlayFileDevice {
            shared: Arc::new(Shared { base, store, geometry, read_only, process: Process::current()? }),
        })
    }

    /// Bytes of the base that the file holds other contents of.
    pub fn changed_bytes(&self) -> u64 {
        self.shared.store.map.count() * self.shared.store.granule()
    }
}

/// A part of a request, by where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// In the overlay file; otherwise in the base.
    pub(super) kept: bool,
    /// Bytes of the device.
    pub(super) bytes: Range<u64>,
}

impl Shared {
    /// The piece of a checked range that begins at `pos`.
    pub(super) fn piece(&self, pos: u64, end: u64) -> Piece {
        let granule = self.store.granule();
        let (kept, upto) = self.store.map.run(pos / granule, end.div_ceil(granule));
        Piece { kept, bytes: pos..(upto * granule).min(end) }
    }

    /// Reads a checked range piece by piece.
    pub(super) fn read(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let end = pos + buf.len() as u64;
        let mut at = pos;
        while at < end {
            let piece = self.piece(at, end);
            let part = &mut buf[(at - pos) as usize..(piece.bytes.end - pos) as usize];
            match piece.kept {
                true => self.store.read(part, at)?,
                false => store::read_any(&*self.base, part, at)?,
            }
            at = piece.bytes.end;
        }
        Ok(())
    }

    /// Refuses writes to what is read-only or has failed.
    pub(super) fn check_writable(&self) -> Result<()> {
        self.process.check()?;
        if self.read_only { Err(Error::ReadOnly) } else { self.store.check() }
    }
}

impl Device for OverlayFileDevice {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    /// A completed write is durable only when the file's map says that it is there, whatever the cache of the device
    /// below: so there is always a volatile cache.
    fn capabilities(&self) -> Capabilities {
        let (below, above) = (self.shared.base.capabilities(), self.shared.store.device.capabilities());
        Capabilities {
            volatile_cache: true,
            fua: above.durable_without_flush(),
            nowait: below.nowait && above.nowait,
            discard: above.discard,
            read_only: self.shared.read_only,
            dax: None,
        }
    }

    fn describe(&self) -> Description {
        let mut description = self.shared.base.describe();
        let above = self.shared.store.device.describe();
        description.sharing = above.sharing;
        let (name, changed) = (&self.shared.store.name, self.changed_bytes());
        description.layers.push(format!("overlay {name} ({changed} bytes changed)"));
        description.notes.extend(above.notes.iter().map(|note| format!("overlay: {note}")));
        description
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.shared.geometry.check_transfer(buf, pos)?;
        self.shared.read(buf, pos)
    }

    fn read_nowait(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let shared = &self.shared;
        shared.geometry.check_transfer(buf, pos)?;
        let end = pos + buf.len() as u64;
        let piece = shared.piece(pos, end);
        match piece.kept {
            // Two requests, the second of which could not be put off.
            _ if piece.bytes.end != end => {
                let (op, length) = (Op::Read.name(), buf.len() as u64);
                Err(Error::Io { op, pos, length, errno: libc::EAGAIN })
            }
            true => shared.store.device.read_nowait(buf, shared.store.position(pos)),
            false => shared.base.read_nowait(buf, pos),
        }
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let Shared { store, geometry, .. } = &*self.shared;
        self.shared.check_writable()?;
        geometry.check_transfer(buf, pos)?;
        let granules = store.granules(pos, buf.len() as u64);
        if durability == WriteDurability::Fua {
            if !self.capabilities().fua {
                return Err(Error::Unsupported("a FUA write to an overlay file without FUA".into()));
            }
            store.device.write_durable(buf, store.position(pos))?;
            return store.settle(&[granules]);
        }
        store.device.write_at(buf, store.position(pos), durability)?;
        store.map.set_present(granules);
        Ok(())
    }

    fn write_nowait(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let Shared { store, geometry, .. } = &*self.shared;
        if durability == WriteDurability::Fua {
            return self.write_at(buf, pos, durability);
        }
        self.shared.check_writable()?;
        geometry.check_transfer(buf, pos)?;
        store.device.write_nowait(buf, store.position(pos), durability)?;
        store.map.set_present(store.granules(pos, buf.len() as u64));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.shared.process.check()?;
        if self.shared.read_only { Ok(()) } else { self.shared.store.flush() }
    }

    /// The base as well: what it had in a cache belongs to what this device shows.
    fn settle(&self) -> Result<()> {
        self.shared.base.settle()?;
        self.shared.store.device.settle()?;
        self.flush()
    }

    /// Whoever waits for a flush shares the next one, and after one that failed all fail.
    fn merges_flushes(&self) -> bool {
        true
    }

    /// Only what the file holds can be given back. Elsewhere the base's bytes stay, which is as good as any others.
    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        let Shared { store, geometry, .. } = &*self.shared;
        self.shared.check_writable()?;
        geometry.check(pos, length)?;
        let piece = self.shared.piece(pos, pos + length);
        if !piece.kept && piece.bytes.end == pos + length {
            return Ok(());
        }
        store.device.discard(store.position(pos), length)
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        if self.shared.geometry.check(pos, length).is_err() {
            return false;
        }
        let piece = self.shared.piece(pos, pos + length);
        match piece.kept {
            _ if piece.bytes.end != pos + length => false,
            true => self.shared.store.device.reads_zeros(self.shared.store.position(pos), length),
            false => self.shared.base.reads_zeros(pos, length),
        }
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        OverlayFileQueue::open(Arc::clone(&self.shared), options)
    }
}

impl Drop for Shared {
    /// What was not flushed may be lost, but need not be.
    fn drop(&mut self) {
        // A child has the locks of its parent's other threads, and no business with the file.
        if self.process.is_here() && !self.read_only && !self.store.map.is_clean() {
            let _nobody_to_tell = self.store.flush();
        }
    }
}
