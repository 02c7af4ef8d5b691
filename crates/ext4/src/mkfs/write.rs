//! Writes a laid-out volume to the device: everything but the primary superblock, a flush, the superblock, a flush.
//!
//! The sector with the superblock's magic number is written first, as zeros, and last, alone both times: a device
//! writes a sector whole or not at all, so a power cut leaves the old volume, none, or the new one.

use super::error::{Error, Result};
use super::layout::Layout;
use super::options::Options;
use crate::ground::error::Error as VolumeError;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use uext4_blockdev::{BufferPool, Device, WriteDurability};
use uext4_ondisk::Group;
use uext4_ondisk::ext4::{GroupDescriptor, GroupFlags, SUPERBLOCK_OFFSET, State, Superblock};
use uext4_ondisk::{Ino, Pblk};

/// Maximum bytes of one request.
pub(super) const REQUEST: usize = 1 << 20;
/// Maximum bytes buffered before they are sent.
const HELD_MAX: usize = 64 << 20;
/// Maximum bytes of one discard.
const DISCARD: u64 = 2 << 30;
/// Number of writer threads.
const THREADS: usize = 8;
/// Bytes that every device writes whole or not at all.
const SECTOR: u64 = 512;
/// Bytes wiped at the start of the device, where signatures of other file systems could survive the format.
const FRONT: u64 = 256 << 10;
/// Bytes wiped at the end, where MD keeps its superblock: the last whole unit of this size and everything after it.
const BACK: u64 = 64 << 10;

pub(super) type Written<T> = std::result::Result<T, VolumeError>;

/// Merges consecutive blocks into large requests, and sends many in parallel.
pub(super) struct Writer<'d> {
    device: &'d dyn Device,
    block: usize,
    /// Buffered data: first byte, contents.
    pending: Vec<(u64, Vec<u8>)>,
    /// Bytes in `pending`.
    held: usize,
    /// Bytes of metadata, sent or not.
    written: u64,
}

impl<'d> Writer<'d> {
    pub(super) fn new(device: &'d dyn Device, block: usize) -> Writer<'d> {
        Writer { device, block, pending: Vec::new(), held: 0, written: 0 }
    }

    /// Adds one block, or several consecutive ones.
    pub(super) fn put(&mut self, block: u64, bytes: &[u8]) -> Written<()> {
        let pos = block * self.block as u64;
        for (piece, at) in bytes.chunks(self.block).zip((pos..).step_by(self.block)) {
            match self.pending.last_mut() {
                Some((start, held)) if *start + held.len() as u64 == at && held.len() < REQUEST => {
                    held.extend_from_slice(piece);
                }
                _ => self.pending.push((at, piece.to_vec())),
            }
        }
        self.held += bytes.len();
        self.written += bytes.len() as u64;
        if self.held >= HELD_MAX { self.send() } else { Ok(()) }
    }

    /// Sends the buffered requests from several threads, since most are small and far apart. Waits for all.
    pub(super) fn send(&mut self) -> Written<()> {
        let pending = std::mem::take(&mut self.pending);
        self.held = 0;
        let (next, device) = (AtomicUsize::new(0), self.device);
        let work = || -> Written<()> {
            let mut buffer = BufferPool::new(REQUEST)?.take(REQUEST)?;
            while let Some((pos, bytes)) = pending.get(next.fetch_add(1, Ordering::Relaxed)) {
                let piece = buffer
                    .get_mut(..bytes.len())
                    .ok_or(VolumeError::OutOfMemory { bytes: REQUEST as u64 })?;
                piece.copy_from_slice(bytes);
                device.write_at(piece, *pos, WriteDurability::Cached)?;
            }
            Ok(())
        };
        if pending.len() < THREADS {
            return work();
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            let died = || VolumeError::Invalid("a thread that writes died".into());
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(died())))
        })
    }

    /// Makes a range read as zeros; skips parts known to be zeros.
    pub(super) fn zero(&mut self, pos: u64, length: u64) -> Written<()> {
        if length == 0 || self.device.reads_zeros(pos, length) {
            return Ok(());
        }
        self.overwrite(pos, length)
    }

    /// Writes zeros over the start of the device.
    pub(super) fn wipe(&mut self, length: u64) -> Written<()> {
        let unit = u64::from(self.device.geometry().logical_block).max(2 * SUPERBLOCK_OFFSET);
        self.overwrite(0, length.next_multiple_of(unit))
    }

    fn overwrite(&mut self, pos: u64, length: u64) -> Written<()> {
        // Keep the order: data buffered so far is written before the zeros, later data after them.
        self.send()?;
        Ok(self.device.write_zeros(pos, length)?)
    }

    /// Writes bytes that are no whole block.
    fn put_at(&mut self, pos: u64, bytes: &[u8]) -> Written<()> {
        let mut buffer = BufferPool::new(REQUEST)?.take(REQUEST)?;
        let none = VolumeError::OutOfMemory { bytes: REQUEST as u64 };
        let piece = buffer.get_mut(..bytes.len()).ok_or(none)?;
        piece.copy_from_slice(bytes);
        Ok(self.device.write_at(piece, pos, WriteDurability::Cached)?)
    }

    fn zero_blocks(&mut self, block: u64, count: u64) -> Written<()> {
        self.zero(block * self.block as u64, count * self.block as u64)
    }
}

/// How a volume is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// Leave zeroing of unused inode tables to the kernel.
    pub(super) lazy: bool,
    /// Discard the volume's range first.
    pub(super) discard: bool,
}

impl Manner {
    /// What the options ask for and the device can do.
    pub(super) fn of(device: &dyn Device, options: &Options) -> Manner {
        let extended = &options.extended;
        Manner {
            lazy: extended.lazy_itable_init.unwrap_or(true),
            discard: extended.discard && device.capabilities().discard,
        }
    }
}

/// Writes the volume; `pour` writes the contents of its files, and
/// returns their bytes. After an error the device has no valid superblock,
/// provided that it can still be written.
pub(super) fn write(
    device: &dyn Device,
    layout: Layout,
    manner: Manner,
    pour: impl FnOnce() -> Result<u64>,
) -> Result<Superblock> {
    let block = layout.block_size();
    let writer = Writer::new(device, block);
    Course { writer, layout, manner }.run(pour).inspect_err(|_| {
        // The superblock may be on the device while the rest is not durable: wipe it. The first failure is the one
        // reported.
        let mut writer = Writer::new(device, block);
        let _hopeless = writer.wipe(SUPERBLOCK_OFFSET.max(block as u64)).and_then(|()| Ok(device.flush()?));
    })
}

struct Course<'d> {
    writer: Writer<'d>,
    layout: Layout,
    manner: Manner,
}

impl Course<'_> {
    fn run(mut self, pour: impl FnOnce() -> Result<u64>) -> Result<Superblock> {
        self.clear().map_err(Error::Failed)?;
        self.writer.written += pour()?;
        self.structures().map_err(Error::Failed)
    }

    fn clear(&mut self) -> Written<()> {
        let device = self.writer.device;
        // First the sector with the magic number alone: nothing that is still a volume loses a part.
        let (start, length) = self.magic();
        self.writer.zero(start, length)?;
        device.flush()?;
        self.clear_front()?;
        // The old contents are durably gone before any new structure is written among them.
        device.flush()?;
        if self.manner.discard {
            self.discard()?;
            // The contents after a discard are undefined.
            self.clear_front()?;
        }
        self.clear_rest()
    }

    fn structures(mut self) -> Written<Superblock> {
        let device = self.writer.device;
        let descriptors = self.groups()?;
        let table = self.descriptor_table(&descriptors)?;
        self.backups(&table)?;
        for (block, bytes) in std::mem::take(&mut self.layout.blocks) {
            self.writer.put(block, &bytes)?;
        }
        self.writer.send()?;
        device.flush()?;
        self.layout.superblock.kbytes_written = (self.writer.written >> 10) + 1;
        self.primary()?;
        device.flush()?;
        Ok(self.layout.superblock)
    }

    /// The sector with the magic number: first byte, length.
    fn magic(&self) -> (u64, u64) {
        let unit = u64::from(self.writer.device.geometry().logical_block).max(SECTOR);
        (SUPERBLOCK_OFFSET / unit * unit, unit)
    }

    /// The size of the volume in bytes.
    fn size(&self) -> u64 {
        self.layout.superblock.geometry.blocks_count() * self.writer.block as u64
    }

    /// Discards the whole volume. A device that does not support discard is left as it is.
    fn discard(&mut self) -> Written<()> {
        let (device, end) = (self.writer.device, self.size());
        for pos in (0..end).step_by(DISCARD as usize) {
            match device.discard(pos, DISCARD.min(end - pos)).map_err(VolumeError::from) {
                Err(error) if error.errno() == libc::EOPNOTSUPP => break,
                done => done?,
            }
        }
        Ok(())
    }

    fn clear_front(&mut self) -> Written<()> {
        let length = FRONT.min(self.size());
        self.writer.zero(0, length)
    }

    fn clear_rest(&mut self) -> Written<()> {
        let end = self.writer.device.geometry().size.min(self.size());
        let back = (end / BACK * BACK).saturating_sub(BACK);
        let unit = self.writer.block as u64;
        let back = back / unit * unit;
        self.writer.zero(back, end - back)?;
        for (block, count) in std::mem::take(&mut self.layout.zeros) {
            self.writer.zero_blocks(block, count)?;
        }
        Ok(())
    }

    /// Bitmaps and inode tables.
    fn groups(&mut self) -> Written<Vec<GroupDescriptor>> {
        let geometry = self.layout.superblock.geometry;
        let features = self.layout.superblock.features;
        let lazily = features.metadata_csum() || features.gdt_csum();
        let used_inodes = self.layout.used_inodes();
        let directories = self.layout.directories();
        let mut descriptors = Vec::new();
        for (group, index) in geometry.groups().zip(0..) {
            let Some(tables) = self.layout.tables.get(index).copied() else { break };
            let used = self.used_in_group(&used_inodes, group);
            let last_used = used.last().map_or(0, |last| last + 1);
            let ipg = geometry.inodes_per_group();
            let mut descriptor = GroupDescriptor {
                block_bitmap: Pblk(tables.block_bitmap),
                inode_bitmap: Pblk(tables.inode_bitmap),
                inode_table: Pblk(tables.inode_table),
                free_clusters: self.layout.space.free_in(group),
                free_inodes: ipg - used.len() as u32,
                used_dirs: directories.get(index).copied().unwrap_or(0),
                unused_inodes: if lazily { ipg - last_used } else { 0 },
                flags: GroupFlags::empty(),
                exclude_bitmap: 0,
                block_bitmap_csum: 0,
                inode_bitmap_csum: 0,
            };
            if lazily && used.is_empty() {
                descriptor.flags |= GroupFlags::INODE_UNINIT;
            }
            // The bitmap of the last group is padded, which does not follow from the geometry.
            if lazily && !self.layout.space.is_touched(group) && group.get() + 1 < geometry.group_count() {
                descriptor.flags |= GroupFlags::BLOCK_UNINIT;
            }
            self.bitmaps(group, &mut descriptor, &used)?;
            if self.inode_table(group, &descriptor, last_used, lazily)? {
                descriptor.flags |= GroupFlags::INODE_ZEROED;
            }
            descriptors.push(descriptor);
        }
        Ok(descriptors)
    }

    /// Indexes of a group's inodes in use.
    fn used_in_group(&self, used: &BTreeSet<u32>, group: Group) -> Vec<u32> {
        let ipg = self.layout.superblock.geometry.inodes_per_group();
        let first = group.get() * ipg + 1;
        used.range(first..=first + (ipg - 1)).map(|number| number - first).collect()
    }

    fn bitmaps(&mut self, group: Group, descriptor: &mut GroupDescriptor, used: &[u32]) -> Written<()> {
        let size = self.writer.block;
        let geometry = self.layout.superblock.geometry;
        if !descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            let mut bits = vec![0; size];
            for (start, end) in self.layout.space.in_group(group) {
                set_bits(&mut bits, start, end);
            }
            set_bits(&mut bits, geometry.group_clusters(group).unwrap_or(0), 8 * size as u32);
            descriptor.set_block_bitmap_csum(&bits, &self.layout.superblock)?;
            self.writer.put(descriptor.block_bitmap.get(), &bits)?;
        }
        if !descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            let mut bits = vec![0; size];
            for &index in used {
                set_bits(&mut bits, index, index + 1);
            }
            set_bits(&mut bits, geometry.inodes_per_group(), 8 * size as u32);
            descriptor.set_inode_bitmap_csum(&bits, &self.layout.superblock)?;
            self.writer.put(descriptor.inode_bitmap.get(), &bits)?;
        }
        Ok(())
    }

    /// Writes the inode records of a group, and zeros around them as required. Returns whether the rest of the table is
    /// zeros.
    fn inode_table(
        &mut self,
        group: Group,
        descriptor: &GroupDescriptor,
        last_used: u32,
        lazily: bool,
    ) -> Written<bool> {
        let geometry = self.layout.superblock.geometry;
        let (start, whole) = (descriptor.inode_table.get(), u64::from(geometry.inode_table_blocks()));
        let used = u64::from(last_used.div_ceil(geometry.inodes_per_block()));
        let unit = self.writer.block as u64;
        let known =
            used < whole && self.writer.device.reads_zeros((start + used) * unit, (whole - used) * unit);
        let zeroed = known || used == whole || !(self.manner.lazy && lazily);
        if zeroed && !known {
            self.writer.zero_blocks(start + used, whole - used)?;
        }
        if used > 0 {
            let mut bytes = vec![0; used as usize * self.writer.block];
            let first = group.get() * geometry.inodes_per_group();
            for (&number, record) in self.layout.inodes.range(first + 1..=first + last_used) {
                let (block, offset) = geometry.inode_table_position(number - first - 1);
                let at = block as usize * self.writer.block + offset as usize;
                bytes[at..at + record.len()].copy_from_slice(record);
            }
            self.blank_records(&mut bytes, first, last_used)?;
            self.writer.put(start, &bytes)?;
        }
        Ok(zeroed)
    }

    /// Writes the records of reserved inodes that have none.
    fn blank_records(&self, bytes: &mut [u8], first: u32, last_used: u32) -> Written<()> {
        let geometry = self.layout.superblock.geometry;
        let size = usize::from(geometry.inode_size());
        for number in
            (first + 1..=first + last_used).filter(|number| !self.layout.inodes.contains_key(number))
        {
            let (block, offset) = geometry.inode_table_position(number - first - 1);
            let at = block as usize * self.writer.block + offset as usize;
            if let Some(record) = bytes.get_mut(at..at + size) {
                uext4_ondisk::ext4::update_inode_checksum(record, Ino(number), &self.layout.superblock)?;
            }
        }
        Ok(())
    }

    /// The descriptor table, in whole blocks.
    fn descriptor_table(&self, descriptors: &[GroupDescriptor]) -> Written<Vec<u8>> {
        let geometry = self.layout.superblock.geometry;
        let mut table = vec![0; geometry.descriptor_blocks() as usize * self.writer.block];
        let per_block = geometry.descriptors_per_block() as usize;
        for (index, descriptor) in descriptors.iter().enumerate() {
            let at =
                index / per_block * self.writer.block + index % per_block * usize::from(geometry.desc_size());
            let place = table.get_mut(at..).unwrap_or_default();
            descriptor.encode(place, Group(index as u32), &self.layout.superblock)?;
        }
        Ok(table)
    }

    /// Writes the descriptors, and the backups of superblock and descriptors.
    fn backups(&mut self, table: &[u8]) -> Written<()> {
        let geometry = self.layout.superblock.geometry;
        let size = self.writer.block;
        let blocks: Vec<&[u8]> = table.chunks(size).collect();
        let per_block = geometry.descriptors_per_block();
        for group in geometry.groups() {
            let first = geometry.group_first_block(group).map_or(0, |block| block.get());
            let has_superblock = geometry.has_superblock(group);
            if group.get() > 0 && has_superblock {
                let copy = self.superblock_copy(group)?;
                self.writer.put(first, &copy)?;
            }
            let front = if group.get() == 0 { geometry.superblock_position().0.get() } else { first };
            let at = front + u64::from(has_superblock);
            let spread = geometry.fields().first_meta_bg;
            let meta =
                self.layout.superblock.features.incompat.contains(uext4_ondisk::ext4::Incompat::META_BG);
            let number = group.get() / per_block;
            if meta && number >= spread {
                if geometry.descriptor_blocks_in(group) > 0 {
                    self.writer.put(at, blocks.get(number as usize).copied().unwrap_or_default())?;
                }
            } else if has_superblock {
                let count = geometry.descriptor_blocks_in(group) as usize * size;
                self.writer.put(at, table.get(..count).unwrap_or(table))?;
            }
        }
        Ok(())
    }

    /// A backup superblock records its group and does not claim that the volume is clean.
    fn superblock_copy(&self, group: Group) -> Written<Vec<u8>> {
        let mut copy = self.layout.superblock.clone();
        copy.block_group = group.get() as u16;
        copy.state -= State::CLEAN;
        let mut bytes = vec![0; self.writer.block];
        copy.encode(&mut bytes)?;
        Ok(bytes)
    }

    fn primary(&mut self) -> Written<()> {
        let mut bytes = vec![0; self.writer.block];
        let (block, offset) = self.layout.superblock.geometry.superblock_position();
        debug_assert_eq!(block.get() * self.writer.block as u64 + u64::from(offset), SUPERBLOCK_OFFSET);
        self.layout.superblock.encode(bytes.get_mut(offset as usize..).unwrap_or_default())?;
        let (start, length) = self.magic();
        let at = (start - block.get() * self.writer.block as u64) as usize;
        let sector = bytes.get_mut(at..at + length as usize).unwrap_or_default();
        let magic = sector.to_vec();
        sector.fill(0);
        if bytes.iter().any(|&byte| byte != 0) {
            self.writer.put(block.get(), &bytes)?;
            self.writer.send()?;
            self.writer.device.flush()?;
        }
        self.writer.put_at(start, &magic)
    }
}

/// Sets the bits `[start, end)`.
fn set_bits(bits: &mut [u8], start: u32, end: u32) {
    let mut at = start;
    while at < end {
        let Some(byte) = bits.get_mut(at as usize / 8) else { return };
        if at.is_multiple_of(8) && end - at >= 8 {
            *byte = 0xFF;
            at += 8;
        } else {
            *byte |= 1 << (at % 8);
            at += 1;
        }
    }
}
