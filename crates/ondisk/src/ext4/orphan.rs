//! Blocks of the orphan file: numbers of inodes that wait for deletion or truncation, 0 where there is none,
//! and at the block's end a magic number and a checksum.
//!
//! Source: `Documentation/filesystems/ext4/orphan.rst` and the behaviour of `fs/ext4/orphan.c`.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::bytes::record;
use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind};
use crate::numbers::{Ino, Pblk};

const STRUCTURE: &str = "orphan block";
const MAGIC: u32 = 0x0B10_CA04;

/// `struct ext4_orphan_block_tail`
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
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
        self.entries.iter().filter_map(|entry| Ino::nonzero(entry.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(seed: u32) -> [u8; 1024] {
        let mut bytes = [0; 1024];
        let [entries @ .., _, _, _, _, _, _, _, _] = &mut bytes;
        entries.get_mut(40..44).unwrap().copy_from_slice(&77_u32.to_le_bytes());
        let sum = csum(csum(seed, &5_u64.to_le_bytes()), entries);
        bytes[1016..1020].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[1020..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn entries_are_read_and_checked() {
        let good = block(9);
        let decoded = OrphanBlock::decode(&good, Pblk(5), Some(9)).unwrap();
        assert_eq!(decoded.inodes().collect::<Vec<_>>(), [Ino(77)]);
        let kind = |bytes: &[u8], at, seed| OrphanBlock::decode(bytes, Pblk(at), seed).unwrap_err().kind;
        assert_eq!(kind(&good, 6, Some(9)), CorruptKind::OrphanChecksum);
        assert_eq!(kind(&good, 5, Some(8)), CorruptKind::OrphanChecksum);
        let mut bad = good;
        bad[1016] ^= 1;
        assert_eq!(kind(&bad, 5, None), CorruptKind::OrphanMagic);
        assert_eq!(kind(&good[..7], 5, None), CorruptKind::Truncated(STRUCTURE));
        assert_eq!(kind(&good[1..], 5, None), CorruptKind::Truncated(STRUCTURE));
    }
}
