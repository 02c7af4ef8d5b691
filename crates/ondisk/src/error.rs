//! What can be wrong with bytes from a device, and where.

use std::fmt;

use crate::numbers::{Group, Ino, Lblk, Pblk};

/// Bytes that do not form the structure they should. The volume, not the program, is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// Which structure is damaged, and how.
    pub kind: CorruptKind,
    /// Where it is, as far as it is known.
    pub place: Place,
}

/// Where a damaged structure is. Decoders fill in what they know; callers add the rest on the way up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The block that holds the structure.
    pub block: Option<Pblk>,
    /// The inode it belongs to.
    pub inode: Option<Ino>,
    /// The block group it belongs to.
    pub group: Option<Group>,
    /// The block inside the inode's file or directory.
    pub lblk: Option<Lblk>,
}

/// Structure and fault. The text of each variant is its `Display` form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptKind {
    /// Fewer bytes than the structure needs.
    #[error("{0} is cut short")]
    Truncated(&'static str),

    /// The superblock's magic number is not `0xEF53`: not an ext2/3/4 volume.
    #[error("superblock magic number is wrong")]
    SuperblockMagic,
    /// The superblock's checksum does not match its contents.
    #[error("superblock checksum is wrong")]
    SuperblockChecksum,
    /// The named superblock field has an impossible value.
    #[error("superblock field `{0}` is invalid")]
    SuperblockField(&'static str),

    /// A group descriptor's checksum does not match.
    #[error("group descriptor checksum is wrong")]
    GroupDescriptorChecksum,
    /// The named group descriptor field has an impossible value.
    #[error("group descriptor field `{0}` is invalid")]
    GroupDescriptorField(&'static str),
    /// A block bitmap's checksum does not match the one in the group descriptor.
    #[error("block bitmap checksum is wrong")]
    BlockBitmapChecksum,
    /// An inode bitmap's checksum does not match the one in the group descriptor.
    #[error("inode bitmap checksum is wrong")]
    InodeBitmapChecksum,
    /// Blocks are to be allocated that a bitmap says are in use.
    #[error("blocks to be allocated are in use")]
    BlocksInUse,
    /// Blocks are to be freed that a bitmap says are free.
    #[error("blocks to be freed are free already")]
    BlocksFree,

    /// The multi-mount protection block's magic number is wrong.
    #[error("multi-mount protection magic number is wrong")]
    MmpMagic,
    /// The multi-mount protection block's checksum does not match.
    #[error("multi-mount protection checksum is wrong")]
    MmpChecksum,

    /// An inode number is 0 or above the volume's inode count.
    #[error("inode number is out of range")]
    InodeNumber,
    /// An inode's checksum does not match.
    #[error("inode checksum is wrong")]
    InodeChecksum,
    /// The named inode field has an impossible value.
    #[error("inode field `{0}` is invalid")]
    InodeField(&'static str),
    /// A directory entry or another reference leads to an inode that is not in use.
    #[error("inode is referenced but not in use")]
    InodeFree,
    /// An inode is to be made that its bitmap says is in use.
    #[error("inode to be made is in use")]
    InodeInUse,
    /// A name leads to an inode that holds the value of an attribute, and is no file.
    #[error("inode holds an attribute's value and is no file")]
    InodeOfValue,
    /// A symbolic link's target is empty, too long or contains a NUL byte.
    #[error("symbolic link target is invalid")]
    SymlinkTarget,

    /// An extent tree node's magic number is not `0xF30A`.
    #[error("extent node magic number is wrong")]
    ExtentMagic,
    /// An extent tree node's checksum does not match.
    #[error("extent node checksum is wrong")]
    ExtentChecksum,
    /// An extent tree node's depth is above 5 or not one less than its parent's.
    #[error("extent node depth is wrong")]
    ExtentDepth,
    /// An extent tree node's entry count is above its capacity, or an index node is empty.
    #[error("extent node entry count is wrong")]
    ExtentEntries,
    /// An extent tree node's capacity is zero or does not fit its space.
    #[error("extent node capacity is wrong")]
    ExtentCapacity,
    /// The entries of an extent tree node are out of order or overlap.
    #[error("extent node entries are out of order")]
    ExtentOrder,
    /// An entry covers logical blocks outside the range that its parent gives it.
    #[error("extent covers logical blocks outside its node's range")]
    ExtentRange,
    /// An extent of length zero.
    #[error("extent has no blocks")]
    ExtentEmpty,
    /// An extent or an index points outside the volume.
    #[error("extent points outside the volume")]
    ExtentPhysical,

    /// A block number lies outside the volume; the text names the structure that holds it.
    #[error("{0} points outside the volume")]
    BlockOutsideVolume(&'static str),
    /// Data is mapped onto file-system metadata.
    #[error("blocks overlap file-system metadata")]
    SystemZone,
    /// Following references comes back to a block or inode already visited; the text names the structure.
    #[error("{0} contains a cycle")]
    Cycle(&'static str),

    /// A directory's size is not a positive multiple of the block size.
    #[error("directory size is invalid")]
    DirectorySize,
    /// A directory has no block where one must be.
    #[error("directory has a hole")]
    DirectoryHole,
    /// `.` or `..` is missing, misplaced or points elsewhere.
    #[error("directory entries `.` and `..` are wrong")]
    DirectoryDots,
    /// A directory entry's record length is not a multiple of 4, too short for its name, or crosses the
    /// block's end.
    #[error("directory entry length is wrong")]
    DirEntryLength,
    /// A directory entry's name is empty.
    #[error("directory entry name is invalid")]
    DirEntryName,
    /// A directory entry's inode number is above the volume's inode count.
    #[error("directory entry inode number is out of range")]
    DirEntryInode,
    /// A directory block lacks the record that carries its checksum.
    #[error("directory block has no checksum record")]
    DirTail,
    /// A directory block's checksum does not match.
    #[error("directory block checksum is wrong")]
    DirChecksum,

    /// The named field of a hash tree's root information is invalid.
    #[error("hash tree root field `{0}` is invalid")]
    HtreeRoot(&'static str),
    /// A hash tree node does not start with the empty entry that hides it.
    #[error("hash tree node is malformed")]
    HtreeNode,
    /// The hashes of a hash tree node are out of order, or outside what the node above gives it.
    #[error("hash tree entries are out of order")]
    HtreeOrder,
    /// A hash tree leads to its root, or to a block that the directory does not have.
    #[error("hash tree leads outside its directory")]
    HtreeChild,
    /// A name lies in another block than the hash tree says.
    #[error("a name is not where its hash says")]
    HtreeHash,
    /// A hash tree is deeper than the volume's features allow, or than its root says.
    #[error("hash tree is too deep")]
    HtreeDepth,
    /// A hash tree node's limit or count does not fit its block.
    #[error("hash tree node limit or count is wrong")]
    HtreeLimits,
    /// A hash tree node's checksum does not match.
    #[error("hash tree node checksum is wrong")]
    HtreeChecksum,

    /// An attribute block's magic number is not `0xEA020000`.
    #[error("attribute block magic number is wrong")]
    XattrMagic,
    /// An attribute block's checksum does not match.
    #[error("attribute block checksum is wrong")]
    XattrChecksum,
    /// The named field of an attribute block's header has an impossible value.
    #[error("attribute block field `{0}` is invalid")]
    XattrBlockField(&'static str),
    /// The list of attributes has no end, or a name goes beyond it or holds a zero byte.
    #[error("extended attribute name is out of bounds or invalid")]
    XattrName,
    /// An attribute's value lies among the names or outside its area, or is longer than any value can be.
    #[error("extended attribute value is out of bounds")]
    XattrValue,
    /// The values of two attributes overlap.
    #[error("extended attribute values overlap")]
    XattrOverlap,
    /// An attribute's hash does not match its name and value.
    #[error("extended attribute hash is wrong")]
    XattrHash,
    /// The inode number of an attribute's value is out of range, or the volume has no such values.
    #[error("extended attribute value inode is invalid")]
    XattrInode,
    /// The inode that an attribute names as its value is not one, or holds another value; the text says what
    /// is wrong with it.
    #[error("extended attribute value inode: {0}")]
    XattrValueInode(&'static str),
    /// An access control list is of an unknown version.
    #[error("access control list version is wrong")]
    AclVersion,
    /// An entry of an access control list is cut short or has no meaning.
    #[error("access control list entry is invalid")]
    AclEntry,
    /// An inode with inline data has none, or contradicts itself; the text says how.
    #[error("inline data: {0}")]
    InlineData(&'static str),

    /// What fs-verity stored behind a file's contents is damaged; the text says how.
    #[error("fs-verity: {0}")]
    Verity(&'static str),
    /// Bytes that fs-verity hashed are not what they were; the text says which.
    #[error("fs-verity: {0} does not have its hash")]
    VerityHash(&'static str),

    /// An orphan file block's magic number is not `0x0B10CA04`.
    #[error("orphan block magic number is wrong")]
    OrphanMagic,
    /// A quota file is damaged; the text says how.
    #[error("quota file: {0}")]
    Quota(&'static str),
    /// An orphan file block's checksum does not match.
    #[error("orphan block checksum is wrong")]
    OrphanChecksum,

    /// A journal block's magic number is not `0xC03B3998`.
    #[error("journal magic number is wrong")]
    JournalMagic,
    /// A journal block is of another type than expected.
    #[error("journal block type is wrong")]
    JournalBlockType,
    /// The journal superblock's checksum does not match.
    #[error("journal superblock checksum is wrong")]
    JournalChecksum,
    /// The named field of the journal superblock is invalid.
    #[error("journal superblock field `{0}` is invalid")]
    JournalField(&'static str),
    /// The checksum of a descriptor or revoke block of the log does not match.
    #[error("journal block checksum is wrong")]
    JournalBlockChecksum,
    /// The checksum of a data block of the log does not match its tag.
    #[error("journal data block checksum is wrong")]
    JournalDataChecksum,
    /// The checksum of a commit block does not match, or not its transaction.
    #[error("journal commit checksum is wrong")]
    JournalCommitChecksum,
    /// A revoke block says that it holds more bytes than it has.
    #[error("journal revoke block count is wrong")]
    JournalRevokeCount,
    /// A tag of the log names a block outside the volume or inside the journal.
    #[error("journal tag names a block that the journal cannot protect")]
    JournalTarget,
    /// The named field of a fast-commit record is invalid.
    #[error("fast-commit record field `{0}` is invalid")]
    FastCommitRecord(&'static str),
}

impl Corrupt {
    /// A fault at a place not known yet.
    pub const fn new(kind: CorruptKind) -> Corrupt {
        Corrupt { kind, place: Place { block: None, inode: None, group: None, lblk: None } }
    }

    /// Adds the block, unless one is already known.
    #[must_use]
    pub fn at_block(mut self, block: Pblk) -> Corrupt {
        self.place.block = self.place.block.or(Some(block));
        self
    }

    /// Adds the inode, unless one is already known.
    #[must_use]
    pub fn in_inode(mut self, inode: Ino) -> Corrupt {
        self.place.inode = self.place.inode.or(Some(inode));
        self
    }

    /// Adds the group, unless one is already known.
    #[must_use]
    pub fn in_group(mut self, group: Group) -> Corrupt {
        self.place.group = self.place.group.or(Some(group));
        self
    }

    /// Adds the logical block, unless one is already known.
    #[must_use]
    pub fn at_lblk(mut self, lblk: Lblk) -> Corrupt {
        self.place.lblk = self.place.lblk.or(Some(lblk));
        self
    }
}

impl From<CorruptKind> for Corrupt {
    fn from(kind: CorruptKind) -> Corrupt {
        Corrupt::new(kind)
    }
}

impl std::error::Error for Corrupt {}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            return self.kind.fmt(f);
        }
        write!(f, "{}: {}", self.place, self.kind)
    }
}

impl Place {
    /// Whether nothing is known about the place.
    pub fn is_empty(&self) -> bool {
        *self == Place::default()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("group", self.group.map(|group| u64::from(group.0))),
            ("inode", self.inode.map(|inode| u64::from(inode.0))),
            ("logical block", self.lblk.map(|lblk| u64::from(lblk.0))),
            ("block", self.block.map(|block| block.0)),
        ];
        let mut separator = "";
        for (name, value) in parts {
            if let Some(value) = value {
                write!(f, "{separator}{name} {value}")?;
                separator = ", ";
            }
        }
        if separator.is_empty() { f.write_str("unknown place") } else { Ok(()) }
    }
}

/// A value that has no representation in the on-disk field it is meant for, or a target too short for its
/// record. Nothing useful was written; the bytes of the target may be partly patched and must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{structure}: `{field}` does not fit the on-disk format")]
pub struct EncodeError {
    /// The structure being encoded.
    pub structure: &'static str,
    /// The field that does not fit.
    pub field: &'static str,
}

impl EncodeError {
    pub(crate) const fn new(structure: &'static str, field: &'static str) -> EncodeError {
        EncodeError { structure, field }
    }

    pub(crate) const fn too_short(structure: &'static str) -> EncodeError {
        EncodeError { structure, field: "length" }
    }
}
