//! Extended attributes of open files.

use crate::border::{bytes, bytes_mut, text};
use crate::call::{Fault, Result, call, call_int};
use crate::file::{FILES, uext4_file};
use crate::names::{joined, whole};
use std::ffi::{c_char, c_void};
use uext4::XattrFlags;

/// The value of an extended attribute of an open file, as `fgetxattr`; sizes as of `uext4_getxattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fgetxattr(
    file: *mut uext4_file,
    attribute: *const c_char,
    value: *mut c_void,
    size: usize,
) -> i64 {
    call(|| {
        let file = FILES.get(file)?;
        // SAFETY: the caller promises a string.
        let found = file.xattr(unsafe { text(attribute) }?.to_bytes())?;
        // SAFETY: the caller promises `size` bytes that are his alone.
        whole(&found, unsafe { bytes_mut(value.cast(), size) }?)
    })
}

/// Names of extended attributes of an open file, as `flistxattr`: as of `uext4_listxattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_flistxattr(file: *mut uext4_file, list: *mut c_char, size: usize) -> i64 {
    call(|| {
        let names = joined(FILES.get(file)?.xattrs())?;
        // SAFETY: the caller promises `size` bytes that are his alone.
        whole(&names, unsafe { bytes_mut(list.cast(), size) }?)
    })
}

/// Sets an extended attribute of an open file, as `fsetxattr`; `flags` as of `uext4_setxattr`. It may be open for
/// reading only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fsetxattr(
    file: *mut uext4_file,
    attribute: *const c_char,
    value: *const c_void,
    size: usize,
    flags: u32,
) -> i32 {
    call_int(|| {
        let file = FILES.get(file)?;
        let flags = xattr_flags(flags)?;
        // SAFETY: the caller promises a string, and `size` bytes.
        let (attribute, value) = unsafe { (text(attribute)?, bytes(value.cast(), size)?) };
        file.set_xattr(attribute.to_bytes(), value, flags)?;
        Ok(0)
    })
}

/// Removes an extended attribute of an open file, as `fremovexattr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_fremovexattr(file: *mut uext4_file, attribute: *const c_char) -> i32 {
    call_int(|| {
        let file = FILES.get(file)?;
        // SAFETY: the caller promises a string.
        file.remove_xattr(unsafe { text(attribute) }?.to_bytes())?;
        Ok(0)
    })
}

/// Flags of C.
pub(crate) fn xattr_flags(flags: u32) -> Result<XattrFlags> {
    let flags = XattrFlags::from_bits(flags).filter(|flags| !flags.contains(XattrFlags::LIMITED));
    flags.ok_or_else(|| Fault::invalid("flags of an attribute"))
}
