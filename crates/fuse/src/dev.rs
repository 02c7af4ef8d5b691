//! `/dev/fuse`.

use crate::transport::{Channel, RequestBuffer};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The descriptor of a mount. Several threads read it, each gets whole requests.
pub(crate) struct Device(OwnedFd);

impl Device {
    /// A descriptor that belongs to a mount.
    pub(crate) fn new(descriptor: OwnedFd) -> Device {
        Device(descriptor)
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Channel for Device {
    fn receive(&self, buffer: &mut RequestBuffer) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer.space()) {
                Ok(length) => return Ok(Some(length)),
                // ENOENT: the request was interrupted before it was read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        loop {
            match rustix::io::writev(&self.0, parts) {
                Ok(sent) if sent == whole => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
