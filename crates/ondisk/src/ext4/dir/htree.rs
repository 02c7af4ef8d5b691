//! The hash tree of a directory: which block holds the names of a hash.
//!
//! ```text
//! root, block 0            node
//! 0   entry `.`   (12)     0  empty entry filling the block (8)
//! 12  entry `..`  (12)     8  limit, count, first child
//! 24  root information (8) 16 entries: hash, child
//! 32  limit, count, first child        ... up to limit, then the checksum (8)
//! 40  entries: hash, child
//! ```

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DIR_BLOCK, DirBlockKind, DirFormat, HashVersion, RawEntry, decode_rec_len};
use crate::bytes::{index, le32_at, length32, record};
use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind};
use crate::numbers::Lblk;

pub(super) const ROOT_INFO_OFFSET: u32 = 24;
pub(super) const ROOT_ENTRIES_OFFSET: u32 = 32;
pub(super) const NODE_ENTRIES_OFFSET: u32 = 8;
pub(super) const ROOT_INFO_LENGTH: u8 = 8;
const DX_ENTRY_SIZE: u32 = 8;
const DX_TAIL_SIZE: u32 = 8;
/// The low 28 bits of a child are its block; the rest is reserved.
const CHILD_MASK: u32 = 0x0FFF_FFFF;
const FLAG_UNKNOWN_HASH_FLAGS: u8 = 1;

/// `struct dx_root_info`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawRootInfo {
    pub reserved: U32,
    pub hash_version: u8,
    pub info_length: u8,
    pub indirect_levels: u8,
    pub unused_flags: u8,
}

/// `struct dx_entry`. The first one holds limit and count instead of a hash (`struct dx_countlimit`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(super) struct RawDxEntry {
    pub hash: U32,
    pub child: U32,
}

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCountLimit {
    limit: U16,
    count: U16,
}

/// One child of a hash tree node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtreeEntry {
    /// Smallest hash of the child; bit 0 says that names with this hash begin in the child before. 0 for
    /// the first.
    pub hash: u32,
    /// Block of the directory that holds the child.
    pub child: Lblk,
}

/// The entries of a hash tree's root or node.
#[derive(Clone, Copy, Debug)]
pub struct HtreeIndex<'a> {
    entries: &'a [RawDxEntry],
    limit: u16,
}

/// The root of a hash tree.
#[derive(Clone, Copy, Debug)]
pub struct HtreeRoot<'a> {
    /// How names are hashed.
    pub hash_version: HashVersion,
    /// Levels of nodes between the root and the blocks of entries: 0, 1, or with `large_dir` 2.
    pub indirect_levels: u8,
    /// The root's own entries.
    pub index: HtreeIndex<'a>,
}

/// Entries that fit behind `offset` in a block, the first one included.
/// Children that the root or a node of a hash tree can have; 0 for a block of entries.
pub fn htree_capacity(kind: DirBlockKind, format: &DirFormat) -> u32 {
    match kind {
        DirBlockKind::Linear => 0,
        DirBlockKind::HtreeRoot => capacity(ROOT_ENTRIES_OFFSET, format),
        DirBlockKind::HtreeNode => capacity(NODE_ENTRIES_OFFSET, format),
    }
}

pub(super) fn capacity(offset: u32, format: &DirFormat) -> u32 {
    let tail = if format.checksums { DX_TAIL_SIZE } else { 0 };
    let space = format.block_size.saturating_sub(offset).saturating_sub(tail);
    space.checked_div(DX_ENTRY_SIZE).unwrap_or(0)
}

impl<'a> HtreeRoot<'a> {
    /// Decodes block 0 of an indexed directory. `unsigned` = [`super::super::Superblock::hash_unsigned`].
    pub fn decode(bytes: &'a [u8], unsigned: bool, format: &DirFormat) -> Result<HtreeRoot<'a>, Corrupt> {
        let info = bytes.get(index(ROOT_INFO_OFFSET)..).unwrap_or_default();
        let info: &RawRootInfo = record(info, DIR_BLOCK)?;
        let hash_version = HashVersion::from_disk(info.hash_version, unsigned);
        let hash_version = hash_version.ok_or(CorruptKind::HtreeRoot("hash_version"))?;
        if info.info_length != ROOT_INFO_LENGTH {
            return Err(CorruptKind::HtreeRoot("info_length").into());
        }
        if info.unused_flags & FLAG_UNKNOWN_HASH_FLAGS != 0 {
            return Err(CorruptKind::HtreeRoot("flags").into());
        }
        if info.indirect_levels > format.htree_levels_max() {
            return Err(CorruptKind::HtreeDepth.into());
        }
        let index = HtreeIndex::at(bytes, ROOT_ENTRIES_OFFSET, format)?;
        Ok(HtreeRoot { hash_version, indirect_levels: info.indirect_levels, index })
    }
}

impl<'a> HtreeIndex<'a> {
    /// Decodes a node below the root.
    pub fn decode_node(bytes: &'a [u8], format: &DirFormat) -> Result<HtreeIndex<'a>, Corrupt> {
        let hiding: &RawEntry = record(bytes, DIR_BLOCK)?;
        let fills_block = decode_rec_len(hiding.rec_len.get(), format.block_size) == format.block_size;
        if hiding.inode.get() != 0 || !fills_block {
            return Err(CorruptKind::HtreeNode.into());
        }
        HtreeIndex::at(bytes, NODE_ENTRIES_OFFSET, format)
    }

    fn at(bytes: &'a [u8], offset: u32, format: &DirFormat) -> Result<HtreeIndex<'a>, Corrupt> {
        if bytes.len() != index(format.block_size) {
            return Err(CorruptKind::Truncated(DIR_BLOCK).into());
        }
        let area = bytes.get(index(offset)..).unwrap_or_default();
        let head: &RawCountLimit = record(area, DIR_BLOCK)?;
        let (limit, count) = (head.limit.get(), head.count.get());
        if u32::from(limit) != capacity(offset, format) || count == 0 || count > limit {
            return Err(CorruptKind::HtreeLimits.into());
        }
        match <[RawDxEntry]>::ref_from_prefix_with_elems(area, usize::from(count)) {
            Ok((entries, _)) => Ok(HtreeIndex { entries, limit }),
            Err(_) => Err(CorruptKind::HtreeLimits.into()),
        }
    }

    /// Number of children, at least 1.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Always false: a node has at least one child.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Children that fit.
    pub fn limit(&self) -> u16 {
        self.limit
    }

    /// The child at `position`.
    pub fn entry(&self, position: usize) -> Option<HtreeEntry> {
        let raw = self.entries.get(position)?;
        // The first entry's hash field holds limit and count; its child takes all hashes below the second's.
        let hash = if position == 0 { 0 } else { raw.hash.get() };
        Some(HtreeEntry { hash, child: Lblk(raw.child.get() & CHILD_MASK) })
    }

    /// All children in order.
    pub fn entries(&self) -> impl Iterator<Item = HtreeEntry> + use<'a> {
        let this = *self;
        (0..this.entries.len()).filter_map(move |position| this.entry(position))
    }

    /// Position of the child in which the names with this hash begin: the last one whose hash is not above
    /// it.
    pub fn find(&self, hash: u32) -> usize {
        let rest = self.entries.get(1..).unwrap_or_default();
        rest.partition_point(|raw| raw.hash.get() <= hash)
    }

    /// Whether names with this hash may go on in the child after `position`. After the last child the
    /// answer is in the node above: ask there for the position by which this node was reached.
    pub fn continues(&self, position: usize, hash: u32) -> bool {
        let next = position.checked_add(1).and_then(|next| self.entry(next));
        next.is_some_and(|next| next.hash & !1 == hash & !1)
    }
}

/// Where the entries of a hash tree block start, told from its first records as the kernel does.
fn entries_offset(bytes: &[u8]) -> Result<u32, Corrupt> {
    let block_size = length32(bytes);
    let first: &RawEntry = record(bytes, DIR_BLOCK)?;
    let first_length = decode_rec_len(first.rec_len.get(), block_size);
    if first_length == block_size {
        return Ok(NODE_ENTRIES_OFFSET);
    }
    let second: &RawEntry = record(bytes.get(12..).unwrap_or_default(), DIR_BLOCK)?;
    let second_length = decode_rec_len(second.rec_len.get(), block_size);
    if first_length != 12 || Some(second_length) != block_size.checked_sub(12) {
        return Err(CorruptKind::HtreeRoot("dot entries").into());
    }
    let info = bytes.get(index(ROOT_INFO_OFFSET)..).unwrap_or_default();
    let info: &RawRootInfo = record(info, DIR_BLOCK)?;
    if info.reserved.get() != 0 || info.info_length != ROOT_INFO_LENGTH {
        return Err(CorruptKind::HtreeRoot("info_length").into());
    }
    Ok(ROOT_ENTRIES_OFFSET)
}

/// Where the tail is, and what its checksum should be.
pub(super) fn checksum_of(bytes: &[u8], seed: u32) -> Result<(usize, u32), Corrupt> {
    let limits = CorruptKind::HtreeLimits;
    let offset = entries_offset(bytes)?;
    let head: &RawCountLimit = record(bytes.get(index(offset)..).unwrap_or_default(), DIR_BLOCK)?;
    let end_of = |entries: u16| u32::from(entries).saturating_mul(DX_ENTRY_SIZE).saturating_add(offset);
    let tail = index(end_of(head.limit.get()));
    if head.count.get() > head.limit.get() {
        return Err(limits.into());
    }
    let used = bytes.get(..index(end_of(head.count.get()))).ok_or(limits)?;
    let reserved = bytes.get(tail..).and_then(|tail| tail.first_chunk::<8>()).ok_or(limits)?;
    // The tail is covered with its checksum field as zero.
    let [a, b, c, d, ..] = *reserved;
    Ok((tail, csum(csum(seed, used), &[a, b, c, d, 0, 0, 0, 0])))
}

/// Checks the checksum of a hash tree's root or node. `seed` is the directory's checksum seed.
///
/// Call it on volumes with metadata checksums only. `kind` is what [`DirBlockKind::of`] found; a block of
/// entries is not accepted.
pub fn verify_htree_checksum(bytes: &[u8], kind: DirBlockKind, seed: u32) -> Result<(), Corrupt> {
    if kind == DirBlockKind::Linear {
        return Err(CorruptKind::HtreeNode.into());
    }
    let (tail, sum) = checksum_of(bytes, seed)?;
    let stored = le32_at(bytes, tail.saturating_add(4)).ok_or(CorruptKind::HtreeLimits)?;
    if stored == sum { Ok(()) } else { Err(CorruptKind::HtreeChecksum.into()) }
}
