//! Changing one group: its bitmaps, its free counts and its descriptor.
//!
//! Each edit first checks the descriptor and the bitmap: checksums, free counts, and that the bits to set (or clear)
//! are not so already. Then it changes the two blocks. A bitmap that was never written is created.
//!
//! # The counts of the superblock
//! The groups' free counts are authoritative. Those in the superblock are not updated while a volume changes, as in the
//! kernel: [`free_counts`] sums up the groups when the volume is closed, and recovery does so after a crash.

use super::bits::{bit, free_bits, put_bit, put_bits, used_bits};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::{Ground, is_system_file};
use crate::ground::totals::Delta;
use crate::ground::trace::Role;
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::ext4::{GroupDescriptor, GroupFlags, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind, Group, Ino, Pblk};

/// Clusters checked against the zones at a time when a bitmap is created.
const FREE_STEP: usize = 1024;
/// Bytes that examining a free cluster counts as ([`Blocks::work`]).
pub(crate) const SEARCH_WORK: usize = 32;

fn corrupt(kind: CorruptKind, group: Group) -> Error {
    Corrupt::from(kind).in_group(group).into()
}

/// The current descriptor of a group, checksum verified.
///
/// # Errors
/// [`Error::Corrupt`], and those of the body.
pub(crate) fn descriptor(blocks: &impl Blocks, group: Group) -> Result<GroupDescriptor> {
    if let Some(descriptor) = blocks.last_descriptor().and_then(|last| last.of(group)) {
        return Ok(descriptor);
    }
    let superblock = &blocks.ground().superblock;
    let (block, offset) = descriptor_place(blocks, group)?;
    if !blocks.ground().were_sound() {
        let decoded = blocks.look(block, |bytes| {
            let bytes = bytes.get(offset..).unwrap_or_default();
            GroupDescriptor::decode(bytes, group, superblock).map_err(|corrupt| corrupt.at_block(block))
        })?;
        return Ok(decoded?);
    }
    let verify = |bytes: &[u8]| blocks.ground().verify_descriptors(group, block, bytes);
    let decoded = blocks.look_verified(block, verify, |bytes| {
        let bytes = bytes.get(offset..).unwrap_or_default();
        GroupDescriptor::decode_known(bytes, group, superblock).map_err(|corrupt| corrupt.at_block(block))
    })?;
    Ok(decoded?)
}

fn descriptor_place(blocks: &impl Blocks, group: Group) -> Result<(Pblk, usize)> {
    let place = blocks.ground().superblock.geometry.descriptor_position(group);
    let missing = || corrupt(CorruptKind::GroupDescriptorField("number"), group);
    place.map(|(block, offset)| (block, offset as usize)).ok_or_else(missing)
}

/// Writes the descriptor of a group, checksum included.
fn store_descriptor(blocks: &mut impl Blocks, group: Group, descriptor: &GroupDescriptor) -> Result<()> {
    let (block, offset) = descriptor_place(blocks, group)?;
    blocks.describe(block, Role::GroupDescriptor(group));
    let superblock = Arc::clone(&blocks.ground().superblock);
    descriptor.check_fits(&superblock)?;
    let encode =
        |bytes: &mut [u8]| descriptor.encode(bytes.get_mut(offset..).unwrap_or_default(), group, &superblock);
    let last =
        |blocks: &_, stored| Blocks::last_descriptor(blocks).into_iter().for_each(|last| last.set(stored));
    last(blocks, None);
    blocks.change(block, encode)??;
    last(blocks, Some((group, *descriptor)));
    Ok(())
}

/// The changed bitmaps of a group, and its descriptor, whose counts and checksums are set when it is stored.
pub(crate) struct Changed {
    pub(crate) group: Group,
    pub(crate) descriptor: GroupDescriptor,
    pub(crate) blocks: Option<Vec<u8>>,
    pub(crate) inodes: Option<Vec<u8>>,
}

impl Changed {
    /// The block bitmap of a group, without changes yet.
    ///
    /// # Errors
    /// As of [`sound_block_bitmap`].
    pub(crate) fn of(blocks: &impl Blocks, group: Group) -> Result<Changed> {
        let (descriptor, bitmap) = sound_block_bitmap(blocks, group)?;
        Ok(Changed { group, descriptor, blocks: Some(bitmap), inodes: None })
    }

    /// Marks clusters used, or free.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one of them is already so, does not exist or holds metadata at a fixed place, with nothing
    /// marked.
    pub(crate) fn mark(&mut self, ground: &Ground, clusters: Range<u32>, used: bool) -> Result<()> {
        let at = check_clusters(ground, self.group, &clusters)?;
        let bitmap = self.blocks.as_deref_mut().unwrap_or_default();
        let found = used_bits(bitmap, clusters.clone());
        if used && found > 0 {
            return Err(at(CorruptKind::BlocksInUse));
        }
        if !used && found < clusters.end - clusters.start {
            return Err(at(CorruptKind::BlocksFree));
        }
        put_bits(bitmap, clusters, used);
        Ok(())
    }

    /// Stores them. Free counts are recomputed from the bitmaps.
    ///
    /// # Errors
    /// Those of the body.
    pub(crate) fn store(mut self, blocks: &mut impl Blocks) -> Result<()> {
        let superblock = &blocks.ground().superblock;
        let geometry = &superblock.geometry;
        let (group, descriptor) = (self.group, &mut self.descriptor);
        let before = (i64::from(descriptor.free_clusters), i64::from(descriptor.free_inodes));
        if let Some(bitmap) = &self.blocks {
            descriptor.free_clusters = free_bits(bitmap, geometry.group_clusters(group).unwrap_or(0));
            descriptor.flags &= !GroupFlags::BLOCK_UNINIT;
            descriptor.set_block_bitmap_csum(bitmap, superblock)?;
        }
        if let Some(bitmap) = &self.inodes {
            descriptor.free_inodes = free_bits(bitmap, geometry.inodes_per_group());
            descriptor.set_inode_bitmap_csum(bitmap, superblock)?;
        }
        let delta = Delta {
            free_clusters: i64::from(descriptor.free_clusters) - before.0,
            free_inodes: i64::from(descriptor.free_inodes) - before.1,
            directories: 0,
        };
        let bitmaps = [
            (descriptor.block_bitmap, self.blocks, Role::BlockBitmap(group)),
            (descriptor.inode_bitmap, self.inodes, Role::InodeBitmap(group)),
        ];
        if bitmaps.iter().any(|(_, bitmap, _)| bitmap.is_some()) {
            store_descriptor(blocks, group, &self.descriptor)?;
        }
        blocks.ground().totals.change(group, delta);
        for (place, bitmap, role) in bitmaps {
            if let Some(bitmap) = bitmap {
                blocks.describe(place, role);
                blocks.fresh(place, |bytes| bytes.copy_from_slice(&bitmap))?;
            }
        }
        Ok(())
    }
}

/// Marks free clusters of a group used, or used ones free, directly in the cached bitmap: the path of most changes.
///
/// # Errors
/// As of [`sound_block_bitmap`]; [`Error::Corrupt`] if one of the clusters is already so, does not exist or holds
/// metadata at a fixed place, with nothing changed. Those of the body.
pub(crate) fn mark(blocks: &mut impl Blocks, group: Group, clusters: Range<u32>, used: bool) -> Result<()> {
    let mut descriptor = descriptor(blocks, group)?;
    if descriptor.blocks_uninitialised(&blocks.ground().superblock) {
        let mut changed = Changed::of(blocks, group)?;
        changed.mark(blocks.ground(), clusters, used)?;
        return changed.store(blocks);
    }
    let count = clusters.end.saturating_sub(clusters.start);
    let all = blocks.ground().superblock.geometry.group_clusters(group).unwrap_or(0);
    let at = check_clusters(blocks.ground(), group, &clusters)?;
    let place = descriptor.block_bitmap;
    let found = look_at_blocks(blocks, group, &descriptor, |bytes| used_bits(bytes, clusters.clone()))?;
    let (is_other, left, kind) = match used {
        true => (found == 0, descriptor.free_clusters.checked_sub(count), CorruptKind::BlocksInUse),
        false => (found == count, descriptor.free_clusters.checked_add(count), CorruptKind::BlocksFree),
    };
    let left = left.filter(|left| is_other && *left <= all).ok_or_else(|| at(kind))?;
    let freed = i64::from(left) - i64::from(descriptor.free_clusters);
    descriptor.free_clusters = left;
    blocks.describe(place, Role::BlockBitmap(group));
    let superblock = Arc::clone(&blocks.ground().superblock);
    blocks.change(place, |bytes| {
        put_bits(bytes, clusters.clone(), used);
        descriptor.flip_block_bitmap_csum(bytes, clusters, &superblock)
    })??;
    // Only now: if the body refuses the first change, nothing has happened.
    blocks.ground().totals.change(group, Delta { free_clusters: freed, ..Delta::default() });
    store_descriptor(blocks, group, &descriptor)
}

/// As [`mark`] with clusters that are free.
///
/// # Errors
/// As of [`mark`].
pub(crate) fn mark_used(blocks: &mut impl Blocks, group: Group, clusters: Range<u32>) -> Result<()> {
    mark(blocks, group, clusters, true)
}

/// Checks that clusters of a group could be marked free.
///
/// # Errors
/// As of [`mark`].
pub(crate) fn check_used(blocks: &impl Blocks, group: Group, clusters: Range<u32>) -> Result<()> {
    let descriptor = descriptor(blocks, group)?;
    if descriptor.blocks_uninitialised(&blocks.ground().superblock) {
        return Changed::of(blocks, group)?.mark(blocks.ground(), clusters, false);
    }
    let at = check_clusters(blocks.ground(), group, &clusters)?;
    let found = look_at_blocks(blocks, group, &descriptor, |bytes| used_bits(bytes, clusters.clone()))?;
    match found == clusters.end - clusters.start {
        true => Ok(()),
        false => Err(at(CorruptKind::BlocksFree)),
    }
}

/// Checks that a bitmap matches its descriptor.
fn verify_block_bitmap(
    ground: &Ground,
    group: Group,
    descriptor: &GroupDescriptor,
    bitmap: &[u8],
) -> Result<()> {
    descriptor.verify_block_bitmap(bitmap, group, &ground.superblock)?;
    let clusters = ground.superblock.geometry.group_clusters(group).unwrap_or(0);
    match free_bits(bitmap, clusters) == descriptor.free_clusters {
        true => Ok(()),
        false => Err(corrupt(CorruptKind::GroupDescriptorField("free_blocks_count"), group)),
    }
}

/// Refuses clusters that do not exist or hold metadata at fixed places. Returns a function that gives an error kind its
/// place.
fn check_clusters(
    ground: &Ground,
    group: Group,
    clusters: &Range<u32>,
) -> Result<impl Fn(CorruptKind) -> Error + use<>> {
    let geometry = &ground.superblock.geometry;
    let (count, size) = (geometry.group_clusters(group).unwrap_or(0), u64::from(geometry.cluster_blocks()));
    let base = geometry.group_first_block(group).map_or(0, Pblk::get);
    let first = base + u64::from(clusters.start) * size;
    let end = base + (u64::from(clusters.end) * size).min(geometry.group_blocks(group).unwrap_or(0).into());
    let at = move |kind: CorruptKind| Error::from(Corrupt::from(kind).in_group(group).at_block(Pblk(first)));
    if clusters.start >= clusters.end || clusters.end > count {
        return Err(at(CorruptKind::BlockOutsideVolume("a run of blocks")));
    }
    if !ground.zones.allows(first, end - first) {
        return Err(at(CorruptKind::SystemZone));
    }
    Ok(at)
}

/// The block bitmap of a group, checksum verified. If it was never written, it is created with only metadata at fixed
/// places in use.
///
/// # Errors
/// [`Error::Corrupt`], and those of the body.
pub(crate) fn block_bitmap(
    blocks: &impl Blocks,
    group: Group,
    descriptor: &GroupDescriptor,
) -> Result<Vec<u8>> {
    let ground = blocks.ground();
    let geometry = &ground.superblock.geometry;
    if !descriptor.blocks_uninitialised(&ground.superblock) {
        blocks.work(geometry.block_size() as usize)?;
        let bitmap = blocks.look(descriptor.block_bitmap, <[u8]>::to_vec)?;
        descriptor.verify_block_bitmap(&bitmap, group, &ground.superblock)?;
        return Ok(bitmap);
    }
    let start = geometry.group_first_block(group).map_or(0, Pblk::get);
    let clusters = geometry.group_clusters(group).unwrap_or(0);
    let count = u64::from(geometry.group_blocks(group).unwrap_or(0));
    let size = u64::from(geometry.cluster_blocks());
    // Bits past the end of the volume count as used.
    let mut bitmap = vec![0xff; geometry.block_size() as usize];
    let free = |part: &Range<u32>| {
        let (first, end) = (u64::from(part.start) * size, (u64::from(part.end) * size).min(count));
        ground.zones.allows(start + first, end - first)
    };
    // Most clusters are free, and there may be very many groups.
    for first in (0..clusters).step_by(FREE_STEP) {
        let part = first..clusters.min(first + FREE_STEP as u32);
        if free(&part) {
            put_bits(&mut bitmap, part, false);
        } else {
            blocks.work(SEARCH_WORK * part.len())?;
            part.filter(|index| free(&(*index..index + 1)))
                .for_each(|index| put_bit(&mut bitmap, index, false));
        }
    }
    Ok(bitmap)
}

/// The same for the inode bitmap.
///
/// # Errors
/// As of [`block_bitmap`].
pub(crate) fn inode_bitmap(
    blocks: &impl Blocks,
    group: Group,
    descriptor: &GroupDescriptor,
) -> Result<Vec<u8>> {
    let superblock = &blocks.ground().superblock;
    let size = superblock.geometry.block_size() as usize;
    if descriptor.inodes_uninitialised(superblock) {
        let mut bitmap = vec![0xff; size];
        put_bits(&mut bitmap, 0..superblock.geometry.inodes_per_group(), false);
        return Ok(bitmap);
    }
    blocks.work(size)?;
    let bitmap = blocks.look(descriptor.inode_bitmap, <[u8]>::to_vec)?;
    descriptor.verify_inode_bitmap(&bitmap, group, superblock)?;
    Ok(bitmap)
}

/// The descriptor and the block bitmap of a group whose free count agrees with its bitmap.
///
/// # Errors
/// [`Error::Corrupt`], and those of the body.
pub(crate) fn sound_block_bitmap(blocks: &impl Blocks, group: Group) -> Result<(GroupDescriptor, Vec<u8>)> {
    let descriptor = descriptor(blocks, group)?;
    let ground = blocks.ground();
    if descriptor.blocks_uninitialised(&ground.superblock) {
        let bitmap = block_bitmap(blocks, group, &descriptor)?;
        let clusters = ground.superblock.geometry.group_clusters(group).unwrap_or(0);
        if free_bits(&bitmap, clusters) != descriptor.free_clusters {
            return Err(corrupt(CorruptKind::GroupDescriptorField("free_blocks_count"), group));
        }
        return Ok((descriptor, bitmap));
    }
    blocks.work(ground.superblock.geometry.block_size() as usize)?;
    let verify = |bytes: &[u8]| verify_block_bitmap(ground, group, &descriptor, bytes);
    let bitmap = blocks.look_verified(descriptor.block_bitmap, verify, <[u8]>::to_vec)?;
    Ok((descriptor, bitmap))
}

/// Calls `look` with the block bitmap of a group, which is initialised, and whose free count agrees with it.
///
/// # Errors
/// As of [`sound_block_bitmap`].
pub(crate) fn look_at_blocks<T>(
    blocks: &impl Blocks,
    group: Group,
    descriptor: &GroupDescriptor,
    look: impl FnOnce(&[u8]) -> T,
) -> Result<T> {
    let verify = |bytes: &[u8]| verify_block_bitmap(blocks.ground(), group, descriptor, bytes);
    blocks.look_verified(descriptor.block_bitmap, verify, look)
}

/// Calls `look` with the inode bitmap of a group, whose counts agree with it: no inode is in use past the initialized
/// part of the table.
///
/// # Errors
/// As of [`sound_block_bitmap`].
pub(crate) fn look_at_inodes<T>(
    blocks: &impl Blocks,
    group: Group,
    descriptor: &GroupDescriptor,
    look: impl FnOnce(&[u8]) -> T,
) -> Result<T> {
    let superblock = &blocks.ground().superblock;
    if descriptor.inodes_uninitialised(superblock) {
        let bitmap = inode_bitmap(blocks, group, descriptor)?;
        check_inode_bitmap(superblock, group, descriptor, &bitmap)?;
        return Ok(look(&bitmap));
    }
    blocks.work(superblock.geometry.block_size() as usize)?;
    let verify = |bytes: &[u8]| {
        descriptor.verify_inode_bitmap(bytes, group, superblock)?;
        check_inode_bitmap(superblock, group, descriptor, bytes)
    };
    blocks.look_verified(descriptor.inode_bitmap, verify, look)
}

/// Checks that a bitmap agrees with the counts of its descriptor.
fn check_inode_bitmap(
    superblock: &Superblock,
    group: Group,
    descriptor: &GroupDescriptor,
    bitmap: &[u8],
) -> Result<()> {
    let inodes = superblock.geometry.inodes_per_group();
    if free_bits(bitmap, inodes) != descriptor.free_inodes {
        return Err(corrupt(CorruptKind::GroupDescriptorField("free_inodes_count"), group));
    }
    if used_bits(bitmap, descriptor.initialised_inodes(superblock)..inodes) > 0 {
        return Err(corrupt(CorruptKind::GroupDescriptorField("itable_unused"), group));
    }
    Ok(())
}

/// The group of an inode, and its index there.
///
/// # Errors
/// [`Error::Corrupt`] if there is no such inode.
pub(crate) fn place_of_inode(blocks: &impl Blocks, ino: Ino) -> Result<(Group, u32)> {
    let bad = || Error::from(Corrupt::from(CorruptKind::InodeNumber).in_inode(ino));
    blocks.ground().superblock.geometry.group_of_inode(ino).ok_or_else(bad)
}

/// Whether an inode is marked used.
///
/// # Errors
/// [`Error::Corrupt`], and those of the body.
pub(crate) fn inode_used(blocks: &impl Blocks, ino: Ino) -> Result<bool> {
    let (group, index) = place_of_inode(blocks, ino)?;
    let descriptor = descriptor(blocks, group)?;
    if index >= descriptor.initialised_inodes(&blocks.ground().superblock) {
        return Ok(false);
    }
    blocks.look(descriptor.inode_bitmap, |bitmap| bit(bitmap, index))
}

/// Checks that an inode is in use, and that its bitmap and descriptor are sound.
///
/// # Errors
/// [`Error::Corrupt`], and those of the body.
pub(crate) fn check_inode_used(blocks: &impl Blocks, ino: Ino) -> Result<()> {
    let (group, index) = place_of_inode(blocks, ino)?;
    let descriptor = descriptor(blocks, group)?;
    match look_at_inodes(blocks, group, &descriptor, |bitmap| bit(bitmap, index))? {
        true => Ok(()),
        false => Err(Corrupt::from(CorruptKind::InodeFree).in_group(group).in_inode(ino).into()),
    }
}

/// Marks an inode used or free. Earlier records of the table that were never written are zeroed, since from now on they
/// are read.
///
/// # Errors
/// [`Error::Corrupt`] if it is already so, or if bitmap and descriptor are damaged; [`Error::NotPermitted`] for an
/// internal inode; nothing was changed then. Those of the body.
pub(crate) fn mark_inode(blocks: &mut impl Blocks, ino: Ino, used: bool, directory: bool) -> Result<()> {
    let (group, index) = place_of_inode(blocks, ino)?;
    let superblock = &blocks.ground().superblock;
    if ino < superblock.geometry.first_inode() || is_system_file(superblock, ino) {
        return Err(Error::NotPermitted("an internal file of the volume"));
    }
    let mut descriptor = descriptor(blocks, group)?;
    if look_at_inodes(blocks, group, &descriptor, |bitmap| bit(bitmap, index))? == used {
        let kind = if used { CorruptKind::InodeInUse } else { CorruptKind::InodeFree };
        return Err(Corrupt::from(kind).in_group(group).in_inode(ino).into());
    }
    // Descriptors of a damaged volume may share a bitmap, which was checked against one of them.
    let inodes = superblock.geometry.inodes_per_group();
    let free =
        if used { descriptor.free_inodes.checked_sub(1) } else { descriptor.free_inodes.checked_add(1) };
    let free = free.filter(|free| *free <= inodes);
    let free = free.ok_or_else(|| corrupt(CorruptKind::GroupDescriptorField("free_inodes_count"), group))?;
    let directories = match (directory, used) {
        (false, _) => Some(descriptor.used_dirs),
        (true, true) => descriptor.used_dirs.checked_add(1),
        (true, false) => descriptor.used_dirs.checked_sub(1),
    };
    let wrong = || corrupt(CorruptKind::GroupDescriptorField("used_dirs_count"), group);
    descriptor.used_dirs =
        directories.filter(|directories| *directories <= inodes - free).ok_or_else(wrong)?;
    let step = if used { 1 } else { -1 };
    let directories = if directory { step } else { 0 };
    if descriptor.inodes_uninitialised(superblock) {
        let mut bitmap = inode_bitmap(blocks, group, &descriptor)?;
        put_bit(&mut bitmap, index, used);
        if used {
            reach(blocks, group, &mut descriptor, index)?;
        }
        Changed { group, descriptor, blocks: None, inodes: Some(bitmap) }.store(blocks)?;
        blocks.ground().totals.change(group, Delta { directories, ..Delta::default() });
        return Ok(());
    }
    if used {
        reach(blocks, group, &mut descriptor, index)?;
    }
    descriptor.free_inodes = free;
    let place = descriptor.inode_bitmap;
    blocks.describe(place, Role::InodeBitmap(group));
    let superblock = Arc::clone(&blocks.ground().superblock);
    blocks.change(place, |bytes| {
        put_bit(bytes, index, used);
        descriptor.flip_inode_bitmap_csum(bytes, index..index + 1, &superblock)
    })??;
    blocks.ground().totals.change(group, Delta { free_inodes: -step, directories, ..Delta::default() });
    store_descriptor(blocks, group, &descriptor)
}

/// Extends the initialized part of the table to include a record.
///
/// # Errors
/// Those of the body.
pub(crate) fn reach(
    blocks: &mut impl Blocks,
    group: Group,
    descriptor: &mut GroupDescriptor,
    index: u32,
) -> Result<()> {
    let superblock = &blocks.ground().superblock;
    let before = descriptor.initialised_inodes(superblock);
    if index < before {
        return Ok(());
    }
    descriptor.flags &= !GroupFlags::INODE_UNINIT;
    descriptor.unused_inodes = superblock.geometry.inodes_per_group() - index - 1;
    if descriptor.flags.contains(GroupFlags::INODE_ZEROED) {
        return Ok(());
    }
    clear_records(blocks, group, descriptor.inode_table, before..index)
}

/// Zeroes records of a table that were never written.
fn clear_records(blocks: &mut impl Blocks, group: Group, table: Pblk, records: Range<u32>) -> Result<()> {
    let geometry = &blocks.ground().superblock.geometry;
    let (per_block, size) = (geometry.inodes_per_block(), usize::from(geometry.inode_size()));
    let mut index = records.start;
    while index < records.end {
        let (block, offset) = blocks.ground().superblock.geometry.inode_table_position(index);
        let count = (per_block - index % per_block).min(records.end - index);
        let (place, start) = (Pblk(table.get() + u64::from(block)), offset as usize);
        let range = start..start + count as usize * size;
        let written = blocks.look(place, |bytes| {
            bytes.get(range.clone()).is_some_and(|part| part.iter().any(|byte| *byte != 0))
        })?;
        if written {
            blocks.describe(place, Role::InodeTable(group));
            blocks.change(place, |bytes| bytes[range].fill(0))?;
        }
        index += count;
    }
    Ok(())
}

/// Free blocks and inodes of all groups, for the superblock. Reads every descriptor; used when closing.
///
/// # Errors
/// [`Error::Corrupt`], and those of the body.
pub(crate) fn free_counts(blocks: &impl Blocks) -> Result<(u64, u32)> {
    let geometry = &blocks.ground().superblock.geometry;
    let (mut clusters, mut inodes) = (0_u64, 0_u64);
    for group in geometry.groups() {
        let descriptor = descriptor(blocks, group)?;
        clusters = clusters.saturating_add(u64::from(descriptor.free_clusters));
        inodes = inodes.saturating_add(u64::from(descriptor.free_inodes));
    }
    let totals = blocks.ground().totals.volume();
    let followed = (totals.free_clusters, totals.free_inodes);
    debug_assert!(blocks.ground().totals.flex_count() == 0 || followed == (clusters, inodes));
    let wrong = |name| Error::from(Corrupt::from(CorruptKind::SuperblockField(name)));
    let free_blocks = clusters.saturating_mul(u64::from(geometry.cluster_blocks()));
    let free_inodes = u32::try_from(inodes).map_err(|_| wrong("free_inodes_count"))?;
    Ok((free_blocks, free_inodes))
}

/// Writes the free counts into the superblock.
#[cfg(test)]
pub(crate) fn store_counts(blocks: &mut impl Blocks) -> Result<()> {
    let (free_blocks, free_inodes) = free_counts(blocks)?;
    crate::ground::primary::change_superblock(blocks, |superblock| {
        (superblock.free_blocks, superblock.free_inodes) = (free_blocks, free_inodes);
    })
}
