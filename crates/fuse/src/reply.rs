//! Replies to the kernel. Each request that waits gets exactly one, also if the code that serves it panics.

use crate::transport::Channel;
use crate::wire::OutHeader;
use std::io::{self, IoSlice};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Why a request failed, as the kernel's error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// What serving a request gives.
pub(crate) type Outcome<T> = Result<T, Errno>;

impl Errno {
    /// Malformed, or impossible arguments.
    pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
    /// No such operation. The kernel does not ask again.
    pub(crate) const NO_OPERATION: Errno = Errno(libc::ENOSYS);
    /// Not for this file.
    pub(crate) const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    /// The handle is unknown.
    pub(crate) const BAD_HANDLE: Errno = Errno(libc::EBADF);
    /// It failed.
    pub(crate) const IO: Errno = Errno(libc::EIO);
}

impl From<uext4::Error> for Errno {
    fn from(error: uext4::Error) -> Errno {
        Errno(error.errno())
    }
}

/// Owed to the kernel for one request. May be given to another thread. Dropped without an answer it is `EIO`.
pub(crate) struct Reply {
    channel: Arc<dyn Channel>,
    unique: u64,
    owed: bool,
}

impl Reply {
    /// Of the request with this number.
    pub(crate) fn new(channel: Arc<dyn Channel>, unique: u64) -> Reply {
        Reply { channel, unique, owed: true }
    }

    /// Of a request that gets none.
    pub(crate) fn none(channel: Arc<dyn Channel>, unique: u64) -> Reply {
        Reply { channel, unique, owed: false }
    }

    /// Answers.
    ///
    /// # Errors
    /// If the kernel does not take it: the request is gone, and what it was promised has to be undone.
    pub(crate) fn answer(mut self, outcome: Outcome<&[u8]>) -> io::Result<()> {
        self.send(outcome)
    }

    fn send(&mut self, outcome: Outcome<&[u8]>) -> io::Result<()> {
        if !std::mem::take(&mut self.owed) {
            return Ok(());
        }
        let (error, payload) = match outcome {
            Ok(payload) => (0, payload),
            Err(Errno(errno)) => (-errno.clamp(1, 999), &[][..]),
        };
        let len = (size_of::<OutHeader>() + payload.len()) as u32;
        let header = OutHeader { len, error, unique: self.unique };
        self.channel.send(&[IoSlice::new(header.as_bytes()), IoSlice::new(payload)])
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // The kernel may have dropped the request meanwhile: nobody waits then.
        let _gone = self.send(Err(Errno::IO));
    }
}
