//! Owner, mode, times and extended attributes of what was copied.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::{FileKind, Ino, Metadata, Timestamp, Volume};

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

/// Why attributes were not kept.
pub enum Trouble {
    /// The volume did not tell them.
    Source(uext4::Error),
    /// The host did not take them.
    Host(Failed),
}

/// What [`keep`] keeps, and the extended attributes, access control lists among them.
pub fn keep_all(target: BorrowedFd<'_>, volume: &Volume, metadata: &Metadata) -> Result<(), Trouble> {
    // A change of owner takes file capabilities away, so they come after it; without privilege the owner's
    // right to write may go with the mode, so they come before it.
    if rustix::process::geteuid().is_root() {
        keep(target, metadata).map_err(Trouble::Host)?;
        keep_xattrs(target, volume, metadata.ino)
    } else {
        keep_xattrs(target, volume, metadata.ino)?;
        keep(target, metadata).map_err(Trouble::Host)
    }
}

/// Extended attributes. As cp(1), what this host or this user cannot have is left out without a word.
fn keep_xattrs(target: BorrowedFd<'_>, volume: &Volume, ino: Ino) -> Result<(), Trouble> {
    for name in volume.list_xattrs_of(ino).map_err(Trouble::Source)? {
        let value = volume.xattr_of(ino, name.as_bytes()).map_err(Trouble::Source)?;
        match rustix::fs::fsetxattr(target, OsStr::from_bytes(name.as_bytes()), &value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(error) => return Err(Trouble::Host(("set attribute", error))),
        }
    }
    Ok(())
}

/// What [`keep`] keeps, for what cannot be opened: links, nodes, pipes, sockets. `name` was just made in `dir`.
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
