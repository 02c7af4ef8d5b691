//! The target of attributes on the host, and the calls that set them.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{AtFlags, Gid, Mode, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::AclKind;

/// The failed action, for messages, and its error.
pub type Failed = (&'static str, Errno);

/// The target of attributes: never a name, which another process may give to another file meanwhile.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A file that cannot be opened, as a descriptor that only holds it ([`crate::host::Host::hold`]). Calls that do
    /// not take such a descriptor get its path in `/proc`, which leads to the held file, not to the target of a held
    /// link.
    Held {
        /// The file created.
        held: BorrowedFd<'a>,
        /// The directory that contains it.
        around: BorrowedFd<'a>,
    },
}

impl<'a> Target<'a> {
    pub fn fd(self) -> BorrowedFd<'a> {
        match self {
            Target::Open(fd) | Target::Held { held: fd, .. } => fd,
        }
    }

    pub fn set_owner(self, uid: Uid, gid: Gid) -> Result<(), Failed> {
        let set = rustix::fs::chownat(self.fd(), "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
        set.map_err(|error| ("set owner", error))
    }

    pub fn set_mode(self, mode: Mode) -> Result<(), Failed> {
        let (held, is) = match self {
            Target::Open(fd) => return rustix::fs::fchmod(fd, mode).map_err(|error| ("set mode", error)),
            Target::Held { held, .. } => (held, rustix::fs::fstat(held).map_err(|error| ("stat", error))?),
        };
        // Without /proc, a file created with the right mode needs nothing more.
        if Mode::from_raw_mode(is.st_mode & 0o7777) == mode {
            return Ok(());
        }
        let set = rustix::fs::chmod(in_proc(held), mode);
        set.map_err(|error| (why(error, "set mode", "set mode without /proc"), error))
    }

    pub fn set_times(self, times: &Timestamps) -> Result<(), Failed> {
        let set = match self {
            Target::Open(fd) => rustix::fs::futimens(fd, times),
            Target::Held { held, .. } => rustix::fs::utimensat(held, "", times, AtFlags::EMPTY_PATH),
        };
        set.map_err(|error| ("set times", error))
    }

    pub fn set_xattr(self, name: &[u8], value: &[u8]) -> Result<(), Failed> {
        let name = OsStr::from_bytes(name);
        match self {
            Target::Open(fd) => {
                rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()).map_err(|error| ("set", error))
            }
            Target::Held { held, .. } => {
                rustix::fs::setxattr(in_proc(held), name, value, XattrFlags::empty())
                    .map_err(|error| (why(error, "set", "set without /proc"), error))
            }
        }
    }

    /// Removes an access control list, which may be inherited from the parent directory.
    pub fn remove_acl(self, kind: AclKind) -> Result<(), Failed> {
        let removed = match self {
            Target::Open(fd) => match rustix::fs::fremovexattr(fd, kind.name()) {
                // The error for another user's file, whether it has a list or not.
                Err(Errno::PERM) if !has_acl(fd, kind) => Ok(()),
                removed => removed,
            },
            Target::Held { held, around } => match rustix::fs::removexattr(in_proc(held), kind.name()) {
                // A file created in a directory gets a list only from the directory's default.
                Err(Errno::NOENT) if !has_acl(around, AclKind::Default) => Ok(()),
                removed => removed,
            },
        };
        match removed {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err((why(error, "remove", "remove without /proc"), error)),
        }
    }
}

fn has_acl(fd: BorrowedFd<'_>, kind: AclKind) -> bool {
    let found = rustix::fs::fgetxattr(fd, kind.name(), &mut [0u8; 0][..]);
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// The held file exists: if its path does not, there is no `/proc`.
fn why(error: Errno, action: &'static str, without_proc: &'static str) -> &'static str {
    if error == Errno::NOENT { without_proc } else { action }
}

fn in_proc(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
