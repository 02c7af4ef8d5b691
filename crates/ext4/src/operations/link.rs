//! Adds a name to an existing inode: another one, or the first one of an inode that was created without a name.

use super::create;
use super::directories::Directories;
use super::entry::{self, EntryScope};
use crate::ground::error::{Error, Result};
use crate::ground::state::is_system_file;
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use crate::seam::Ext4;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4_ondisk::ext4::{InodeFlags, RoCompat};

/// Makes the name `path`, which must not exist, lead to an inode too.
///
/// # Errors
/// As of [`link_in`]; those of resolving the path.
pub(crate) fn link_at(fs: &Ext4, path: &[u8], inode: &Arc<Inode>) -> Result<()> {
    let _waits = fs.files().free_left();
    create::at_new(&fs.state, path, false, |parent, names, name| link(fs, parent, names, name, inode))
}

/// Makes a name in the directory `parent` lead to an inode too.
///
/// # Errors
/// [`Error::Exists`]; [`Error::NotFound`] if the directory was removed, or the inode has lost its last name;
/// [`Error::NotPermitted`] for directories, for immutable and append-only inodes and in immutable directories;
/// [`Error::OtherProject`]; [`Error::Limit`], [`Error::NoSpace`]; [`Error::Corrupt`]. Nothing was changed then.
pub(crate) fn link_in(fs: &Ext4, parent: &Arc<Inode>, name: &[u8], inode: &Arc<Inode>) -> Result<()> {
    let _waits = fs.files().free_left();
    let names = Directories::one(parent);
    create::check_free(&fs.state, parent, name)?;
    link(fs, parent, &names, name, inode)
}

fn link(
    fs: &Ext4,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    name: &[u8],
    inode: &Arc<Inode>,
) -> Result<()> {
    let (state, files) = (&fs.state, fs.files());
    create::check_directory(state, parent)?;
    crate::dir::name::check(name)?;
    check(state, parent, inode)?;
    let _told = state.operation("link", parent.ino(), name);
    let plan = EntryScope { names: &[parent], inodes: &[inode], makes: 0 };
    files.with_room(|| {
        entry::change(&files, names, &plan, |step| {
            // Its last name may have been removed since the check.
            if step.look(inode)?.disk.links == 0 && !inode.awaits_name.load(Ordering::Acquire) {
                return Ok(Err(Error::NotFound));
            }
            if let Err(limit) = step.link(inode) {
                return Ok(Err(limit));
            }
            match step.insert(parent, name, inode.ino(), inode.kind()) {
                Ok(()) => {
                    // From now on it is like any other: without its last name it cannot be linked.
                    inode.awaits_name.store(false, Ordering::Release);
                    Ok(Ok(()))
                }
                Err(error) if create::is_refusal(&error) => Ok(Err(error)),
                Err(error) => Err(error),
            }
        })
    })
}

/// Checks that an inode may get a name in this directory.
fn check(state: &Ext4State, parent: &Inode, inode: &Inode) -> Result<()> {
    let (superblock, disk) = (&state.superblock, inode.disk());
    if inode.kind() == FileKind::Directory {
        return Err(Error::NotPermitted("a directory has one name only"));
    }
    if disk.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(Error::NotPermitted("the file is immutable or append-only"));
    }
    if inode.ino() < superblock.geometry.first_inode() || is_system_file(superblock, inode.ino()) {
        return Err(Error::NotPermitted("an internal file of the volume"));
    }
    check_project(state, parent, inode)?;
    match disk.links == 0 && !inode.awaits_name.load(Ordering::Acquire) {
        true => Err(Error::NotFound),
        false => Ok(()),
    }
}

/// Checks that the name of an inode may be in this directory, as far as projects are concerned.
///
/// # Errors
/// [`Error::OtherProject`].
pub(super) fn check_project(state: &Ext4State, parent: &Inode, inode: &Inode) -> Result<()> {
    let (disk, directory) = (inode.disk(), parent.disk());
    let inherits = state.superblock.features.ro_compat.contains(RoCompat::PROJECT)
        && directory.flags.contains(InodeFlags::PROJECT_INHERIT);
    match inherits && disk.project.unwrap_or(0) != directory.project.unwrap_or(0) {
        true => Err(Error::OtherProject),
        false => Ok(()),
    }
}
