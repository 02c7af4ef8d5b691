//! The arithmetic of a volume: sizes, groups, and where each group's metadata descriptor is.

use super::super::features::{Compat, Features, Incompat, RoCompat};
use crate::error::{Corrupt, CorruptKind};
use crate::numbers::{BlockRange, Group, Ino, Pblk};

/// Byte offset of the primary superblock on the volume.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// Length of a superblock in bytes.
pub const SUPERBLOCK_SIZE: u32 = 1024;

const INODE_SIZE_REVISION_0: u16 = 128;
const FIRST_INODE_REVISION_0: u32 = 11;
const MAX_LOG_BLOCK_SIZE: u32 = 6;
const MAX_LOG_CLUSTER_SIZE: u32 = 20;
const DESC_SIZE_32: u16 = 32;
const DESC_SIZE_64_MIN: u16 = 64;
const DESC_SIZE_64_MAX: u16 = 1024;

/// The superblock fields that determine a volume's layout, as they are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeometryFields {
    /// Inodes on the volume (`s_inodes_count`).
    pub inodes_count: u32,
    /// Blocks on the volume (`s_blocks_count`); the high half counts only with the `64bit` feature.
    pub blocks_count: u64,
    /// The block that group 0 starts at (`s_first_data_block`): 1 if blocks have 1 KiB and no clusters,
    /// else 0.
    pub first_data_block: u32,
    /// Block size as a shift from 1 KiB (`s_log_block_size`).
    pub log_block_size: u32,
    /// Cluster size as a shift from 1 KiB (`s_log_cluster_size`).
    pub log_cluster_size: u32,
    /// Blocks in a group (`s_blocks_per_group`).
    pub blocks_per_group: u32,
    /// Clusters in a group (`s_clusters_per_group`).
    pub clusters_per_group: u32,
    /// Inodes in a group (`s_inodes_per_group`).
    pub inodes_per_group: u32,
    /// Format revision (`s_rev_level`): 0 fixes inode size and first inode.
    pub revision: u32,
    /// First inode not reserved (`s_first_ino`); meaningful from revision 1 on.
    pub first_inode: u32,
    /// Bytes in an inode record (`s_inode_size`); meaningful from revision 1 on.
    pub inode_size: u16,
    /// Bytes in a group descriptor (`s_desc_size`); meaningful with the `64bit` feature.
    pub desc_size: u16,
    /// Blocks reserved after the descriptors for their growth (`s_reserved_gdt_blocks`).
    pub reserved_gdt_blocks: u16,
    /// First block of descriptors stored the `meta_bg` way (`s_first_meta_bg`).
    pub first_meta_bg: u32,
    /// The two groups with backups under `sparse_super2` (`s_backup_bgs`); 0 = none.
    pub backup_groups: [u32; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackupRule {
    EveryGroup,
    Sparse,
    Named([u32; 2]),
}

/// A checked layout. Every method is free of overflow for any geometry that [`Geometry::new`] accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    fields: GeometryFields,
    block_size: u32,
    cluster_log: u32,
    inode_size: u16,
    first_inode: u32,
    desc_size: u16,
    groups: u32,
    meta_bg_from: Option<u32>,
    backups: BackupRule,
    flex_bg: bool,
}

fn ensure(condition: bool, field: &'static str) -> Result<(), Corrupt> {
    if condition { Ok(()) } else { Err(CorruptKind::SuperblockField(field).into()) }
}

fn inode_size(fields: &GeometryFields, block_size: u32) -> Result<u16, Corrupt> {
    if fields.revision == 0 {
        return Ok(INODE_SIZE_REVISION_0);
    }
    let size = fields.inode_size;
    let fits = size >= INODE_SIZE_REVISION_0 && size.is_power_of_two() && u32::from(size) <= block_size;
    ensure(fits, "inode_size")?;
    Ok(size)
}

fn desc_size(fields: &GeometryFields, features: &Features) -> Result<u16, Corrupt> {
    if !features.incompat.contains(Incompat::BIT64) {
        // The field is ignored without the feature, as the kernel does.
        return Ok(DESC_SIZE_32);
    }
    let size = fields.desc_size;
    ensure((DESC_SIZE_64_MIN..=DESC_SIZE_64_MAX).contains(&size) && size.is_power_of_two(), "desc_size")?;
    Ok(size)
}

fn first_inode(fields: &GeometryFields) -> Result<u32, Corrupt> {
    if fields.revision == 0 {
        return Ok(FIRST_INODE_REVISION_0);
    }
    ensure(fields.first_inode >= FIRST_INODE_REVISION_0, "first_inode")?;
    Ok(fields.first_inode)
}

/// Checks cluster and group sizes; returns log2 of the blocks in a cluster.
fn cluster_log(fields: &GeometryFields, features: &Features, block_size: u32) -> Result<u32, Corrupt> {
    let bits_per_block = block_size.saturating_mul(8);
    ensure(fields.log_cluster_size <= MAX_LOG_CLUSTER_SIZE, "log_cluster_size")?;
    let log = fields.log_cluster_size.checked_sub(fields.log_block_size);
    if features.ro_compat.contains(RoCompat::BIGALLOC) {
        let log = log.ok_or(CorruptKind::SuperblockField("log_cluster_size"))?;
        ensure((1..=bits_per_block).contains(&fields.clusters_per_group), "clusters_per_group")?;
        let blocks = u64::from(fields.clusters_per_group).checked_shl(log);
        ensure(blocks == Some(u64::from(fields.blocks_per_group)), "blocks_per_group")?;
        Ok(log)
    } else {
        ensure(log == Some(0), "log_cluster_size")?;
        ensure((1..=bits_per_block).contains(&fields.blocks_per_group), "blocks_per_group")?;
        Ok(0)
    }
}

/// Checks the volume's size; returns the number of groups.
fn group_count(fields: &GeometryFields, block_size: u32, cluster_log: u32) -> Result<u32, Corrupt> {
    let first = u64::from(fields.first_data_block);
    let bytes = fields.blocks_count.checked_mul(u64::from(block_size));
    ensure(bytes.is_some_and(|bytes| i64::try_from(bytes).is_ok()), "blocks_count")?;
    let lone_kilobyte = fields.log_block_size == 0 && cluster_log == 0;
    ensure(fields.first_data_block != 0 || !lone_kilobyte, "first_data_block")?;
    let data_blocks = fields.blocks_count.checked_sub(first).filter(|blocks| *blocks > 0);
    let data_blocks = data_blocks.ok_or(CorruptKind::SuperblockField("first_data_block"))?;
    let per_group = u64::from(fields.blocks_per_group);
    let groups = data_blocks.div_ceil(per_group.max(1));
    let groups = u32::try_from(groups).map_err(|_| CorruptKind::SuperblockField("blocks_count"))?;
    let inodes = u64::from(groups).saturating_mul(u64::from(fields.inodes_per_group));
    ensure(inodes == u64::from(fields.inodes_count), "inodes_count")?;
    Ok(groups)
}

impl Geometry {
    /// Checks a layout against itself and against the features that govern it.
    pub fn new(fields: GeometryFields, features: &Features) -> Result<Geometry, Corrupt> {
        ensure(fields.log_block_size <= MAX_LOG_BLOCK_SIZE, "log_block_size")?;
        let block_size = 1024_u32.checked_shl(fields.log_block_size).unwrap_or(u32::MAX);
        let inode_size = inode_size(&fields, block_size)?;
        let desc_size = desc_size(&fields, features)?;
        let first_inode = first_inode(&fields)?;
        let cluster_log = cluster_log(&fields, features, block_size)?;
        let inodes_per_block = block_size.checked_div(u32::from(inode_size)).unwrap_or(0);
        let inodes_per_group = inodes_per_block..=block_size.saturating_mul(8);
        ensure(inodes_per_group.contains(&fields.inodes_per_group), "inodes_per_group")?;
        ensure(u32::from(fields.reserved_gdt_blocks) <= block_size.div_ceil(4), "reserved_gdt_blocks")?;
        let groups = group_count(&fields, block_size, cluster_log)?;
        let geometry = Geometry {
            fields,
            block_size,
            cluster_log,
            inode_size,
            first_inode,
            desc_size,
            groups,
            meta_bg_from: features.incompat.contains(Incompat::META_BG).then_some(fields.first_meta_bg),
            backups: if features.compat.contains(Compat::SPARSE_SUPER2) {
                BackupRule::Named(fields.backup_groups)
            } else if features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
                BackupRule::Sparse
            } else {
                BackupRule::EveryGroup
            },
            flex_bg: features.incompat.contains(Incompat::FLEX_BG),
        };
        if let Some(first) = geometry.meta_bg_from {
            ensure(first <= geometry.descriptor_blocks(), "first_meta_bg")?;
        }
        Ok(geometry)
    }

    /// The on-disk fields this layout was made from.
    pub fn fields(&self) -> &GeometryFields {
        &self.fields
    }

    /// Bytes in a block: a power of two from 1024 to 65536.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// log2 of the block size.
    pub fn block_size_log(&self) -> u32 {
        self.block_size.trailing_zeros()
    }

    /// log2 of the number of blocks in a cluster; 0 without the `bigalloc` feature.
    pub fn cluster_log(&self) -> u32 {
        self.cluster_log
    }

    /// Blocks in a cluster: a power of two, 1 without the `bigalloc` feature.
    pub fn cluster_blocks(&self) -> u32 {
        1_u32.checked_shl(self.cluster_log).unwrap_or(u32::MAX)
    }

    /// Blocks on the volume, those before the first group included.
    pub fn blocks_count(&self) -> u64 {
        self.fields.blocks_count
    }

    /// The first block of group 0.
    pub fn first_data_block(&self) -> u32 {
        self.fields.first_data_block
    }

    /// Blocks in every group but the last.
    pub fn blocks_per_group(&self) -> u32 {
        self.fields.blocks_per_group
    }

    /// Bits of a block bitmap in use in every group but the last: clusters with `bigalloc`, else blocks.
    pub fn clusters_per_group(&self) -> u32 {
        self.fields.blocks_per_group.checked_shr(self.cluster_log).unwrap_or(0)
    }

    /// Inodes on the volume; the highest inode number.
    pub fn inodes_count(&self) -> u32 {
        self.fields.inodes_count
    }

    /// Inodes in a group.
    pub fn inodes_per_group(&self) -> u32 {
        self.fields.inodes_per_group
    }

    /// Bytes in an inode record: a power of two from 128 to the block size.
    pub fn inode_size(&self) -> u16 {
        self.inode_size
    }

    /// The first inode number that ordinary files may have.
    pub fn first_inode(&self) -> Ino {
        Ino(self.first_inode)
    }

    /// Bytes in a group descriptor: 32, or with the `64bit` feature a power of two from 64 to 1024.
    pub fn desc_size(&self) -> u16 {
        self.desc_size
    }

    /// Number of block groups, at least 1.
    pub fn group_count(&self) -> u32 {
        self.groups
    }

    /// Whether a group's metadata may lie outside the group.
    pub fn flex_bg(&self) -> bool {
        self.flex_bg
    }

    /// All blocks that metadata and data may have: the volume without what lies up to the first data block.
    ///
    /// The first data block itself holds the superblock and is never inside.
    pub fn usable_blocks(&self) -> BlockRange {
        let first = u64::from(self.fields.first_data_block).saturating_add(1);
        BlockRange { first: Pblk(first), end: Pblk(self.fields.blocks_count) }
    }

    /// All groups in order.
    pub fn groups(&self) -> impl Iterator<Item = Group> + use<> {
        (0..self.groups).map(Group)
    }

    /// The first block of `group`, if it exists.
    pub fn group_first_block(&self, group: Group) -> Option<Pblk> {
        if group.0 >= self.groups {
            return None;
        }
        let offset = u64::from(group.0).checked_mul(u64::from(self.fields.blocks_per_group))?;
        Some(Pblk(offset.checked_add(u64::from(self.fields.first_data_block))?))
    }

    /// Blocks in `group`: fewer than usual in the last one.
    pub fn group_blocks(&self, group: Group) -> Option<u32> {
        let rest = self.fields.blocks_count.checked_sub(self.group_first_block(group)?.0)?;
        let full = self.fields.blocks_per_group;
        Some(u32::try_from(rest).map_or(full, |rest| rest.min(full)))
    }

    /// Bits of the block bitmap of `group` that stand for clusters of the volume.
    pub fn group_clusters(&self, group: Group) -> Option<u32> {
        Some(self.group_blocks(group)?.div_ceil(self.cluster_blocks()))
    }

    /// The group that holds `block`, and the block's number inside it.
    pub fn group_of_block(&self, block: Pblk) -> Option<(Group, u32)> {
        if block.0 >= self.fields.blocks_count {
            return None;
        }
        let offset = block.0.checked_sub(u64::from(self.fields.first_data_block))?;
        let per_group = u64::from(self.fields.blocks_per_group);
        let group = u32::try_from(offset.checked_div(per_group)?).ok()?;
        Some((Group(group), u32::try_from(offset.checked_rem(per_group)?).ok()?))
    }

    /// The group that holds `inode`, and the inode's index in the group's table. `None` for 0 and beyond
    /// the last.
    pub fn group_of_inode(&self, inode: Ino) -> Option<(Group, u32)> {
        if inode.0 > self.fields.inodes_count {
            return None;
        }
        let offset = inode.0.checked_sub(1)?;
        let per_group = self.fields.inodes_per_group;
        Some((Group(offset.checked_div(per_group)?), offset.checked_rem(per_group)?))
    }

    /// Blocks in the inode table of a group.
    pub fn inode_table_blocks(&self) -> u32 {
        self.fields.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Inodes in a block of an inode table.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size.checked_div(u32::from(self.inode_size)).unwrap_or(1).max(1)
    }

    /// Where the inode with this index in its group's table is: blocks from the table's start, bytes into
    /// the block.
    pub fn inode_table_position(&self, index: u32) -> (u32, u32) {
        let per_block = self.inodes_per_block();
        let block = index.checked_div(per_block).unwrap_or(0);
        let inside = index.checked_rem(per_block).unwrap_or(0);
        (block, inside.saturating_mul(u32::from(self.inode_size)))
    }

    /// Group descriptors in a block.
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_size.checked_div(u32::from(self.desc_size)).unwrap_or(1).max(1)
    }

    /// Blocks that the descriptors of all groups fill once.
    pub fn descriptor_blocks(&self) -> u32 {
        self.groups.div_ceil(self.descriptors_per_block())
    }

    /// The block holding the primary superblock, and its byte offset in that block.
    pub fn superblock_position(&self) -> (Pblk, u32) {
        if self.block_size > SUPERBLOCK_SIZE { (Pblk(0), 1024) } else { (Pblk(1), 0) }
    }

    /// Whether `group` starts with a superblock: the primary one in group 0, else a backup.
    pub fn has_superblock(&self, group: Group) -> bool {
        if group.0 == 0 {
            return true;
        }
        match self.backups {
            BackupRule::EveryGroup => true,
            BackupRule::Named(groups) => groups.contains(&group.0),
            BackupRule::Sparse => group.0 == 1 || [3, 5, 7].iter().any(|base| is_power_of(group.0, *base)),
        }
    }

    /// Where the descriptor of `group` is: its block, and the byte offset in that block.
    pub fn descriptor_position(&self, group: Group) -> Option<(Pblk, u32)> {
        if group.0 >= self.groups {
            return None;
        }
        let per_block = self.descriptors_per_block();
        let block = self.descriptor_block(group.0.checked_div(per_block)?)?;
        let offset = group.0.checked_rem(per_block)?.checked_mul(u32::from(self.desc_size))?;
        Some((block, offset))
    }

    /// Where the `number`-th block of group descriptors is, counted from 0.
    ///
    /// With `meta_bg`, descriptor blocks from the first such one on lie in the first of the groups they
    /// describe, after that group's superblock backup if it has one.
    pub fn descriptor_block(&self, number: u32) -> Option<Pblk> {
        if number >= self.descriptor_blocks() {
            return None;
        }
        let (superblock, _) = self.superblock_position();
        match self.meta_bg_from {
            Some(first) if number >= first => {
                let group = Group(number.checked_mul(self.descriptors_per_block())?);
                let start = self.group_first_block(group)?;
                // With 1 KiB blocks and clusters, group 0 starts at block 0 but its superblock is block 1.
                let shifted = number == 0 && self.block_size == 1024 && self.fields.first_data_block == 0;
                let skip = u64::from(self.has_superblock(group)).checked_add(u64::from(shifted))?;
                start.checked_add(skip)
            }
            _ => superblock.checked_add(1)?.checked_add(u64::from(number)),
        }
    }

    /// Blocks of group descriptors, backups included, that `group` holds.
    pub fn descriptor_blocks_in(&self, group: Group) -> u32 {
        let per_block = self.descriptors_per_block();
        let number = group.0.checked_div(per_block).unwrap_or(0);
        match self.meta_bg_from {
            Some(first) if number >= first => {
                // Copies lie in the first, second and last group of the set that one block describes.
                let place = group.0.checked_rem(per_block).unwrap_or(0);
                u32::from(place == 0 || place == 1 || place == per_block.saturating_sub(1))
            }
            Some(first) if self.has_superblock(group) => first,
            None if self.has_superblock(group) => self.descriptor_blocks(),
            _ => 0,
        }
    }

    /// Blocks at the start of `group` taken by superblock, descriptors and the blocks reserved for their
    /// growth.
    ///
    /// With 1 KiB blocks and clusters, block 0 of the volume comes on top in group 0.
    pub fn base_metadata_blocks(&self, group: Group) -> u32 {
        let descriptors = self.descriptor_blocks_in(group);
        if !self.has_superblock(group) {
            return descriptors;
        }
        let number = group.0.checked_div(self.descriptors_per_block()).unwrap_or(0);
        let reserved = match self.meta_bg_from {
            Some(first) if number >= first => 0,
            _ => u32::from(self.fields.reserved_gdt_blocks),
        };
        descriptors.saturating_add(1).saturating_add(reserved)
    }
}

/// Whether `value` is `base` raised to a positive power.
fn is_power_of(value: u32, base: u32) -> bool {
    let mut power = u64::from(base);
    while power < u64::from(value) {
        power = power.saturating_mul(u64::from(base));
    }
    power == u64::from(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers() {
        let threes: Vec<u32> = (0..100).filter(|value| is_power_of(*value, 3)).collect();
        assert_eq!(threes, [3, 9, 27, 81]);
        assert!(is_power_of(1_162_261_467, 3));
        assert!(!is_power_of(u32::MAX, 7));
    }
}
