//! Calls that create inodes and directories.

use super::node::Node;
use super::volume::Volume;
use crate::ground::caller::Caller;
use crate::ground::error::{Error, Result};
use crate::inode::metadata::FileKind;
use crate::operations::contents::Contents;
use crate::operations::create::{self, NewFile};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4_ondisk::ext4::DeviceNumber;

/// What [`Node::make_node`] creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    Char {
        /// Major number, below 2¹².
        major: u32,
        /// Minor number, below 2²⁰.
        minor: u32,
    },
    /// A block device.
    Block {
        /// Major number, below 2¹².
        major: u32,
        /// Minor number, below 2²⁰.
        minor: u32,
    },
    /// A regular file.
    Regular,
}

impl NodeKind {
    fn contents(self) -> Result<Contents<'static>> {
        let device = |kind, major, minor| {
            let number = DeviceNumber { major, minor }.encode();
            let number = number.map_err(|_| Error::Invalid(format!("no device number: {major}:{minor}")))?;
            Ok(Contents::Device(kind, number))
        };
        match self {
            NodeKind::Fifo => Ok(Contents::Special(FileKind::Fifo)),
            NodeKind::Socket => Ok(Contents::Special(FileKind::Socket)),
            NodeKind::Char { major, minor } => device(FileKind::CharDevice, major, minor),
            NodeKind::Block { major, minor } => device(FileKind::BlockDevice, major, minor),
            NodeKind::Regular => Ok(Contents::File),
        }
    }
}

/// Each change is one transaction, so a crash leaves all of it or nothing. It is durable after the next
/// [`Volume::close`], [`File::sync_all`](crate::File::sync_all) of any file, or tick that commits.
impl Node {
    /// Creates a regular file with this name in this directory. `mode` has the permissions, with set-user-id,
    /// set-group-id and the sticky bit. Group, flags and project are inherited from the directory as in Linux.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotDirectory`]; [`Error::NotFound`] if this directory was removed;
    /// [`Error::NameTooLong`], and [`Error::Invalid`] for other impossible names; [`Error::NoSpace`],
    /// [`Error::Limit`]; [`Error::NotPermitted`] in an immutable directory; [`Error::ReadOnly`];
    /// [`Error::Incompatible`] where this version changes no names; [`Error::Corrupt`]. Nothing was changed then.
    pub fn create(&self, name: impl AsRef<[u8]>, mode: u32, caller: &Caller) -> Result<Node> {
        self.make(name.as_ref(), &NewFile::of(caller, Contents::File, mode))
    }

    /// Creates a directory with this name in this directory. Of `mode`, only the permissions and the sticky bit count.
    ///
    /// # Errors
    /// As of [`Node::create`]; [`Limit::Links`](crate::Limit::Links) if this directory has the most subdirectories it
    /// can count (65 000 without the feature `dir_nlink`).
    pub fn make_dir(&self, name: impl AsRef<[u8]>, mode: u32, caller: &Caller) -> Result<Node> {
        self.make(name.as_ref(), &NewFile::of(caller, Contents::Directory, mode))
    }

    /// Creates a FIFO, socket, device node or regular file with this name in this directory, as `mknod`.
    ///
    /// # Errors
    /// As of [`Node::create`]; [`Error::Invalid`] for a device number that the format cannot hold.
    pub fn make_node(
        &self,
        name: impl AsRef<[u8]>,
        kind: NodeKind,
        mode: u32,
        caller: &Caller,
    ) -> Result<Node> {
        self.make(name.as_ref(), &NewFile::of(caller, kind.contents()?, mode))
    }

    /// Creates a symbolic link with this name in this directory. The target is 1 to 4095 bytes without a zero, and
    /// shorter than a block.
    ///
    /// # Errors
    /// As of [`Node::create`]; [`Error::NotFound`] for an empty target, [`Error::NameTooLong`] for one that is too
    /// long.
    pub fn make_symlink(
        &self,
        name: impl AsRef<[u8]>,
        target: impl AsRef<[u8]>,
        caller: &Caller,
    ) -> Result<Node> {
        let link = Contents::link(self.volume().superblock(), target.as_ref())?;
        self.make(name.as_ref(), &NewFile::of(caller, link, 0))
    }

    fn make(&self, name: &[u8], new: &NewFile<'_>) -> Result<Node> {
        let volume = self.volume();
        volume.check_changes()?;
        let made = create::make_in(&volume.shared.fs, &self.held, name, new)?;
        Ok(volume.as_node(made))
    }
}

impl Volume {
    /// Creates a directory. Its parent must exist. The path may end in a slash.
    ///
    /// # Errors
    /// As of [`Node::make_dir`]; those of resolving the path.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32, caller: &Caller) -> Result<()> {
        self.make_at(path.as_ref(), &NewFile::of(caller, Contents::Directory, mode))
    }

    /// Creates a directory, with all of its parents that are missing. It is no error if it exists.
    ///
    /// # Errors
    /// As of [`Volume::create_dir`], [`Error::Exists`] if the path leads to anything but a directory. Parents that were
    /// created stay.
    pub fn create_dir_all(&self, path: impl AsRef<Path>, mode: u32, caller: &Caller) -> Result<()> {
        let path = path.as_ref();
        // From the longest missing part to the shortest one, and back.
        let mut missing = Vec::new();
        for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
            match self.create_dir(part, mode, caller) {
                Err(Error::NotFound) => missing.push(part),
                made => {
                    self.made_or_there(part, made)?;
                    break;
                }
            }
        }
        missing.into_iter().rev().try_for_each(|part| {
            let made = self.create_dir(part, mode, caller);
            self.made_or_there(part, made)
        })
    }

    /// Whether a directory was made at `path`, or there was one.
    fn made_or_there(&self, path: &Path, made: Result<()>) -> Result<()> {
        match made {
            Err(Error::Exists) if self.metadata(path)?.kind == FileKind::Directory => Ok(()),
            made => made,
        }
    }

    /// Creates a symbolic link at `link` to `target`, which need not exist.
    ///
    /// # Errors
    /// As of [`Node::make_symlink`]; those of resolving the path of the link.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>, caller: &Caller) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        let target = Contents::link(self.superblock(), target)?;
        self.make_at(link.as_ref(), &NewFile::of(caller, target, 0))
    }

    /// Creates a FIFO, socket, device node or regular file at `path`, as `mknod`.
    ///
    /// # Errors
    /// As of [`Node::make_node`]; those of resolving the path.
    pub fn make_node(
        &self,
        path: impl AsRef<Path>,
        kind: NodeKind,
        mode: u32,
        caller: &Caller,
    ) -> Result<()> {
        self.make_at(path.as_ref(), &NewFile::of(caller, kind.contents()?, mode))
    }

    fn make_at(&self, path: &Path, new: &NewFile<'_>) -> Result<()> {
        self.check_changes()?;
        create::make_at(&self.shared.fs, path.as_os_str().as_bytes(), new).map(drop)
    }
}
