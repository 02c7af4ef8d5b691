//! A volume laid out in memory before anything is written: the location and contents of every structure.

use super::error::Result;
use super::sizes::FIRST_INODE;
use super::space::Space;
use super::tables::Tables;
use std::collections::{BTreeMap, BTreeSet};
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{
    Compat, FileType, Inode, RoCompat, Superblock, inode_checksum_seed, update_inode_checksum,
};

/// `i_extra_isize` of inodes that have room for extra fields, in bytes.
pub(super) const EXTRA_ISIZE: u16 = 32;
/// Files of this many bytes or more need the feature `large_file`.
const LARGE: u64 = 1 << 31;
/// The magic number before extended attributes in an inode.
const XATTR_MAGIC: u32 = 0xEA02_0000;

/// A volume not written yet.
pub(super) struct Layout {
    pub(super) superblock: Superblock,
    pub(super) tables: Vec<Tables>,
    pub(super) space: Space,
    /// Inode records, by number.
    pub(super) inodes: BTreeMap<u32, Vec<u8>>,
    /// Contents of whole blocks: file data and maps.
    pub(super) blocks: BTreeMap<u64, Vec<u8>>,
    /// Blocks that must read as zeros: first, count.
    pub(super) zeros: Vec<(u64, u64)>,
    /// The value of all time stamps, in seconds since 1970.
    pub(super) time: u64,
}

impl Layout {
    pub(super) fn has(&self, feature: Compat) -> bool {
        self.superblock.features.compat.contains(feature)
    }

    pub(super) fn block_size(&self) -> usize {
        self.superblock.geometry.block_size() as usize
    }

    /// The checksum seed of an inode, if the volume has checksums.
    pub(super) fn seed(&self, ino: Ino) -> Option<u32> {
        let seed = inode_checksum_seed(&self.superblock, ino, 0);
        self.superblock.features.metadata_csum().then_some(seed)
    }

    /// The first unused inode.
    pub(super) fn next_inode(&self) -> Ino {
        let last = self.inodes.keys().next_back().copied().unwrap_or(0);
        Ino(last.max(FIRST_INODE) + 1)
    }

    /// Numbers of the inodes in use: the reserved ones and those with a record.
    pub(super) fn used_inodes(&self) -> BTreeSet<u32> {
        let reserved = 1..self.superblock.geometry.first_inode().get();
        reserved.chain(self.inodes.keys().copied()).collect()
    }

    /// Number of directories of each group.
    pub(super) fn directories(&self) -> Vec<u32> {
        let geometry = self.superblock.geometry;
        let mut counts = vec![0; geometry.group_count() as usize];
        for (&number, record) in &self.inodes {
            let mode = record.first_chunk().map_or(0, |mode| u16::from_le_bytes(*mode));
            if FileType::from_mode(mode) == Some(FileType::Directory)
                && let Some((group, _)) = geometry.group_of_inode(Ino(number))
                && let Some(count) = counts.get_mut(group.get() as usize)
            {
                *count += 1;
            }
        }
        counts
    }

    /// Sets the free counts in the superblock.
    pub(super) fn count_free(&mut self) {
        let geometry = self.superblock.geometry;
        let clusters: u64 = geometry.groups().map(|group| u64::from(self.space.free_in(group))).sum();
        self.superblock.free_blocks = clusters * u64::from(geometry.cluster_blocks());
        self.superblock.free_inodes = geometry.inodes_count() - self.used_inodes().len() as u32;
    }

    /// Sectors of 512 bytes in `blocks` blocks of the volume, rounded up to whole clusters.
    pub(super) fn sectors(&self, blocks: u64) -> u64 {
        let cluster = u64::from(self.superblock.geometry.cluster_blocks());
        blocks.div_ceil(cluster) * cluster * (self.block_size() as u64 / 512)
    }

    /// Writes an empty extended-attribute header after the extra fields of an inode already added.
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

    /// Adds an inode, and the feature `large_file` if it needs that: the size of the resize inode is independent of the
    /// volume's size.
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
