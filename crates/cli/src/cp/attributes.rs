//! Owner, mode and times of what was copied.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use uext4::{FileKind, Metadata, Timestamp};

/// What failed, for messages, and how.
pub type Failed = (&'static str, Errno);

/// Owner (as root), then all mode bits, which a change of owner clears, then the times.
pub fn keep(target: impl AsFd, metadata: &Metadata) -> Result<(), Failed> {
    let target = target.as_fd();
    let mut mode = metadata.mode;
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid));
        rustix::fs::fchown(target, Some(uid), Some(gid)).map_err(|error| ("set owner", error))?;
    } else {
        // Set-uid of somebody else's file would become set-uid of ours.
        let own = rustix::fs::fstat(target).map_err(|error| ("stat", error))?;
        if own.st_uid != metadata.uid || own.st_gid != metadata.gid {
            mode &= !0o6000;
        }
    }
    rustix::fs::fchmod(target, Mode::from_raw_mode(mode)).map_err(|error| ("set mode", error))?;
    rustix::fs::futimens(target, &times(metadata)).map_err(|error| ("set times", error))
}

/// The same for what cannot be opened: links, nodes, pipes, sockets. `name` was just made in `dir`.
pub fn keep_name(dir: BorrowedFd<'_>, name: &OsStr, metadata: &Metadata) -> Result<(), Failed> {
    let mut mode = metadata.mode;
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid));
        rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| ("set owner", error))?;
    } else {
        mode &= !0o6000;
    }
    if metadata.kind != FileKind::Symlink {
        rustix::fs::chmodat(dir, name, Mode::from_raw_mode(mode), AtFlags::empty())
            .map_err(|error| ("set mode", error))?;
    }
    rustix::fs::utimensat(dir, name, &times(metadata), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| ("set times", error))
}

/// Takes back the owner's rights that `made` got for the time of copying and `mode` does not have.
pub fn less(made: impl AsFd, mode: u32) -> Result<(), Failed> {
    let made = made.as_fd();
    let spare = 0o700 & !mode;
    if spare == 0 {
        return Ok(());
    }
    let now = rustix::fs::fstat(made).map_err(|error| ("stat", error))?.st_mode;
    rustix::fs::fchmod(made, Mode::from_raw_mode(now & 0o7777 & !spare)).map_err(|error| ("set mode", error))
}

fn times(metadata: &Metadata) -> Timestamps {
    Timestamps { last_access: timespec(metadata.accessed), last_modification: timespec(metadata.modified) }
}

fn timespec(time: Timestamp) -> Timespec {
    // A damaged inode may say more than a second; the kernel would refuse all of it.
    let nanoseconds = time.nanoseconds.min(999_999_999);
    Timespec { tv_sec: time.seconds, tv_nsec: nanoseconds.into() }
}
