//! C's pointers become references. Each function takes the promise that the header asks of its caller.

use crate::call::{Fault, Result};
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn check_length(length: usize, pointer: *const u8) -> Result<()> {
    if length > isize::MAX as usize {
        return Err(Fault::invalid(format!("a length of {length} bytes")));
    }
    if pointer.is_null() && length > 0 {
        return Err(Fault::new(libc::EFAULT, "a buffer is NULL"));
    }
    Ok(())
}

/// # Safety
/// `pointer` is NULL, or `length` bytes from there can be read while the result is used, and nobody writes to them.
pub(crate) unsafe fn bytes<'a>(pointer: *const u8, length: usize) -> Result<&'a [u8]> {
    check_length(length, pointer)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, not longer than any object, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// # Safety
/// `pointer` is NULL, or `length` bytes from there can be read and written while the result is used, by nobody else.
pub(crate) unsafe fn bytes_mut<'a>(pointer: *mut u8, length: usize) -> Result<&'a mut [u8]> {
    check_length(length, pointer)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not NULL, not longer than any object, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

/// A string of C.
///
/// # Safety
/// `pointer` is NULL, or a string that ends with a zero and stays as it is while the result is used.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a CStr> {
    if pointer.is_null() {
        return Err(Fault::new(libc::EFAULT, "a string is NULL"));
    }
    // SAFETY: not NULL, and the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// A path inside a volume, or of the host.
///
/// # Safety
/// As of [`text`].
pub(crate) unsafe fn path<'a>(pointer: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller's promise.
    let text = unsafe { text(pointer) }?;
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Puts a result where C asked for it.
///
/// # Safety
/// `to` is NULL or can be written.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Fault::new(libc::EFAULT, "the place of a result is NULL"));
    }
    // SAFETY: not NULL, and the caller's promise; what lies there has no destructor, as all that C has.
    unsafe { to.write(value) };
    Ok(())
}
