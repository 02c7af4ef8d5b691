//! Reading an extent tree node: all checks happen once, when the node is opened; its entries are then plain
//! values.

use zerocopy::FromBytes;

use super::{
    ENTRY_SIZE, HEADER_SIZE, MAGIC, RawHeader, RawIndex, RawLeaf, STRUCTURE, TAIL_SIZE, WRITTEN_LIMIT,
};
use crate::bytes::{join32, le32_at, load, record};
use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind};
use crate::ext4::inode::I_BLOCK_SIZE;
use crate::ext4::superblock::Superblock;
use crate::numbers::{BlockRange, Lblk, Pblk};

/// Depth of the deepest root that is valid. With it, all 2³² logical blocks can be mapped at any block size.
pub const MAX_EXTENT_DEPTH: u16 = 5;
/// Most blocks in a written extent.
pub const MAX_EXTENT_LENGTH: u32 = 32768;
/// Most blocks in an unwritten extent.
pub const MAX_UNWRITTEN_LENGTH: u32 = 32767;
/// Entries that fit the root in the inode.
pub const ROOT_CAPACITY: u16 = 4;

/// The first number that is never a logical block of an extent: the end of every tree's range.
const END_OF_FILE_RANGE: Lblk = Lblk(u32::MAX);

/// Entries that fit a node of `block_size` bytes; the checksum needs no extra room.
pub fn block_capacity(block_size: u32) -> u16 {
    // (size - header) / entry size. Always leaves at least 4 bytes for block sizes that are powers of two.
    let entries = block_size.saturating_sub(12).checked_div(12).unwrap_or(0);
    u16::try_from(entries).unwrap_or(u16::MAX)
}

/// The head of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentHeader {
    /// Entries in use (`eh_entries`).
    pub entries: u16,
    /// Entries that fit (`eh_max`).
    pub capacity: u16,
    /// Levels below this node (`eh_depth`): 0 in a leaf.
    pub depth: u16,
    /// Generation of the tree (`eh_generation`), unused.
    pub generation: u32,
}

/// A run of logical blocks mapped to a run of physical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First logical block (`ee_block`).
    pub logical: Lblk,
    /// Number of blocks, 1 to 32768 (`ee_len`).
    pub length: u32,
    /// First physical block (`ee_start`).
    pub physical: Pblk,
    /// Whether the blocks were allocated but never written: they read as zeros.
    pub unwritten: bool,
}

/// An entry of an index node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentIndex {
    /// First logical block that the child can map (`ei_block`).
    pub logical: Lblk,
    /// Block of the child (`ei_leaf`).
    pub child: Pblk,
}

impl Extent {
    fn decode(raw: &RawLeaf) -> Extent {
        let stored = raw.length.get();
        let unwritten = stored > WRITTEN_LIMIT;
        let length = if unwritten { stored.saturating_sub(WRITTEN_LIMIT) } else { stored };
        Extent {
            logical: Lblk(raw.logical.get()),
            length: u32::from(length),
            physical: Pblk(join32(raw.start_lo.get(), u32::from(raw.start_hi.get()))),
            unwritten,
        }
    }

    /// Decodes an extent that stands outside of a node (in a fast-commit record); nothing about it is checked.
    pub fn from_bytes(bytes: &[u8; 12]) -> Option<Extent> {
        RawLeaf::ref_from_bytes(bytes).ok().map(Extent::decode)
    }

    /// The logical block after the last one. Cannot wrap for an extent of a checked node.
    pub fn logical_end(&self) -> Lblk {
        Lblk(self.logical.0.saturating_add(self.length))
    }

    /// The physical block that `lblk` is mapped to, if it lies in the extent.
    pub fn physical_of(&self, lblk: Lblk) -> Option<Pblk> {
        let offset = lblk.distance_from(self.logical).filter(|offset| *offset < self.length)?;
        self.physical.checked_add(u64::from(offset))
    }
}

impl ExtentIndex {
    fn decode(raw: &RawIndex) -> ExtentIndex {
        ExtentIndex {
            logical: Lblk(raw.logical.get()),
            child: Pblk(join32(raw.child_lo.get(), u32::from(raw.child_hi.get()))),
        }
    }
}

/// What a node may contain, given what is above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// The depth the node must have; `None` for a root, which may have any up to [`MAX_EXTENT_DEPTH`].
    pub depth: Option<u16>,
    /// First logical block the node may map.
    pub first: Lblk,
    /// The logical block after the last one that the node may map.
    pub end: Lblk,
    /// The blocks of the volume that extents and indexes may point to.
    pub volume: BlockRange,
}

impl NodeLimits {
    /// The limits of a root.
    pub fn root(sb: &Superblock) -> NodeLimits {
        NodeLimits {
            depth: None,
            first: Lblk(0),
            end: END_OF_FILE_RANGE,
            volume: sb.geometry.usable_blocks(),
        }
    }
}

/// The levels below the root of a tree, by its head alone: its entries are not looked at.
pub fn root_depth(i_block: &[u8; I_BLOCK_SIZE]) -> Result<u16, Corrupt> {
    check_header(i_block, ROOT_CAPACITY, None).map(|header| header.depth)
}

#[derive(Clone, Copy, Debug)]
enum Entries<'a> {
    Leaf(&'a [RawLeaf]),
    Index(&'a [RawIndex]),
}

impl<'a> Entries<'a> {
    /// The entries of a node with this head; nothing about them is checked.
    fn of(bytes: &'a [u8], header: &ExtentHeader) -> Result<Entries<'a>, Corrupt> {
        let count = usize::from(header.entries);
        let area = bytes.get(HEADER_SIZE..).unwrap_or_default();
        let short = CorruptKind::Truncated(STRUCTURE);
        if header.depth == 0 {
            let (leaves, _) = <[RawLeaf]>::ref_from_prefix_with_elems(area, count).map_err(|_| short)?;
            return Ok(Entries::Leaf(leaves));
        }
        let (indexes, _) = <[RawIndex]>::ref_from_prefix_with_elems(area, count).map_err(|_| short)?;
        Ok(Entries::Index(indexes))
    }
}

/// A checked node of an extent tree.
///
/// The checks: magic number, depth, capacity, entry count, checksum (outside the inode), and for the
/// entries: order, no overlap, no empty extent, logical range inside the limits, physical range inside the
/// volume. Whether a child block was visited before is not known here; the depth given in the limits bounds
/// every descent.
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    header: ExtentHeader,
    limits: NodeLimits,
    entries: Entries<'a>,
}

impl<'a> ExtentNode<'a> {
    /// Opens the root in an inode's `i_block`. It has no checksum of its own; the inode's covers it.
    pub fn root(i_block: &'a [u8; I_BLOCK_SIZE], limits: NodeLimits) -> Result<ExtentNode<'a>, Corrupt> {
        ExtentNode::open(i_block, ROOT_CAPACITY, limits)
    }

    /// Opens a node in a block of its own. `seed` is the inode's checksum seed, or `None` on volumes without
    /// metadata checksums.
    pub fn block(bytes: &'a [u8], limits: NodeLimits, seed: Option<u32>) -> Result<ExtentNode<'a>, Corrupt> {
        let capacity = block_capacity(crate::bytes::length32(bytes));
        let header = check_header(bytes, capacity, limits.depth)?;
        if let Some(seed) = seed {
            let tail = tail_offset(header.capacity);
            let covered = bytes.get(..tail).ok_or(CorruptKind::ExtentCapacity)?;
            let stored = le32_at(bytes, tail).ok_or(CorruptKind::ExtentCapacity)?;
            if csum(seed, covered) != stored {
                return Err(CorruptKind::ExtentChecksum.into());
            }
        }
        ExtentNode::open(bytes, capacity, limits)
    }

    /// Opens a node that [`ExtentNode::block`] has accepted with these limits, and that changed only by edits that keep
    /// its entries in order and inside them: only its head is checked.
    pub fn known_block(bytes: &'a [u8], limits: NodeLimits) -> Result<ExtentNode<'a>, Corrupt> {
        let header = check_header(bytes, block_capacity(crate::bytes::length32(bytes)), limits.depth)?;
        Ok(ExtentNode { header, limits, entries: Entries::of(bytes, &header)? })
    }

    fn open(bytes: &'a [u8], capacity: u16, limits: NodeLimits) -> Result<ExtentNode<'a>, Corrupt> {
        let header = check_header(bytes, capacity, limits.depth)?;
        let entries = Entries::of(bytes, &header)?;
        match entries {
            Entries::Leaf(leaves) => check_leaves(leaves, &limits)?,
            Entries::Index(indexes) => check_indexes(indexes, &limits)?,
        }
        Ok(ExtentNode { header, limits, entries })
    }

    /// The head of the node.
    pub fn header(&self) -> ExtentHeader {
        self.header
    }

    /// The limits the node was checked against.
    pub fn limits(&self) -> NodeLimits {
        self.limits
    }

    /// Levels below this node: 0 in a leaf.
    pub fn depth(&self) -> u16 {
        self.header.depth
    }

    /// Whether the entries are extents, not indexes.
    pub fn is_leaf(&self) -> bool {
        matches!(self.entries, Entries::Leaf(_))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        usize::from(self.header.entries)
    }

    /// Whether there are no entries. Only a leaf can be empty.
    pub fn is_empty(&self) -> bool {
        self.header.entries == 0
    }

    /// The extents in order; none in an index node. Does not allocate.
    pub fn extents(&self) -> impl DoubleEndedIterator<Item = Extent> + ExactSizeIterator + Clone + use<'a> {
        let leaves: &'a [RawLeaf] = match self.entries {
            Entries::Leaf(leaves) => leaves,
            Entries::Index(_) => &[],
        };
        leaves.iter().map(Extent::decode)
    }

    /// The index entries in order; none in a leaf. Does not allocate.
    pub fn indexes(
        &self,
    ) -> impl DoubleEndedIterator<Item = ExtentIndex> + ExactSizeIterator + Clone + use<'a> {
        let indexes: &'a [RawIndex] = match self.entries {
            Entries::Leaf(_) => &[],
            Entries::Index(indexes) => indexes,
        };
        indexes.iter().map(ExtentIndex::decode)
    }

    /// The extent at `position`.
    pub fn extent(&self, position: usize) -> Option<Extent> {
        match self.entries {
            Entries::Leaf(leaves) => leaves.get(position).map(Extent::decode),
            Entries::Index(_) => None,
        }
    }

    /// The index entry at `position`.
    pub fn index(&self, position: usize) -> Option<ExtentIndex> {
        match self.entries {
            Entries::Leaf(_) => None,
            Entries::Index(indexes) => indexes.get(position).map(ExtentIndex::decode),
        }
    }

    /// Position of the last extent that starts at or before `lblk`; it need not reach `lblk`.
    pub fn find_extent(&self, lblk: Lblk) -> Option<usize> {
        match self.entries {
            Entries::Leaf(leaves) => leaves.partition_point(|raw| raw.logical.get() <= lblk.0).checked_sub(1),
            Entries::Index(_) => None,
        }
    }

    /// Position of the index entry whose child would map `lblk`; `None` if `lblk` lies before all of them.
    pub fn find_index(&self, lblk: Lblk) -> Option<usize> {
        match self.entries {
            Entries::Leaf(_) => None,
            Entries::Index(indexes) => {
                indexes.partition_point(|raw| raw.logical.get() <= lblk.0).checked_sub(1)
            }
        }
    }

    /// The limits of the child at `position`: one level less deep, from its logical block up to the next
    /// entry's.
    pub fn child_limits(&self, position: usize) -> Option<NodeLimits> {
        let child = self.index(position)?;
        let end = position
            .checked_add(1)
            .and_then(|next| self.index(next))
            .map_or(self.limits.end, |next| next.logical);
        Some(NodeLimits {
            depth: Some(self.header.depth.checked_sub(1)?),
            first: child.logical,
            end,
            volume: self.limits.volume,
        })
    }
}

/// Where the checksum is in a node with room for `capacity` entries.
pub(super) fn tail_offset(capacity: u16) -> usize {
    usize::from(capacity).saturating_mul(ENTRY_SIZE).saturating_add(HEADER_SIZE)
}

fn check_header(bytes: &[u8], room: u16, depth: Option<u16>) -> Result<ExtentHeader, Corrupt> {
    let raw: &RawHeader = record(bytes, STRUCTURE)?;
    if raw.magic.get() != MAGIC {
        return Err(CorruptKind::ExtentMagic.into());
    }
    let header = load!(ExtentHeader from raw { same: entries, capacity, depth, generation; });
    let depth_fits = depth.is_none_or(|depth| depth == header.depth);
    if header.depth > MAX_EXTENT_DEPTH || !depth_fits {
        return Err(CorruptKind::ExtentDepth.into());
    }
    if header.capacity == 0 || header.capacity > room {
        return Err(CorruptKind::ExtentCapacity.into());
    }
    if header.entries > header.capacity || (header.entries == 0 && header.depth > 0) {
        return Err(CorruptKind::ExtentEntries.into());
    }
    Ok(header)
}

fn check_leaves(leaves: &[RawLeaf], limits: &NodeLimits) -> Result<(), Corrupt> {
    let mut next_free = limits.first;
    for (position, extent) in leaves.iter().map(Extent::decode).enumerate() {
        let place = |kind: CorruptKind| Corrupt::new(kind).at_lblk(extent.logical);
        if extent.length == 0 {
            return Err(place(CorruptKind::ExtentEmpty));
        }
        if extent.logical < next_free {
            let kind = if position == 0 { CorruptKind::ExtentRange } else { CorruptKind::ExtentOrder };
            return Err(place(kind));
        }
        let end = extent.logical.checked_add(extent.length).filter(|end| *end <= limits.end);
        next_free = end.ok_or(place(CorruptKind::ExtentRange))?;
        if !limits.volume.contains(extent.physical, u64::from(extent.length)) {
            return Err(place(CorruptKind::ExtentPhysical));
        }
    }
    Ok(())
}

fn check_indexes(indexes: &[RawIndex], limits: &NodeLimits) -> Result<(), Corrupt> {
    let mut previous: Option<Lblk> = None;
    for index in indexes.iter().map(ExtentIndex::decode) {
        let place = |kind: CorruptKind| Corrupt::new(kind).at_lblk(index.logical);
        if index.logical < limits.first || index.logical >= limits.end {
            return Err(place(CorruptKind::ExtentRange));
        }
        if previous.is_some_and(|previous| index.logical <= previous) {
            return Err(place(CorruptKind::ExtentOrder));
        }
        if !limits.volume.contains(index.child, 1) {
            return Err(place(CorruptKind::ExtentPhysical));
        }
        previous = Some(index.logical);
    }
    Ok(())
}

const _: () = assert!(HEADER_SIZE + 4 * ENTRY_SIZE == I_BLOCK_SIZE && TAIL_SIZE == 4);
