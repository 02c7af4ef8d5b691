//! An inode of any type by handle: for servers and bindings, which keep inodes and not paths.

use super::file::File;
use super::held::Held;
use super::read_dir::ReadDir;
use super::volume::Volume;
use crate::dir;
use crate::ground::error::{Error, Result};
use crate::ground::options::OpenOptions;
use crate::ground::state::ROOT;
use crate::inode::Inode;
use crate::inode::metadata::{FileKind, Metadata};
use crate::operations::path;
use std::path::Path;
use std::sync::Arc;
use uext4_ondisk::Ino;

/// A directory, file, symbolic link or special file of a volume, by handle. Cheap to clone; every call may come from
/// any thread. An inode whose last name was removed stays usable as long as a `Node` or [`File`] of it exists, and is
/// freed with the last one, so drop it without holding a lock of your own that another thread needs to make progress.
///
/// Names are bytes: 1 to 255, without `/` and NUL, not necessarily UTF-8.
#[derive(Clone)]
pub struct Node {
    pub(super) held: Held,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("ino", &self.ino()).field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Volume {
    /// The root directory.
    ///
    /// # Errors
    /// Those of reading the inode.
    pub fn root(&self) -> Result<Node> {
        self.node(ROOT, None)
    }

    /// An inode by number, and by `generation` if one is given ([`Metadata::generation`]): a freed number is used again
    /// with another generation.
    ///
    /// # Errors
    /// [`Error::Stale`] if the inode with this generation was freed; those of reading the inode.
    pub fn node(&self, ino: Ino, generation: Option<u32>) -> Result<Node> {
        Ok(Node { held: Held::by_number(&self.shared, ino, generation)? })
    }

    /// The inode that `path` leads to, following symbolic links in the middle, and the last one too if `follow`.
    ///
    /// # Errors
    /// Those of resolving the path.
    pub fn node_at(&self, path: impl AsRef<Path>, follow: bool) -> Result<Node> {
        Ok(self.as_node(self.resolve_inode(path.as_ref(), follow)?))
    }

    pub(super) fn as_node(&self, inode: Arc<Inode>) -> Node {
        Node { held: Held::new(inode, self.shared.clone()) }
    }
}

impl Node {
    /// The volume.
    #[must_use]
    pub fn volume(&self) -> Volume {
        Volume { shared: self.held.shared().clone() }
    }

    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.held.ino()
    }

    /// File type.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.held.kind()
    }

    /// Attributes.
    #[must_use]
    pub fn attributes(&self) -> Metadata {
        self.held.metadata(self.volume().state())
    }

    /// The inode that a name in this directory leads to; symbolic links are not followed. Finds `.` and `..`, too.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`]; [`Error::Corrupt`].
    pub fn look_up(&self, name: impl AsRef<[u8]>) -> Result<Node> {
        let (volume, name) = (self.volume(), name.as_ref());
        if self.kind() != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if name.len() > dir::name::MAX {
            return Err(Error::NameTooLong);
        }
        // While the name exists, its inode number cannot be reused.
        let names = self.held.steady_names();
        let found = dir::look_up(volume.state(), &self.held, name)?.ok_or(Error::NotFound)?;
        let inode = volume.state().inode(found.ino)?;
        drop(names);
        Ok(volume.as_node(inode))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotSymlink`]; [`Error::Corrupt`].
    pub fn read_link(&self) -> Result<Vec<u8>> {
        path::read_link(self.volume().state(), &self.held)
    }

    /// The entries of a directory, `.` and `..` first. [`ReadDir`] says in which order, and what comes if names change
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::NotDirectory`]; [`Error::Corrupt`].
    pub fn read_dir(&self) -> Result<ReadDir> {
        ReadDir::new(self.volume(), Arc::clone(&self.held))
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// As of [`Volume::open_inode`].
    pub fn open(&self, options: OpenOptions) -> Result<File> {
        options.check()?;
        self.volume().open_loaded(Arc::clone(&self.held), options)
    }
}
