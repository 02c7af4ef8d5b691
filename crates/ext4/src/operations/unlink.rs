//! A name of a file is removed, and with its last name the file.

use super::create;
use super::directories::Directories;
use super::entry::{self, Plan};
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

/// Removes a name of anything but a directory. With the last one the file is freed, when its last user is gone.
///
/// # Errors
/// [`Error::NotFound`], [`Error::IsDirectory`]; [`Error::NotPermitted`] for immutable and append-only files and
/// directories; [`Error::Incompatible`] if this version cannot free the file, [`Error::Corrupt`] if its record, its map
/// or the bitmaps of what it has are damaged: nothing was changed then. Those of freeing it: the name is gone then.
pub(crate) fn remove_file(fs: &Ext4, path: &[u8]) -> Result<()> {
    let files = fs.files();
    // As for a file that is made.
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

/// Looks at all that freeing the file would look at, if this is its last name: what is damaged keeps the name. That may
/// take long, so no lock is held. Who changes the file or the name meanwhile is seen by the checks in the handle.
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

/// Whether a name of this file may be removed from this directory, or led elsewhere.
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
        return Err(Error::NotPermitted("a file of the volume's own"));
    }
    match disk.links {
        0 => Err(state.corrupt_inode(inode.ino(), "a name leads to it, but it has no links")),
        1 => {
            let ground = Direct(state);
            check_frees(&ground, &Draft::load(&ground, inode.ino())?)
        }
        _ => Ok(()),
    }
}

/// One handle: name, link count, and the chain of orphans.
fn remove(
    files: &Files<'_>,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    let plan = Plan { names: &[parent], inodes: &[inode], makes: 0 };
    entry::change(files, names, &plan, |step| {
        step.unlink(inode)?;
        let draft = step.look(inode)?;
        if draft.disk.links == 0 {
            // The other name may have gone since it was looked at.
            check_frees(step.blocks, draft)?;
        }
        step.remove(parent, name, inode.ino())?;
        Ok(Ok(()))
    })
}
