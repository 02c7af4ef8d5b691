//! What gets attributes on the host, and the calls that give them.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{AtFlags, Gid, Mode, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::AclKind;

/// What failed, for messages, and how.
pub type Failed = (&'static str, Errno);

/// What gets attributes: never a name, which somebody else may give to another file meanwhile.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// A file or directory that is open.
    Open(BorrowedFd<'a>),
    /// What cannot be opened, by a descriptor that only holds it ([`crate::host::Host::hold`]). Calls that do not take
    /// such a descriptor get its path in `/proc`, which leads to what is held, not to where a held link points.
    Held {
        /// What was made.
        held: BorrowedFd<'a>,
        /// The directory that it was made in.
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
        // Without /proc, what was made as it should be needs nothing more.
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

    /// Takes an access control list away, which the directory around may have given.
    pub fn remove_acl(self, kind: AclKind) -> Result<(), Failed> {
        let removed = match self {
            Target::Open(fd) => match rustix::fs::fremovexattr(fd, kind.name()) {
                // Of somebody else's file, whether it has one or not.
                Err(Errno::PERM) if !has_acl(fd, kind) => Ok(()),
                removed => removed,
            },
            Target::Held { held, around } => match rustix::fs::removexattr(in_proc(held), kind.name()) {
                // What is made in a directory gets a list from its default only.
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

/// What is held exists: if its path does not, there is no `/proc`.
fn why(error: Errno, action: &'static str, without_proc: &'static str) -> &'static str {
    if error == Errno::NOENT { without_proc } else { action }
}

fn in_proc(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
