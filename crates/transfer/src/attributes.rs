//! Owner, mode, times and extended attributes of copies.

use crate::export::{Destination, How, Observer};
use crate::target::{Failed, Target};
use crate::xattrs::{Limit, Xattrs};
use rustix::fd::AsFd;
use rustix::fs::{Gid, Mode, Timespec, Timestamps, Uid};
use uext4::{FileKind, Metadata, Timestamp, Volume};

/// As root only.
fn keep_owner(target: Target<'_>, metadata: &Metadata) -> Result<(), Failed> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    target.set_owner(Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid))
}

/// All mode bits, except those that would grant more than an access control list did, lost or kept.
fn keep_mode(target: Target<'_>, metadata: &Metadata, limit: Limit) -> Result<(), Failed> {
    let mut mode = limit.of(metadata.mode);
    if metadata.kind == FileKind::Symlink {
        return Ok(());
    }
    if mode & 0o6000 != 0 {
        // Set-uid of another user's file would become set-uid of ours.
        let is = rustix::fs::fstat(target.fd()).map_err(|error| ("stat", error))?;
        if (is.st_uid, is.st_gid) != (metadata.uid, metadata.gid) {
            mode &= !0o6000;
        }
    }
    target.set_mode(Mode::from_raw_mode(mode))
}

/// The attributes that copies get on the host.
pub struct Attributes<'a> {
    destination: &'a Destination,
    how: How,
    xattrs: Xattrs<'a>,
}

impl<'a> Attributes<'a> {
    /// For a copy out of `volume`.
    pub fn new(volume: &'a Volume, destination: &'a Destination, how: How) -> Self {
        Attributes { destination, how, xattrs: Xattrs::new(volume, destination, how.keep) }
    }

    /// Whether any attribute is to be kept.
    pub fn any(&self) -> bool {
        self.how.keep.any()
    }

    /// The permissions for creating something.
    pub fn at_first(&self, metadata: &Metadata) -> u32 {
        self.how.keep.at_first(metadata.mode, metadata.kind)
    }

    /// Sets the requested attributes of a created or existing file. Reports each that fails, and sets the others.
    /// `path`: its path below the source.
    pub fn keep(
        &mut self,
        path: &[u8],
        target: Target<'_>,
        metadata: &Metadata,
        made: bool,
        observer: &mut dyn Observer,
    ) {
        let destination = self.destination;
        let tell = |kept: Result<(), Failed>, observer: &mut dyn Observer| {
            if let Err((action, error)) = kept {
                observer.trouble(destination.refused(path, action, error));
            }
        };
        let keep = self.how.keep;
        let new_mode = keep.new_mode_of(metadata.mode, metadata.kind);
        if !keep.any() {
            return tell(if made { less(target.fd(), new_mode) } else { Ok(()) }, observer);
        }
        // Changing the owner clears set-uid and file capabilities, so set both afterwards. Without privilege the mode
        // may remove the owner's write permission, and an access control list changes the mode, so the mode follows.
        if keep.owner {
            tell(keep_owner(target, metadata), observer);
        }
        let limit = self.xattrs.keep(path, target, metadata, observer);
        if keep.mode {
            tell(keep_mode(target, metadata, limit), observer);
        } else if made && metadata.kind != FileKind::Symlink {
            tell(self.new_mode(target, new_mode, metadata.kind), observer);
        }
        if keep.times {
            tell(target.set_times(&times(metadata)), observer);
        }
    }

    /// The permissions of what was created and does not keep its mode.
    fn new_mode(&self, target: Target<'_>, mode: u32, kind: FileKind) -> Result<(), Failed> {
        if self.how.keep.owner {
            // It got none for others before it had its owner.
            let bits = if kind == FileKind::Directory { 0o1777 } else { 0o777 };
            return target.set_mode(Mode::from_raw_mode(mode & bits & !self.how.umask));
        }
        match target {
            Target::Open(fd) => less(fd, mode),
            // Made with its permissions.
            Target::Held { .. } => Ok(()),
        }
    }

    /// Reports the files that were not reported individually.
    pub fn finish(&self, observer: &mut dyn Observer) {
        self.xattrs.finish(observer);
    }
}

/// Removes the owner's rights that `made` got for copying and that `mode` does not have.
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
    // A damaged inode may have more than a second of nanoseconds; the kernel would refuse both times.
    let nanoseconds = time.nanoseconds.min(999_999_999);
    Timespec { tv_sec: time.seconds, tv_nsec: nanoseconds.into() }
}
