//! Calls that give inodes more names, and that remove names and directories.

use super::file::File;
use super::node::Node;
use super::volume::Volume;
use crate::ground::caller::Caller;
use crate::ground::error::{Error, Result};
use crate::operations::contents::Contents;
use crate::operations::create::NewFile;
use crate::operations::{link, remove_dir, unlink, unnamed};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl Node {
    /// Creates a regular file without a name, with what a file in this directory inherits, as Linux's `O_TMPFILE`.
    /// [`Node::link`] gives it a name; without one it is freed with its last [`Node`] and [`File`], or
    /// after a crash by the next open for writing.
    ///
    /// # Errors
    /// As of [`Node::create`].
    pub fn make_unnamed(&self, mode: u32, caller: &Caller) -> Result<Node> {
        let volume = self.volume();
        volume.check_changes()?;
        let new = NewFile::of(caller, Contents::File, mode);
        Ok(volume.as_node(unnamed::make_unnamed(&volume.shared.fs, &self.held, &new)?))
    }

    /// Gives an inode another name, in this directory; or its first, if it was made without one.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotFound`] if this directory was removed, or the inode has lost its last name;
    /// [`Error::NotPermitted`] for directories, for immutable and append-only inodes and in an immutable directory;
    /// [`Error::OtherProject`], [`Error::OtherVolume`]; [`Limit::Links`](crate::Limit::Links) if it has 65 000 names;
    /// [`Error::Invalid`] for an impossible name; and as of [`Node::create`]. Nothing was changed then.
    pub fn link(&self, name: impl AsRef<[u8]>, inode: &Node) -> Result<()> {
        let volume = self.volume();
        volume.check_changes()?;
        if !std::ptr::eq(&*volume.shared, &**inode.held.shared()) {
            return Err(Error::OtherVolume);
        }
        link::link_in(&volume.shared.fs, &self.held, name.as_ref(), &inode.held)
    }

    /// Removes a name of anything but a directory from this directory. Removing the last name frees the inode once
    /// nobody uses it; until then it can be used as before.
    ///
    /// # Errors
    /// As of [`Volume::remove_file`]; [`Error::NotDirectory`], [`Error::NameTooLong`].
    pub fn unlink(&self, name: impl AsRef<[u8]>) -> Result<()> {
        let volume = self.volume();
        volume.check_changes()?;
        unlink::remove_in(&volume.shared.fs, &self.held, name.as_ref())
    }

    /// Removes an empty directory from this directory. It is freed once nobody uses it; until then nothing can be
    /// added to it.
    ///
    /// # Errors
    /// As of [`Volume::remove_dir`].
    pub fn remove_dir(&self, name: impl AsRef<[u8]>) -> Result<()> {
        let volume = self.volume();
        volume.check_changes()?;
        remove_dir::remove_in(&volume.shared.fs, &self.held, name.as_ref())
    }
}

impl File {
    /// Gives the file a name at `path` of its volume: another one, or its first if it was made by
    /// [`Node::make_unnamed`]. As Linux's `linkat` of a descriptor.
    ///
    /// # Errors
    /// As of [`Node::link`]; those of resolving the path.
    pub fn link_at(&self, path: impl AsRef<Path>) -> Result<()> {
        let volume = self.volume();
        volume.check_changes()?;
        link::link_at(&volume.shared.fs, path.as_ref().as_os_str().as_bytes(), &self.open_file().inode)
    }
}

impl Volume {
    /// Gives the inode at `original` another name. If that is a symbolic link, the link itself gets the name.
    ///
    /// # Errors
    /// As of [`Node::link`]; those of resolving the paths.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        self.check_changes()?;
        let inode = self.resolve_inode(original.as_ref(), false)?;
        link::link_at(&self.shared.fs, link.as_ref().as_os_str().as_bytes(), &inode)
    }

    /// Removes an empty directory. It is freed once nobody uses it. Its space can be reused after the next commit.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`]; [`Error::NotPermitted`] for immutable and
    /// append-only directories; [`Error::InUse`] for the root, [`Error::Invalid`] for a path that ends in `.`;
    /// [`Error::ReadOnly`]; [`Error::Incompatible`] where this version changes no names, or cannot free the directory;
    /// [`Error::Corrupt`] if it is damaged. Nothing was changed then. Freeing it can fail with other errors: its name
    /// is gone then, and the next open frees the rest.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.check_changes()?;
        remove_dir::remove_at(&self.shared.fs, path.as_ref().as_os_str().as_bytes())
    }

    /// Removes a directory with everything in it. Symbolic links in it are removed, not followed. Each removal is a
    /// change of its own: after a failure or a crash a part may be left.
    ///
    /// # Errors
    /// As of [`Volume::remove_dir`] and [`Volume::remove_file`]; [`Error::NotEmpty`] if names are added meanwhile.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        self.check_changes()?;
        remove_dir::remove_all(&self.shared.fs, path.as_ref().as_os_str().as_bytes())
    }
}
