//! Owner, mode, times and extended attributes of what was copied.

use super::{Destination, Keep};
use crate::error::CliError;
use crate::open::Place;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::{FileKind, Ino, Metadata, Timestamp, Volume, WalkEntry, XATTR_SIZE_MAX};

/// Most inodes that share an attribute block (`EXT4_XATTR_REFCOUNT_MAX`).
const SHARED_MAX: u64 = 1024;

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
enum Trouble {
    /// The volume did not tell them.
    Source(uext4::Error),
    /// The host did not take them.
    Host(Failed),
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

    /// Gives what was made, or was there, the attributes asked for.
    pub fn keep(
        &mut self,
        entry: &WalkEntry<'_>,
        target: BorrowedFd<'_>,
        metadata: &Metadata,
        made: bool,
    ) -> Result<(), CliError> {
        let kept = match self.keep {
            Keep::Everything => self.keep_all(target, metadata),
            Keep::Attributes => keep(target, metadata).map_err(Trouble::Host),
            Keep::Nothing if made => less(target, metadata.mode).map_err(Trouble::Host),
            Keep::Nothing => Ok(()),
        };
        kept.map_err(|trouble| match trouble {
            Trouble::Source(error) => CliError::at(&self.place.below(entry.path), error),
            Trouble::Host((action, error)) => self.destination.refused(entry.path, action, error),
        })
    }

    /// The same for what cannot be opened: links, nodes, pipes, sockets. `name` was just made in `dir`.
    pub fn keep_name(
        &self,
        entry: &WalkEntry<'_>,
        dir: BorrowedFd<'_>,
        metadata: &Metadata,
        name: &[u8],
    ) -> Result<(), CliError> {
        if self.keep == Keep::Nothing {
            return Ok(());
        }
        keep_name(dir, OsStr::from_bytes(name), metadata)
            .map_err(|(action, error)| self.destination.refused(entry.path, action, error))
    }

    /// What [`keep`] keeps, and the extended attributes, access control lists among them.
    fn keep_all(&mut self, target: BorrowedFd<'_>, metadata: &Metadata) -> Result<(), Trouble> {
        // A change of owner takes file capabilities away, so they come after it; without privilege the owner's
        // right to write may go with the mode, so they come before it.
        if rustix::process::geteuid().is_root() {
            keep(target, metadata).map_err(Trouble::Host)?;
            self.keep_xattrs(target, metadata.ino)
        } else {
            self.keep_xattrs(target, metadata.ino)?;
            keep(target, metadata).map_err(Trouble::Host)
        }
    }

    /// Extended attributes. As cp(1), what this host or this user cannot have is left out without a word.
    fn keep_xattrs(&mut self, target: BorrowedFd<'_>, ino: Ino) -> Result<(), Trouble> {
        for name in self.volume.list_xattrs_of(ino).map_err(Trouble::Source)? {
            let value = self.value(ino, name.as_bytes()).map_err(Trouble::Source)?;
            match rustix::fs::fsetxattr(
                target,
                OsStr::from_bytes(name.as_bytes()),
                &value,
                XattrFlags::empty(),
            ) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {}
                Err(error) => return Err(Trouble::Host(("set attribute", error))),
            }
        }
        Ok(())
    }

    /// A value, taken from the allowance.
    fn value(&mut self, ino: Ino, name: &[u8]) -> uext4::Result<Vec<u8>> {
        // Spent is spent: nothing more is read out of a volume that was found to be hostile.
        if self.allowance > 0 {
            let value = self.volume.xattr_of(ino, name)?;
            self.allowance = self.allowance.saturating_sub((name.len() + value.len()) as u64);
            if self.allowance > 0 {
                return Ok(value);
            }
        }
        let what = "the attributes hold more than the volume: they share values".into();
        Err(uext4::Error::CorruptInode { ino, what })
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

/// What [`keep`] keeps, for what cannot be opened: links, nodes, pipes, sockets. `name` was just made in `dir`.
fn keep_name(dir: BorrowedFd<'_>, name: &OsStr, metadata: &Metadata) -> Result<(), Failed> {
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
