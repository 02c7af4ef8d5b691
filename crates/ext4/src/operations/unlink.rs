//! Removes a name of a file, and frees the file with its last name.

use super::create;
use super::directories::Directories;
use super::entry::{self, EntryScope};
use super::path;
use crate::change::Files;
use crate::change::free::check_frees;
use crate::dir;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::state::is_system_file;
use crate::inode::draft::Draft;
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use crate::seam::Ext4;
use std::sync::Arc;
use uext4_ondisk::ext4::InodeFlags;

/// Removes the name `path` of anything but a directory. After the last one, the file is freed when its last user has
/// gone.
///
/// # Errors
/// [`Error::NotFound`], [`Error::IsDirectory`]; [`Error::NotPermitted`] for immutable and append-only files and
/// directories; [`Error::Incompatible`] if this version cannot free the file, [`Error::Corrupt`] if its record, its map
/// or its bitmaps are damaged, with nothing changed. Those of freeing it: the name is gone then.
pub(crate) fn remove_file(fs: &Ext4, path: &[u8]) -> Result<()> {
    let files = fs.files();
    // A failure here must not fail this call: it is retried later.
    let _waits = files.free_left();
    let (parent, name) = path::parent(&fs.state, fs.state.root()?, path)?;
    let name = name.ok_or(Error::IsDirectory)?;
    let _told = fs.state.operation("unlink", parent.ino(), &name);
    look_ahead(fs, &parent, &name)?;
    let inode = path::at_last(&fs.state, path, false, |parent, names, name, found| {
        let (inode, spelling) = found.ok_or(Error::NotFound)?;
        if inode.kind() != FileKind::Directory && path.ends_with(b"/") {
            return Err(Error::NotDirectory);
        }
        remove(&files, parent, names, &inode, &spelling.unwrap_or_else(|| name.to_vec()))?;
        Ok(inode)
    })?;
    entry::end_use(&files, inode)
}

/// The same for a name in the directory `parent`.
///
/// # Errors
/// As of [`remove_file`].
pub(crate) fn remove_in(fs: &Ext4, parent: &Arc<Inode>, name: &[u8]) -> Result<()> {
    let (state, files) = (&fs.state, fs.files());
    let _waits = files.free_left();
    check_lookup(parent, name)?;
    let _told = state.operation("unlink", parent.ino(), name);
    look_ahead(fs, parent, name)?;
    let names = Directories::one(parent);
    let found = dir::look_up(state, parent, name)?.ok_or(Error::NotFound)?;
    let inode = state.inode(found.ino)?;
    remove(&files, parent, &names, &inode, &found.spelling.unwrap_or_else(|| name.to_vec()))?;
    drop(names);
    entry::end_use(&files, inode)
}

/// Checks that a name can be looked up in `parent`.
///
/// # Errors
/// [`Error::NotDirectory`], [`Error::NameTooLong`].
pub(super) fn check_lookup(parent: &Inode, name: &[u8]) -> Result<()> {
    if parent.kind() != FileKind::Directory {
        return Err(Error::NotDirectory);
    }
    if name.len() > dir::name::MAX { Err(Error::NameTooLong) } else { Ok(()) }
}

/// Checks everything that freeing the inode at a name would read, if this is its last name: a damaged one keeps its
/// name. This may take long, so no lock is held. The checks in the handle catch changes made meanwhile. Returns the
/// inode.
pub(super) fn look_ahead(fs: &Ext4, parent: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
    let (state, files) = (&fs.state, fs.files());
    let inode = path::step(state, parent, name)?;
    if inode.disk().links == 1 || inode.kind() == FileKind::Directory {
        files.check_frees_all(&inode)?;
    }
    Ok(inode)
}

/// Checks that the flags of both allow to remove a name of this inode from this directory.
pub(super) fn check_flags(parent: &Inode, inode: &Inode) -> Result<()> {
    if parent.disk().flags.contains(InodeFlags::APPEND) {
        return Err(Error::NotPermitted("the directory is append-only"));
    }
    if inode.disk().flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(Error::NotPermitted("the file is immutable or append-only"));
    }
    Ok(())
}

/// Checks that a name of this file may be removed from this directory, or redirected, and that the file can be freed if
/// it is the last one.
pub(super) fn check(state: &Ext4State, parent: &Inode, inode: &Inode) -> Result<()> {
    check_named(state, parent, inode)?;
    if inode.disk().links == 1 || inode.kind() == FileKind::Directory {
        let ground = Direct(state);
        check_frees(&ground, &Draft::load_at(&ground, inode.ino(), inode.place(state))?)?;
    }
    Ok(())
}

/// Checks that a name of this file may be removed from this directory, and that the file has one.
fn check_named(state: &Ext4State, parent: &Inode, inode: &Inode) -> Result<()> {
    check_protection(state, parent, inode)?;
    match inode.disk().links {
        0 => Err(state.corrupt_inode(inode.ino(), "a name leads to it, but its link count is 0")),
        _ => Ok(()),
    }
}

/// Checks that nothing protects a name of this inode in this directory.
pub(super) fn check_protection(state: &Ext4State, parent: &Inode, inode: &Inode) -> Result<()> {
    check_flags(parent, inode)?;
    let superblock = &state.superblock;
    if inode.ino() < superblock.geometry.first_inode() || is_system_file(superblock, inode.ino()) {
        return Err(Error::NotPermitted("an internal file of the volume"));
    }
    Ok(())
}

/// One handle: name, link count, and the orphan chain. Names are locked.
fn remove(
    files: &Files<'_>,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    create::check_directory(files.state, parent)?;
    check_flags(parent, inode)?;
    if inode.kind() == FileKind::Directory {
        return Err(Error::IsDirectory);
    }
    check_named(files.state, parent, inode)?;
    let plan = EntryScope { names: &[parent], inodes: &[inode], makes: 0 };
    entry::change(files, names, &plan, |step| {
        step.unlink(inode)?;
        let draft = step.look(inode)?;
        if draft.disk.links == 0 {
            check_frees(step.blocks, draft)?;
        }
        step.remove(parent, name, inode.ino())?;
        Ok(Ok(()))
    })
}
