//! A name of a file is removed, and with its last name the file.

use super::{create, path};
use crate::change::Files;
use crate::change::free::check_frees;
use crate::dir;
use crate::dir::map::BlockMap;
use crate::ground::credits;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::state::{ROOT, is_system_file};
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::inode::fields::now;
use crate::inode::metadata::FileKind;
use crate::seam::Ext4;
use uext4_ondisk::ext4::InodeFlags;

/// Blocks that change with the file: its record and the chain of orphans.
const FILE: u32 = 4;

/// Removes a name of anything but a directory. With the last one the file is freed, when its last user is gone.
///
/// # Errors
/// [`Error::NotFound`], [`Error::IsDirectory`]; [`Error::NotPermitted`] for immutable and append-only files and
/// directories; [`Error::Incompatible`] if this version cannot free the file: nothing was changed then. Those of
/// freeing it: the name is gone then.
pub(crate) fn remove_file(fs: &Ext4, path: &[u8]) -> Result<()> {
    let (state, files) = (&fs.state, fs.files());
    // As for a file that is made.
    let _waits = files.free_left();
    let (parent, name) = path::parent(state, &state.inode(ROOT)?, path)?;
    let name = name.ok_or(Error::IsDirectory)?;
    let names = parent.names.write();
    let found = dir::look_up(state, &parent, &name)?.ok_or(Error::NotFound)?;
    let inode = state.inode(found.ino)?;
    if inode.kind() == FileKind::Directory {
        return Err(Error::IsDirectory);
    }
    if path.ends_with(b"/") {
        return Err(Error::NotDirectory);
    }
    create::check_directory(state, &parent)?;
    check(fs, &parent, &inode)?;
    let name = found.spelling.unwrap_or(name);
    let last = remove(&files, &parent, &inode, &name)?;
    if last {
        state.unlinked(&inode);
    }
    drop(names);
    let ino = inode.ino();
    drop(inode);
    files.free_if_left(ino)
}

/// Whether a name of this file may be removed from this directory.
fn check(fs: &Ext4, parent: &Inode, inode: &Inode) -> Result<()> {
    let protected = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    if parent.disk().flags.contains(InodeFlags::APPEND) {
        return Err(Error::NotPermitted("the directory is append-only"));
    }
    let disk = inode.disk();
    if disk.flags.intersects(protected) {
        return Err(Error::NotPermitted("the file is immutable or append-only"));
    }
    let superblock = &fs.state.superblock;
    if inode.ino() < superblock.geometry.first_inode() || is_system_file(superblock, inode.ino()) {
        return Err(Error::NotPermitted("a file of the volume's own"));
    }
    match disk.links {
        0 => Err(fs.state.corrupt_inode(inode.ino(), "a name leads to it, but it has no links")),
        1 => {
            let ground = Direct(&fs.state);
            check_frees(&ground, &Draft::load(&ground, inode.ino())?)
        }
        _ => Ok(()),
    }
}

/// One handle: name, link count, times, and the chain of orphans. Returns whether it was the last name.
fn remove(files: &Files<'_>, parent: &Inode, inode: &Inode, name: &[u8]) -> Result<bool> {
    let state = files.state;
    let credits = credits::name(state, files.depth(parent)) + FILE;
    Journaled::run(state, credits, |blocks| {
        let mut directory = parent.edit(blocks)?;
        let mut file = inode.edit(blocks)?;
        file.remove_link()?;
        if file.disk.links == 0 {
            // The other name may have gone since it was looked at.
            check_frees(blocks, &file)?;
        }
        let mut space = files.space.open();
        let mut map = BlockMap::new(&mut space);
        dir::edit::Edit::open(blocks, &mut map, &mut directory)?.remove(name, inode.ino())?;
        let now = now();
        directory.stamp(now, true);
        directory.disk.version = directory.disk.version.wrapping_add(1);
        directory.store(blocks, Change::Data)?;
        file.stamp(now, false);
        let last = file.disk.links == 0;
        file.store(blocks, Change::Attributes)?;
        if last {
            files.add_orphan(blocks, inode.ino())?;
        }
        Ok(last)
    })
}
