//! The conformance set of all engines, and what these tests share.

#![allow(dead_code)]

use uext4_blockdev::{Ask, QueueOptions};

pub use uext4_testkit::conformance::*;

/// Requires what can only be tried elsewhere.
pub fn requiring(depth: u32, change: impl FnOnce(&mut QueueOptions)) -> QueueOptions {
    let mut options = QueueOptions { register_file: Ask::Require, ..QueueOptions::depth(depth) };
    change(&mut options);
    options
}

/// Pages of a file that its medium does not have yet (`cachestat(2)`, Linux 6.5). `None` where the kernel cannot tell.
pub fn dirty_pages(path: &std::path::Path) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let file = std::fs::File::open(path).unwrap();
    let range = [0u64, 0];
    // Pages in the cache, dirty, under write-back, evicted, evicted recently.
    let mut found = [0u64; 5];
    // SAFETY: the call reads two numbers and writes five, which is what the arrays hold.
    let answer = unsafe {
        libc::syscall(
            CACHESTAT,
            std::os::fd::AsRawFd::as_raw_fd(&file),
            range.as_ptr(),
            found.as_mut_ptr(),
            0,
        )
    };
    (answer == 0).then_some(found[1] + found[2])
}
