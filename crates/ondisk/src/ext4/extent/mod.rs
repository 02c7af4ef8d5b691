//! Extent trees: runs of blocks, the index nodes above them, and the checks that make a node safe to walk.

mod encode;
mod node;

pub use encode::{
    encode_extent_index, encode_extent_leaf, splice_extent_leaf, splice_sealed_leaf, update_extent_checksum,
};
pub use node::{
    Extent, ExtentHeader, ExtentIndex, ExtentNode, MAX_EXTENT_DEPTH, MAX_EXTENT_LENGTH, MAX_UNWRITTEN_LENGTH,
    NodeLimits, ROOT_CAPACITY, block_capacity, root_depth,
};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const STRUCTURE: &str = "extent node";
const MAGIC: u16 = 0xF30A;
const HEADER_SIZE: usize = 12;
const ENTRY_SIZE: usize = 12;
const TAIL_SIZE: usize = 4;
/// Lengths above this mark an unwritten extent of so many blocks less.
const WRITTEN_LIMIT: u16 = 32768;

/// `struct ext4_extent_header`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U16,
    entries: U16,
    capacity: U16,
    depth: U16,
    generation: U32,
}

/// `struct ext4_extent`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct RawLeaf {
    logical: U32,
    length: U16,
    start_hi: U16,
    start_lo: U32,
}

/// `struct ext4_extent_idx`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
struct RawIndex {
    logical: U32,
    child_lo: U32,
    child_hi: U16,
    unused: U16,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_SIZE);
const _: () = assert!(size_of::<RawLeaf>() == ENTRY_SIZE && size_of::<RawIndex>() == ENTRY_SIZE);
