//! Directories: blocks of entries, and the hash tree that some directories hide inside them.

mod fold;
mod hash;
mod htree;
mod htree_encode;
mod linear;
mod linear_encode;
mod unicode_12_1;

pub use fold::CaseFolder;
pub use hash::{DirHash, HashVersion, UnsupportedHash, dir_hash, keyed_dir_hash};
pub use htree::{HtreeEntry, HtreeIndex, HtreeRoot, htree_capacity, verify_htree_checksum};
pub use htree_encode::{
    encode_htree_entries, encode_htree_root_info, set_htree_levels, update_htree_checksum,
};
pub use linear::{
    DirBlock, DirBlockKind, DirEntries, DirEntry, DirSlot, DirSlots, FoundEntry, entry_length,
    verify_dir_checksum,
};
pub use linear_encode::{
    encode_dir_entry, encode_dir_tail, flip_dir_checksum, set_entry_inode, set_record_length,
    update_dir_checksum,
};

use super::features::{Incompat, RoCompat};
use super::superblock::Superblock;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const DIR_BLOCK: &str = "directory block";
const ENTRY_HEADER_SIZE: usize = 8;
/// The shortest entry: a header and a name of up to four bytes.
const MIN_ENTRY_LENGTH: u32 = 12;
const TAIL_SIZE: u32 = 12;
const TAIL_CHECKSUM_OFFSET: u32 = 8;
/// File type that marks the record with a block's checksum.
const TAIL_FILE_TYPE: u8 = 0xDE;

/// The part of a volume's parameters that decides how directory blocks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirFormat {
    /// Bytes in a block.
    pub block_size: u32,
    /// Whether blocks carry checksums.
    pub checksums: bool,
    /// Whether entries carry the file type.
    pub file_types: bool,
    /// The highest valid inode number.
    pub inodes_count: u32,
    /// Whether hash trees may have three levels.
    pub large_dir: bool,
}

impl DirFormat {
    /// The parameters of this volume.
    pub fn new(sb: &Superblock) -> DirFormat {
        DirFormat {
            block_size: sb.geometry.block_size(),
            checksums: sb.features.ro_compat.contains(RoCompat::METADATA_CSUM),
            file_types: sb.features.incompat.contains(Incompat::FILETYPE),
            inodes_count: sb.geometry.inodes_count(),
            large_dir: sb.features.incompat.contains(Incompat::LARGEDIR),
        }
    }

    /// Bytes of a block that entries may use: all but the tail with the checksum.
    pub fn row_length(&self, kind: DirBlockKind) -> u32 {
        let tail = if kind == DirBlockKind::Linear && self.checksums { TAIL_SIZE } else { 0 };
        self.block_size.saturating_sub(tail)
    }

    /// Levels of nodes that a hash tree may have between its root and the blocks of entries.
    pub fn htree_levels_max(&self) -> u8 {
        if self.large_dir { 2 } else { 1 }
    }
}

/// The head of `struct ext4_dir_entry_2`; the name follows.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    inode: U32,
    rec_len: U16,
    name_len: u8,
    file_type: u8,
}

const _: () = assert!(size_of::<RawEntry>() == ENTRY_HEADER_SIZE);

/// The record length in bytes that a stored value stands for. Only blocks of 64 KiB use special values,
/// because their length does not fit 16 bits.
fn decode_rec_len(stored: u16, block_size: u32) -> u32 {
    if block_size < 65536 {
        return u32::from(stored);
    }
    match stored {
        0 | u16::MAX => block_size,
        // Lengths are multiples of 4, so the two low bits can hold bits 16 and 17.
        _ => (u32::from(stored) & 0xFFFC) | ((u32::from(stored) & 3) << 16),
    }
}

/// The stored value for a record length, or `None` if there is none.
fn encode_rec_len(length: u32, block_size: u32) -> Option<u16> {
    if length > block_size || !length.is_multiple_of(4) {
        return None;
    }
    match u16::try_from(length) {
        Ok(stored) => Some(stored),
        // Blocks have at most 64 KiB, so only a whole block is longer than 16 bits can say.
        Err(_) => Some(u16::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_lengths() {
        assert_eq!(decode_rec_len(12, 4096), 12);
        assert_eq!(decode_rec_len(4096, 4096), 4096);
        assert_eq!(decode_rec_len(0, 4096), 0);
        assert_eq!(decode_rec_len(0xFFFF, 65536), 65536);
        assert_eq!(decode_rec_len(0, 65536), 65536);
        assert_eq!(decode_rec_len(0xFFF4, 65536), 65524);
        assert_eq!(decode_rec_len(13, 65536), 65548);
        assert_eq!(encode_rec_len(65536, 65536), Some(0xFFFF));
        assert_eq!(encode_rec_len(65524, 65536), Some(0xFFF4));
        assert_eq!(encode_rec_len(32768, 32768), Some(32768));
        assert_eq!(encode_rec_len(13, 4096), None);
        assert_eq!(encode_rec_len(8192, 4096), None);
    }
}
