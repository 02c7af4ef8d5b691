//! Which flags and which project users may give an inode.
//!
//! Linux: `ext4_fileattr_set`, `ext4_ioctl_setflags`, `ext4_ioctl_setproject`.

use crate::ground::error::{Error, Result};
use crate::inode::metadata::FileKind;
use crate::inode::set_attributes::SetAttributes;
use uext4_ondisk::ext4::{Incompat, Inode as DiskInode, InodeFlags, RoCompat, Superblock};

/// Flags that only directories can have.
const OF_DIRECTORIES: InodeFlags = InodeFlags::from_bits_retain(
    InodeFlags::DIRSYNC.bits()
        | InodeFlags::TOPDIR.bits()
        | InodeFlags::CASEFOLD.bits()
        | InodeFlags::PROJECT_INHERIT.bits(),
);

/// Flags that users set (`EXT4_FL_USER_MODIFIABLE`).
const SETTABLE: InodeFlags = InodeFlags::from_bits_retain(
    OF_DIRECTORIES.bits()
        | InodeFlags::SECURE_DELETE.bits()
        | InodeFlags::UNDELETE.bits()
        | InodeFlags::COMPRESS.bits()
        | InodeFlags::SYNC.bits()
        | InodeFlags::IMMUTABLE.bits()
        | InodeFlags::APPEND.bits()
        | InodeFlags::NODUMP.bits()
        | InodeFlags::NOATIME.bits()
        | InodeFlags::JOURNAL_DATA.bits()
        | InodeFlags::NO_TAIL.bits()
        | InodeFlags::EXTENTS.bits()
        | InodeFlags::EOF_BLOCKS.bits()
        | InodeFlags::DAX.bits(),
);

/// Flags that users see but do not set; asking for a change of them is ignored (`EXT4_FL_USER_VISIBLE`).
const SHOWN: InodeFlags = InodeFlags::from_bits_retain(
    InodeFlags::DIRTY.bits()
        | InodeFlags::COMPRESSED_BLOCKS.bits()
        | InodeFlags::NO_COMPRESS.bits()
        | InodeFlags::ENCRYPT.bits()
        | InodeFlags::INDEX.bits()
        | InodeFlags::VERITY.bits()
        | InodeFlags::INLINE_DATA.bits(),
);

/// Flags that exclude DAX.
const WITHOUT_DAX: InodeFlags = InodeFlags::from_bits_retain(
    InodeFlags::VERITY.bits()
        | InodeFlags::ENCRYPT.bits()
        | InodeFlags::JOURNAL_DATA.bits()
        | InodeFlags::INLINE_DATA.bits(),
);

/// Flags that files other than regular files and directories can have.
const OF_OTHERS: InodeFlags =
    InodeFlags::from_bits_retain(InodeFlags::NODUMP.bits() | InodeFlags::NOATIME.bits());

/// The flags of an inode after a change, or why they cannot be set.
///
/// # Errors
/// [`Error::NotSupported`], [`Error::Incompatible`] naming the flag.
pub(super) fn flags_after(
    superblock: &Superblock,
    kind: FileKind,
    disk: &DiskInode,
    set: &SetAttributes,
) -> Result<InodeFlags> {
    let before = disk.flags;
    let Some(wanted) = set.flags else { return Ok(before) };
    if !(wanted & !(SETTABLE | SHOWN | before)).is_empty() {
        return Err(Error::NotSupported("a flag that users cannot set"));
    }
    let after = (before & !SETTABLE) | (wanted & SETTABLE);
    let changed = before ^ after;
    if changed.contains(InodeFlags::CASEFOLD) && !superblock.features.incompat.contains(Incompat::CASEFOLD) {
        return Err(Error::NotSupported("folded case on a volume without the feature casefold"));
    }
    for (flag, feature) in [
        (InodeFlags::EXTENTS, "extents (e), for which the map would have to be converted"),
        (InodeFlags::CASEFOLD, "folded case (F)"),
    ] {
        if changed.contains(flag) {
            return Err(Error::Incompatible { action: "change the flag for", feature: feature.into() });
        }
    }
    match kind {
        FileKind::Directory => {}
        FileKind::Regular if after.intersects(OF_DIRECTORIES) => {
            return Err(Error::NotSupported("a flag of directories for a file"));
        }
        FileKind::Regular => {}
        _ if (after & changed).intersects(!OF_OTHERS) => {
            return Err(Error::NotSupported("a flag of regular files for a file of another type"));
        }
        _ => {}
    }
    let excludes = match kind {
        FileKind::Directory => WITHOUT_DAX - InodeFlags::INLINE_DATA,
        _ => WITHOUT_DAX,
    };
    if changed.contains(InodeFlags::DAX) && after.contains(InodeFlags::DAX) && after.intersects(excludes) {
        return Err(Error::NotSupported("DAX for encrypted, sealed, journaled or inline contents"));
    }
    Ok(after)
}

/// Refuses everything but clearing the flag, of an immutable inode.
///
/// # Errors
/// [`Error::NotPermitted`].
pub(super) fn check_immutable(disk: &DiskInode, after: InodeFlags, set: &SetAttributes) -> Result<()> {
    if !disk.flags.contains(InodeFlags::IMMUTABLE) {
        return Ok(());
    }
    let clears = !after.contains(InodeFlags::IMMUTABLE);
    let same =
        set.flags.is_some() && after == disk.flags && set.project.is_none_or(|id| disk.project == Some(id));
    if set.only_flags() && (clears || same) {
        return Ok(());
    }
    Err(Error::NotPermitted("the file is immutable"))
}

/// The project to store, if one is set. Volumes without projects have project 0 only.
///
/// # Errors
/// [`Error::NotSupported`].
pub(super) fn project_after(
    superblock: &Superblock,
    disk: &DiskInode,
    set: &SetAttributes,
) -> Result<Option<u32>> {
    let Some(project) = set.project else { return Ok(None) };
    if !superblock.features.ro_compat.contains(RoCompat::PROJECT) {
        return match project {
            0 => Ok(None),
            _ => Err(Error::NotSupported("a project on a volume without the feature project")),
        };
    }
    match disk.project {
        Some(before) => Ok(Some(project).filter(|after| *after != before)),
        None => Err(Error::NotSupported("a project in an inode without room for it")),
    }
}

/// Refuses a generation number where checksums depend on it.
///
/// # Errors
/// [`Error::NotSupported`].
pub(super) fn check_generation(superblock: &Superblock, set: &SetAttributes) -> Result<()> {
    match set.generation {
        Some(_) if superblock.features.ro_compat.contains(RoCompat::METADATA_CSUM) => {
            Err(Error::NotSupported("a generation number on a volume with metadata checksums"))
        }
        _ => Ok(()),
    }
}
