//! The begin of a mount, and what concerns the whole volume.

use super::{Answer, Served};
use crate::reply::{Errno, Outcome};
use crate::request::{Request, cut};
use crate::transport::DATA_MAX;
use crate::wire::{self, InitIn, InitMore, InitOut, StatfsOut, init};

/// Requests that the kernel sends without waiting: read-ahead, and direct I/O of many.
const BACKGROUND: u16 = 256;

/// What is asked for of the kernel, if it offers it.
const WANTED: u64 = init::ASYNC_READ
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::HAS_IOCTL_DIR
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::CREATE_SUPP_GROUP
    | init::DIRECT_IO_ALLOW_MMAP;

/// What there is no safe service without.
const NEEDED: u64 = init::ATOMIC_O_TRUNC
    | init::DONT_MASK
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT;

/// The answer to an INIT.
pub(crate) enum Negotiated {
    /// The kernel asks again in an older protocol.
    Again(InitOut),
    /// The mount stands.
    Ready(InitOut),
}

/// Answers INIT. `rings`: whether requests may come through io_uring.
///
/// # Errors
/// `EPROTO` for kernels that are too old.
pub(crate) fn negotiate(request: &Request<'_>, rings: bool) -> Outcome<Negotiated> {
    let (asked, rest): (InitIn, _) = request.arguments()?;
    let out = InitOut { major: wire::MAJOR, minor: wire::MINOR, ..InitOut::default() };
    if asked.major > wire::MAJOR {
        return Ok(Negotiated::Again(out));
    }
    let mut offered = u64::from(asked.flags);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(cut::<InitMore>(rest)?.0.flags) << 32;
    }
    if asked.major < wire::MAJOR || asked.minor < wire::MINOR_LEAST || offered & NEEDED != NEEDED {
        return Err(Errno(libc::EPROTO));
    }
    let flags = offered & (WANTED | if rings { init::OVER_IO_URING } else { 0 });
    Ok(Negotiated::Ready(InitOut {
        // The kernel takes the smaller one of this and what the mount has (`mount::read_ahead`).
        max_readahead: u32::MAX,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND,
        congestion_threshold: BACKGROUND / 4 * 3,
        max_write: DATA_MAX as u32,
        time_gran: 1,
        max_pages: (DATA_MAX / 4096) as u16,
        ..out
    }))
}

impl Served {
    /// SYNCFS, FSYNCDIR: everything is durable.
    pub(super) fn sync_volume(&self) -> Outcome<Answer> {
        self.behind.wait_for_all();
        let late = self.behind.tell_volume();
        self.volume.sync_all()?;
        late?;
        Ok(Answer::DONE)
    }

    /// STATFS.
    pub(super) fn statfs(&self) -> Outcome<Answer> {
        let found = self.volume.statfs()?;
        Ok(Answer::of(&StatfsOut {
            blocks: found.blocks,
            bfree: found.free,
            bavail: found.available,
            files: found.inodes,
            ffree: found.free_inodes,
            bsize: found.block_size,
            namelen: wire::NAME_MAX as u32,
            frsize: found.block_size,
            ..StatfsOut::default()
        }))
    }
}
