//! The three feature words of the superblock.

use crate::flags::named_flags;

named_flags! {
    /// Features a reader and a writer may ignore if they do not know them (`s_feature_compat`).
    pub struct Compat: u32, unknown "FEATURE_C" {
        /// Blocks are preallocated to directories; never used.
        DIR_PREALLOC = 0x1, "dir_prealloc";
        /// AFS server inodes may exist.
        IMAGIC_INODES = 0x2, "imagic_inodes";
        /// The volume has a journal.
        HAS_JOURNAL = 0x4, "has_journal";
        /// Extended attributes may exist.
        EXT_ATTR = 0x8, "ext_attr";
        /// Blocks are reserved for growth of the group descriptors.
        RESIZE_INODE = 0x10, "resize_inode";
        /// Directories may be indexed by a hash tree.
        DIR_INDEX = 0x20, "dir_index";
        /// Block groups may be uninitialised; an old experiment.
        LAZY_BG = 0x40, "lazy_bg";
        /// Snapshot exclude bitmap; an old experiment.
        EXCLUDE_BITMAP = 0x100, "snapshot_bitmap";
        /// At most two groups hold superblock backups, named in the superblock.
        SPARSE_SUPER2 = 0x200, "sparse_super2";
        /// The journal may carry fast-commit records.
        FAST_COMMIT = 0x400, "fast_commit";
        /// Inode numbers and the UUID must not change (encryption contexts depend on them).
        STABLE_INODES = 0x800, "stable_inodes";
        /// Orphans are kept in a special file instead of a linked list.
        ORPHAN_FILE = 0x1000, "orphan_file";
    }
}

named_flags! {
    /// Features without which the volume must not be touched at all (`s_feature_incompat`).
    pub struct Incompat: u32, unknown "FEATURE_I" {
        /// Compressed files; never merged.
        COMPRESSION = 0x1, "compression";
        /// Directory entries carry the file type.
        FILETYPE = 0x2, "filetype";
        /// The journal must be replayed before use.
        RECOVER = 0x4, "needs_recovery";
        /// The device is an external journal, not a file system.
        JOURNAL_DEV = 0x8, "journal_dev";
        /// Group descriptors lie in the groups that they describe.
        META_BG = 0x10, "meta_bg";
        /// Files may be mapped by extents.
        EXTENTS = 0x40, "extent";
        /// Block numbers have more than 32 bits.
        BIT64 = 0x80, "64bit";
        /// Multi-mount protection.
        MMP = 0x100, "mmp";
        /// Bitmaps and inode tables may lie outside their group.
        FLEX_BG = 0x200, "flex_bg";
        /// Large attribute values lie in inodes of their own.
        EA_INODE = 0x400, "ea_inode";
        /// Directory entries carry extra data; never merged.
        DIRDATA = 0x1000, "dirdata";
        /// The checksum seed is stored, not derived from the UUID.
        CSUM_SEED = 0x2000, "metadata_csum_seed";
        /// Directories above 2 GiB and hash trees of three levels.
        LARGEDIR = 0x4000, "large_dir";
        /// Small files and directories lie inside their inode.
        INLINE_DATA = 0x8000, "inline_data";
        /// Encrypted files may exist.
        ENCRYPT = 0x10000, "encrypt";
        /// Directories may fold the case of names.
        CASEFOLD = 0x20000, "casefold";
    }
}

named_flags! {
    /// Features that a reader may ignore and a writer must know (`s_feature_ro_compat`).
    pub struct RoCompat: u32, unknown "FEATURE_R" {
        /// Superblock backups only in groups 0, 1 and powers of 3, 5 and 7.
        SPARSE_SUPER = 0x1, "sparse_super";
        /// Files above 2 GiB exist.
        LARGE_FILE = 0x2, "large_file";
        /// Block counts of inodes have 48 bits and may count file-system blocks.
        HUGE_FILE = 0x8, "huge_file";
        /// Group descriptors have a crc16 and may be uninitialised.
        GDT_CSUM = 0x10, "uninit_bg";
        /// Directories may have any number of subdirectories.
        DIR_NLINK = 0x20, "dir_nlink";
        /// Inodes reserve space for extra fields.
        EXTRA_ISIZE = 0x40, "extra_isize";
        /// Quota is kept in hidden inodes.
        QUOTA = 0x100, "quota";
        /// Space is allocated in clusters of blocks.
        BIGALLOC = 0x200, "bigalloc";
        /// All metadata has crc32c checksums.
        METADATA_CSUM = 0x400, "metadata_csum";
        /// Replica; never used.
        REPLICA = 0x800, "replica";
        /// The volume must not be written.
        READONLY = 0x1000, "read-only";
        /// Inodes have project numbers.
        PROJECT = 0x2000, "project";
        /// Blocks may be shared between files (Android).
        SHARED_BLOCKS = 0x4000, "shared_blocks";
        /// Verity files may exist.
        VERITY = 0x8000, "verity";
        /// The orphan file may hold entries.
        ORPHAN_PRESENT = 0x10000, "orphan_present";
    }
}

/// The three feature words together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Features anybody may ignore.
    pub compat: Compat,
    /// Features nobody may ignore.
    pub incompat: Incompat,
    /// Features a writer may not ignore.
    pub ro_compat: RoCompat,
}

impl Features {
    /// Whether all metadata has crc32c checksums.
    pub fn metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Whether group descriptors have crc16 checksums. With [`Features::metadata_csum`] the crc32c rules
    /// instead.
    pub fn gdt_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::GDT_CSUM) && !self.metadata_csum()
    }

    /// The names of all features in the order dumpe2fs prints them.
    pub fn names(&self) -> Vec<std::borrow::Cow<'static, str>> {
        [self.compat.names(), self.incompat.names(), self.ro_compat.names()].concat()
    }
}
