//! Changing attributes of files, and asking who may do what.

use crate::border::{bytes, path, text};
use crate::call::{Fault, Result, call_int};
use crate::file_xattrs::xattr_flags;
use crate::names::uext4_time;
use crate::volume::{VOLUMES, uext4_volume};
use std::ffi::{c_char, c_void};
use std::path::Path;
use uext4::{Access, Caller, InodeFlags, SetAttributes, Time, Timestamp, Volume};

/// Nanoseconds of a time for `uext4_utimens`: the current time, as `UTIME_NOW`.
pub const UEXT4_TIME_NOW: u32 = 0x3fff_ffff;
/// Nanoseconds of a time for `uext4_utimens`: the time stays, as `UTIME_OMIT`.
pub const UEXT4_TIME_OMIT: u32 = 0x3fff_fffe;

/// `uext4_access`: execute a file, or look up names in a directory.
pub const UEXT4_ACCESS_EXECUTE: u32 = 1;
/// `uext4_access`: write a file, or change names in a directory.
pub const UEXT4_ACCESS_WRITE: u32 = 2;
/// `uext4_access`: read a file, or list a directory.
pub const UEXT4_ACCESS_READ: u32 = 4;

/// Runs `work` on the volume with a path.
///
/// # Safety
/// As of [`path`].
pub(crate) unsafe fn at<T>(
    volume: *mut uext4_volume,
    name: *const c_char,
    work: impl FnOnce(&Volume, &Path) -> uext4::Result<T>,
) -> Result<T> {
    let volume = VOLUMES.get(volume)?;
    // SAFETY: the caller's promise.
    let name = unsafe { path(name) }?;
    work(&volume, name).map_err(|error| Fault::from(error).about(name.display()))
}

/// Sets attributes.
///
/// # Safety
/// As of [`path`].
unsafe fn set(
    volume: *mut uext4_volume,
    name: *const c_char,
    follow: i32,
    set: &SetAttributes,
) -> Result<i64> {
    // SAFETY: the caller's promise.
    unsafe { at(volume, name, |volume, name| volume.node_at(name, follow != 0)?.set_attributes(set)) }?;
    Ok(0)
}

/// Sets the permissions of a file (`07777`). A symbolic link has none (`-EOPNOTSUPP` with `follow` 0). Durable after
/// `uext4_fsync` of the file, or `uext4_sync`; so are all changes of attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_chmod(
    volume: *mut uext4_volume,
    name: *const c_char,
    mode: u32,
    follow: i32,
) -> i32 {
    // SAFETY: the caller promises a string.
    call_int(|| unsafe { set(volume, name, follow, &SetAttributes::new().mode(mode)) })
}

/// Sets owner and group of a file; `UINT32_MAX` leaves one as it is. Strips set-user-id, set-group-id and capabilities.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_chown(
    volume: *mut uext4_volume,
    name: *const c_char,
    uid: u32,
    gid: u32,
    follow: i32,
) -> i32 {
    let given = |id: u32| Some(id).filter(|id| *id != u32::MAX);
    // SAFETY: the caller promises a string.
    call_int(|| unsafe {
        at(volume, name, |volume, name| volume.set_owner(name, given(uid), given(gid), follow != 0))?;
        Ok(0)
    })
}

/// Sets the times of the last access (`times[0]`) and of the last change of the contents (`times[1]`), both to now if
/// `times` is NULL. `nanoseconds` may be `UEXT4_TIME_NOW` or `UEXT4_TIME_OMIT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_utimens(
    volume: *mut uext4_volume,
    name: *const c_char,
    times: *const uext4_time,
    follow: i32,
) -> i32 {
    call_int(|| {
        let time = |given: uext4_time| match given.nanoseconds {
            UEXT4_TIME_NOW => Some(Time::Now),
            UEXT4_TIME_OMIT => None,
            nanoseconds => Some(Time::At(Timestamp { seconds: given.seconds, nanoseconds })),
        };
        let (accessed, modified) = match times.is_null() {
            true => (Some(Time::Now), Some(Time::Now)),
            // SAFETY: not NULL, and the caller promises two of them.
            false => unsafe { (time(times.read()), time(times.add(1).read())) },
        };
        // SAFETY: the caller promises a string.
        unsafe { at(volume, name, |volume, name| volume.set_times(name, accessed, modified, follow != 0)) }?;
        Ok(0)
    })
}

/// Sets the flags of a file (`FS_…_FL`, `chattr`): take those of `uext4_stat` and change some. Differences in flags
/// that users cannot set are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_set_flags(
    volume: *mut uext4_volume,
    name: *const c_char,
    flags: u32,
    follow: i32,
) -> i32 {
    let flags = InodeFlags::from_bits_retain(flags);
    // SAFETY: the caller promises a string.
    call_int(|| unsafe { set(volume, name, follow, &SetAttributes::new().flags(flags)) })
}

/// Sets the project of a file, on volumes that have projects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_set_project(
    volume: *mut uext4_volume,
    name: *const c_char,
    project: u32,
    follow: i32,
) -> i32 {
    // SAFETY: the caller promises a string.
    call_int(|| unsafe { set(volume, name, follow, &SetAttributes::new().project(project)) })
}

/// A user who asks, or makes something.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups; NULL if there are none.
    pub groups: *const u32,
    /// How many.
    pub group_count: usize,
}

/// # Safety
/// `caller` is NULL or can be read, with its groups.
pub(crate) unsafe fn caller_of(caller: *const uext4_caller) -> Result<Caller> {
    if caller.is_null() {
        return Err(Fault::new(libc::EFAULT, "the caller is NULL"));
    }
    // SAFETY: not NULL, and the caller's promise.
    let uext4_caller { uid, gid, groups, group_count } = unsafe { caller.read() };
    let groups = match group_count {
        0 => &[][..],
        _ if groups.is_null() => return Err(Fault::new(libc::EFAULT, "the groups are NULL")),
        _ if group_count > isize::MAX as usize / size_of::<u32>() => {
            return Err(Fault::invalid(format!("{group_count} groups")));
        }
        // SAFETY: not NULL, not longer than any object, and the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(groups, group_count) },
    };
    Ok(Caller::new(uid, gid).groups(groups))
}

/// Whether a user may do something with a file, by its permissions and access control list, or as root: 0, or
/// `-EACCES`. `access` holds `UEXT4_ACCESS_…`; 0 asks whether the file exists. Directories on the way to the file are
/// not checked. No other call checks rights.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_access(
    volume: *mut uext4_volume,
    name: *const c_char,
    caller: *const uext4_caller,
    access: u32,
    follow: i32,
) -> i32 {
    call_int(|| {
        let asked = u16::try_from(access).ok().and_then(Access::from_bits);
        let asked = asked.ok_or_else(|| Fault::invalid(format!("kinds of access: {access:#x}")))?;
        // SAFETY: the caller promises a user, and a string.
        let (permitted, uid) = unsafe {
            let caller = caller_of(caller)?;
            let asks =
                |volume: &Volume, name: &Path| volume.node_at(name, follow != 0)?.permits(&caller, asked);
            (at(volume, name, asks)?, caller.uid)
        };
        match permitted {
            true => Ok(0),
            false => Err(Fault::new(libc::EACCES, format!("user {uid} may not do that"))),
        }
    })
}

/// `uext4_setxattr`: the attribute must not exist (`XATTR_CREATE`).
pub const UEXT4_XATTR_CREATE: u32 = 1;
/// `uext4_setxattr`: the attribute must exist (`XATTR_REPLACE`).
pub const UEXT4_XATTR_REPLACE: u32 = 2;

/// Sets an extended attribute, as `setxattr`; `flags` are 0 or one of `UEXT4_XATTR_…`. Access control lists are the
/// attributes `system.posix_acl_access` and `system.posix_acl_default`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_setxattr(
    volume: *mut uext4_volume,
    name: *const c_char,
    attribute: *const c_char,
    value: *const c_void,
    size: usize,
    flags: u32,
    follow: i32,
) -> i32 {
    call_int(|| {
        let flags = xattr_flags(flags)?;
        // SAFETY: the caller promises strings, and `size` bytes.
        unsafe {
            let (attribute, value) = (text(attribute)?.to_bytes(), bytes(value.cast(), size)?);
            let set = |volume: &Volume, name: &Path| {
                volume.node_at(name, follow != 0)?.set_xattr(attribute, value, flags)
            };
            at(volume, name, set)?;
        }
        Ok(0)
    })
}

/// Removes an extended attribute, as `removexattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_removexattr(
    volume: *mut uext4_volume,
    name: *const c_char,
    attribute: *const c_char,
    follow: i32,
) -> i32 {
    call_int(|| {
        // SAFETY: the caller promises strings.
        unsafe {
            let attribute = text(attribute)?.to_bytes();
            at(volume, name, |volume, name| volume.remove_xattr(name, attribute, follow != 0))?;
        }
        Ok(0)
    })
}
