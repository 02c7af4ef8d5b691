//! The attributes of an inode as two lists, that of its record and that of its block, and where a value goes. Works in
//! memory only: nothing is changed before `change/attribute_blocks.rs` stores the lists.
//!
//! As in Linux (`ext4_xattr_set_handle`): the record if the attribute fits there, else the block; and no attribute is
//! in both.

use super::values;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit, Result};
use crate::inode::draft::Draft;
use uext4_ondisk::ext4::{
    Incompat, ListedValue, ListedXattr, Superblock, XATTR_BLOCK_HEADER_SIZE, XattrArea, XattrBlock,
    XattrFormat, XattrIndex, XattrList, xattr_value_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Pblk};

/// Bytes of the magic number before the attributes of a record.
const MAGIC_SIZE: usize = 4;
/// Bytes of the word that ends a list.
const END_SIZE: usize = 4;
/// Bytes of an entry whose name has three bytes.
const ENTRY_SIZE: usize = 20;

/// The inode of a value that has none yet.
pub(crate) const NO_INODE: Ino = Ino(0);

/// A value that goes to an inode of its own.
#[derive(Debug)]
pub(crate) struct NewValue {
    name_index: u8,
    name: Vec<u8>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) checksum: u32,
}

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
    /// Values that were set and have no inode yet ([`NO_INODE`]).
    new_values: Vec<NewValue>,
    /// Where values can go to inodes of their own: the seed of their checksums, and the bytes above which they do so at
    /// once.
    elsewhere: Option<(u32, usize)>,
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

/// See [`Lists::elsewhere`]. A value that fits into a block with a name of three bytes is tried there
/// (`EXT4_XATTR_MIN_LARGE_EA_SIZE`).
fn elsewhere(superblock: &Superblock) -> Option<(u32, usize)> {
    let supported = superblock.features.incompat.contains(Incompat::EA_INODE);
    let most = superblock.geometry.block_size() as usize - XATTR_BLOCK_HEADER_SIZE - END_SIZE - ENTRY_SIZE;
    supported.then(|| (superblock.checksum_seed(), most))
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
        Ok(Lists {
            record,
            block,
            before,
            record_room,
            block_room,
            values_room: values_room(superblock),
            new_values: Vec::new(),
            elsewhere: elsewhere(superblock),
        })
    }

    /// Those of a new inode whose record has room for `record` bytes, the magic number included.
    pub(crate) fn empty(superblock: &Superblock, record: usize) -> Lists {
        let fits = record >= MAGIC_SIZE + END_SIZE;
        Lists {
            record: XattrList::default(),
            block: XattrList::default(),
            before: Default::default(),
            record_room: if fits { record - MAGIC_SIZE } else { 0 },
            block_room: superblock.geometry.block_size() as usize - XATTR_BLOCK_HEADER_SIZE,
            values_room: values_room(superblock),
            new_values: Vec::new(),
            elsewhere: elsewhere(superblock),
        }
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

    /// Sets or replaces an attribute. On volumes with `ea_inode`, a value that fits neither in the record nor in the
    /// block goes to an inode of its own.
    ///
    /// # Errors
    /// [`Limit::Attributes`] if it fits neither place; nothing was changed then.
    pub(crate) fn set(&mut self, space: XattrIndex, name: &[u8], value: &[u8]) -> Result<()> {
        let same = |old: &ListedXattr| old.value.bytes() == Some(value);
        if self.find(space, name).is_some_and(same) {
            return Ok(());
        }
        let Some((seed, most)) = self.elsewhere.filter(|_| !value.is_empty()) else {
            return self.put([false, true].map(|block| ListedXattr::here(space, name, value, block)));
        };
        if value.len().next_multiple_of(4) <= most
            && self.put([false, true].map(|block| ListedXattr::here(space, name, value, block))).is_ok()
        {
            return Ok(());
        }
        let (checksum, size) = (xattr_value_checksum(seed, value), value.len() as u32);
        self.put([(); 2].map(|()| ListedXattr::elsewhere(space, name, NO_INODE, size, checksum)))?;
        let (name_index, name) = (space.to_disk(), name.to_vec());
        self.new_values.retain(|old| (old.name_index, &old.name) != (name_index, &name));
        self.new_values.push(NewValue { name_index, name, bytes: value.to_vec(), checksum });
        Ok(())
    }

    /// Puts an attribute into the record or the block. `new`: as it is in each.
    fn put(&mut self, new: [ListedXattr; 2]) -> Result<()> {
        let [in_record, in_block] = new;
        let space_and_name = (in_block.name_index, in_block.name.clone());
        let same =
            |entry: &ListedXattr| (entry.name_index, &entry.name) == (space_and_name.0, &space_and_name.1);
        let mut record = self.record.clone();
        record.set(in_record);
        if record.size() <= self.record_room {
            self.record = record;
            self.block.entries.retain(|entry| !same(entry));
            return Ok(());
        }
        let takes_room = in_block.value.bytes().is_some_and(|bytes| !bytes.is_empty());
        let mut block = self.block.clone();
        block.set(in_block);
        let crowded = takes_room && block.values_size() > self.values_room;
        if block.size() > self.block_room || crowded {
            return Err(Error::Limit(Limit::Attributes));
        }
        block.sort();
        self.block = block;
        self.record.entries.retain(|entry| !same(entry));
        Ok(())
    }

    /// Gives the values that have no inode yet those that `find` returns.
    ///
    /// # Errors
    /// Those of `find`.
    pub(crate) fn place_values(
        &mut self,
        mut find: impl FnMut(&NewValue) -> Result<Option<Ino>>,
    ) -> Result<Vec<NewValue>> {
        let mut left = Vec::new();
        for new in std::mem::take(&mut self.new_values) {
            let is_it = |entry: &&mut ListedXattr| {
                (entry.name_index, &entry.name) == (new.name_index, &new.name)
                    && matches!(entry.value, ListedValue::Inode { inode: NO_INODE, .. })
            };
            let mut entries = self.record.entries.iter_mut().chain(&mut self.block.entries);
            let Some(entry) = entries.find(is_it) else { continue };
            match (find(&new)?, &mut entry.value) {
                (Some(found), ListedValue::Inode { inode, .. }) => *inode = found,
                _ => left.push(new),
            }
        }
        Ok(left)
    }

    /// Whether more values are in inodes of their own than in the lists as they were loaded.
    pub(crate) fn has_more_values(&self) -> bool {
        values::of(&self.record).chain(values::of(&self.block)).count() > self.values_before()
    }

    /// How many values of the lists as they were loaded are in inodes of their own.
    pub(crate) fn values_before(&self) -> usize {
        values::of(&self.before.0).chain(values::of(&self.before.1)).count()
    }

    /// Removes an attribute; whether there was one.
    pub(crate) fn remove(&mut self, space: XattrIndex, name: &[u8]) -> bool {
        let in_record = self.record.remove(space, name).is_some();
        in_record | self.block.remove(space, name).is_some()
    }
}
