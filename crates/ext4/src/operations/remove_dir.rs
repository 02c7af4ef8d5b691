//! Removes directories.

use super::create;
use super::directories::Directories;
use super::entry::{self, EntryScope};
use super::path;
use super::unlink;
use crate::change::Files;
use crate::dir::list::Listing;
use crate::dir::{self, DirEntry};
use crate::ground::error::{Error, Result};
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use crate::seam::Ext4;
use std::collections::HashSet;
use std::sync::Arc;
use uext4_ondisk::Ino;

/// Removes the empty directory `path`. It is freed when its last user has gone; until then it stays empty.
///
/// # Errors
/// As of [`remove_in`]; [`Error::InUse`] for the root; those of resolving the path.
pub(crate) fn remove_at(fs: &Ext4, path: &[u8]) -> Result<()> {
    let (parent, name) = split(&fs.state, path)?;
    remove_in(fs, &parent, &name)
}

/// The directory and the last name of the path of a directory to be removed.
///
/// # Errors
/// [`Error::Invalid`], [`Error::NotEmpty`] and [`Error::InUse`] for paths that end in `.` and `..` and for the root, as
/// in Linux; those of resolving the path.
pub(crate) fn split(state: &Ext4State, path: &[u8]) -> Result<(Arc<Inode>, Vec<u8>)> {
    match path::parent(state, state.root()?, path)? {
        (parent, Some(name)) => Ok((parent, name)),
        (_, None) => Err(match path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()) {
            Some(last) => dots(last).unwrap_or(Error::NotFound),
            None => Error::InUse("the volume: it is the root".into()),
        }),
    }
}

/// The error for a name that cannot be removed from a directory.
fn dots(name: &[u8]) -> Option<Error> {
    match name {
        b"." => Some(Error::Invalid("`.` is not a name that can be removed".into())),
        b".." => Some(Error::NotEmpty),
        _ => None,
    }
}

/// Removes the empty directory `name` from the directory `parent`.
///
/// # Errors
/// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`]; [`Error::NotPermitted`] for immutable and
/// append-only directories; [`Error::Incompatible`] if this version cannot free it; [`Error::Corrupt`] if it or the
/// bitmaps of its blocks are damaged, with nothing changed. Those of freeing it: the name is gone then.
pub(crate) fn remove_in(fs: &Ext4, parent: &Arc<Inode>, name: &[u8]) -> Result<()> {
    let (state, files) = (&fs.state, fs.files());
    // A failure here must not fail this call: it is retried later.
    let _waits = files.free_left();
    unlink::check_lookup(parent, name)?;
    if let Some(error) = dots(name) {
        return Err(error);
    }
    let _told = state.operation("rmdir", parent.ino(), name);
    let removed = loop {
        let removed = unlink::look_ahead(fs, parent, name)?;
        let names = Directories::several([&**parent, &*removed]);
        let found = dir::look_up(state, parent, name)?.ok_or(Error::NotFound)?;
        if found.ino != removed.ino() {
            // Somebody else made it lead elsewhere in between.
            continue;
        }
        remove(&files, parent, &names, &removed, found.spelling.as_deref().unwrap_or(name))?;
        drop(names);
        break removed;
    };
    entry::end_use(&files, removed)
}

/// One handle: name, link counts, and the orphan chain. The names of both are locked.
fn remove(
    files: &Files<'_>,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    removed: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    create::check_directory(files.state, parent)?;
    unlink::check_flags(parent, removed)?;
    if removed.kind() != FileKind::Directory {
        return Err(Error::NotDirectory);
    }
    check(files.state, parent, removed)?;
    let plan = EntryScope { names: &[parent], inodes: &[removed], makes: 0 };
    entry::change(files, names, &plan, |step| {
        step.count_subdirectory(parent, false)?;
        step.unlink_directory(removed)?;
        step.remove(parent, name, removed.ino())?;
        Ok(Ok(()))
    })
}

/// Removes a directory with everything in it. Symbolic links are removed, not followed.
///
/// # Errors
/// As of [`remove_at`] and [`unlink::remove_in`], except [`Error::NotFound`] for what somebody else removes meanwhile;
/// [`Error::NotEmpty`] if somebody adds names meanwhile. Something may have been removed then.
pub(crate) fn remove_all(fs: &Ext4, path: &[u8]) -> Result<()> {
    let state = &fs.state;
    let (parent, name) = split(state, path)?;
    // From the outermost directory to the one that is being emptied; a deep tree needs no deep stack.
    let mut open = vec![Emptied::open(state, &parent, name)?.ok_or(Error::NotDirectory)?];
    let mut inside: HashSet<Ino> = open.iter().map(|top| top.directory.ino()).collect();
    while let Some(Emptied { directory, listing, .. }) = open.last_mut() {
        let Some(entry) = next(state, directory, listing)? else {
            let Some(Emptied { directory, name, .. }) = open.pop() else { break };
            inside.remove(&directory.ino());
            // If this is its last use, it is freed by the removal.
            drop(directory);
            let above = open.last().map_or(&parent, |above| &above.directory);
            match remove_in(fs, above, &name) {
                Err(Error::NotFound) if !open.is_empty() => {}
                removed => removed?,
            }
            continue;
        };
        if entry.kind != Some(FileKind::Directory) {
            match unlink::remove_in(fs, directory, &entry.name) {
                Ok(()) | Err(Error::NotFound) => continue,
                Err(Error::IsDirectory) => {}
                Err(error) => return Err(error),
            }
        }
        let name = entry.name;
        match Emptied::open(state, directory, name.clone()) {
            Ok(Some(below)) if inside.insert(below.directory.ino()) => open.push(below),
            Ok(Some(below)) => {
                return Err(state.corrupt_inode(below.directory.ino(), "a directory inside itself"));
            }
            Ok(None) => unlink::remove_in(fs, directory, &name)?,
            Err(Error::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A directory of which everything is removed.
struct Emptied {
    directory: Arc<Inode>,
    /// Its name in the directory above.
    name: Vec<u8>,
    listing: Listing,
}

impl Emptied {
    /// The directory at a name, or `None` for anything else. A damaged volume may have a name that leads elsewhere:
    /// what is there stays.
    fn open(state: &Ext4State, parent: &Arc<Inode>, name: Vec<u8>) -> Result<Option<Emptied>> {
        let directory = path::step(state, parent, &name)?;
        if directory.kind() != FileKind::Directory {
            return Ok(None);
        }
        {
            let _names = directory.steady_names();
            if directory.is_removed() {
                return Err(Error::NotFound);
            }
            check_above(state, parent, &directory)?;
        }
        Ok(Some(Emptied { directory, name, listing: Listing::new() }))
    }
}

/// The next entry of a directory except `.` and `..`.
fn next(state: &Ext4State, directory: &Inode, listing: &mut Listing) -> Result<Option<DirEntry>> {
    loop {
        let entry = match listing.take() {
            Some(entry) => Some(entry),
            None => {
                let _names = directory.steady_names();
                listing.fill(state, directory)?;
                listing.take()
            }
        };
        match entry {
            Some(entry) if matches!(entry.name.as_slice(), b"." | b"..") => {}
            entry => return Ok(entry),
        }
    }
}

/// Checks that a directory, whose names are locked, can be removed from `parent`, or be replaced there.
///
/// # Errors
/// As of [`remove_in`].
pub(super) fn check(state: &Ext4State, parent: &Inode, removed: &Inode) -> Result<()> {
    unlink::check(state, parent, removed)?;
    check_above(state, parent, removed)?;
    if dir::is_empty(state, removed)? { Ok(()) } else { Err(Error::NotEmpty) }
}

/// Checks that the `..` of a directory, whose names are locked, leads to the directory that has its name.
fn check_above(state: &Ext4State, parent: &Inode, directory: &Inode) -> Result<()> {
    let above = dir::look_up(state, directory, b"..")?.map(|found| found.ino);
    if above == Some(parent.ino()) {
        return Ok(());
    }
    let what = format!("its `..` does not lead to inode {}, which has its name", parent.ino());
    Err(state.corrupt_inode(directory.ino(), what))
}
