//! Creates a file without a name: an orphan until it gets one.

use super::create::{self, NewFile};
use crate::alloc::inode::NewInode;
use crate::change::{Files, attribute_blocks, orphans};
use crate::ground::credits;
use crate::ground::error::Result;
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::seam::Ext4;
use crate::xattr::InheritedAcl;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Creates a file without a name, with what a file in the directory `parent` inherits (`O_TMPFILE`). It is freed with
/// its last user, unless it gets a name ([`super::link`]).
///
/// # Errors
/// As of [`create::make_in`].
pub(crate) fn make_unnamed(fs: &Ext4, parent: &Inode, new: &NewFile<'_>) -> Result<Arc<Inode>> {
    let (state, files) = (&fs.state, fs.files());
    // A failure to free another inode must not fail this call: it is retried later.
    let _waits = files.free_left();
    create::check_directory(state, parent)?;
    let _told = state.operation("tmpfile", parent.ino(), b"");
    let made = make(&files, parent, new, None, |blocks, made, acl| files.inherit_acl(blocks, made, acl))?;
    made.awaits_name.store(true, Ordering::Release);
    Ok(made)
}

/// Creates the inode in one handle: an orphan, changed by `prepare`, which gives it its attributes, those of `model` if
/// there is one.
///
/// # Errors
/// Those of `prepare`, as far as a change of names may fail with them, and [`Error::NoSpace`], with nothing changed.
pub(super) fn make(
    files: &Files<'_>,
    parent: &Inode,
    new: &NewFile<'_>,
    model: Option<&Inode>,
    mut prepare: impl FnMut(&mut Journaled<'_>, &mut Draft, Option<&InheritedAcl>) -> Result<()>,
) -> Result<Arc<Inode>> {
    loop {
        if let Some(made) = files.with_room(|| try_make(files, parent, new, model, &mut prepare))? {
            return Ok(files.state.nameless(files.state.inode_made(made)?));
        }
        files.state.commit_all()?;
    }
}

/// `None`: a commit has to come first.
fn try_make(
    files: &Files<'_>,
    parent: &Inode,
    new: &NewFile<'_>,
    model: Option<&Inode>,
    prepare: &mut impl FnMut(&mut Journaled<'_>, &mut Draft, Option<&InheritedAcl>) -> Result<()>,
) -> Result<Option<Draft>> {
    let state = files.state;
    let (fields, acl) = create::describe(state, parent, new)?;
    let new = NewInode { links: 0, ..fields };
    let credits = 2 * credits::inode(state)
        + credits::groups(state, 1)
        + attribute_blocks::credits(state)
        + orphans::CREDITS
        + model.map_or(Ok(0), |model| files.value_credits(model))?;
    Journaled::run(state, "new inode", credits, |blocks| {
        if create::awaits_commit(state) {
            return Ok(Ok(None));
        }
        let mut made = match create::make(blocks, files, parent, None, &new) {
            Ok(made) => made,
            Err(full) if full.is_full() => return Ok(Err(full)),
            Err(error) => return Err(error),
        };
        match prepare(blocks, &mut made, acl.as_ref()) {
            Ok(()) => {}
            Err(error) if create::is_refusal(&error) => {
                files.space.free_inode(blocks, &mut made, new.now)?;
                return Ok(Err(error));
            }
            Err(error) => return Err(error),
        }
        files.add_orphan(blocks, made.ino)?;
        Ok(Ok(Some(made)))
    })?
}
