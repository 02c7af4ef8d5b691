//! Every kind of finding. Codes are stable: programs match them.

use crate::report::Kind;

macro_rules! kinds {
    ($($severity:ident $name:ident = $code:literal, $meaning:literal;)*) => {
        $(pub(crate) static $name: Kind = Kind::$severity($code, $meaning);)*

        /// All kinds of findings.
        pub static KINDS: &[&Kind] = &[$(&$name),*];
    };
}

kinds! {
    error SUPER_UNREADABLE = "superblock.invalid", "the primary superblock is damaged";
    error SUPER_GROUPS = "superblock.groups", "the groups' own metadata does not fit the volume";
    error SUPER_RESERVED = "superblock.reserved_blocks", "more than half of the blocks are reserved";
    error SUPER_FIELD = "superblock.field", "a field of the superblock is impossible";
    warning SUPER_FREE_BLOCKS = "superblock.free_blocks", "the count of free blocks is wrong";
    warning SUPER_FREE_INODES = "superblock.free_inodes", "the count of free inodes is wrong";
    error SUPER_LARGE_FILE = "superblock.large_file", "files above 2 GiB exist, but the feature large_file is off";
    error SUPER_RECOVERY = "superblock.needs_recovery", "the volume needs recovery but has no journal";
    error SUPER_QUOTA = "superblock.quota_inode", "the superblock names an impossible quota inode";
    error SUPER_RESERVED_GDT = "superblock.reserved_gdt_blocks",
        "blocks are reserved for descriptors, but the feature resize_inode is off";
    warning SUPER_BACKUP = "superblock.backup", "a backup of the superblock is damaged or of another volume";

    error GROUP_CHECKSUM = "group.checksum", "a group descriptor's checksum is wrong";
    error GROUP_LOCATION = "group.location", "a group descriptor points to impossible places";
    error GROUP_OVERLAP = "group.overlap", "metadata of groups overlaps";
    error GROUP_FREE_BLOCKS = "group.free_blocks", "a group's count of free blocks is wrong";
    error GROUP_FREE_INODES = "group.free_inodes", "a group's count of free inodes is wrong";
    error GROUP_DIRECTORIES = "group.directories", "a group's count of directories is wrong";
    error GROUP_UNUSED = "group.unused_inodes", "a group has more unused inodes than free ones";
    error GROUP_UNINIT = "group.uninit", "a group is marked as uninitialised and cannot be";
    warning GROUP_BACKUP = "group.backup", "a backup of group descriptors is damaged or differs";

    error BLOCK_BITMAP_CHECKSUM = "block_bitmap.checksum", "a block bitmap's checksum is wrong";
    error BLOCK_BITMAP_FREE = "block_bitmap.free", "blocks in use are free in the bitmap";
    error BLOCK_BITMAP_LEAKED = "block_bitmap.leaked", "blocks that nothing uses are not free in the bitmap";
    error BLOCK_BITMAP_PADDING = "block_bitmap.padding", "bits past the group's end are not set";
    error INODE_BITMAP_CHECKSUM = "inode_bitmap.checksum", "an inode bitmap's checksum is wrong";
    error INODE_BITMAP_FREE = "inode_bitmap.free", "inodes in use are free in the bitmap";
    error INODE_BITMAP_LEAKED = "inode_bitmap.leaked", "inodes not in use are not free in the bitmap";
    error INODE_BITMAP_PADDING = "inode_bitmap.padding", "bits past the last inode are not set";

    error BLOCK_SHARED = "block.shared", "blocks are claimed more than once";
    error BLOCK_SYSTEM = "block.system", "an inode claims blocks of the file system's own metadata";
    error BLOCK_EXCESS = "block.excess", "inodes claim several times the volume's blocks: claims are not followed";

    error INODE_CHECKSUM = "inode.checksum", "an inode's checksum is wrong";
    error INODE_FIELD = "inode.field", "a field of an inode is impossible";
    error INODE_MODE = "inode.mode", "an inode's mode names no file type";
    error INODE_DELETED = "inode.deletion_time",
        "an inode in use has a deletion time, or one not in use has none or that of an orphan";
    error INODE_SIZE = "inode.size", "an inode's size does not fit its blocks";
    error INODE_BLOCKS = "inode.blocks", "an inode's block count is wrong";
    error INODE_FLAGS = "inode.flags", "an inode has flags that do not fit its type or the volume's features";
    error INODE_SYMLINK = "inode.symlink", "a symbolic link's target is invalid";
    error INODE_SPECIAL = "inode.special", "a reserved inode is not what it should be";
    error INODE_LINKS = "inode.links", "an inode's link count is wrong";
    error INODE_UNATTACHED = "inode.unattached", "no directory names an inode in use";
    warning INODE_TIME = "inode.time", "a time has more than 999 999 999 nanoseconds";

    error EXTENT_NODE = "extent.node", "a node of an extent tree is damaged";
    error EXTENT_CHECKSUM = "extent.checksum", "an extent tree node's checksum is wrong";
    error EXTENT_INDEX = "extent.index", "an index does not start where its child does";
    error EXTENT_CLUSTER = "extent.cluster", "an extent is not aligned to its clusters";
    error MAP_RANGE = "map.range", "an indirect map leads outside the volume";
    error MAP_EXCESS = "map.excess", "maps have more nodes than the volume has blocks: they are not followed";

    error DIR_HOLE = "directory.hole", "a directory lacks a block";
    error DIR_UNWRITTEN = "directory.unwritten", "a directory has unwritten blocks";
    error DIR_CHECKSUM = "directory.checksum", "a directory block's checksum is wrong";
    error DIR_DOTS = "directory.dots", "`.` or `..` is missing, misplaced or leads elsewhere";
    error DIR_PARENT = "directory.parent", "`..` is not the directory that names this one";
    error DIR_UNCONNECTED = "directory.unconnected", "a directory cannot be reached from the root";
    error DIR_LINKED = "directory.linked", "a directory has a second name";
    error DIR_ROOT = "directory.root", "the root directory is missing";
    error ENTRY_RECORD = "entry.record", "a directory entry is malformed";
    error ENTRY_NAME = "entry.name", "a name holds a slash or a zero, or is too short for an encrypted one";
    error ENTRY_DUPLICATE = "entry.duplicate", "a name occurs twice in one block";
    error ENTRY_FREE = "entry.free_inode", "an entry names an inode that is not in use";
    error ENTRY_BAD_BLOCK = "entry.bad_block", "an entry names an inode in a bad block";
    error ENTRY_RESERVED = "entry.reserved_inode", "an entry names the root, a reserved inode or its own directory";
    error ENTRY_VALUE = "entry.value_inode", "an entry names an inode that holds an attribute's value";
    error ENTRY_TYPE = "entry.type", "an entry's file type is not that of its inode, or is present without the feature";
    warning ENTRY_UNTYPED = "entry.untyped", "an entry lacks the file type of its inode";
    error ENTRY_ENCODING = "entry.encoding", "a name is not UTF-8 although the volume requires it";

    error HTREE_ROOT = "htree.root", "the root of a hash tree is damaged";
    error HTREE_NODE = "htree.node", "a node of a hash tree is damaged";
    error HTREE_ORDER = "htree.order", "hashes in a node are out of order";
    error HTREE_CHILD = "htree.child", "a hash tree leads to a block that cannot be its child";
    error HTREE_UNREFERENCED = "htree.unreferenced", "a block of an indexed directory is not in the tree";
    error HTREE_TWICE = "htree.twice", "a block of an indexed directory is in the tree twice";
    error HTREE_HASH = "htree.hash", "a block holds names whose hashes belong elsewhere";

    error INODE_INLINE = "inode.inline_data", "an inode with inline data has none";
    error XATTR_INODE = "xattr.inode", "the attributes inside an inode are damaged";
    error XATTR_HASH = "xattr.hash", "an attribute's hash does not fit its name and value";
    error XATTR_VALUE = "xattr.value_inode", "an attribute's value lies in an inode that holds none";
    error XATTR_VALUE_REFERENCES = "xattr.value_references", "an attribute value's reference count is wrong";
    error XATTR_BLOCK = "xattr.block", "an attribute block is damaged";
    error XATTR_CHECKSUM = "xattr.checksum", "an attribute block's checksum is wrong";
    error XATTR_REFERENCES = "xattr.references", "an attribute block's reference count is wrong";

    error ENCRYPT_CONTEXT = "encrypt.context", "an encrypted inode has no encryption context or a damaged one";
    error ENCRYPT_POLICY = "encrypt.policy",
        "an encrypted directory names an inode that is not encrypted like it";

    error VERITY = "verity.layout", "what fs-verity stored behind the contents of a sealed file is damaged";
    error VERITY_HASH = "verity.hash", "the contents of a sealed file, or its hash tree, are not what was hashed";

    error JOURNAL = "journal.superblock", "the journal's superblock is damaged, or the journal cannot be used";
    error JOURNAL_LOG = "journal.log", "committed changes in the journal's log cannot be replayed";
    error JOURNAL_FAST = "journal.fast_commits", "fast commits in the journal cannot be replayed";
    error RESIZE = "resize.map", "the map of the resize inode is wrong";
    warning RESIZE_REST = "resize.reserved", "the map of the resize inode is wrong where only resizing needs it";
    warning ORPHAN_LIST = "orphan.list", "the list of orphans leads to an inode that cannot be on it";
    error ORPHAN_FILE = "orphan.file", "the orphan file is damaged";
    error MMP_BLOCK = "mmp.block", "the multi-mount protection block is damaged";
}
