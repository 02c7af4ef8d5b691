//! A volume laid out in memory, before a byte of it is written: what is where, and what it holds.

use super::error::Result;
use super::sizes::FIRST_INODE;
use super::space::Space;
use super::tables::Tables;
use std::collections::{BTreeMap, BTreeSet};
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{
    Compat, FileType, Inode, RoCompat, Superblock, inode_checksum_seed, update_inode_checksum,
};

/// Bytes of the extra fields of inodes that have room for them.
pub(super) const EXTRA_ISIZE: u16 = 32;
/// Files of so many bytes and more need the feature `large_file`.
const LARGE: u64 = 1 << 31;
/// The word before attributes in an inode.
const XATTR_MAGIC: u32 = 0xEA02_0000;

/// A volume that is not written yet.
pub(super) struct Layout {
    pub(super) superblock: Superblock,
    pub(super) tables: Vec<Tables>,
    pub(super) space: Space,
    /// Records of inodes.
    pub(super) inodes: BTreeMap<u32, Vec<u8>>,
    /// Whole blocks of files and their maps.
    pub(super) blocks: BTreeMap<u64, Vec<u8>>,
    /// Blocks that must read as zeros: first, count.
    pub(super) zeros: Vec<(u64, u64)>,
    /// Seconds since 1970 that all times are.
    pub(super) time: u64,
}

impl Layout {
    pub(super) fn has(&self, feature: Compat) -> bool {
        self.superblock.features.compat.contains(feature)
    }

    pub(super) fn block_size(&self) -> usize {
        self.superblock.geometry.block_size() as usize
    }

    /// The seed of an inode's checksums, if there are any.
    pub(super) fn seed(&self, ino: Ino) -> Option<u32> {
        let seed = inode_checksum_seed(&self.superblock, ino, 0);
        self.superblock.features.metadata_csum().then_some(seed)
    }

    /// The first inode that nothing has yet.
    pub(super) fn next_inode(&self) -> Ino {
        let last = self.inodes.keys().next_back().copied().unwrap_or(0);
        Ino(last.max(FIRST_INODE) + 1)
    }

    /// Numbers of the inodes in use: the reserved ones, and those that have a record.
    pub(super) fn used_inodes(&self) -> BTreeSet<u32> {
        let reserved = 1..self.superblock.geometry.first_inode().get();
        reserved.chain(self.inodes.keys().copied()).collect()
    }

    /// Counts in the superblock what is free.
    pub(super) fn count_free(&mut self) {
        let geometry = self.superblock.geometry;
        let clusters: u64 = geometry.groups().map(|group| u64::from(self.space.free_in(group))).sum();
        self.superblock.free_blocks = clusters * u64::from(geometry.cluster_blocks());
        self.superblock.free_inodes = geometry.inodes_count() - self.used_inodes().len() as u32;
    }

    /// Blocks of 512 bytes that so many blocks of the volume take, whole clusters of them.
    pub(super) fn sectors(&self, blocks: u64) -> u64 {
        let cluster = u64::from(self.superblock.geometry.cluster_blocks());
        blocks.div_ceil(cluster) * cluster * (self.block_size() as u64 / 512)
    }

    /// Puts the mark of attributes, without any, behind the extra fields of an inode that is kept.
    pub(super) fn mark_attributes(&mut self, ino: Ino) -> Result<()> {
        let place = 128 + usize::from(EXTRA_ISIZE);
        if let Some(record) = self.inodes.get_mut(&ino.get())
            && let Some(mark) = record.get_mut(place..place + 4)
        {
            mark.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
            update_inode_checksum(record, ino, &self.superblock)?;
        }
        Ok(())
    }

    /// Keeps an inode. A large file brings the feature that it needs: the size of the inode that owns reserved
    /// descriptors has nothing to do with that of the volume.
    pub(super) fn add(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        if inode.file_type() == Some(FileType::Regular) && inode.size >= LARGE {
            self.superblock.features.ro_compat |= RoCompat::LARGE_FILE;
        }
        let mut record = vec![0; usize::from(self.superblock.geometry.inode_size())];
        inode.encode(&mut record, ino, &self.superblock)?;
        self.inodes.insert(ino.get(), record);
        Ok(())
    }
}
