//! Creating and freeing inodes.

use super::group::mark_inode;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::inode::draft::{Draft, place_of};
use crate::inode::fields::{CREATION_END, empty_record, storable};
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{
    FileType, Incompat, InodeFlags, RoCompat, Superblock, Timestamp, encode_extent_leaf,
};

/// Size of the base part of every record.
const BASE_SIZE: u16 = 128;
/// Bytes of extra fields that this version knows.
const EXTRA_SIZE: u16 = 32;

/// The fields of a new inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewInode {
    /// Type and permissions.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Flags that it inherits or is asked to have. Files and directories with a map also get [`InodeFlags::EXTENTS`],
    /// on volumes with extents.
    pub(crate) flags: InodeFlags,
    /// An arbitrary number that distinguishes this file from an earlier one with the same inode number.
    pub(crate) generation: u32,
    pub(crate) links: u16,
    /// Time of its creation.
    pub(crate) now: Timestamp,
    /// Whether limits of quota hold.
    pub(crate) limited: bool,
}

impl NewInode {
    /// Whether it is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Directory)
    }
}

/// Creates an inode from a free one: marks it used and writes its record.
///
/// # Errors
/// [`Error::Corrupt`] if it is in use or its group is damaged, [`Error::Invalid`] if a field cannot be stored, with
/// nothing changed. Those of the body.
pub(crate) fn make(blocks: &mut impl Blocks, ino: Ino, new: &NewInode) -> Result<Draft> {
    let superblock = &blocks.ground().superblock;
    let place = place_of(blocks.ground(), ino)?;
    let (raw, mut disk) = empty_record(superblock, ino)?;
    (disk.mode, disk.uid, disk.gid, disk.links) = (new.mode, new.uid, new.gid, new.links);
    (disk.flags, disk.generation, disk.version) = (new.flags, new.generation, 1);
    disk.extra_isize = extra_size(superblock);
    let now = storable(new.now, disk.extra_isize, CREATION_END);
    (disk.accessed, disk.changed, disk.modified) = (now, now, now);
    (disk.created, disk.project) = (Some(now), Some(0));
    let kind = disk.file_type();
    let is_directory = kind == Some(FileType::Directory);
    if superblock.features.incompat.contains(Incompat::EXTENTS)
        && (is_directory || kind == Some(FileType::Regular))
        && !disk.flags.contains(InodeFlags::INLINE_DATA)
    {
        disk.flags |= InodeFlags::EXTENTS;
        encode_extent_leaf(&mut disk.i_block, 0, &[])?;
    }
    let mut draft = Draft { ino, disk, raw, place, charged: None, allowance: None, values: 0 };
    // Find fields that cannot be stored before anything is changed.
    draft.disk.encode(&mut draft.raw, ino, superblock)?;
    mark_inode(blocks, ino, true, is_directory)?;
    draft.store(blocks)?;
    Ok(draft)
}

/// Frees an inode that has no links and maps nothing. Its record keeps mode and generation, as in the kernel; its size
/// becomes 0, and its deletion time marks it deleted.
///
/// # Errors
/// [`Error::Invalid`] if it has links; [`Error::Corrupt`] if it is free or its group is damaged; nothing was changed
/// then. Those of the body.
pub(crate) fn free(blocks: &mut impl Blocks, draft: &mut Draft, now: Timestamp) -> Result<()> {
    if draft.disk.links != 0 {
        return Err(Error::Invalid(format!("inode {} has links and cannot be freed", draft.ino)));
    }
    let is_directory = draft.disk.file_type() == Some(FileType::Directory);
    mark_inode(blocks, draft.ino, false, is_directory)?;
    draft.disk.size = 0;
    // Zero would mean that it was never deleted.
    draft.disk.deleted = u32::try_from(now.seconds).unwrap_or(u32::MAX).max(1);
    draft.store(blocks)?;
    draft.leave_quota(blocks)
}

/// Bytes of extra fields that new records get.
fn extra_size(superblock: &Superblock) -> u16 {
    let room = superblock.geometry.inode_size().saturating_sub(BASE_SIZE);
    let mut size = EXTRA_SIZE;
    if superblock.features.ro_compat.contains(RoCompat::EXTRA_ISIZE) {
        size = size.max(superblock.want_extra_isize).max(superblock.min_extra_isize);
    }
    if size > room || !size.is_multiple_of(4) { EXTRA_SIZE.min(room) } else { size }
}
