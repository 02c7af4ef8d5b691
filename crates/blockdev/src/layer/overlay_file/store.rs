//! An open overlay file: its header, its map, and the order in which they become durable.
//!
//! The map must not say of a granule that it is here before the medium has its data, and must say so before a flush or
//! a FUA write is acknowledged. So a flush writes in three steps: flush (the data that was complete when it began), the
//! map of that data, flush.

use super::format::{
    BLOCK, BLOCK_UNITS, BaseFacts, HEADER, Header, Layout, MAP_AT, Merge, SAMPLE, STATE_AT, UNIT, WORDS,
    decode_unit, encode_unit,
};
use super::map::{Map, add};
use crate::error::OverlayFault;
use crate::scratch::Scratch;
use crate::{Device, Error, Result, WriteDurability};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks of the map that are written between two flushes: bounds their memory.
const ROUND: usize = 2048;
/// Bytes of the map that are read at once.
const LOAD: u64 = 64 << 10;

/// A block of the map, and the bits of those of its units that have any.
type Image = (u64, Vec<(u64, [u64; WORDS])>);

/// See the module.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) device: Arc<dyn Device>,
    pub(super) layout: Layout,
    pub(super) map: Map,
    /// Path, for messages.
    pub(super) name: String,
    header: Header,
    /// Stored when a merge began.
    merge: Option<Merge>,
    /// Held while the map is written.
    writing: Mutex<()>,
    /// Flushes that have begun to write.
    begun: AtomicU64,
    /// The map could not be written, or a flush failed: nobody knows what the medium has.
    failed: AtomicBool,
}

/// Writes the header of a new overlay file to a device that reads as zeros, and makes it durable.
pub(super) fn format(device: &dyn Device, header: &Header, name: &str) -> Result<()> {
    let bytes = header.encode().map_err(|fault| at(name, fault))?;
    let mut block = Scratch::new(HEADER);
    block.copy_from_slice(&bytes);
    device.write_at(&block, 0, WriteDurability::Cached)?;
    device.settle()
}

fn at(name: &str, fault: OverlayFault) -> Error {
    Error::Overlay { path: name.to_owned(), fault }
}

/// crc32c of the first bytes of a device. `skip`: whether the granule at this byte counts as zeros.
pub(super) fn sample(device: &dyn Device, granule: u64, skip: impl Fn(u64) -> bool) -> Result<u32> {
    let geometry = device.geometry();
    let length = SAMPLE.min(geometry.size - geometry.size % u64::from(geometry.logical_block));
    let mut bytes = Scratch::new(length as usize);
    device.read_at(&mut bytes, 0)?;
    for (number, part) in bytes.chunks_mut(granule as usize).enumerate() {
        if skip(number as u64 * granule) {
            part.fill(0);
        }
    }
    Ok(crc32c::crc32c(&bytes))
}

/// Reads at any alignment: granules may be smaller than the blocks of the device that has them now.
pub(super) fn read_any(device: &dyn Device, buf: &mut [u8], pos: u64) -> Result<()> {
    let geometry = device.geometry();
    if geometry.check_transfer(buf, pos).is_ok() {
        return device.read_at(buf, pos);
    }
    let block = u64::from(geometry.logical_block);
    let start = pos - pos % block;
    let end = (pos + buf.len() as u64).next_multiple_of(block);
    let mut scratch = Scratch::new((end - start) as usize);
    device.read_at(&mut scratch, start)?;
    buf.copy_from_slice(&scratch[(pos - start) as usize..][..buf.len()]);
    Ok(())
}

impl Store {
    /// Reads header, state and map.
    pub(super) fn open(device: Arc<dyn Device>, name: String) -> Result<Self> {
        let geometry = device.geometry();
        let failed = |fault| at(&name, fault);
        if u64::from(geometry.logical_block) > BLOCK {
            let reason = format!("an overlay on a device with blocks of {} bytes", geometry.logical_block);
            return Err(Error::Unsupported(reason));
        }
        if geometry.size < MAP_AT {
            return Err(failed(OverlayFault::NotOne));
        }
        let mut head = Scratch::new(MAP_AT as usize);
        device.read_at(&mut head, 0)?;
        let (header, layout) = Header::decode(&head[..HEADER]).map_err(failed)?;
        if geometry.size < layout.size {
            return Err(failed(OverlayFault::TooShort { size: geometry.size, wanted: layout.size }));
        }
        let mut state = [0; UNIT];
        state.copy_from_slice(&head[STATE_AT as usize..][..UNIT]);
        let merge = Merge::decode(&state, &header.id).map_err(failed)?;
        let map = Map::new(&layout);
        let store = Store {
            device,
            layout,
            map,
            name,
            header,
            merge,
            writing: Mutex::new(()),
            begun: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        };
        store.load()?;
        Ok(store)
    }

    /// Reads the map, without its holes.
    fn load(&self) -> Result<()> {
        let blocks = self.layout.units.div_ceil(BLOCK_UNITS);
        let end = MAP_AT + blocks * BLOCK;
        let mut bytes = Scratch::new(LOAD as usize);
        let mut pos = MAP_AT;
        while pos < end {
            let length = LOAD.min(end - pos);
            if !self.device.reads_zeros(pos, length) {
                let piece = &mut bytes[..length as usize];
                self.device.read_at(piece, pos)?;
                let first = (pos - MAP_AT) / UNIT as u64;
                for (unit, bytes) in (first..).zip(piece.as_chunks::<UNIT>().0) {
                    let bits = decode_unit(bytes, &self.header.id, unit, &self.layout);
                    if let Some(bits) = bits.map_err(|fault| self.fault(fault))? {
                        self.map.load(unit, &bits);
                    }
                }
            }
            pos += length;
        }
        Ok(())
    }

    pub(super) fn fault(&self, fault: OverlayFault) -> Error {
        at(&self.name, fault)
    }

    pub(super) fn base(&self) -> BaseFacts {
        self.header.base
    }

    pub(super) fn spelling(&self) -> &[u8] {
        &self.header.spelling
    }

    pub(super) fn granule(&self) -> u64 {
        u64::from(self.layout.granule)
    }

    /// Whether a merge has begun and did not end.
    pub(super) fn is_merging(&self) -> bool {
        self.merge.is_some()
    }

    /// Refuses a base that is not the one that the overlay was made for, or is but has changed.
    pub(super) fn check_base(&self, found: &BaseFacts) -> Result<()> {
        let recorded = self.header.base;
        if found.size != recorded.size {
            return Err(self.fault(OverlayFault::BaseSize { recorded: recorded.size, found: found.size }));
        }
        if found.sample != recorded.sample {
            return Err(self.fault(OverlayFault::BaseContents));
        }
        match (recorded.changed, found.changed) {
            (Some(recorded), Some(found)) if recorded != found => {
                Err(self.fault(OverlayFault::BaseTime { recorded, found }))
            }
            _ => Ok(()),
        }
    }

    /// The same for a base that a merge has begun to write to.
    pub(super) fn check_half_merged(&self, base: &dyn Device) -> Result<()> {
        let Some(merge) = self.merge else { return Ok(()) };
        let (found, recorded) = (base.geometry().size, self.header.base.size);
        if found != recorded {
            return Err(self.fault(OverlayFault::BaseSize { recorded, found }));
        }
        if self.rest(base)? == merge.rest { Ok(()) } else { Err(self.fault(OverlayFault::BaseContents)) }
    }

    fn rest(&self, base: &dyn Device) -> Result<u32> {
        let granule = self.granule();
        sample(base, granule, |pos| {
            let number = pos / granule;
            number < self.layout.granules && self.map.run(number, number + 1).0
        })
    }

    /// Makes durable that a merge into `base` begins.
    pub(super) fn begin_merge(&mut self, base: &dyn Device) -> Result<()> {
        if self.merge.is_some() {
            return Ok(());
        }
        let merge = Merge { rest: self.rest(base)? };
        let mut block = Scratch::new(BLOCK as usize);
        block[..UNIT].copy_from_slice(&merge.encode(&self.header.id));
        self.device.write_and_flush(&block, STATE_AT)?;
        self.merge = Some(merge);
        Ok(())
    }

    /// Where a byte of the overlay's device is in the file.
    pub(super) fn position(&self, pos: u64) -> u64 {
        self.layout.data_at + pos
    }

    /// Reads what the file has of a range of the overlay's device.
    pub(super) fn read(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        read_any(&*self.device, buf, self.position(pos))
    }

    pub(super) fn granules(&self, pos: u64, length: u64) -> Range<u64> {
        pos / self.granule()..(pos + length) / self.granule()
    }

    /// Fails once the map could not be written.
    pub(super) fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::Acquire) { Err(self.fault(OverlayFault::Failed)) } else { Ok(()) }
    }

    /// Runs a step that writes the map, or what it relies on. Nothing is written after one that failed.
    fn step(&self, result: Result<()>) -> Result<()> {
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    /// Whether all that is present is durable, so that a flush of the file is all that a flush takes.
    pub(super) fn is_settled(&self) -> bool {
        // While the map is written, what it has taken is neither dirty nor durable.
        self.writing.try_lock().is_some_and(|_writing| self.map.is_clean())
    }

    /// Makes every completed write durable, and that it is here. Whoever waits for a flush shares the next one.
    pub(super) fn flush(&self) -> Result<()> {
        let seen = self.begun.load(Ordering::Acquire);
        let writing = self.writing.lock();
        self.check()?;
        if self.begun.load(Ordering::Acquire) != seen {
            // It began after this call, has ended, and has not failed.
            return Ok(());
        }
        self.begun.fetch_add(1, Ordering::AcqRel);
        loop {
            let blocks = self.map.take_dirty(ROUND);
            // What is present now is complete: the flush makes its data durable.
            let images: Vec<_> = blocks.iter().map(|block| (*block, self.present(*block))).collect();
            self.step(self.device.flush())?;
            self.write_map(&writing, &images)?;
            if images.len() < ROUND {
                return Ok(());
            }
        }
    }

    fn present(&self, block: u64) -> Vec<(u64, [u64; WORDS])> {
        let units = block * BLOCK_UNITS..(block + 1) * BLOCK_UNITS;
        units.filter_map(|unit| Some((unit, self.map.present_bits(unit)?))).collect()
    }

    /// Completes writes whose data is durable: makes it durable that these granules are here.
    pub(super) fn settle(&self, written: &[Range<u64>]) -> Result<()> {
        self.check()?;
        let mut blocks = BTreeSet::new();
        written.iter().for_each(|granules| self.map.set_present_settled(granules.clone(), &mut blocks));
        if blocks.is_empty() {
            return Ok(());
        }
        let writing = self.writing.lock();
        self.check()?;
        // Others' granules whose data is not known to be durable must not be in it.
        let image = |block: &u64| {
            let units = block * BLOCK_UNITS..(block + 1) * BLOCK_UNITS;
            let bits = |unit| {
                let mut bits = self.map.durable_bits(unit)?;
                written.iter().for_each(|granules| add(&mut bits, unit, granules));
                Some((unit, bits))
            };
            (*block, units.filter_map(bits).collect())
        };
        let images: Vec<_> = blocks.iter().map(image).collect();
        self.write_map(&writing, &images)
    }

    /// Writes these blocks of the map, with these bits of their units, durably.
    fn write_map(&self, _: &MutexGuard<'_, ()>, images: &[Image]) -> Result<()> {
        let mut bytes = Scratch::new(BLOCK as usize);
        for (block, units) in images {
            bytes.fill(0);
            for (unit, bits) in units {
                let place = (unit % BLOCK_UNITS) as usize;
                encode_unit(bits, &self.header.id, *unit, &mut bytes.as_chunks_mut::<UNIT>().0[place]);
            }
            let pos = MAP_AT + block * BLOCK;
            self.step(match images.len() {
                1 => self.device.write_durable(&bytes, pos),
                _ => self.device.write_at(&bytes, pos, WriteDurability::Cached),
            })?;
        }
        if images.len() > 1 {
            self.step(self.device.flush())?;
        }
        for (unit, bits) in images.iter().flat_map(|(_, units)| units) {
            self.map.set_durable(*unit, bits);
        }
        Ok(())
    }
}
