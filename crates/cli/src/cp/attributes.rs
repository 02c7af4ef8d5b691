//! Owner, mode, times and extended attributes of what was copied.

use super::{Destination, Keep};
use crate::error::{CliError, Troubles};
use crate::open::Place;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::{FileKind, Metadata, Timestamp, Volume, WalkEntry, XATTR_SIZE_MAX};

/// Most inodes that share an attribute block (`EXT4_XATTR_REFCOUNT_MAX`).
const SHARED_MAX: u64 = 1024;

/// What failed, for messages, and how.
pub type Failed = (&'static str, Errno);

/// What gets attributes: never a name, which somebody else may give to another file meanwhile.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// A file or directory that is open.
    Open(BorrowedFd<'a>),
    /// What cannot be opened, by a descriptor that only holds it ([`super::host::Host::hold`]). Calls that do not take
    /// such a descriptor get its path in `/proc`, which leads to what is held, not to where a held link points.
    Held(BorrowedFd<'a>),
}

impl<'a> Target<'a> {
    fn fd(self) -> BorrowedFd<'a> {
        match self {
            Target::Open(fd) | Target::Held(fd) => fd,
        }
    }

    fn set_owner(self, uid: Uid, gid: Gid) -> Result<(), Errno> {
        rustix::fs::chownat(self.fd(), "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
    }

    fn set_mode(self, mode: Mode) -> Result<(), Errno> {
        match self {
            Target::Open(fd) => rustix::fs::fchmod(fd, mode),
            Target::Held(fd) => rustix::fs::chmod(in_proc(fd), mode),
        }
    }

    fn set_times(self, times: &Timestamps) -> Result<(), Errno> {
        match self {
            Target::Open(fd) => rustix::fs::futimens(fd, times),
            Target::Held(fd) => rustix::fs::utimensat(fd, "", times, AtFlags::EMPTY_PATH),
        }
    }

    fn set_xattr(self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        let name = OsStr::from_bytes(name);
        match self {
            Target::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            Target::Held(fd) => rustix::fs::setxattr(in_proc(fd), name, value, XattrFlags::empty()),
        }
    }
}

fn in_proc(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Owner, mode and times of a file by itself. A failure does not keep the rest from being done; the first is returned.
pub fn keep(target: impl AsFd, metadata: &Metadata) -> Result<(), Failed> {
    let target = Target::Open(target.as_fd());
    let owner = keep_owner(target, metadata);
    let mode = keep_mode(target, metadata);
    let times = keep_times(target, metadata);
    owner.and(mode).and(times)
}

/// As root only.
fn keep_owner(target: Target<'_>, metadata: &Metadata) -> Result<(), Failed> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid));
    target.set_owner(uid, gid).map_err(|error| ("set owner", error))
}

/// All mode bits.
fn keep_mode(target: Target<'_>, metadata: &Metadata) -> Result<(), Failed> {
    let mut mode = metadata.mode;
    if metadata.kind == FileKind::Symlink {
        return Ok(());
    }
    if mode & 0o6000 != 0 {
        // Set-uid of somebody else's file would become set-uid of ours.
        let is = rustix::fs::fstat(target.fd()).map_err(|error| ("stat", error))?;
        if (is.st_uid, is.st_gid) != (metadata.uid, metadata.gid) {
            mode &= !0o6000;
        }
    }
    target.set_mode(Mode::from_raw_mode(mode)).map_err(|error| ("set mode", error))
}

fn keep_times(target: Target<'_>, metadata: &Metadata) -> Result<(), Failed> {
    target.set_times(&times(metadata)).map_err(|error| ("set times", error))
}

/// What the entries of a tree get on the host beside their contents.
pub struct Attributes<'a> {
    place: &'a Place,
    volume: &'a Volume,
    destination: &'a Destination,
    keep: Keep,
    /// Bytes of names and values that may still be copied.
    allowance: u64,
}

impl<'a> Attributes<'a> {
    /// Of a copy of what `place` names.
    pub fn new(place: &'a Place, volume: &'a Volume, destination: &'a Destination, keep: Keep) -> Self {
        Attributes { place, volume, destination, keep, allowance: allowance(volume) }
    }

    /// Whether there is anything to be kept.
    pub fn any(&self) -> bool {
        self.keep != Keep::Nothing
    }

    /// Gives what was made, or was there, the attributes asked for. Each that fails is told, and the others are kept.
    pub fn keep(
        &mut self,
        entry: &WalkEntry<'_>,
        target: Target<'_>,
        metadata: &Metadata,
        made: bool,
        troubles: &mut Troubles,
    ) {
        let destination = self.destination;
        let tell = |kept: Result<(), Failed>, troubles: &mut Troubles| {
            if let Err((action, error)) = kept {
                troubles.tell(&destination.refused(entry.path, action, error));
            }
        };
        if !self.any() {
            let kept = if made { less(target.fd(), metadata.mode) } else { Ok(()) };
            return tell(kept, troubles);
        }
        // A change of owner takes set-uid and file capabilities away, so both come after it. Without privilege the
        // owner's right to write may go with the mode, and an access control list changes the mode, so that is last.
        tell(keep_owner(target, metadata), troubles);
        if self.keep == Keep::Everything {
            self.keep_xattrs(entry, target, metadata, troubles);
        }
        tell(keep_mode(target, metadata), troubles);
        tell(keep_times(target, metadata), troubles);
    }

    /// Extended attributes. As cp(1), what this host or this user cannot have is left out without a word.
    fn keep_xattrs(
        &mut self,
        entry: &WalkEntry<'_>,
        target: Target<'_>,
        metadata: &Metadata,
        troubles: &mut Troubles,
    ) {
        let at = |error| CliError::at(&self.place.below(entry.path), error);
        let names = match self.volume.list_xattrs_of(metadata.ino) {
            Ok(names) => names,
            Err(error) => return troubles.tell(&at(error)),
        };
        for name in names {
            let name = match &name {
                Ok(name) => name.as_bytes(),
                Err(error) => {
                    troubles.tell(&at(error.clone()));
                    continue;
                }
            };
            let value = match self.volume.xattr_of(metadata.ino, name) {
                Ok(value) => value,
                // An access control list without entries is none, though its name is there.
                Err(uext4::Error::NoAttribute) => continue,
                Err(error) => {
                    troubles.tell(&at(error).about_attribute(name));
                    continue;
                }
            };
            self.allowance = self.allowance.saturating_sub((name.len() + value.len()) as u64);
            if self.allowance == 0 {
                // Spent is spent: nothing more is taken from a volume that was found to be hostile.
                let what = "the attributes hold more than the volume: they share values".into();
                return troubles.tell(&at(uext4::Error::CorruptInode { ino: metadata.ino, what }));
            }
            match target.set_xattr(name, &value) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {}
                Err(error) => {
                    let refused = self.destination.refused(entry.path, "set", error);
                    troubles.tell(&refused.about_attribute(name));
                }
            }
        }
    }
}

/// Bytes of names and values that may be copied out of `volume`, besides its data.
///
/// What lies in records and attribute blocks needs no bound of its own: an inode has one record and one block, shared
/// with others or not. It counts twice, because an access control list grows to less than that in the form of the
/// system calls. A value in an inode of its own may be 64 KiB long and named by any number of inodes, in an honest
/// volume too: the kernel stores equal values once, and counts the names in 64 bits without a limit. So there is no
/// bound that every honest volume meets and no hostile one reaches, as there is for data. The volume's size once more
/// is enough for all values that are not shared, and for shared ones that come to no more than that; on top of it the
/// largest value may be named as often as an attribute block, so that sharing is no offence in small volumes either.
fn allowance(volume: &Volume) -> u64 {
    let geometry = &volume.superblock().geometry;
    let (block, record) = (u64::from(geometry.block_size()), u64::from(geometry.inode_size()));
    let own = u64::from(geometry.inodes_count()).saturating_mul(2 * (block + record));
    let size = geometry.blocks_count().saturating_mul(block);
    size.saturating_add(own).saturating_add(SHARED_MAX * u64::from(XATTR_SIZE_MAX))
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
