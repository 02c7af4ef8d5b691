//! Making, renaming and removing names.

use crate::attributes::{at, caller_of, uext4_caller};
use crate::border::{path, put};
use crate::call::{Fault, Result, call_int};
use crate::file::{FILES, UEXT4_READ, UEXT4_WRITE, uext4_file};
use crate::volume::{VOLUMES, uext4_volume};
use std::ffi::c_char;
use std::path::Path;
use uext4::{Caller, NodeKind, OpenOptions, RenameFlags, Volume};

/// `uext4_rename_with`: an existing new name is `-EEXIST` (`RENAME_NOREPLACE`).
pub const UEXT4_RENAME_NOREPLACE: u32 = 1;
/// `uext4_rename_with`: both names exist, and what they lead to changes places (`RENAME_EXCHANGE`).
pub const UEXT4_RENAME_EXCHANGE: u32 = 2;
/// `uext4_rename_with`: a whiteout stays under the old name (`RENAME_WHITEOUT`).
pub const UEXT4_RENAME_WHITEOUT: u32 = 4;

/// The user who makes something: root, if C names none.
///
/// # Safety
/// As of [`caller_of`].
unsafe fn maker(caller: *const uext4_caller) -> Result<Caller> {
    // SAFETY: the caller's promise.
    if caller.is_null() { Ok(Caller::root()) } else { unsafe { caller_of(caller) } }
}

/// Refuses bits that are no permissions.
fn permissions(mode: u32) -> Result<u32> {
    match mode & !0o7777 {
        0 => Ok(mode),
        _ => Err(Fault::invalid(format!("permissions {mode:o}"))),
    }
}

/// Makes something at a path.
///
/// # Safety
/// As of [`path`] and [`caller_of`].
unsafe fn make(
    volume: *mut uext4_volume,
    name: *const c_char,
    caller: *const uext4_caller,
    make: impl FnOnce(&Volume, &Path, &Caller) -> uext4::Result<()>,
) -> Result<i64> {
    // SAFETY: the caller's promise.
    unsafe {
        let caller = maker(caller)?;
        at(volume, name, |volume, name| make(volume, name, &caller))?;
    }
    Ok(0)
}

/// Changes two names.
///
/// # Safety
/// As of [`path`].
unsafe fn both(
    volume: *mut uext4_volume,
    (first, second): (*const c_char, *const c_char),
    change: impl FnOnce(&Volume, &Path, &Path) -> uext4::Result<()>,
) -> Result<i64> {
    let volume = VOLUMES.get(volume)?;
    // SAFETY: the caller's promise.
    let (first, second) = unsafe { (path(first)?, path(second)?) };
    let about = |error| Fault::from(error).about(format!("{}, {}", first.display(), second.display()));
    change(&volume, first, second).map_err(about)?;
    Ok(0)
}

/// Makes a directory, as `mkdir`. Of `mode` the permissions and the sticky bit count. It belongs to `caller`, or to
/// root if that is NULL; there is no umask. What it inherits from its directory, it inherits as in Linux. Each call
/// that makes, renames or removes a name is one transaction, and durable after `uext4_sync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_mkdir(
    volume: *mut uext4_volume,
    name: *const c_char,
    mode: u32,
    caller: *const uext4_caller,
) -> i32 {
    call_int(|| {
        let mode = permissions(mode)?;
        // SAFETY: the caller promises a string, and a user or NULL.
        unsafe { make(volume, name, caller, |volume, name, caller| volume.create_dir(name, mode, caller)) }
    })
}

/// The same, with all directories on the way that are missing. It is no error if the directory exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_mkdir_all(
    volume: *mut uext4_volume,
    name: *const c_char,
    mode: u32,
    caller: *const uext4_caller,
) -> i32 {
    call_int(|| {
        let mode = permissions(mode)?;
        // SAFETY: the caller promises a string, and a user or NULL.
        unsafe {
            make(volume, name, caller, |volume, name, caller| volume.create_dir_all(name, mode, caller))
        }
    })
}

/// Makes a pipe, a socket, a device or an empty file, as `mknod`. `mode` has the type (`S_IFIFO`, `S_IFSOCK`,
/// `S_IFCHR`, `S_IFBLK`, `S_IFREG` or 0) and the permissions; `major` and `minor` are those of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_mknod(
    volume: *mut uext4_volume,
    name: *const c_char,
    mode: u32,
    major: u32,
    minor: u32,
    caller: *const uext4_caller,
) -> i32 {
    call_int(|| {
        let kind = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => NodeKind::Regular,
            libc::S_IFIFO => NodeKind::Fifo,
            libc::S_IFSOCK => NodeKind::Socket,
            libc::S_IFCHR => NodeKind::Char { major, minor },
            libc::S_IFBLK => NodeKind::Block { major, minor },
            libc::S_IFDIR => return Err(Fault::new(libc::EPERM, "uext4_mkdir makes directories")),
            other => return Err(Fault::invalid(format!("type {other:o}"))),
        };
        let mode = permissions(mode & !libc::S_IFMT)?;
        let node = |volume: &Volume, name: &Path, caller: &Caller| volume.make_node(name, kind, mode, caller);
        // SAFETY: the caller promises a string, and a user or NULL.
        unsafe { make(volume, name, caller, node) }
    })
}

/// Makes a symbolic link `name` that holds `target`, as `symlink`: 1 to 4095 bytes, less than a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_symlink(
    volume: *mut uext4_volume,
    target: *const c_char,
    name: *const c_char,
    caller: *const uext4_caller,
) -> i32 {
    call_int(|| {
        // SAFETY: the caller promises strings, and a user or NULL.
        unsafe {
            let target = path(target)?;
            make(volume, name, caller, |volume, name, caller| volume.symlink(target, name, caller))
        }
    })
}

/// Gives a file another name, as `link`. A symbolic link is not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_link(
    volume: *mut uext4_volume,
    original: *const c_char,
    name: *const c_char,
) -> i32 {
    // SAFETY: the caller promises strings.
    call_int(|| unsafe { both(volume, (original, name), |volume, from, to| volume.hard_link(from, to)) })
}

/// Renames, as `rename`: what has the new name is replaced; a directory replaces only an empty one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_rename(
    volume: *mut uext4_volume,
    from: *const c_char,
    to: *const c_char,
) -> i32 {
    // SAFETY: the caller promises strings.
    call_int(|| unsafe { both(volume, (from, to), |volume, from, to| volume.rename(from, to)) })
}

/// Renames, as `renameat2` with flags: `UEXT4_RENAME_…`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_rename_with(
    volume: *mut uext4_volume,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> i32 {
    call_int(|| {
        let flags = RenameFlags::from_bits(flags);
        let flags = flags.ok_or_else(|| Fault::invalid("unknown flags of a rename"))?;
        // SAFETY: the caller promises strings.
        unsafe { both(volume, (from, to), |volume, from, to| volume.rename_with(from, to, flags)) }
    })
}

/// Removes an empty directory, as `rmdir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_rmdir(volume: *mut uext4_volume, name: *const c_char) -> i32 {
    // SAFETY: the caller promises a string.
    call_int(|| unsafe { at(volume, name, |volume, name| volume.remove_dir(name)) }.map(|()| 0))
}

/// Removes a directory with everything in it; it is no transaction as a whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_remove_all(volume: *mut uext4_volume, name: *const c_char) -> i32 {
    // SAFETY: the caller promises a string.
    call_int(|| unsafe { at(volume, name, |volume, name| volume.remove_dir_all(name)) }.map(|()| 0))
}

/// Opens a new regular file without a name, as `open` with `O_TMPFILE`: it inherits what a file in `directory` does.
/// `flags` are `UEXT4_READ` and `UEXT4_WRITE`. `uext4_link_file` gives it a name; without one it goes with its last
/// handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_tmpfile(
    volume: *mut uext4_volume,
    directory: *const c_char,
    flags: u32,
    mode: u32,
    caller: *const uext4_caller,
    file: *mut *mut uext4_file,
) -> i32 {
    call_int(|| {
        let mode = permissions(mode)?;
        if flags & !(UEXT4_READ | UEXT4_WRITE) != 0 || flags & UEXT4_WRITE == 0 {
            return Err(Fault::invalid(
                "a file without a name is opened for writing, and perhaps for reading",
            ));
        }
        let options = OpenOptions::new().read(flags & UEXT4_READ != 0).write(true);
        // SAFETY: the caller promises a place for a handle, a string, and a user or NULL.
        unsafe {
            put(file, std::ptr::null_mut())?;
            let caller = maker(caller)?;
            let unnamed = |volume: &Volume, name: &Path| {
                volume.node_at(name, true)?.make_unnamed(mode, &caller)?.open(options)
            };
            let handle = FILES.insert(at(volume, directory, unnamed)?)?;
            put(file, handle)?;
        }
        Ok(0)
    })
}

/// Gives an open file a name: its first, if it is from `uext4_tmpfile`, or another one. As `linkat` with
/// `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_link_file(file: *mut uext4_file, name: *const c_char) -> i32 {
    call_int(|| {
        let file = FILES.get(file)?;
        // SAFETY: the caller promises a string.
        let name = unsafe { path(name) }?;
        file.link_at(name).map_err(|error| Fault::from(error).about(name.display()))?;
        Ok(0)
    })
}
