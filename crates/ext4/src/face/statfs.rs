//! How full a volume is, as `statfs(2)` reports for a mounted one.

use crate::alloc::reserve::set_aside;
use crate::alloc::shared::Reserved;
use crate::face::volume::Volume;
use crate::ground::error::Result;
use crate::inode::Ext4State;
use uext4_ondisk::Group;
use uext4_ondisk::ext4::{Compat, RoCompat};

/// Space and inodes of a volume. Blocks are file-system blocks of [`StatFs::block_size`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks available for data in all: the volume without its fixed metadata (`f_blocks`).
    pub blocks: u64,
    /// Blocks of fixed metadata: superblocks, descriptors, bitmaps, inode tables, journal.
    pub overhead: u64,
    /// Free blocks (`f_bfree`).
    pub free: u64,
    /// Free blocks for users other than root (`f_bavail`), and for file data written here
    /// ([`VolumeOptions::reserved`](crate::VolumeOptions::reserved)).
    pub available: u64,
    /// Inodes (`f_files`).
    pub inodes: u64,
    /// Free inodes (`f_ffree`).
    pub free_inodes: u64,
}

/// Space that is reserved in memory only, in clusters (blocks, on volumes without clusters). Most of it still counts as
/// free; nobody else can allocate it. A crash forgets it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReservedSpace {
    /// For the data of writes that are under way.
    pub writes: u64,
    /// For blocks of maps that these may need.
    pub maps: u64,
    /// For the next appends of files that grow, until they are closed or others find no room.
    pub appends: u64,
    /// For pages that are not home yet. These do not count as free.
    pub pages: u64,
}

impl Volume {
    /// What is reserved in memory now. Without requests under way, `writes` and `maps` are 0.
    pub fn reserved_space(&self) -> ReservedSpace {
        let Reserved { claimed, windows, promised, late } = self.shared.fs.reserved();
        ReservedSpace { writes: claimed, maps: promised, appends: windows, pages: late }
    }

    /// Space and inodes in use, counted as the kernel does at mount (`ext4_statfs` and `ext4_calculate_overhead` in
    /// fs/ext4/super.c): free counts come from the group descriptors.
    ///
    /// # Errors
    /// Those of reading group descriptors, damaged ones included: the free counts have no other source.
    pub fn statfs(&self) -> Result<StatFs> {
        let state = self.state();
        let superblock = &state.superblock;
        let geometry = &superblock.geometry;
        let (mut free_clusters, mut free_inodes) = (0u64, 0u64);
        for group in geometry.groups() {
            let descriptor = state.descriptor(group)?;
            free_clusters = free_clusters.saturating_add(descriptor.free_clusters.into());
            free_inodes = free_inodes.saturating_add(descriptor.free_inodes.into());
        }
        let cluster = u64::from(geometry.cluster_blocks());
        // As with the kernel's delayed allocation, what was promised is not free.
        let promised = self.shared.fs.late_clusters();
        let free = free_clusters.saturating_sub(promised).saturating_mul(cluster);
        let overhead = state.overhead()?;
        Ok(StatFs {
            block_size: geometry.block_size(),
            blocks: geometry.blocks_count().saturating_sub(overhead),
            overhead,
            free,
            available: free.saturating_sub(set_aside(superblock)),
            inodes: geometry.inodes_count().into(),
            free_inodes,
        })
    }
}

impl Ext4State {
    /// Blocks of fixed metadata.
    fn overhead(&self) -> Result<u64> {
        let superblock = &self.superblock;
        let geometry = &superblock.geometry;
        let cluster = u64::from(geometry.cluster_blocks());
        // With clusters, trust the count of mke2fs unless it is impossible. Without, count again.
        let stored = u64::from(superblock.overhead_clusters);
        let bigalloc = superblock.features.ro_compat.contains(RoCompat::BIGALLOC);
        if bigalloc && stored > 0 && stored <= geometry.blocks_count() {
            return Ok(stored * cluster);
        }
        let first = u64::from(geometry.first_data_block()) / cluster;
        let groups =
            geometry.groups().fold(first, |sum, group| sum.saturating_add(self.group_overhead(group)));
        Ok(groups.saturating_add(self.journal_blocks()?.div_ceil(cluster)).saturating_mul(cluster))
    }

    /// Clusters of a group's metadata, counted for the group it describes, wherever it lies. Different metadata can
    /// share a cluster: with large clusters this is an upper bound, as is the kernel's count.
    fn group_overhead(&self, group: Group) -> u64 {
        let geometry = &self.superblock.geometry;
        let bitmaps = 2;
        let blocks = u64::from(geometry.base_metadata_blocks(group))
            + u64::from(geometry.inode_table_blocks())
            + bitmaps;
        blocks.div_ceil(geometry.cluster_blocks().into())
    }

    /// Blocks of the journal inside the volume.
    fn journal_blocks(&self) -> Result<u64> {
        let journaled = self.superblock.features.compat.contains(Compat::HAS_JOURNAL);
        match self.superblock.journal_inode().filter(|_| journaled) {
            Some(ino) => Ok(self.inode(ino)?.disk().size >> self.superblock.geometry.block_size_log()),
            None => Ok(0),
        }
    }
}
