//! Group descriptors: one of them for an inode, all of them when the volume is opened.
//!
//! A volume of 16 TiB with blocks of 1 KiB has two million groups. Opening it reads their descriptors once, in large
//! steps and not through the cache (which holds a part of them at most), checks each, and keeps nothing but where
//! metadata lies: 16 bytes for each run of it.

use crate::error::{Error, Result};
use crate::volume::Ext4State;
use crate::zones::SystemZones;
use std::sync::Arc;
use uext4_blockdev::{BufferPool, Device};
use uext4_ondisk::ext4::{Geometry, GroupDescriptor, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind, Group, Pblk};

/// Bytes of descriptors that are read at a time.
const STEP: u32 = 256 * 1024;

impl Ext4State {
    /// The descriptor of a group, checksum verified.
    pub(crate) fn descriptor(&self, group: Group) -> Result<GroupDescriptor> {
        let geometry = &self.superblock.geometry;
        let missing =
            || Error::from(Corrupt::from(CorruptKind::GroupDescriptorField("number")).in_group(group));
        let (block, offset) = geometry.descriptor_position(group).ok_or_else(missing)?;
        let buffer = self.cache.read(block.get())?;
        let start = offset as usize;
        let bytes = buffer.get(start..start + usize::from(geometry.desc_size())).ok_or_else(missing)?;
        Ok(GroupDescriptor::decode(bytes, group, &self.superblock)
            .map_err(|corrupt| corrupt.at_block(block))?)
    }

    /// Collects where fixed metadata lies.
    pub(crate) fn load_zones(&mut self) -> Result<()> {
        let (superblock, zones) = (&self.superblock, &mut self.zones);
        let geometry = &superblock.geometry;
        let table = u64::from(geometry.inode_table_blocks());
        // Flex groups keep a kind of metadata of neighbouring groups together, so each kind has its own run.
        let mut runs = [Run::default(); 3];
        for_each_descriptor(&**self.cache.device(), superblock, |group, descriptor| {
            // With clusters and blocks of 1 KiB, group 0 starts one block before its superblock.
            let start = match group {
                Group(0) => Some(geometry.superblock_position().0),
                _ => geometry.group_first_block(group),
            };
            if let Some(start) = start {
                zones.add(start, u64::from(geometry.base_metadata_blocks(group)));
            }
            let [blocks, inodes, tables] = &mut runs;
            blocks.extend(descriptor.block_bitmap, 1, zones);
            inodes.extend(descriptor.inode_bitmap, 1, zones);
            tables.extend(descriptor.inode_table, table, zones);
        })?;
        runs.iter().for_each(|run| run.end(zones));
        if self.mmp.is_some() {
            zones.add(superblock.mmp.block, 1);
        }
        zones.settle();
        Ok(())
    }
}

/// Blocks of one kind of metadata that follow one another.
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
}

impl Run {
    fn extend(&mut self, start: Pblk, count: u64, zones: &mut SystemZones) {
        if self.end != start.get() {
            self.end(zones);
            self.start = start.get();
        }
        self.end = start.get().saturating_add(count);
    }

    fn end(&self, zones: &mut SystemZones) {
        zones.add(Pblk(self.start), self.end - self.start);
    }
}

/// Hands every group's descriptor, checked, to `visit`. Each block of them is read once.
///
/// # Errors
/// [`Error::Corrupt`] naming group and block; [`Error::MetadataIo`] naming the first block of the step that failed.
pub(crate) fn for_each_descriptor(
    device: &dyn Device,
    superblock: &Superblock,
    mut visit: impl FnMut(Group, &GroupDescriptor),
) -> Result<()> {
    let geometry = &superblock.geometry;
    let size = geometry.block_size();
    let (per_block, groups) = (geometry.descriptors_per_block(), geometry.group_count());
    let longest = STEP.max(size).min(geometry.descriptor_blocks().saturating_mul(size));
    let mut memory = BufferPool::new(longest as usize)?.take(longest as usize)?;
    let mut number = 0;
    while number < geometry.descriptor_blocks() {
        let (first, count) = adjacent(geometry, number, longest / size)?;
        let bytes = &mut memory[..count as usize * size as usize];
        device
            .read_at(bytes, first.get() * u64::from(size))
            .map_err(|source| Error::MetadataIo { block: first.get(), source: Arc::new(source) })?;
        let descriptors = bytes.chunks_exact(size as usize).zip(first.get()..).zip(number..);
        for ((bytes, block), number) in descriptors {
            let start = number * per_block;
            let bytes = bytes.chunks_exact(usize::from(geometry.desc_size()));
            for (bytes, group) in bytes.zip((start..groups).map(Group)).take(per_block as usize) {
                let descriptor = GroupDescriptor::decode(bytes, group, superblock)
                    .map_err(|corrupt| corrupt.at_block(Pblk(block)))?;
                visit(group, &descriptor);
            }
        }
        number += count;
    }
    Ok(())
}

/// Where the `number`-th block of descriptors is, and how many (at most `limit`) follow it both in number and place:
/// all of them, or with `meta_bg` only one.
fn adjacent(geometry: &Geometry, number: u32, limit: u32) -> Result<(Pblk, u32)> {
    let outside = |block: Pblk| {
        Error::from(Corrupt::from(CorruptKind::BlockOutsideVolume("group descriptors")).at_block(block))
    };
    let first = geometry.descriptor_block(number).ok_or_else(|| outside(Pblk(u64::MAX)))?;
    let mut count = 1;
    while count < limit && geometry.descriptor_block(number + count) == first.checked_add(u64::from(count)) {
        count += 1;
    }
    let end = first.checked_add(u64::from(count)).filter(|end| end.get() <= geometry.blocks_count());
    end.map(|_| (first, count)).ok_or_else(|| outside(first))
}
