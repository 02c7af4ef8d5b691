//! A read-only view of a device in which some blocks have other contents, kept in memory or found elsewhere on the same
//! device or on another. It replays a journal without writing: each home block is redirected to its copy in the log.
//!
//! The layer lies below both metadata and data, so that all reads see the recovered state, synchronous or queued, at
//! any alignment that the device allows. It never passes a write on, and it reports no DAX, because a reader of the
//! mapping would bypass it.
//!
//! For rehearsals, [`OverlayDevice::keeping_writes`] keeps writes in memory.

use super::wrap::{DeviceLayer, Fate, QueueLayer, What, Wrapped};
use crate::scratch::Scratch;
use crate::{
    Capabilities, Device, Error, Geometry, Misaligned, Op, Queue, QueueOptions, Request, Result,
    WriteDurability,
};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where the contents of an overlaid block are.
#[derive(Debug, Clone)]
enum Source {
    Memory(Box<[u8]>),
    /// At byte `pos` of the device with the copies, with the first bytes replaced by `head` if given.
    Device {
        pos: u64,
        head: Option<[u8; 4]>,
    },
}

#[derive(Debug, Default)]
struct OverlayBlocks {
    sources: BTreeMap<u64, Source>,
    /// Bytes in [`Source::Memory`].
    bytes: u64,
}

/// State shared by an overlay device and its queues.
#[derive(Debug)]
struct Shared {
    inner: Arc<dyn Device>,
    /// The device that [`Source::Device`] is about, if it is not `inner`.
    copies: Option<Arc<dyn Device>>,
    geometry: Geometry,
    block_size: u64,
    budget: u64,
    /// Writes are kept in memory rather than refused.
    keeps_writes: bool,
    blocks: RwLock<OverlayBlocks>,
}

/// A device with overlaid blocks. See the module's documentation.
#[derive(Debug)]
pub struct OverlayDevice {
    shared: Arc<Shared>,
}

impl OverlayDevice {
    /// An overlay of blocks of `block_size` bytes that keeps at most `budget` bytes of them in memory.
    ///
    /// # Errors
    /// [`Error::Misaligned`] unless `block_size` is a multiple of the device's logical block.
    pub fn new(inner: Arc<dyn Device>, block_size: u32, budget: u64) -> Result<Self> {
        Self::with(inner, None, block_size, budget, false)
    }

    /// The same, with the copies that blocks are redirected to on another device.
    ///
    /// # Errors
    /// Those of [`OverlayDevice::new`], for either device.
    pub fn with_copies_on(
        copies: Arc<dyn Device>,
        inner: Arc<dyn Device>,
        block_size: u32,
        budget: u64,
    ) -> Result<Self> {
        check_block_size(&*copies, block_size)?;
        Self::with(inner, Some(copies), block_size, budget, false)
    }

    /// The same, but writable, for rehearsals: writes change bytes in memory only ([`OverlayDevice::patch`]) and are
    /// lost with the overlay. Nothing is flushed, and discards are refused.
    ///
    /// # Errors
    /// Those of [`OverlayDevice::new`].
    pub fn keeping_writes(inner: Arc<dyn Device>, block_size: u32, budget: u64) -> Result<Self> {
        Self::with(inner, None, block_size, budget, true)
    }

    fn with(
        inner: Arc<dyn Device>,
        copies: Option<Arc<dyn Device>>,
        block_size: u32,
        budget: u64,
        keeps_writes: bool,
    ) -> Result<Self> {
        check_block_size(&*inner, block_size)?;
        let (geometry, blocks) = (inner.geometry(), RwLock::default());
        let block_size = u64::from(block_size);
        let shared = Shared { inner, copies, geometry, block_size, budget, keeps_writes, blocks };
        Ok(OverlayDevice { shared: Arc::new(shared) })
    }

    /// From now on block `block` has the contents of the block at byte `pos` of the device with the copies (the inner
    /// one unless another was given), with its first bytes replaced by `head` if given.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] or [`Error::Misaligned`] if either is not a block of the device.
    pub fn redirect(&self, block: u64, pos: u64, head: Option<[u8; 4]>) -> Result<()> {
        let shared = &self.shared;
        shared.check_block(block)?;
        let copies = shared.copies.as_ref().map_or(shared.geometry, |copies| copies.geometry());
        copies.check(pos, shared.block_size)?;
        shared.blocks.write().replace(block, Source::Device { pos, head });
        Ok(())
    }

    /// Changes bytes in memory only: loads whole blocks into memory and copies `bytes` over them from byte `pos` on, at
    /// any alignment.
    ///
    /// # Errors
    /// [`Error::OverlayFull`] if the blocks in memory would exceed the budget, [`Error::OutOfRange`], and read
    /// errors. After an error some of the bytes may have been changed.
    pub fn patch(&self, pos: u64, bytes: &[u8]) -> Result<()> {
        self.shared.patch(pos, bytes)
    }

    /// Number of overlaid blocks.
    pub fn overlaid_blocks(&self) -> usize {
        self.shared.blocks.read().sources.len()
    }

    /// Bytes of blocks kept in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.blocks.read().bytes
    }
}

fn check_block_size(device: &dyn Device, block_size: u32) -> Result<()> {
    let align = device.geometry().logical_block;
    if block_size != 0 && block_size.is_multiple_of(align) {
        return Ok(());
    }
    Err(Error::Misaligned { what: Misaligned::Length, value: u64::from(block_size), align })
}

impl OverlayBlocks {
    fn replace(&mut self, block: u64, source: Source) {
        self.bytes += source.bytes();
        let old = self.sources.insert(block, source);
        self.bytes -= old.as_ref().map_or(0, Source::bytes);
    }
}

impl Source {
    fn bytes(&self) -> u64 {
        match self {
            Source::Memory(bytes) => bytes.len() as u64,
            Source::Device { .. } => 0,
        }
    }
}

impl Shared {
    fn check_block(&self, block: u64) -> Result<()> {
        let size = self.geometry.size;
        let outside = Error::OutOfRange { pos: block, length: self.block_size, size };
        let pos = block.checked_mul(self.block_size).ok_or(outside)?;
        self.geometry.check(pos, self.block_size)
    }

    fn patch_block(&self, block: u64, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check_block(block)?;
        let blocks = &mut *self.blocks.write();
        if let Some(Source::Memory(image)) = blocks.sources.get_mut(&block) {
            image[offset..offset + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let wanted = blocks.bytes.saturating_add(self.block_size);
        if wanted > self.budget {
            return Err(Error::OverlayFull { limit: self.budget });
        }
        if bytes.len() as u64 == self.block_size {
            blocks.replace(block, Source::Memory(bytes.into()));
            return Ok(());
        }
        let mut image = Scratch::new(self.block_size as usize);
        self.read(blocks, &mut image, block * self.block_size)?;
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
        blocks.replace(block, Source::Memory(image.to_vec().into()));
        Ok(())
    }

    /// [`OverlayDevice::patch`].
    fn patch(&self, pos: u64, bytes: &[u8]) -> Result<()> {
        let outside = Error::OutOfRange { pos, length: bytes.len() as u64, size: self.geometry.size };
        let end = pos.checked_add(bytes.len() as u64).filter(|end| *end <= self.geometry.size);
        let end = end.ok_or(outside)?;
        let mut at = pos;
        while at < end {
            let block = at / self.block_size;
            let start = block * self.block_size;
            let upto = end.min(start + self.block_size);
            let part = &bytes[(at - pos) as usize..(upto - pos) as usize];
            self.patch_block(block, (at - start) as usize, part)?;
            at = upto;
        }
        Ok(())
    }

    /// Whether a range inside the device touches an overlaid block.
    fn touches(&self, pos: u64, length: u64) -> bool {
        let (first, last) = (pos / self.block_size, (pos + length - 1) / self.block_size);
        self.blocks.read().sources.range(first..=last).next().is_some()
    }

    /// Reads a checked range piece by piece.
    fn read(&self, blocks: &OverlayBlocks, buf: &mut [u8], pos: u64) -> Result<()> {
        let end = pos + buf.len() as u64;
        let mut at = pos;
        for (block, source) in blocks.sources.range(pos / self.block_size..=(end - 1) / self.block_size) {
            let home = block * self.block_size;
            let (from, upto) = (pos.max(home), end.min(home + self.block_size));
            if from > at {
                self.fetch(&mut buf[(at - pos) as usize..(from - pos) as usize], at)?;
            }
            let (inside, piece) = (from - home, &mut buf[(from - pos) as usize..(upto - pos) as usize]);
            match source {
                Source::Memory(image) => {
                    piece.copy_from_slice(&image[inside as usize..(upto - home) as usize]);
                }
                Source::Device { pos, head } => {
                    self.fetch_copy(piece, *pos, inside)?;
                    if let (Some(head), 0) = (head, inside) {
                        piece[..4].copy_from_slice(head);
                    }
                }
            }
            at = upto;
        }
        if at < end { self.fetch(&mut buf[(at - pos) as usize..], at) } else { Ok(()) }
    }

    /// Reads a piece of the block at byte `pos` of the device with the copies.
    fn fetch_copy(&self, piece: &mut [u8], pos: u64, inside: u64) -> Result<()> {
        let Some(copies) = &self.copies else { return self.fetch(piece, pos + inside) };
        // Its alignment may be stricter than that of the request.
        let mut block = Scratch::new(self.block_size as usize);
        copies.read_at(&mut block, pos)?;
        piece.copy_from_slice(&block[inside as usize..][..piece.len()]);
        Ok(())
    }

    /// Reads from the inner device. A piece of the caller's memory may be less aligned than the whole.
    fn fetch(&self, piece: &mut [u8], pos: u64) -> Result<()> {
        if self.geometry.check_memory(piece.as_ptr().addr()).is_ok() {
            return self.inner.read_at(piece, pos);
        }
        let mut scratch = Scratch::new(piece.len());
        self.inner.read_at(&mut scratch, pos)?;
        piece.copy_from_slice(&scratch);
        Ok(())
    }
}

impl DeviceLayer for OverlayDevice {
    fn inner(&self) -> &dyn Device {
        &*self.shared.inner
    }

    fn names(&self) -> Vec<String> {
        vec![format!("overlay ({} blocks)", self.overlaid_blocks())]
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.shared.inner.capabilities();
        Capabilities { read_only: !self.shared.keeps_writes, discard: false, dax: None, ..inner }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let shared = &self.shared;
        shared.geometry.check(pos, buf.len() as u64)?;
        if !shared.touches(pos, buf.len() as u64) {
            return shared.inner.read_at(buf, pos);
        }
        shared.geometry.check_memory(buf.as_ptr().addr())?;
        shared.read(&shared.blocks.read(), buf, pos)
    }

    fn write_at(&self, buf: &[u8], pos: u64, _: WriteDurability) -> Result<()> {
        if !self.shared.keeps_writes {
            return Err(Error::ReadOnly);
        }
        self.shared.geometry.check(pos, buf.len() as u64)?;
        self.patch(pos, buf)
    }

    /// No write reaches the device, so it has nothing to settle.
    fn run(&self, what: What, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        if what.op == Op::Flush { Ok(()) } else { call(self.inner()) }
    }

    /// No write reaches the device, so there is nothing to make durable.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Ok(Wrapped::queue(self.shared.inner.queue(options)?, Arc::clone(&self.shared)))
    }
}

impl QueueLayer for Arc<Shared> {
    fn meet(&mut self, request: &Request) -> Fate {
        let (pos, length) = (request.pos, u64::from(request.length));
        match request.op {
            Op::Write if self.keeps_writes => Fate::Keep,
            Op::Write | Op::Discard => Fate::Answer(-Error::ReadOnly.errno()),
            Op::Flush => Fate::Answer(0),
            // The device refuses ranges outside it.
            Op::Read if self.geometry.check(pos, length).is_ok() && self.touches(pos, length) => Fate::Fill,
            Op::Read => Fate::pass(request),
        }
    }

    fn keep(&mut self, memory: &[u8], pos: u64) -> i32 {
        let checked = self.geometry.check_memory(memory.as_ptr().addr());
        let checked = checked.and_then(|()| self.geometry.check(pos, memory.len() as u64));
        match checked.and_then(|()| self.patch(pos, memory)) {
            Ok(()) => i32::try_from(memory.len()).unwrap_or(i32::MAX),
            Err(error) => -error.errno(),
        }
    }

    /// Synchronous: such requests are few, and the pieces come from several places.
    fn fill(&mut self, memory: &mut [u8], pos: u64) -> i32 {
        let aligned = self.geometry.check_memory(memory.as_ptr().addr());
        match aligned.and_then(|()| self.read(&self.blocks.read(), memory, pos)) {
            Ok(()) => i32::try_from(memory.len()).unwrap_or(i32::MAX),
            Err(error) => -error.errno(),
        }
    }
}
