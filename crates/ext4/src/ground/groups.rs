//! Group descriptors: one is read for each inode, all when the volume is opened.
//!
//! A volume of 16 TiB with blocks of 1 KiB has two million groups. Opening it reads their descriptors once, in large
//! steps, bypassing the cache, which has room for only a part of them. Each is checked; only the location of metadata
//! is kept, 16 bytes for each run, and the number of free clusters.
//!
//! # Damaged descriptors
//! A writer needs all of them sound: the first damaged one fails an open for writing. A read-only open succeeds, as in
//! the kernel, and reports how many are damaged ([`DescriptorDamage`]). It only needs the location of each group's
//! inode table.
//!
//! A descriptor with a wrong checksum still has that. We use it if its locations are possible and no sound descriptor
//! claims the same blocks: those are certainly not this group's inodes. (The kernel refuses a volume whose metadata
//! overlaps.) Otherwise the inodes of that group, and only they, cannot be read. A damaged descriptor adds nothing to
//! the system zones: wrong zones would make sound files unreadable, and a read-only open has nothing to protect.
//!
//! The kernel refuses a volume with an impossible descriptor. We refuse it only if most are impossible: then it is not
//! a volume. This also stops reading a sparse file that claims a billion groups.

use super::damage::DescriptorDamage;
use super::error::{Error, Result};
use super::state::Ground;
use super::totals::Totals;
use super::zones::SystemZones;
use std::sync::Arc;
use uext4_blockdev::{BufferPool, Device};
use uext4_ondisk::ext4::{Geometry, GroupDescriptor, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind, Group, Pblk};

/// Bytes of descriptors read at a time.
const STEP: u32 = 256 * 1024;

/// Impossible descriptors that a read-only open always tolerates.
const IMPOSSIBLE_MIN: u32 = 4096;

/// A damaged descriptor: the fault, and what is usable all the same.
pub(crate) struct Damaged {
    /// The first fault, with group and block.
    pub(crate) fault: Corrupt,
    /// Location of the inode table, if all locations in the descriptor are possible.
    table: Option<Pblk>,
}

/// Decodes the descriptor of `group`, which lies in `block`.
fn decode(
    bytes: &[u8],
    group: Group,
    block: Pblk,
    superblock: &Superblock,
) -> std::result::Result<GroupDescriptor, Damaged> {
    GroupDescriptor::decode(bytes, group, superblock).map_err(|fault| {
        let unverified = GroupDescriptor::decode_unverified(bytes, group, superblock).ok();
        Damaged { fault: fault.at_block(block), table: unverified.map(|descriptor| descriptor.inode_table) }
    })
}

/// Counts damaged descriptors.
#[derive(Default)]
struct Tally {
    sound: u32,
    found: Option<DescriptorDamage>,
}

impl Tally {
    /// Counts a damaged descriptor.
    ///
    /// # Errors
    /// The first fault, once most descriptors are impossible.
    fn add(&mut self, damaged: &Damaged) -> Result<()> {
        let none = DescriptorDamage { groups: 0, impossible: 0, first: damaged.fault };
        let found = self.found.get_or_insert(none);
        found.groups += 1;
        found.impossible += u32::from(damaged.table.is_none());
        let possible = self.sound + (found.groups - found.impossible);
        if found.impossible > IMPOSSIBLE_MIN.max(possible) {
            return Err(found.first.into());
        }
        Ok(())
    }
}

impl Ground {
    /// The descriptor of a group, checksum verified.
    pub(crate) fn descriptor(&self, group: Group) -> Result<GroupDescriptor> {
        self.read_descriptor(group)?.map_err(|damaged| damaged.fault.into())
    }

    /// Whether all descriptors were sound when the volume was opened. Then one look at each is enough for as long as
    /// its block stays in memory.
    pub(crate) fn were_sound(&self) -> bool {
        self.totals.flex_count() > 0
    }

    /// Checks all descriptors in the block that holds that of `group`.
    pub(crate) fn verify_descriptors(&self, group: Group, block: Pblk, bytes: &[u8]) -> Result<()> {
        let geometry = &self.superblock.geometry;
        let (per, size) = (geometry.descriptors_per_block(), usize::from(geometry.desc_size()));
        let first = group.get() - group.get() % per;
        let groups = (first..geometry.group_count()).map(Group).take(per as usize);
        for (bytes, group) in bytes.chunks_exact(size).zip(groups) {
            decode(bytes, group, block, &self.superblock).map_err(|damaged| damaged.fault)?;
        }
        Ok(())
    }

    /// Where the inode table of a group begins. On a read-only open a damaged descriptor may serve, if its locations
    /// are possible.
    pub(crate) fn inode_table(&self, group: Group) -> Result<Pblk> {
        let damaged = match self.read_descriptor(group)? {
            Ok(descriptor) => return Ok(descriptor.inode_table),
            Err(damaged) if self.trusts_only_sound => return Err(damaged.fault.into()),
            Err(damaged) => damaged,
        };
        let blocks = u64::from(self.superblock.geometry.inode_table_blocks());
        // The zones hold the metadata of sound descriptors only.
        let table = damaged.table.filter(|table| self.zones.allows(table.get(), blocks));
        table.ok_or_else(|| damaged.fault.into())
    }

    fn read_descriptor(&self, group: Group) -> Result<std::result::Result<GroupDescriptor, Damaged>> {
        if let Some(descriptor) = self.last_descriptor.of(group) {
            return Ok(Ok(descriptor));
        }
        let geometry = &self.superblock.geometry;
        let missing =
            || Error::from(Corrupt::from(CorruptKind::GroupDescriptorField("number")).in_group(group));
        let (block, offset) = geometry.descriptor_position(group).ok_or_else(missing)?;
        let (start, size) = (offset as usize, usize::from(geometry.desc_size()));
        if self.were_sound() {
            let verify = |bytes: &[u8]| self.verify_descriptors(group, block, bytes);
            let buffer = self.cache.get_or_verify(block.get(), verify)?;
            let bytes = buffer.get(start..start + size).ok_or_else(missing)?;
            return Ok(Ok(GroupDescriptor::decode_known(bytes, group, &self.superblock)?));
        }
        let buffer = self.cache.read(block.get())?;
        let bytes = buffer.get(start..start + size).ok_or_else(missing)?;
        Ok(decode(bytes, group, block, &self.superblock))
    }

    /// Collects the system zones, the free clusters and damaged descriptors. Damage fails an open for writing.
    pub(crate) fn load_zones(&mut self) -> Result<()> {
        let (superblock, zones) = (&self.superblock, &mut self.zones);
        let geometry = &superblock.geometry;
        let table = u64::from(geometry.inode_table_blocks());
        if self.trusts_only_sound {
            self.totals = Totals::new(geometry.group_count(), superblock.groups_per_flex());
        }
        let totals = &self.totals;
        let (mut tally, mut free) = (Tally::default(), 0_u64);
        // A flex group stores each kind of metadata of its groups together, so each kind forms a run.
        let mut runs = [MetadataRun::default(); 3];
        for_each_descriptor(&**self.cache.device(), superblock, |group, descriptor| {
            // With clusters and blocks of 1 KiB, group 0 starts one block before its superblock.
            let start = match group {
                Group(0) => Some(geometry.superblock_position().0),
                _ => geometry.group_first_block(group),
            };
            if let Some(start) = start {
                zones.add(start, u64::from(geometry.base_metadata_blocks(group)));
            }
            let descriptor = match descriptor {
                Ok(descriptor) => descriptor,
                Err(damaged) if self.trusts_only_sound => return Err(damaged.fault.into()),
                Err(damaged) => return tally.add(&damaged),
            };
            tally.sound += 1;
            free = free.saturating_add(u64::from(descriptor.free_clusters));
            totals.add(group, &descriptor);
            let [blocks, inodes, tables] = &mut runs;
            blocks.extend(descriptor.block_bitmap, 1, zones);
            inodes.extend(descriptor.inode_bitmap, 1, zones);
            tables.extend(descriptor.inode_table, table, zones);
            Ok(())
        })?;
        runs.iter().for_each(|run| run.end(zones));
        if self.mmp.is_some() {
            zones.add(superblock.mmp.block, 1);
        }
        zones.sort();
        (self.descriptor_damage, self.free_clusters) = (tally.found, free);
        Ok(())
    }
}

/// Consecutive blocks of one kind of metadata.
#[derive(Clone, Copy, Default)]
struct MetadataRun {
    start: u64,
    end: u64,
}

impl MetadataRun {
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

/// Reads and checks the descriptor of every group, and passes it to `visit`. Each block is read once.
///
/// # Errors
/// Those of `visit`; [`Error::Corrupt`] for descriptors that lie outside the volume; [`Error::MetadataIo`] naming the
/// first block of the failed read.
pub(crate) fn for_each_descriptor(
    device: &dyn Device,
    superblock: &Superblock,
    mut visit: impl FnMut(Group, std::result::Result<GroupDescriptor, Damaged>) -> Result<()>,
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
                visit(group, decode(bytes, group, Pblk(block), superblock))?;
            }
        }
        number += count;
    }
    Ok(())
}

/// Finds block `number` of the descriptors, and the length of the contiguous run from there (at most `limit`): all of
/// them, or with `meta_bg` only one.
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
