//! Replacing a file as a whole.

use crate::border::{path, put};
use crate::call::{Fault, Result, call_int};
use crate::file::{FILES, uext4_file};
use crate::handle::{Kind, Table, closed};
use crate::volume::{VOLUMES, switches_of, uext4_volume};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::path::{Path, PathBuf};
use uext4::{OpenOptions, Replacement};

/// A new file without a name that will take the name of another.
pub struct uext4_replacement(());

static REPLACEMENTS: Table<Pending> = Table::new(Kind::Replacement);

struct Pending {
    /// `None` once the handle is ended, while other calls still hold this.
    replacement: Mutex<Option<Replacement>>,
    /// For the text of errors.
    name: PathBuf,
}

/// Ends the handle and returns what it named.
fn taken(replacement: *mut uext4_replacement) -> Result<(Replacement, PathBuf)> {
    let pending = REPLACEMENTS.remove(replacement)?;
    let taken = pending.object.replacement.lock().take().ok_or_else(closed)?;
    Ok((taken, pending.object.name.clone()))
}

fn about(name: &Path) -> impl FnOnce(uext4::Error) -> Fault {
    move |error| Fault::from(error).about(name.display())
}

/// Begins to replace the regular file at `name`, or to create it if there is none: makes an empty file without a name.
/// Symbolic links are followed. Get it with `uext4_replacement_file`, write the new content, then call
/// `uext4_replacement_finish` (or `uext4_replacement_abandon`): until then the name leads to the old file, and both
/// take space.
///
/// The new file takes owner, group, permissions, access control lists and other extended attributes from the old one,
/// but no set-user-id, set-group-id or capabilities. If there is no old file, its permissions are `mode`. The new file
/// has one name: other hard links still lead to the old file.
/// `switches` sets optimisations of the new file (NULL: as the volume).
///
/// After a crash before `uext4_replacement_finish` the name leads to the old file; the next open for writing frees the
/// new one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_replace(
    volume: *mut uext4_volume,
    name: *const c_char,
    mode: u32,
    switches: *const c_char,
    replacement: *mut *mut uext4_replacement,
) -> i32 {
    call_int(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: the caller promises a string.
        let name = unsafe { path(name) }?;
        let mut options = OpenOptions::new().mode(mode);
        // SAFETY: the caller promises a string, or NULL.
        if let Some(switches) = unsafe { switches_of(switches) }? {
            options = options.switches(switches);
        }
        // SAFETY: the caller promises a place for a handle.
        unsafe { put(replacement, std::ptr::null_mut()) }?;
        let begun = volume.replace_file(name, options).map_err(about(name))?;
        let handle =
            REPLACEMENTS.insert(Pending { replacement: Mutex::new(Some(begun)), name: name.into() })?;
        // SAFETY: as above.
        unsafe { put(replacement, handle) }?;
        Ok(0)
    })
}

/// A handle of the new file, open for reading and writing: for direct calls, any bytes, queues. It is a handle of its
/// own, which outlives the replacement: close it with `uext4_file_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_replacement_file(
    replacement: *mut uext4_replacement,
    file: *mut *mut uext4_file,
) -> i32 {
    call_int(|| {
        let pending = REPLACEMENTS.get(replacement)?;
        // SAFETY: the caller promises a place for a handle.
        unsafe { put(file, std::ptr::null_mut()) }?;
        let new = pending.replacement.lock().as_ref().map(|new| new.file().clone()).ok_or_else(closed)?;
        let handle = FILES.insert(new)?;
        // SAFETY: as above.
        unsafe { put(file, handle) }?;
        Ok(0)
    })
}

/// Moves the name to the new file, in one step, and ends the handle of the replacement. Whatever file has the name by
/// then loses it, and goes with its last name and its last handle.
///
/// Writes that returned or completed before this call need no sync of their own: after any crash the name leads to the
/// old file, whole, or to the new one with all of them. Which of the two is certain after the next `uext4_fsync` of
/// the new file, `uext4_sync` or `uext4_close`: then it is the new one. On a volume without a journal a crash before
/// that leaves the names to e2fsck.
///
/// After a failure the handle is ended too. The name still leads to the old file then, and the new one goes with its
/// last handle; only if the old file could not be freed does the name lead to the new one, of which `uext4_fstat` then
/// reports one link.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_replacement_finish(replacement: *mut uext4_replacement) -> i32 {
    call_int(|| {
        let (new, name) = taken(replacement)?;
        new.finish().map_err(about(&name))?;
        Ok(0)
    })
}

/// Gives the replacement up, and ends its handle. The name still leads to the old file; the new one goes with its last
/// handle.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_replacement_abandon(replacement: *mut uext4_replacement) -> i32 {
    call_int(|| {
        drop(taken(replacement)?);
        Ok(0)
    })
}
