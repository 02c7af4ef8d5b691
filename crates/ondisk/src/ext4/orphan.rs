//! Blocks of the orphan file: numbers of inodes that wait for deletion or truncation, 0 where there is none,
//! and at the block's end a magic number and a checksum.
//!
//! Source: `Documentation/filesystems/ext4/orphan.rst` and the behaviour of `fs/ext4/orphan.c`.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{put, record};
use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind, EncodeError};
use crate::numbers::{Ino, Pblk};

const STRUCTURE: &str = "orphan block";
const MAGIC: u32 = 0x0B10_CA04;

/// `struct ext4_orphan_block_tail`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTail {
    magic: U32,
    checksum: U32,
}

/// A decoded block of the orphan file.
#[derive(Clone, Copy, Debug)]
pub struct OrphanBlock<'a> {
    entries: &'a [U32],
}

impl<'a> OrphanBlock<'a> {
    /// Decodes the whole block that lies at `block` on the volume; magic number and checksum are checked.
    /// `seed` is the checksum seed of the orphan file's inode, `None` on volumes without metadata checksums.
    pub fn decode(bytes: &'a [u8], block: Pblk, seed: Option<u32>) -> Result<OrphanBlock<'a>, Corrupt> {
        let truncated = || Corrupt::new(CorruptKind::Truncated(STRUCTURE)).at_block(block);
        let length = bytes.len().checked_sub(size_of::<RawTail>()).ok_or_else(truncated)?;
        let (entries, tail) = bytes.split_at_checked(length).ok_or_else(truncated)?;
        let tail: &RawTail = record(tail, STRUCTURE)?;
        if tail.magic.get() != MAGIC {
            return Err(Corrupt::new(CorruptKind::OrphanMagic).at_block(block));
        }
        if let Some(seed) = seed
            && csum(csum(seed, &block.get().to_le_bytes()), entries) != tail.checksum.get()
        {
            return Err(Corrupt::new(CorruptKind::OrphanChecksum).at_block(block));
        }
        let entries = <[U32]>::ref_from_bytes(entries).map_err(|_| truncated())?;
        Ok(OrphanBlock { entries })
    }

    /// The orphans of the block. Numbers above the volume's inode count are not refused here.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> + use<'a> {
        self.slots().map(|(_, ino)| ino)
    }

    /// The same, each with the number of its slot in the block, from 0.
    pub fn slots(&self) -> impl Iterator<Item = (usize, Ino)> + use<'a> {
        let slots = self.entries.iter().enumerate();
        slots.filter_map(|(slot, entry)| Some((slot, Ino::nonzero(entry.get())?)))
    }
}

/// Writes magic number and checksum behind the entries of the whole block `bytes`, which lies at `block` on the volume.
/// `seed` is as for [`OrphanBlock::decode`]; without one the checksum is 0.
pub fn encode_orphan_tail(bytes: &mut [u8], block: Pblk, seed: Option<u32>) -> Result<(), EncodeError> {
    let length = bytes.len().checked_sub(size_of::<RawTail>()).ok_or(EncodeError::too_short(STRUCTURE))?;
    let entries = bytes.get(..length).unwrap_or_default();
    let checksum = seed.map_or(0, |seed| csum(csum(seed, &block.get().to_le_bytes()), entries));
    let tail = RawTail { magic: U32::new(MAGIC), checksum: U32::new(checksum) };
    put(bytes, length, tail.as_bytes(), STRUCTURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_that_of_the_block_and_the_file() {
        let mut bytes = [0; 1024];
        bytes[0] = 13;
        encode_orphan_tail(&mut bytes, Pblk(7), Some(1)).unwrap();
        let decoded = OrphanBlock::decode(&bytes, Pblk(7), Some(1)).unwrap();
        assert_eq!(decoded.inodes().collect::<Vec<_>>(), [Ino(13)]);
        assert_eq!(decoded.slots().collect::<Vec<_>>(), [(0, Ino(13))]);
        assert!(OrphanBlock::decode(&bytes, Pblk(8), Some(1)).is_err());
        assert!(OrphanBlock::decode(&bytes, Pblk(7), Some(2)).is_err());
        assert!(encode_orphan_tail(&mut [0; 7], Pblk(7), None).is_err());
    }
}
