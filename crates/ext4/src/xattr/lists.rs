//! The attributes of an inode as two lists, that of its record and that of its block, and where a value goes. Works in
//! memory only: nothing is changed before `change/attribute_blocks.rs` stores the lists.
//!
//! As in Linux (`ext4_xattr_set_handle`): the record if the attribute fits there, else the block; and no attribute is
//! in both.

use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit, Result};
use crate::inode::draft::Draft;
use uext4_ondisk::ext4::{
    Incompat, ListedXattr, Superblock, XATTR_BLOCK_HEADER_SIZE, XattrArea, XattrBlock, XattrFormat,
    XattrIndex, XattrList,
};
use uext4_ondisk::{Corrupt, CorruptKind, Pblk};

/// Bytes of the magic number before the attributes of a record.
const MAGIC_SIZE: usize = 4;
/// Bytes of the word that ends a list.
const END_SIZE: usize = 4;

/// The attributes of an inode.
#[derive(Debug)]
pub(crate) struct Lists {
    pub(crate) record: XattrList,
    pub(crate) block: XattrList,
    /// The two as they were loaded.
    pub(crate) before: (XattrList, XattrList),
    /// Bytes for the record's list. 0: the record has no room for any.
    record_room: usize,
    /// Bytes for the block's list.
    block_room: usize,
    /// Bytes of the block that values may take.
    values_room: usize,
}

/// Most bytes of a block that values may take: where large values can go to inodes of their own, room for entries is
/// kept (`EXT4_XATTR_BLOCK_RESERVE`).
fn values_room(superblock: &Superblock) -> usize {
    let size = superblock.geometry.block_size() as usize;
    let kept = match superblock.features.incompat.contains(Incompat::EA_INODE) {
        true => (size / 8).min(1024),
        false => 0,
    };
    size - kept
}

/// The block's attributes, checked, and the number of inodes that share it.
///
/// # Errors
/// [`Error::Corrupt`] naming inode and block; those of the body.
pub(crate) fn read_block(blocks: &impl Blocks, draft: &Draft) -> Result<Option<(XattrList, u32)>> {
    let block = draft.disk.xattr_block;
    if block.get() == 0 {
        return Ok(None);
    }
    let place = |corrupt: Corrupt| Error::from(corrupt.in_inode(draft.ino));
    if !blocks.ground().zones.allows(block.get(), 1) {
        return Err(place(Corrupt::from(CorruptKind::SystemZone).at_block(block)));
    }
    decode_block(blocks, block)?.map(Some).map_err(place)
}

/// The attributes of a block, checked, and the number of inodes that share it.
pub(crate) fn decode_block(
    blocks: &impl Blocks,
    block: Pblk,
) -> Result<std::result::Result<(XattrList, u32), Corrupt>> {
    let superblock = &blocks.ground().superblock;
    blocks.look(block, |bytes| {
        let decoded = XattrBlock::decode(bytes, block, superblock)?;
        Ok((XattrList::from(&decoded.area), decoded.reference_count))
    })
}

impl Lists {
    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`Error::Corrupt`] of either place; those of the body.
    pub(crate) fn load(blocks: &impl Blocks, draft: &Draft) -> Result<Lists> {
        let superblock = &blocks.ground().superblock;
        let (mut record, mut record_room) = (XattrList::default(), 0);
        let bytes = draft.raw.get(draft.disk.xattr_range(superblock)).unwrap_or_default();
        // Without a size of extra fields, the bytes behind them are not trusted.
        if draft.disk.extra_isize > 0 && bytes.len() >= MAGIC_SIZE + END_SIZE {
            record_room = bytes.len() - MAGIC_SIZE;
            let area = XattrArea::in_inode(bytes, &XattrFormat::new(superblock));
            let area = area.map_err(|corrupt| Error::from(corrupt.in_inode(draft.ino)))?;
            record = area.as_ref().map(XattrList::from).unwrap_or_default();
        }
        let block = read_block(blocks, draft)?.map(|(list, _)| list).unwrap_or_default();
        let block_room = superblock.geometry.block_size() as usize - XATTR_BLOCK_HEADER_SIZE;
        let before = (record.clone(), block.clone());
        Ok(Lists { record, block, before, record_room, block_room, values_room: values_room(superblock) })
    }

    /// The attribute of this name.
    pub(crate) fn find(&self, space: XattrIndex, name: &[u8]) -> Option<&ListedXattr> {
        self.record.find(space, name).or_else(|| self.block.find(space, name))
    }

    /// Whether the record has attributes.
    pub(crate) fn in_record(&self) -> bool {
        !self.record.entries.is_empty()
    }

    /// Whether they differ from what was loaded.
    pub(crate) fn are_changed(&self) -> bool {
        self.record != self.before.0 || self.block != self.before.1
    }

    /// The same for a new inode, which has none so far and whose record has as much room.
    pub(crate) fn of_new_inode(self) -> Lists {
        Lists { before: Default::default(), ..self }
    }

    /// Sets or replaces an attribute.
    ///
    /// # Errors
    /// [`Limit::Attributes`] if it fits neither place; nothing was changed then.
    pub(crate) fn set(&mut self, space: XattrIndex, name: &[u8], value: &[u8]) -> Result<()> {
        let same = |old: &ListedXattr| old.value.bytes() == Some(value);
        if self.find(space, name).is_some_and(same) {
            return Ok(());
        }
        let mut record = self.record.clone();
        record.set(ListedXattr::here(space, name, value, false));
        if record.size() <= self.record_room {
            self.record = record;
            self.block.remove(space, name);
            return Ok(());
        }
        let mut block = self.block.clone();
        block.set(ListedXattr::here(space, name, value, true));
        let crowded = !value.is_empty() && block.values_size() > self.values_room;
        if block.size() > self.block_room || crowded {
            return Err(Error::Limit(Limit::Attributes));
        }
        block.sort();
        self.block = block;
        self.record.remove(space, name);
        Ok(())
    }

    /// Removes an attribute; whether there was one.
    pub(crate) fn remove(&mut self, space: XattrIndex, name: &[u8]) -> bool {
        let in_record = self.record.remove(space, name).is_some();
        in_record | self.block.remove(space, name).is_some()
    }
}
