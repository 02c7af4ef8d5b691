//! Where the fixed structures of a sound volume lie, from its superblock.

use super::bytes::{crc32c, le16, le32};

/// Byte of the superblock.
pub const SUPERBLOCK: usize = 1024;

/// Feature bits that the mutator must know (`Documentation/filesystems/ext4/super.rst`).
pub mod feature {
    /// incompat: blocks of the journal's own device.
    pub const INCOMPAT_META_BG: u64 = 0x10;
    /// incompat: multi-mount protection.
    pub const INCOMPAT_MMP: u64 = 0x100;
    /// incompat: 64-bit descriptors.
    pub const INCOMPAT_64BIT: u64 = 0x80;
    /// incompat: the checksum seed stands in the superblock.
    pub const INCOMPAT_CSUM_SEED: u64 = 0x2000;
    /// compat: two backups at most.
    pub const COMPAT_SPARSE_SUPER2: u64 = 0x200;
    /// ro_compat: backups in groups 0, 1 and powers of 3, 5, 7.
    pub const RO_SPARSE_SUPER: u64 = 0x1;
    /// ro_compat: CRC-16 in group descriptors.
    pub const RO_GDT_CSUM: u64 = 0x10;
    /// ro_compat: CRC-32C everywhere.
    pub const RO_METADATA_CSUM: u64 = 0x400;
}

/// Sizes and features.
#[derive(Debug, Clone)]
pub struct Geometry {
    /// Bytes of a block.
    pub block: usize,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Block of the superblock.
    pub first: u64,
    /// Blocks of a group.
    pub per_group: u64,
    /// Clusters of a group: bits of a block bitmap.
    pub clusters: u64,
    /// Inodes of a group.
    pub inodes_per_group: u64,
    /// Bytes of an inode.
    pub inode: usize,
    /// Bytes of a group descriptor.
    pub descriptor: usize,
    /// Groups.
    pub groups: u64,
    /// Incompatible features.
    pub incompat: u64,
    /// Features that a reader may ignore.
    pub ro_compat: u64,
}

impl Geometry {
    /// Reads the superblock of an undamaged volume.
    ///
    /// # Panics
    /// If the volume is none: base images are made by mke2fs.
    pub fn of(image: &[u8]) -> Geometry {
        let sb = &image[SUPERBLOCK..SUPERBLOCK + 1024];
        assert_eq!(le16(sb, 0x38), 0xef53, "a base image is an ext4 volume");
        let (dynamic, incompat) = (le32(sb, 0x4c) != 0, le32(sb, 0x60));
        let (first, blocks, per_group) = (le32(sb, 0x14), le32(sb, 0x04), le32(sb, 0x20));
        let wide = incompat & feature::INCOMPAT_64BIT != 0;
        Geometry {
            block: 1024 << le32(sb, 0x18),
            blocks,
            first,
            per_group,
            clusters: le32(sb, 0x24),
            inodes_per_group: le32(sb, 0x28),
            inode: if dynamic { le16(sb, 0x58) as usize } else { 128 },
            descriptor: if wide { le16(sb, 0xfe) as usize } else { 32 },
            groups: (blocks - first).div_ceil(per_group),
            incompat,
            ro_compat: le32(sb, 0x64),
        }
    }

    /// Byte of a group's descriptor.
    pub fn descriptor_at(&self, image: &[u8], group: u64) -> usize {
        let sb = &image[SUPERBLOCK..SUPERBLOCK + 1024];
        let per_block = (self.block / self.descriptor) as u64;
        let meta_group = group / per_block;
        let block = if self.incompat & feature::INCOMPAT_META_BG == 0 || meta_group < le32(sb, 0x104) {
            // Behind the superblock's block, which is block 1 for blocks of 1 KiB, even if block 0 counts.
            1 + meta_group + u64::from(self.block == SUPERBLOCK)
        } else {
            let leader = meta_group * per_block;
            self.first + leader * self.per_group + u64::from(self.has_superblock(sb, leader))
        };
        block as usize * self.block + (group % per_block) as usize * self.descriptor
    }

    fn has_superblock(&self, sb: &[u8], group: u64) -> bool {
        let power = |base: u64| {
            let mut value = base;
            while value < group {
                value *= base;
            }
            value == group
        };
        if group == 0 {
            true
        } else if le32(sb, 0x5c) & feature::COMPAT_SPARSE_SUPER2 != 0 {
            group == le32(sb, 0x24c) || group == le32(sb, 0x250)
        } else if self.ro_compat & feature::RO_SPARSE_SUPER != 0 {
            group == 1 || [3, 5, 7].into_iter().any(power)
        } else {
            true
        }
    }

    /// Whether structures carry CRC-32C.
    pub fn checksums(&self) -> bool {
        self.ro_compat & feature::RO_METADATA_CSUM != 0
    }
}

/// What all checksums of a volume start with, from its superblock as it is now.
pub fn seed(image: &[u8]) -> u32 {
    let Some(sb) = image.get(SUPERBLOCK..SUPERBLOCK + 1024) else { return 0 };
    if le32(sb, 0x60) & feature::INCOMPAT_CSUM_SEED != 0 {
        le32(sb, 0x270) as u32
    } else {
        crc32c(!0, &sb[0x68..0x78])
    }
}
