//! Removes a name of a file, and frees the file with its last name.

use super::create;
use super::directories::Directories;
use super::entry::{self, EntryScope};
use super::path;
use crate::change::Files;
use crate::change::free::check_frees;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::state::{ROOT, is_system_file};
use crate::inode::draft::Draft;
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use crate::seam::Ext4;
use std::sync::Arc;
use uext4_ondisk::ext4::InodeFlags;

/// Removes a name of anything but a directory. After the last one, the file is freed when its last user has gone.
///
/// # Errors
/// [`Error::NotFound`], [`Error::IsDirectory`]; [`Error::NotPermitted`] for immutable and append-only files and
/// directories; [`Error::Incompatible`] if this version cannot free the file, [`Error::Corrupt`] if its record, its map
/// or its bitmaps are damaged, with nothing changed. Those of freeing it: the name is gone then.
pub(crate) fn remove_file(fs: &Ext4, path: &[u8]) -> Result<()> {
    let files = fs.files();
    // A failure here must not fail this call: it is retried later.
    let _waits = files.free_left();
    look_ahead(fs, path)?;
    let inode = path::at_last(&fs.state, path, false, |parent, names, name, found| {
        let (inode, spelling) = found.ok_or(Error::NotFound)?;
        if inode.kind() == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        if path.ends_with(b"/") {
            return Err(Error::NotDirectory);
        }
        create::check_directory(&fs.state, parent)?;
        check(&fs.state, parent, &inode)?;
        remove(&files, parent, names, &inode, &spelling.unwrap_or_else(|| name.to_vec()))?;
        Ok(inode)
    })?;
    entry::end_use(&files, inode)
}

/// Checks everything that freeing the file would read, if this is its last name: a damaged file keeps its name. This
/// may take long, so no lock is held. The checks in the handle catch changes made meanwhile.
fn look_ahead(fs: &Ext4, path: &[u8]) -> Result<()> {
    let (state, files) = (&fs.state, fs.files());
    let (parent, name) = path::parent(state, &state.inode(ROOT)?, path)?;
    let name = name.ok_or(Error::IsDirectory)?;
    let inode = {
        let _names = parent.steady_names();
        let found = crate::dir::look_up(state, &parent, &name)?.ok_or(Error::NotFound)?;
        state.inode(found.ino)?
    };
    match inode.disk().links {
        1 if inode.kind() != FileKind::Directory => files.check_frees_all(&inode),
        _ => Ok(()),
    }
}

/// Checks that a name of this file may be removed from this directory, or redirected.
pub(super) fn check(state: &Ext4State, parent: &Inode, inode: &Inode) -> Result<()> {
    let protected = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    if parent.disk().flags.contains(InodeFlags::APPEND) {
        return Err(Error::NotPermitted("the directory is append-only"));
    }
    let disk = inode.disk();
    if disk.flags.intersects(protected) {
        return Err(Error::NotPermitted("the file is immutable or append-only"));
    }
    let superblock = &state.superblock;
    if inode.ino() < superblock.geometry.first_inode() || is_system_file(superblock, inode.ino()) {
        return Err(Error::NotPermitted("an internal file of the volume"));
    }
    match disk.links {
        0 => Err(state.corrupt_inode(inode.ino(), "a name leads to it, but its link count is 0")),
        1 => {
            let ground = Direct(state);
            check_frees(&ground, &Draft::load(&ground, inode.ino())?)
        }
        _ => Ok(()),
    }
}

/// One handle: name, link count, and the orphan chain.
fn remove(
    files: &Files<'_>,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    let plan = EntryScope { names: &[parent], inodes: &[inode], makes: 0 };
    entry::change(files, names, &plan, |step| {
        step.unlink(inode)?;
        let draft = step.look(inode)?;
        if draft.disk.links == 0 {
            // Another name may have been removed since the check.
            check_frees(step.blocks, draft)?;
        }
        step.remove(parent, name, inode.ino())?;
        Ok(Ok(()))
    })
}
