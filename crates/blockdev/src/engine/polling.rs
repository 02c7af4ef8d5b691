//! Whether completions of a device can be polled (IOPOLL). Found by trial, because the kernel accepts the flag for any
//! file.

use super::ring::{self, RingTarget};
use crate::scratch::Scratch;
use io_uring::{IoUring, opcode, types};
use std::os::fd::AsRawFd;

/// Whether completions can be polled, or why not. The kernel accepts the flag for any file and then fails each request,
/// so try one read.
pub(super) fn try_polled_read(target: &RingTarget) -> std::result::Result<(), String> {
    if target.size < u64::from(target.logical_block) {
        return Err("the device is too small to try it".into());
    }
    let mut ring: IoUring = IoUring::builder()
        .setup_iopoll()
        .build(1)
        .map_err(|error| format!("the kernel refuses the ring: {}", crate::describe(&error)))?;
    let mut scratch = Scratch::new(target.logical_block as usize);
    let fd = types::Fd(target.file.as_raw_fd());
    let entry = opcode::Read::new(fd, scratch.as_mut_ptr(), target.logical_block).build();
    // SAFETY: the memory is exclusively borrowed, writable and of the length given; it is freed after the completion
    // was seen, or leaked if there is none. `target` keeps the file open.
    unsafe { ring.submission().push(&entry) }.map_err(|_| "the ring is full".to_string())?;
    let result = ring::try_one(&mut ring, |completion| completion.result()).map_err(|error| {
        std::mem::forget(scratch);
        crate::describe(&error)
    })?;
    if result < 0 {
        let error = std::io::Error::from_raw_os_error(-result);
        return Err(format!("the device refuses it: {}", crate::describe(&error)));
    }
    Ok(())
}
