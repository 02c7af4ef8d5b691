//! Quota files: a tree of user, group or project numbers, with what each uses and may use (`vfsv1`).
//!
//! A quota file is an array of blocks of 1 KiB, whatever the volume's block size. Block 0 is the header, block 1 the
//! root. The tree has four levels of 256 pointers, one for each byte of the number; the last level leads to a leaf,
//! which holds entries of any numbers. Leaves with room are a doubly linked list, and unused blocks a single one.
//!
//! Source: the behaviour of `fs/quota/quota_tree.c` and `fs/quota/quota_v2.c`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{index, le32_at, load, put, record, record_mut, store};
use crate::error::{Corrupt, CorruptKind, EncodeError};

/// Bytes of a block of a quota file.
pub const QUOTA_BLOCK_SIZE: usize = 1024;
/// The block of the tree's root.
pub const QUOTA_ROOT: u32 = 1;
/// Levels of pointers, the root's included.
pub const QUOTA_LEVELS: u32 = 4;
/// Bytes of an entry.
pub const QUOTA_ENTRY_SIZE: usize = size_of::<RawEntry>();
/// Entries of a leaf.
pub const QUOTA_LEAF_ENTRIES: u16 = 14;

const LEAF_HEAD: usize = size_of::<RawLeaf>();
const HEADER: &str = "quota file header";
const LEAF: &str = "quota leaf";
const ENTRY: &str = "quota entry";
/// The second version of the format, with 64-bit counts.
const VERSION: u32 = 1;

/// Whose usage a quota file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// Owners.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaKind {
    /// All of them.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// Its name: user, group or project.
    pub fn name(self) -> &'static str {
        match self {
            QuotaKind::User => "user",
            QuotaKind::Group => "group",
            QuotaKind::Project => "project",
        }
    }

    fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xD9C0_1F11,
            QuotaKind::Group => 0xD9C0_1927,
            QuotaKind::Project => 0xD9C0_3F14,
        }
    }
}

/// `struct v2_disk_dqheader` and `struct v2_disk_dqinfo`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U32,
    block_grace: U32,
    inode_grace: U32,
    flags: U32,
    blocks: U32,
    free_block: U32,
    free_leaf: U32,
}

/// The header of a quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaHeader {
    /// Seconds for which the soft limit of space may be exceeded (`dqi_bgrace`).
    pub block_grace: u32,
    /// The same for inodes (`dqi_igrace`).
    pub inode_grace: u32,
    /// `dqi_flags`
    pub flags: u32,
    /// Blocks of the file (`dqi_blocks`).
    pub blocks: u32,
    /// The first unused block, 0 if there is none (`dqi_free_blk`).
    pub free_block: u32,
    /// The first leaf with room, 0 if there is none (`dqi_free_entry`).
    pub free_leaf: u32,
}

impl QuotaHeader {
    /// Decodes block 0; magic number, version and block numbers are checked.
    pub fn decode(bytes: &[u8], kind: QuotaKind) -> Result<QuotaHeader, Corrupt> {
        let raw: &RawHeader = record(bytes, HEADER)?;
        if raw.magic.get() != kind.magic() {
            return Err(CorruptKind::Quota("the magic number is wrong").into());
        }
        if raw.version.get() != VERSION {
            return Err(CorruptKind::Quota("the version is unknown").into());
        }
        let header = load!(QuotaHeader from raw {
            same: block_grace, inode_grace, flags, blocks, free_block, free_leaf;
        });
        if header.blocks <= QUOTA_ROOT {
            return Err(CorruptKind::Quota("it has no tree").into());
        }
        [header.free_block, header.free_leaf].into_iter().try_for_each(|block| header.check_link(block))?;
        Ok(header)
    }

    /// Writes every field into block 0.
    pub fn encode(&self, bytes: &mut [u8], kind: QuotaKind) -> Result<(), EncodeError> {
        let raw: &mut RawHeader = record_mut(bytes, HEADER)?;
        raw.magic.set(kind.magic());
        raw.version.set(VERSION);
        store!(self into raw { block_grace, inode_grace, flags, blocks, free_block, free_leaf });
        Ok(())
    }

    /// Checks a block number of the tree or of a list: 0, or a block other than header and root.
    pub fn check_link(&self, block: u32) -> Result<(), Corrupt> {
        match block {
            0 => Ok(()),
            block if block > QUOTA_ROOT && block < self.blocks => Ok(()),
            _ => Err(CorruptKind::Quota("a block number is out of range").into()),
        }
    }
}

fn pointer_at(level: u32, id: u32) -> usize {
    let byte = id.to_le_bytes().iter().rev().nth(index(level)).copied().unwrap_or(0);
    usize::from(byte).saturating_mul(4)
}

/// The block that a tree block of this level (the root's is 0) leads to for a number; 0 if there is none.
pub fn quota_child(bytes: &[u8], level: u32, id: u32) -> u32 {
    le32_at(bytes, pointer_at(level, id)).unwrap_or(0)
}

/// All pointers of a tree block, in the order of numbers; 0 where there is none.
pub fn quota_children(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).take(256).filter_map(|pointer| le32_at(pointer, 0))
}

/// Sets what [`quota_child`] returns.
pub fn set_quota_child(bytes: &mut [u8], level: u32, id: u32, child: u32) -> Result<(), EncodeError> {
    put(bytes, pointer_at(level, id), &child.to_le_bytes(), "quota tree block")
}

/// `struct qt_disk_dqdbheader`, also of an unused block
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawLeaf {
    next: U32,
    previous: U32,
    entries: U16,
    padding_0: U16,
    padding_1: U32,
}

/// The header of a leaf, or of an unused block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLeaf {
    /// The next leaf with room, or the next unused block; 0 at the end (`dqdh_next_free`).
    pub next: u32,
    /// The leaf before it in the list, 0 for the first one (`dqdh_prev_free`).
    pub previous: u32,
    /// Entries in use (`dqdh_entries`).
    pub entries: u16,
}

impl QuotaLeaf {
    /// Decodes the header.
    pub fn decode(bytes: &[u8]) -> Result<QuotaLeaf, Corrupt> {
        let raw: &RawLeaf = record(bytes, LEAF)?;
        let leaf = load!(QuotaLeaf from raw { same: next, previous, entries; });
        if leaf.entries > QUOTA_LEAF_ENTRIES {
            return Err(CorruptKind::Quota("a leaf counts too many entries").into());
        }
        Ok(leaf)
    }

    /// Writes the header.
    pub fn encode(&self, bytes: &mut [u8]) -> Result<(), EncodeError> {
        let raw: &mut RawLeaf = record_mut(bytes, LEAF)?;
        store!(self into raw { next, previous, entries });
        Ok(())
    }
}

/// Offsets of all entries of a leaf, used or not.
fn places() -> impl Iterator<Item = usize> {
    (LEAF_HEAD..QUOTA_BLOCK_SIZE).step_by(QUOTA_ENTRY_SIZE).take(usize::from(QUOTA_LEAF_ENTRIES))
}

/// Offset of a number's entry in a leaf.
pub fn find_quota_entry(leaf: &[u8], id: u32) -> Option<usize> {
    places().find(|&at| QuotaEntry::decode(leaf.get(at..).unwrap_or_default()).is_some_and(|e| e.id == id))
}

/// Offset of the first unused entry in a leaf.
pub fn find_unused_quota_entry(leaf: &[u8]) -> Option<usize> {
    let entry = |at: usize| leaf.get(at..)?.get(..QUOTA_ENTRY_SIZE);
    places().find(|&at| entry(at).is_some_and(|entry| entry.iter().all(|byte| *byte == 0)))
}

/// All entries of a leaf.
pub fn quota_entries(leaf: &[u8]) -> impl Iterator<Item = QuotaEntry> {
    places().filter_map(|at| QuotaEntry::decode(leaf.get(at..)?))
}

/// `struct v2r1_disk_dqblk`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    id: U32,
    padding: U32,
    inodes_hard: U64,
    inodes_soft: U64,
    inodes: U64,
    blocks_hard: U64,
    blocks_soft: U64,
    bytes: U64,
    block_time: U64,
    inode_time: U64,
}

const _: () = assert!(QUOTA_ENTRY_SIZE == 72);
const _: () = assert!((QUOTA_BLOCK_SIZE - LEAF_HEAD) / QUOTA_ENTRY_SIZE == 14, "QUOTA_LEAF_ENTRIES");

/// Usage and limits of a number. A limit of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaEntry {
    /// The user, group or project.
    pub id: u32,
    /// Hard limit of inodes (`dqb_ihardlimit`).
    pub inodes_hard: u64,
    /// Soft limit of inodes (`dqb_isoftlimit`).
    pub inodes_soft: u64,
    /// Inodes (`dqb_curinodes`).
    pub inodes: u64,
    /// Hard limit of space in KiB (`dqb_bhardlimit`).
    pub blocks_hard: u64,
    /// Soft limit of space in KiB (`dqb_bsoftlimit`).
    pub blocks_soft: u64,
    /// Bytes (`dqb_curspace`).
    pub bytes: u64,
    /// When the soft limit of space becomes a hard one, in seconds since 1970; 0 if it is not exceeded (`dqb_btime`).
    pub block_time: u64,
    /// The same for inodes (`dqb_itime`).
    pub inode_time: u64,
}

impl QuotaEntry {
    /// Decodes an entry; `None` if it is unused.
    pub fn decode(bytes: &[u8]) -> Option<QuotaEntry> {
        let raw: &RawEntry = record(bytes, ENTRY).ok()?;
        if raw.as_bytes().iter().all(|byte| *byte == 0) {
            return None;
        }
        let mut entry = load!(QuotaEntry from raw {
            same: id, inodes_hard, inodes_soft, inodes, blocks_hard, blocks_soft, bytes, block_time, inode_time;
        });
        if entry == (QuotaEntry { inode_time: 1, ..QuotaEntry::default() }) {
            // How an entry of zeros is told from an unused one.
            entry.inode_time = 0;
        }
        Some(entry)
    }

    /// Writes every field.
    pub fn encode(&self, bytes: &mut [u8]) -> Result<(), EncodeError> {
        let raw: &mut RawEntry = record_mut(bytes, ENTRY)?;
        store!(self into raw {
            id, inodes_hard, inodes_soft, inodes, blocks_hard, blocks_soft, bytes, block_time, inode_time
        });
        if raw.as_bytes().iter().all(|byte| *byte == 0) {
            raw.inode_time.set(1);
        }
        Ok(())
    }
}
