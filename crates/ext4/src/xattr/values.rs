//! Inodes that hold the value of an attribute (feature `ea_inode`): regular files without a name, shared by all
//! attributes with the same value. Linux: `ext4_xattr_inode_*` in `fs/ext4/xattr.c`.
//!
//! Their times hold other things: the time of change and the version count the references, and the access time is the
//! checksum of the value. One without references has no links, and is an orphan.

use super::XATTR_SIZE_MAX;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::is_system_file;
use crate::inode::draft::Draft;
use crate::inode::fields::TIMES_END;
use crate::map::edit;
use uext4_ondisk::ext4::{
    FileType, Inode as DiskInode, InodeFlags, ListedValue, Superblock, Timestamp, XattrArea, XattrFormat,
    XattrList,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk};

/// References to a value that are not exceeded here: the format has 64 bits for them.
pub(crate) const REFERENCES_MAX: u64 = u32::MAX as u64;

/// The error of a value inode.
pub(crate) fn wrong(ino: Ino, what: &'static str) -> Error {
    Corrupt::from(CorruptKind::XattrValueInode(what)).in_inode(ino).into()
}

/// How many attributes and attribute blocks refer to a value inode.
pub(crate) fn references(disk: &DiskInode) -> u64 {
    u64::from(disk.changed.seconds as u32) << 32 | disk.version & 0xffff_ffff
}

/// Sets the number of references, at most [`REFERENCES_MAX`].
pub(crate) fn set_references(disk: &mut DiskInode, references: u64) {
    disk.changed = Timestamp::default();
    disk.version = references & 0xffff_ffff;
}

/// The checksum of the value.
pub(crate) fn checksum(disk: &DiskInode) -> u32 {
    disk.accessed.seconds as u32
}

/// Sets the checksum of the value.
pub(crate) fn set_checksum(disk: &mut DiskInode, checksum: u32) {
    let seconds = match disk.extra_isize < TIMES_END {
        true => i64::from(checksum as i32),
        false => i64::from(checksum),
    };
    disk.accessed = Timestamp { seconds, nanoseconds: 0 };
}

/// Clusters that a value of this many bytes counts for each inode that has it.
pub(crate) fn clusters(superblock: &Superblock, size: u32) -> u64 {
    let geometry = &superblock.geometry;
    let cluster = u64::from(geometry.block_size()) * u64::from(geometry.cluster_blocks());
    u64::from(size).div_ceil(cluster)
}

/// The inodes of a list that hold values, and the sizes of these.
pub(crate) fn of(list: &XattrList) -> impl Iterator<Item = (Ino, u32)> {
    list.entries.iter().filter_map(|entry| match entry.value {
        ListedValue::Inode { inode, size } => Some((inode, size)),
        ListedValue::Here { .. } => None,
    })
}

/// The record of an inode that holds a value of the inode `owner`, checked.
///
/// # Errors
/// [`Error::Corrupt`]; [`Error::Incompatible`] if it has the form of Lustre, which leads back to its only owner and
/// counts nothing; those of the body.
pub(crate) fn load(blocks: &impl Blocks, ino: Ino, owner: &Draft) -> Result<Draft> {
    let superblock = &blocks.ground().superblock;
    if ino == owner.ino {
        return Err(wrong(ino, "the file itself"));
    }
    if ino < superblock.geometry.first_inode() || is_system_file(superblock, ino) {
        return Err(wrong(ino, "an internal file"));
    }
    let draft = Draft::load(blocks, ino)?;
    let disk = &draft.disk;
    if !disk.flags.contains(InodeFlags::EA_INODE) {
        return Err(wrong(ino, "no ea_inode flag"));
    }
    if disk.file_type() != Some(FileType::Regular) || disk.has_inline_data() {
        return Err(wrong(ino, "not a plain file"));
    }
    let bytes = draft.raw.get(disk.xattr_range(superblock)).filter(|_| disk.extra_isize > 0);
    let own = XattrArea::in_inode(bytes.unwrap_or_default(), &XattrFormat::new(superblock));
    if disk.xattr_block.get() != 0 || !matches!(own, Ok(None)) {
        return Err(wrong(ino, "attributes of its own"));
    }
    if disk.modified.seconds as u32 == owner.ino.get() && disk.generation == owner.disk.generation {
        let feature = format!("attribute values in the form of Lustre (inode {ino})");
        return Err(Error::Incompatible { action: "change the attributes", feature });
    }
    Ok(draft)
}

/// The value that an inode holds.
///
/// # Errors
/// [`Error::Corrupt`]; [`Error::TooLarge`]; those of the body.
pub(crate) fn read(blocks: &impl Blocks, draft: &Draft) -> Result<Vec<u8>> {
    let size = draft.disk.size;
    if size > u64::from(XATTR_SIZE_MAX) {
        return Err(Error::TooLarge { size, most: u64::from(XATTR_SIZE_MAX) });
    }
    let block_size = blocks.ground().superblock.geometry.block_size() as usize;
    let mut value = Vec::with_capacity(size as usize);
    for number in (0..(size as usize).div_ceil(block_size) as u32).map(Lblk) {
        let extent = edit::leaf(blocks, draft, number)?.find(number).filter(|extent| !extent.unwritten);
        let block = extent.and_then(|extent| extent.physical_of(number));
        let block = block.ok_or_else(|| wrong(draft.ino, "a hole"))?;
        let left = (size as usize - value.len()).min(block_size);
        blocks.look(block, |bytes| value.extend_from_slice(bytes.get(..left).unwrap_or_default()))?;
    }
    Ok(value)
}

/// Checks that an attribute's reference to a value inode can be dropped: its inode is sound and counts it.
///
/// # Errors
/// As of [`load`].
pub(crate) fn check(blocks: &impl Blocks, ino: Ino, owner: &Draft) -> Result<Draft> {
    let draft = load(blocks, ino, owner)?;
    if references(&draft.disk) == 0 || draft.disk.links == 0 {
        return Err(wrong(ino, "fewer references than attributes have"));
    }
    Ok(draft)
}
