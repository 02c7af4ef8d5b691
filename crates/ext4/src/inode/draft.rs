//! An inode under change: its record, decoded, and the way back into the table.

use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use uext4_ondisk::ext4::Inode as DiskInode;
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Pblk};

/// An inode that edits change. They change fields of `disk` (the map's root is `disk.i_block`) and bytes of `raw` behind
/// the fixed fields; [`Draft::store`] writes both.
pub(crate) struct Draft {
    pub(crate) ino: Ino,
    pub(crate) disk: DiskInode,
    /// The bytes of the record as they were read, attributes inside it included.
    pub(crate) raw: Vec<u8>,
}

impl Draft {
    /// The record of an inode, checksum verified.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the inode, and those of the body.
    pub(crate) fn load(blocks: &impl Blocks, ino: Ino) -> Result<Draft> {
        let (block, offset) = place_of(blocks.ground(), ino)?;
        let superblock = &blocks.ground().superblock;
        let size = usize::from(superblock.geometry.inode_size());
        let raw = blocks.look(block, |bytes| bytes.get(offset..offset + size).map(<[u8]>::to_vec))?;
        let truncated = || Error::from(Corrupt::from(CorruptKind::Truncated("inode table")).in_inode(ino));
        let raw = raw.ok_or_else(truncated)?;
        let disk = DiskInode::decode(&raw, ino, superblock).map_err(|corrupt| corrupt.at_block(block))?;
        Ok(Draft { ino, disk, raw })
    }

    /// The seed of checksums of its blocks, on volumes that have them.
    pub(crate) fn seed(&self, ground: &Ground) -> Option<u32> {
        let superblock = &ground.superblock;
        superblock.features.metadata_csum().then(|| self.disk.checksum_seed(self.ino, superblock))
    }

    /// Writes the record into its table, checksum included.
    ///
    /// # Errors
    /// Those of the body; [`Error::Invalid`] if a field cannot be stored. Nothing was changed then.
    pub(crate) fn store(&mut self, blocks: &mut impl Blocks) -> Result<()> {
        let (block, offset) = place_of(blocks.ground(), self.ino)?;
        let mut raw = self.raw.clone();
        let encoded = self.disk.encode(&mut raw, self.ino, &blocks.ground().superblock);
        encoded.map_err(|error| Error::Invalid(error.to_string()))?;
        let end = offset + raw.len();
        blocks.change(block, |bytes| bytes.get_mut(offset..end).map(|place| place.copy_from_slice(&raw)))?;
        self.raw = raw;
        Ok(())
    }
}

/// Block of the inode table with the record, and byte in it.
pub(crate) fn place_of(ground: &Ground, ino: Ino) -> Result<(Pblk, usize)> {
    let bad = || Error::from(Corrupt::from(CorruptKind::InodeNumber).in_inode(ino));
    let geometry = &ground.superblock.geometry;
    let (group, index) = geometry.group_of_inode(ino).ok_or_else(bad)?;
    let table = ground.descriptor(group)?.inode_table;
    let (block, offset) = geometry.inode_table_position(index);
    Ok((table.checked_add(u64::from(block)).ok_or_else(bad)?, offset as usize))
}
