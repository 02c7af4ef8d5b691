//! Calls that take a path or an inode number: for files, attributes, links and directories.

use super::file::File;
use super::held::Held;
use super::read_dir::ReadDir;
use super::volume::Volume;
use super::walk::TableReader;
use crate::change::privileges;
use crate::ground::caller::Caller;
use crate::ground::error::{Error, Result};
use crate::ground::options::{Atime, Create, OpenOptions};
use crate::inline::InlineData;
use crate::inode::metadata::{FileKind, Metadata};
use crate::inode::{Inode, check_append, check_overwrite};
use crate::map;
use crate::operations::create::{self, NewFile};
use crate::operations::{path, unlink};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use uext4_iomap::{FileSystem, OpenFile};
use uext4_ondisk::Ino;

impl Volume {
    /// Resolves `path` to an inode, following symbolic links in the middle, and the last one too if `follow`. Paths
    /// start at the root, with or without a leading slash.
    pub fn resolve(&self, path: impl AsRef<Path>, follow: bool) -> Result<Ino> {
        Ok(self.resolve_inode(path.as_ref(), follow)?.ino())
    }

    pub(super) fn resolve_inode(&self, path: &Path, follow: bool) -> Result<Arc<Inode>> {
        path::resolve(self.state(), path.as_os_str().as_bytes(), follow)
    }

    /// Opens a regular file, and creates it if the options say so: inode and name in one transaction, so a crash leaves
    /// both or neither.
    ///
    /// # Errors
    /// When the file is created: [`Error::Exists`], [`Error::NoSpace`], [`Error::Limit`], [`Error::NotPermitted`] in an
    /// immutable directory, [`Error::Incompatible`] where this version changes no names; nothing was changed then.
    /// [`Error::Invalid`] if it is opened for neither reading nor writing; [`Error::IsDirectory`],
    /// [`Error::NotRegular`]; [`Error::ReadOnly`] and [`Error::NotPermitted`] if it is opened for writing; and those of
    /// resolving the path and reading the inode.
    pub fn open_file(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        options.check()?;
        let path = path.as_ref();
        if options.create == Create::Never {
            return self.open_loaded(self.resolve_inode(path, true)?, options);
        }
        self.check_changes()?;
        let owner = Caller::new(options.owner.0, options.owner.1);
        let new = NewFile::of_open(&owner, &options);
        let exclusive = options.create == Create::New;
        let inode = create::open_or_create(&self.shared.fs, path.as_os_str().as_bytes(), &new, exclusive)?;
        self.open_loaded(inode, options)
    }

    /// Opens a regular file by inode number, and checks its generation if the options give one.
    ///
    /// # Errors
    /// [`Error::Stale`]; those of [`Volume::open_file`].
    pub fn open_inode(&self, ino: Ino, options: OpenOptions) -> Result<File> {
        options.check()?;
        let held = Held::by_number(&self.shared, ino, options.generation)?;
        self.open_loaded(Arc::clone(&held), options)
    }

    /// Removes a name of a file, symbolic link or device: of anything but a directory. Removing the last name frees the
    /// file once nobody has it open; until then it can be read and written. Its space can be reused after the next
    /// commit. The removal is durable after the next [`Volume::close`], or the next sync that commits.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::IsDirectory`]; [`Error::NotPermitted`] for immutable and append-only files and
    /// directories; [`Error::ReadOnly`]; [`Error::Incompatible`] where this version changes no names, or cannot free
    /// the file: nothing was changed then. Freeing the file can fail with other errors: its name is gone then, and the
    /// next open frees the rest.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.check_changes()?;
        unlink::remove_file(&self.shared.fs, path.as_ref().as_os_str().as_bytes())
    }

    /// Refuses a change of names if the volume cannot be changed now.
    pub(super) fn check_changes(&self) -> Result<()> {
        if !self.shared.options.write {
            return Err(Error::ReadOnly("the volume was opened read-only"));
        }
        self.shared.check_process()?;
        self.shared.fs.check_alive()
    }

    pub(super) fn open_loaded(&self, inode: Arc<Inode>, options: OpenOptions) -> Result<File> {
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
        if options.write || options.append {
            if !self.shared.options.write {
                return Err(Error::ReadOnly("the volume was opened read-only"));
            }
            let only_appends = !options.write && !options.truncate;
            let check = if only_appends { check_append } else { check_overwrite };
            check(self.superblock(), &inode)?;
            privileges::note(self.state(), &inode)?;
        }
        // Limits of quota are checked where blocks are allocated: at once.
        let direct = options.direct || options.limited;
        let switches = options.switches.unwrap_or(self.shared.options.switches);
        let accesses = self.state().atime != Atime::Off;
        let open = |readable, writable| {
            let open = OpenFile::new(inode.clone(), readable, writable, switches);
            open.with_priority(options.priority).with_access(accesses).with_direct(direct)
        };
        let tail = options.append.then(|| open(false, true));
        let open = open(options.read, options.write);
        let file = File::new(open, tail, options.limited, self.shared.clone());
        // Even an empty file may have blocks past its end, and its times change.
        if options.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Attributes of the file at `path`, following symbolic links.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        path::attributes(self.state(), path.as_ref().as_os_str().as_bytes(), true)
    }

    /// Attributes of the file at `path`; of the link itself if it is a symbolic link.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        path::attributes(self.state(), path.as_ref().as_os_str().as_bytes(), false)
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

    /// The entries of a directory, `.` and `..` first. [`ReadDir`] says in which order, and what comes if names change
    /// meanwhile.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let inode = self.resolve_inode(path.as_ref(), true)?;
        ReadDir::new(self.clone(), inode)
    }

    /// The entries of a directory by inode number.
    pub fn read_dir_of(&self, ino: Ino) -> Result<ReadDir> {
        ReadDir::new(self.clone(), self.state().inode(ino)?)
    }
}
