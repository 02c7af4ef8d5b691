//! Creates a regular file with its name.

use super::directories::Directories;
use super::entry::{self, EntryScope};
use super::path;
use crate::alloc::inode::NewInode;
use crate::change::Files;
use crate::dir;
use crate::ground::error::{Error, Result};
use crate::ground::features;
use crate::ground::journaled::Journaled;
use crate::ground::unlogged::Unlogged;
use crate::inode::draft::Draft;
use crate::inode::fields::now;
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use crate::seam::Ext4;
use crate::xattr;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{DefaultMountOptions, InodeFlags, RoCompat};

/// Type bits of a regular file's mode.
const REGULAR: u16 = 0o100_000;
const SET_GROUP: u16 = 0o2000;

/// Flags that a new file inherits from its directory, as in Linux (`EXT4_FL_INHERITED`, `EXT4_REG_FLMASK`).
pub(crate) const INHERITED: InodeFlags = InodeFlags::from_bits_retain(
    InodeFlags::SECURE_DELETE.bits()
        | InodeFlags::UNDELETE.bits()
        | InodeFlags::COMPRESS.bits()
        | InodeFlags::SYNC.bits()
        | InodeFlags::NODUMP.bits()
        | InodeFlags::NOATIME.bits()
        | InodeFlags::NO_COMPRESS.bits()
        | InodeFlags::JOURNAL_DATA.bits()
        | InodeFlags::NO_TAIL.bits()
        | InodeFlags::DAX.bits(),
);

/// The caller's choices for a new file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewFile {
    /// Permissions.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether an existing name is an error, even if it is a symbolic link.
    pub(crate) exclusive: bool,
}

/// Finds the file at `path`, or creates it. A dangling symbolic link is followed: its target is created.
///
/// # Errors
/// [`Error::Exists`] if it exists and must not; [`Error::NoSpace`] and [`Error::Limit`], with nothing changed;
/// [`Error::NotPermitted`] and [`Error::Incompatible`] for directories that may not be changed; those of resolving the
/// path.
pub(crate) fn open_or_create(fs: &Ext4, path: &[u8], new: &NewFile) -> Result<Arc<Inode>> {
    // A failure to free another inode must not fail this call: it is retried later.
    let _waits = fs.files().free_left();
    path::at_last(&fs.state, path, !new.exclusive, |parent, names, name, found| match found {
        None => create(fs, parent, names, name, new),
        Some(_) if new.exclusive => Err(Error::Exists),
        Some((inode, _)) => Ok(inode),
    })
}

/// Checks that names may be added to a directory.
pub(super) fn check_directory(state: &Ext4State, directory: &Inode) -> Result<()> {
    if directory.kind() != FileKind::Directory {
        return Err(Error::NotDirectory);
    }
    let disk = directory.disk();
    if disk.links == 0 {
        return Err(Error::NotFound);
    }
    if disk.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(Error::NotPermitted("the directory is immutable"));
    }
    if disk.flags.contains(InodeFlags::ENCRYPT) {
        let feature = format!("an encrypted directory (inode {})", directory.ino());
        return Err(Error::Incompatible { action: "change names", feature });
    }
    features::check_changes(&state.superblock)
}

/// Creates a file.
fn create(
    fs: &Ext4,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    name: &[u8],
    new: &NewFile,
) -> Result<Arc<Inode>> {
    let state = &fs.state;
    check_directory(state, parent)?;
    dir::name::check(name)?;
    refuse_default_acl(state, parent)?;
    let files = fs.files();
    let made = loop {
        if let Some(made) = files.with_room(|| add(&files, parent, names, name, new))? {
            break made;
        }
        state.commit_all()?;
    };
    state.inode(made)
}

/// Refuses to create files in a directory with a default access control list.
pub(super) fn refuse_default_acl(state: &Ext4State, parent: &Inode) -> Result<()> {
    if !xattr::has_default_acl(state, parent)? {
        return Ok(());
    }
    let feature = format!("a default access control list (inode {})", parent.ino());
    Err(Error::Incompatible { action: "create a file", feature })
}

/// The fields of a new file's record.
pub(super) fn describe(state: &Ext4State, parent: &Inode, new: &NewFile) -> NewInode {
    let directory = parent.disk();
    let groups = state.superblock.default_mount_options.contains(DefaultMountOptions::BSD_GROUPS)
        || directory.mode & SET_GROUP != 0;
    let now = now();
    NewInode {
        mode: REGULAR | (new.mode & 0o7777),
        uid: new.uid,
        gid: if groups { directory.gid } else { new.gid },
        flags: directory.flags & INHERITED,
        generation: RandomState::new().hash_one(now.nanoseconds) as u32,
        links: 1,
        now,
    }
}

/// Whether an edit of names fails with this error only while nothing is changed.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NoSpace
            | Error::Limit(_)
            | Error::Exists
            | Error::Corrupt(_)
            | Error::CorruptInode { .. }
            | Error::Incompatible { .. }
    )
}

/// Whether a new inode has to wait for a commit: without a journal, a name on the device may still lead to the number
/// of a removed file.
pub(super) fn awaits_commit(state: &Ext4State) -> bool {
    state.unlogged.as_ref().is_some_and(Unlogged::has_freed_inode)
}

/// Creates the inode of a file in `parent`, with the project it inherits.
pub(super) fn make(
    blocks: &mut Journaled<'_>,
    files: &Files<'_>,
    parent: &Inode,
    new: &NewInode,
) -> Result<Draft> {
    let mut made = files.space.make_inode(blocks, parent.ino(), new)?;
    let disk = parent.disk();
    let inherits = files.state.superblock.features.ro_compat.contains(RoCompat::PROJECT)
        && disk.flags.contains(InodeFlags::PROJECT_INHERIT);
    if inherits && made.disk.project.is_some() {
        made.disk.project = disk.project;
        made.store(blocks)?;
    }
    Ok(made)
}

/// Adds inode and name in one handle. `None`: nothing was done, and a commit has to come first.
fn add(
    files: &Files<'_>,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    name: &[u8],
    new: &NewFile,
) -> Result<Option<Ino>> {
    let state = files.state;
    let new = describe(state, parent, new);
    let plan = EntryScope { names: &[parent], inodes: &[], makes: 1 };
    entry::change(files, names, &plan, |step| {
        if awaits_commit(state) {
            return Ok(Ok(None));
        }
        let mut made = match make(step.blocks, files, parent, &new) {
            Ok(made) => made,
            Err(Error::NoSpace) => return Ok(Err(Error::NoSpace)),
            Err(error) => return Err(error),
        };
        match step.insert(parent, name, made.ino, FileKind::Regular) {
            Ok(()) => Ok(Ok(Some(made.ino))),
            // A refused name edit has changed nothing: then free the inode again, and nothing has changed. Any other
            // error may leave a partial change.
            Err(error) if is_refusal(&error) => {
                made.disk.links = 0;
                files.space.free_inode(step.blocks, &mut made, new.now)?;
                Ok(Err(error))
            }
            Err(error) => Err(error),
        }
    })
}
