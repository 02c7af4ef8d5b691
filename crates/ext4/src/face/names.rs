//! Calls that take a path or an inode number: for files, attributes, links and directories.

use super::file::File;
use super::read_dir::ReadDir;
use super::volume::Volume;
use super::walk::TableReader;
use crate::ground::error::{Error, Result};
use crate::ground::options::OpenOptions;
use crate::inline::InlineData;
use crate::inode::metadata::{FileKind, Metadata};
use crate::inode::{Inode, check_overwrite};
use crate::map;
use crate::operations::path;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use uext4_iomap::OpenFile;
use uext4_ondisk::Ino;

impl Volume {
    /// The inode that `path` names, following symbolic links on the way, and the last one if `follow`. Paths
    /// start at the root, with or without a slash.
    pub fn resolve(&self, path: impl AsRef<Path>, follow: bool) -> Result<Ino> {
        Ok(self.resolve_inode(path.as_ref(), follow)?.ino())
    }

    fn resolve_inode(&self, path: &Path, follow: bool) -> Result<Arc<Inode>> {
        path::resolve(self.state(), path.as_os_str().as_bytes(), follow)
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is to be opened neither for reading nor for writing, [`Error::IsDirectory`],
    /// [`Error::NotRegular`], [`Error::ReadOnly`] and [`Error::NotPermitted`] if it is to be written, and those of
    /// finding and reading it.
    pub fn open_file(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        options.check()?;
        let inode = self.resolve_inode(path.as_ref(), true)?;
        self.open_loaded(inode, options)
    }

    /// Opens a regular file by inode number.
    ///
    /// # Errors
    /// Those of [`Volume::open_file`].
    pub fn open_inode(&self, ino: Ino, options: OpenOptions) -> Result<File> {
        options.check()?;
        let inode = self.state().inode(ino)?;
        self.open_loaded(inode, options)
    }

    fn open_loaded(&self, inode: Arc<Inode>, options: OpenOptions) -> Result<File> {
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::NotRegular),
        }
        if inode.is_inline() {
            InlineData::of(self.state(), &inode.disk())?;
        } else {
            inode.check_contents()?;
            map::check_inode(self.state(), &inode)?;
        }
        if options.write {
            if !self.shared.options.write {
                return Err(Error::ReadOnly("the volume was opened read-only"));
            }
            check_overwrite(self.superblock(), &inode)?;
        }
        let switches = options.switches.unwrap_or(self.shared.options.switches);
        let open = OpenFile::new(inode, options.read, options.write, switches);
        Ok(File::new(open, self.shared.clone()))
    }

    /// Attributes of what `path` names, following symbolic links.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.resolve_inode(path.as_ref(), true)?.metadata(self.state()))
    }

    /// Attributes of what `path` names. If that is a link, those of the link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok(self.resolve_inode(path.as_ref(), false)?.metadata(self.state()))
    }

    /// Attributes of an inode.
    pub fn metadata_of(&self, ino: Ino) -> Result<Metadata> {
        TableReader::default().metadata(self.state(), ino, std::iter::empty())
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        path::read_link(self.state(), &*self.resolve_inode(path.as_ref(), false)?)
    }

    /// The target of a symbolic link by inode number.
    pub fn read_link_of(&self, ino: Ino) -> Result<Vec<u8>> {
        path::read_link(self.state(), &*self.state().inode(ino)?)
    }

    /// The entries of a directory in their order on disk, `.` and `..` included.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let inode = self.resolve_inode(path.as_ref(), true)?;
        ReadDir::new(self.clone(), inode)
    }

    /// The entries of a directory by inode number.
    pub fn read_dir_of(&self, ino: Ino) -> Result<ReadDir> {
        ReadDir::new(self.clone(), self.state().inode(ino)?)
    }
}
