//! Replaces the file at a name: a new file is filled while it has no name, then takes the name in one handle.
//!
//! So after any failure or crash the name leads to the old file, whole, or to the new one, whole. An unfinished new
//! file is an orphan: it is freed with its last user, or by the next open for writing.

use super::create::{self, INHERITED, NewFile};
use super::directories::Directories;
use super::entry::{self, EntryScope};
use super::path::{self, Last};
use super::{unlink, unnamed};
use crate::change::Files;
use crate::dir;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::inode::draft::Draft;
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode, check_overwrite};
use crate::seam::Ext4;
use std::sync::Arc;

/// A new file without a name, and the name it will take.
pub(crate) struct Begun {
    pub(crate) inode: Arc<Inode>,
    parent: Arc<Inode>,
    name: Vec<u8>,
}

/// Creates a file without a name that will take the name `path`. Symbolic links are followed. If a file exists there,
/// the new one copies its attributes; otherwise it gets those of `new`.
///
/// # Errors
/// [`Error::NotRegular`], [`Error::IsDirectory`]; [`Error::NotPermitted`] if the file or its directory must not change;
/// [`Error::Incompatible`]; [`Error::NoSpace`]; [`Error::Corrupt`]; those of resolving the path. Nothing was changed
/// then.
pub(crate) fn begin(fs: &Ext4, path: &[u8], new: &NewFile<'_>) -> Result<Begun> {
    // A failure to free another inode must not fail this call: it is retried later.
    let _waits = fs.files().free_left();
    let place = path::at_last(&fs.state, path, true, |parent, _, name, found| {
        check(&fs.state, parent, name, found.as_ref())?;
        Ok((parent.clone(), name.to_vec(), found))
    })?;
    let (parent, name, found) = place;
    let old = found.map(|(inode, _)| inode);
    let files = fs.files();
    let _told = fs.state.operation("tmpfile", parent.ino(), &name);
    match &old {
        // It will be freed, and a damaged file cannot be: then refuse now.
        Some(old) if old.disk().links == 1 => files.check_frees_all(old)?,
        _ => {}
    }
    let inode = make(&files, &parent, old.as_deref(), new)?;
    if let Some(trace) = &fs.state.trace {
        // By the name that it will have.
        trace.learn(parent.ino(), &name, inode.ino());
    }
    Ok(Begun { inode, parent, name })
}

/// Checks that a new file may take this name.
fn check(
    state: &Ext4State,
    parent: &Inode,
    name: &[u8],
    found: Option<&(Arc<Inode>, Option<Vec<u8>>)>,
) -> Result<()> {
    create::check_directory(state, parent)?;
    dir::name::check(name)?;
    let Some((old, _)) = found else { return Ok(()) };
    match old.kind() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Error::IsDirectory),
        _ => return Err(Error::NotRegular),
    }
    unlink::check(state, parent, old)?;
    check_overwrite(&state.superblock, old)
}

/// An inode in the orphan chain, with the attributes of `old` and a block for them.
fn make(files: &Files<'_>, parent: &Inode, old: Option<&Inode>, new: &NewFile<'_>) -> Result<Arc<Inode>> {
    unnamed::make(files, parent, new, old, |blocks, made, acl| {
        let Some(old) = old else { return files.inherit_acl(blocks, made, acl) };
        let _changes_wait = old.attributes.read();
        // Read it again: it may have changed since the check.
        let old = Draft::load(&Direct(files.state), old.ino())?;
        files.copy_attributes(blocks, &old, made, INHERITED)?;
        made.store(blocks)
    })
}

/// Gives the new file its name in one handle, taking it from the file that has it by then, which keeps its other names.
///
/// # Errors
/// As of [`begin`]: the name still leads to the old file. Those of freeing the old file: the name leads to the new one.
pub(crate) fn finish(fs: &Ext4, begun: Begun) -> Result<()> {
    let (state, files) = (&fs.state, fs.files());
    let Begun { inode: new, parent, name } = begun;
    let _told = state.operation("replace", parent.ino(), &name);
    let names = Directories::one(&parent);
    let found = match dir::look_up(state, &parent, &name)? {
        None => None,
        Some(found) => Some((state.inode(found.ino)?, found.spelling)),
    };
    check(state, &parent, &name, found.as_ref())?;
    files.with_room(|| swap(&files, &parent, &names, &name, &new, &found))?;
    drop(names);
    if let Some(trace) = &state.trace {
        trace.learn(parent.ino(), &name, new.ino());
    }
    drop(new);
    match found {
        Some((old, _)) => entry::end_use(&files, old),
        None => Ok(()),
    }
}

fn swap(
    files: &Files<'_>,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    name: &[u8],
    new: &Arc<Inode>,
    found: &Last,
) -> Result<()> {
    let Some((old, spelling)) = found else {
        let plan = EntryScope { names: &[parent], inodes: &[new], makes: 0 };
        return entry::change(files, names, &plan, |step| {
            if let Err(error) = step.insert(parent, name, new.ino(), FileKind::Regular) {
                return if create::is_refusal(&error) { Ok(Err(error)) } else { Err(error) };
            }
            step.link(new)?;
            Ok(Ok(()))
        });
    };
    let plan = EntryScope { names: &[parent], inodes: &[new, old], makes: 0 };
    entry::change(files, names, &plan, |step| {
        step.unlink(old)?;
        step.link(new)?;
        step.lead(parent, spelling.as_deref().unwrap_or(name), new.ino(), FileKind::Regular)?;
        Ok(Ok(()))
    })
}
