//! The head that every metadata block of the log starts with.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{put, record};
use crate::error::{Corrupt, CorruptKind, EncodeError};

/// Bytes in a block header.
pub const HEADER_SIZE: usize = 12;

/// First word of every metadata block of the log, big-endian (`JBD2_MAGIC_NUMBER`).
pub const MAGIC: u32 = 0xC03B_3998;
const STRUCTURE: &str = "journal block header";

/// `struct journal_header_s`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    block_type: U32,
    sequence: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_SIZE);

/// What a metadata block of the log holds (`h_blocktype`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// Tags that say where the following blocks belong.
    Descriptor,
    /// End of a transaction.
    Commit,
    /// Superblock, version 1.
    SuperblockV1,
    /// Superblock, version 2.
    SuperblockV2,
    /// Blocks not to be replayed.
    Revoke,
    /// A value without meaning here.
    Unknown(u32),
}

impl BlockType {
    /// The type that a stored value stands for.
    pub fn from_disk(value: u32) -> BlockType {
        match value {
            1 => BlockType::Descriptor,
            2 => BlockType::Commit,
            3 => BlockType::SuperblockV1,
            4 => BlockType::SuperblockV2,
            5 => BlockType::Revoke,
            other => BlockType::Unknown(other),
        }
    }

    /// The stored value.
    pub fn to_disk(self) -> u32 {
        match self {
            BlockType::Descriptor => 1,
            BlockType::Commit => 2,
            BlockType::SuperblockV1 => 3,
            BlockType::SuperblockV2 => 4,
            BlockType::Revoke => 5,
            BlockType::Unknown(value) => value,
        }
    }
}

/// A decoded block header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// What the block holds.
    pub block_type: BlockType,
    /// Transaction the block belongs to (`h_sequence`).
    pub sequence: u32,
}

impl BlockHeader {
    /// The header at the start of a block, or `None` if the magic number says that there is none: in the
    /// log that is the normal end, not damage.
    pub fn find(bytes: &[u8]) -> Option<BlockHeader> {
        let raw: &RawHeader = record(bytes, STRUCTURE).ok()?;
        if raw.magic.get() != MAGIC {
            return None;
        }
        Some(BlockHeader {
            block_type: BlockType::from_disk(raw.block_type.get()),
            sequence: raw.sequence.get(),
        })
    }

    /// The header at the start of a block that must have one.
    pub fn decode(bytes: &[u8]) -> Result<BlockHeader, Corrupt> {
        let _: &RawHeader = record(bytes, STRUCTURE)?;
        BlockHeader::find(bytes).ok_or_else(|| CorruptKind::JournalMagic.into())
    }

    /// Writes the header to the start of `bytes`.
    pub fn encode(&self, bytes: &mut [u8]) -> Result<(), EncodeError> {
        let raw = RawHeader {
            magic: U32::new(MAGIC),
            block_type: U32::new(self.block_type.to_disk()),
            sequence: U32::new(self.sequence),
        };
        put(bytes, 0, raw.as_bytes(), STRUCTURE)
    }
}
