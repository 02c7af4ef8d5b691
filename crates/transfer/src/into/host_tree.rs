//! A tree of the host. Everything is opened relative to its directory's descriptor, so a directory that is moved
//! during the copy cannot lead out of the tree.

use super::origin::{Item, Origin};
use crate::devices::Devices;
use crate::error::{Error, Result};
use crate::import::{drain, pour};
use crate::options::{Follow, Holes};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File as HostFile;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::{Fallocate, File, FileKind, Timestamp};

/// Bytes of a list of names, and of a value, at most (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const XATTR_MAX: usize = 65536;

/// The tree at a path.
pub struct HostTree<'a> {
    pub base: &'a Path,
    /// The devices under the destination.
    pub devices: &'a Devices,
    /// Whether it is copied with everything in it, which links are followed, which zeros become holes.
    pub how: (bool, Follow, Holes),
    /// Whether one file is filled after the other.
    pub in_turn: bool,
}

impl HostThing {
    /// Of a directory or a regular file: its descriptor.
    pub fn fd(&self) -> Option<&Arc<OwnedFd>> {
        self.open.as_ref()
    }
}

enum Place<'t> {
    Open(BorrowedFd<'t>),
    Named(PathBuf),
}

/// Something on the host.
pub struct HostThing {
    item: Item,
    /// Of a directory or a regular file, and of anything that is read as a stream.
    open: Option<Arc<OwnedFd>>,
    /// Where it has a name: for what cannot be opened. `None`: the current directory.
    directory: Option<Arc<OwnedFd>>,
    name: Vec<u8>,
    /// Whether a link of that name is followed.
    followed: bool,
    size: Option<u64>,
    /// It has few holes, if any.
    dense: bool,
}

impl HostTree<'_> {
    fn refused(&self, path: &[u8], action: &'static str, error: Errno) -> Error {
        let path =
            if path.is_empty() { self.base.to_owned() } else { self.base.join(OsStr::from_bytes(path)) };
        Error::refused(path, action, error)
    }

    fn thing(
        &self,
        directory: Option<Arc<OwnedFd>>,
        name: &[u8],
        path: &[u8],
        follow: bool,
    ) -> Result<HostThing> {
        let at = directory.as_ref().map_or(CWD, |directory| directory.as_fd());
        let name = if name.is_empty() { b"." } else { name };
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let mut stat =
            rustix::fs::statat(at, name, flags).map_err(|error| self.refused(path, "stat", error))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let stream =
            !self.how.0 && !matches!(kind, FileType::Directory | FileType::RegularFile | FileType::Symlink);
        let open = if stream || matches!(kind, FileType::Directory | FileType::RegularFile) {
            let mut how = OFlags::RDONLY | OFlags::CLOEXEC;
            // Something else may have the name by now: do not follow it, and do not wait for its other end.
            how.set(OFlags::NOFOLLOW, !follow);
            how.set(OFlags::NONBLOCK, !stream);
            how.set(OFlags::DIRECTORY, kind == FileType::Directory);
            let open = rustix::fs::openat(at, name, how, Mode::empty());
            let open = open.map_err(|error| self.refused(path, "open", error))?;
            stat = rustix::fs::fstat(&open).map_err(|error| self.refused(path, "stat", error))?;
            if FileType::from_raw_mode(stat.st_mode) != kind {
                return Err(self.refused(path, "open", Errno::STALE));
            }
            Some(Arc::new(open))
        } else {
            None
        };
        let Some(item) = item(&stat) else { return Err(self.refused(path, "copy", Errno::OPNOTSUPP)) };
        let size = (kind == FileType::RegularFile).then_some(stat.st_size as u64);
        let dense = (stat.st_blocks as u64).saturating_mul(512) >= stat.st_size as u64;
        Ok(HostThing { item, open, directory, name: name.to_vec(), followed: follow, size, dense })
    }

    /// How its attributes are reached: what is neither a file nor a directory has no descriptor that may read them.
    fn place<'t>(thing: &'t HostThing) -> Place<'t> {
        let name = Path::new(OsStr::from_bytes(&thing.name));
        match (&thing.open, &thing.directory) {
            (Some(open), _) => Place::Open(open.as_fd()),
            (None, Some(directory)) => {
                Place::Named(PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name))
            }
            (None, None) => Place::Named(name.to_owned()),
        }
    }
}

impl Origin for HostTree<'_> {
    type Thing = HostThing;

    fn root(&self) -> Result<HostThing> {
        let follow = self.how.1 != Follow::Never;
        self.thing(None, self.base.as_os_str().as_bytes(), b"", follow)
    }

    fn child(&self, directory: &HostThing, name: &[u8], path: &[u8]) -> Result<HostThing> {
        self.thing(directory.open.clone(), name, path, self.how.1 == Follow::All)
    }

    fn names_max(&self) -> u64 {
        u64::MAX
    }

    fn item<'t>(&self, thing: &'t HostThing) -> &'t Item {
        &thing.item
    }

    fn names(
        &self,
        directory: &HostThing,
        path: &[u8],
        trouble: &mut dyn FnMut(Error),
    ) -> Result<Vec<Vec<u8>>> {
        let refused = |error| self.refused(path, "read directory", error);
        let open = directory.open.as_ref().ok_or_else(|| refused(Errno::NOTDIR))?;
        let mut found = Vec::new();
        for entry in Dir::read_from(open.as_fd()).map_err(refused)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    trouble(refused(error));
                    break;
                }
            };
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                found.push((entry.ino(), name.to_vec()));
            }
        }
        // In the order of inodes: their records, and mostly their data, lie in that order.
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }

    fn target(&self, link: &HostThing, path: &[u8]) -> Result<Vec<u8>> {
        let at = link.directory.as_ref().map_or(CWD, |directory| directory.as_fd());
        let target = rustix::fs::readlinkat(at, link.name.as_slice(), Vec::new());
        Ok(target.map_err(|error| self.refused(path, "read link", error))?.into_bytes())
    }

    fn xattr_names(&self, thing: &HostThing, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut names = vec![0; XATTR_MAX];
        let length = match Self::place(thing) {
            Place::Open(fd) => rustix::fs::flistxattr(fd, &mut names[..]),
            Place::Named(at) if thing.followed => rustix::fs::listxattr(at, &mut names[..]),
            Place::Named(at) => rustix::fs::llistxattr(at, &mut names[..]),
        };
        let length = match length {
            Err(Errno::OPNOTSUPP) => 0,
            length => length.map_err(|error| self.refused(path, "list attributes", error))?,
        };
        let names = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    fn xattr(&self, thing: &HostThing, name: &[u8], path: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; XATTR_MAX];
        let found = match Self::place(thing) {
            Place::Open(fd) => rustix::fs::fgetxattr(fd, name, &mut value[..]),
            Place::Named(at) if thing.followed => rustix::fs::getxattr(at, name, &mut value[..]),
            Place::Named(at) => rustix::fs::lgetxattr(at, name, &mut value[..]),
        };
        match found {
            // It may have gone since the names were listed.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            found => {
                let length = found
                    .map_err(|error| self.refused(path, "read attribute", error).about_attribute(name))?;
                value.truncate(length);
                Ok(Some(value))
            }
        }
    }

    fn fill(
        &self,
        thing: &HostThing,
        path: &[u8],
        file: &File,
        buffer: &mut [u8],
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let Some(open) = &thing.open else { return Err(self.refused(path, "open", Errno::INVAL)) };
        let copy = open.try_clone().map_err(|error| Error::refused(self.base, "duplicate", error))?;
        let (host, named) = (HostFile::from(copy), self.base.join(OsStr::from_bytes(path)));
        let named = if path.is_empty() { self.base } else { &named };
        let holes = self.how.2;
        let dense = thing.dense && holes != Holes::Zeros && !self.in_turn;
        if let Some(size) = thing.size.filter(|size| dense && *size > buffer.len() as u64) {
            // In one piece, although other files are written meanwhile. If that fails, the writes tell.
            let _only_a_hint = file.fallocate(Fallocate::KeepSize, 0, size);
        }
        match thing.size {
            Some(size) => pour(named, &host, file, (size, holes), buffer, advance),
            None => drain(named, &host, file, holes, advance),
        }
        .map(drop)
    }

    fn is_destination(&self, thing: &HostThing) -> bool {
        thing.size.is_some() && self.devices.contain(thing.item.identity)
    }
}

fn item(stat: &Stat) -> Option<Item> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    };
    let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    Some(Item {
        kind,
        mode: stat.st_mode & 0o7777,
        owner: (stat.st_uid, stat.st_gid),
        links: stat.st_nlink,
        identity: (stat.st_dev, stat.st_ino),
        device: (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)),
        accessed: time(stat.st_atime, stat.st_atime_nsec as u32),
        modified: time(stat.st_mtime, stat.st_mtime_nsec as u32),
    })
}
