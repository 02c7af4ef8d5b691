//! Renames, by handle and by path.

use super::node::Node;
use super::volume::Volume;
use crate::ground::error::{Error, Result};
use crate::inode::Inode;
use crate::inode::metadata::FileKind;
use crate::operations::path;
use crate::operations::rename::{self, Place, RenameFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use uext4_iomap::{OpenFile, Switches};

impl Node {
    /// Renames `name` in this directory to `new_name` in the directory `to`, which may be the same one. What has the
    /// new name is replaced, unless the flags say otherwise; it is freed with its last name and user. If both names
    /// lead to the same inode, nothing is done.
    ///
    /// One transaction: after a crash the new name leads to what it led to before, or to what was renamed. Durable
    /// after the next sync of what was renamed (`sync_all`) or of the volume, or [`Volume::close`]. On a volume without
    /// a journal, a crash before that leaves the names to e2fsck.
    ///
    /// # Errors
    /// - [`Error::NotFound`] if there is no such name, or no new name to exchange it with, or one of the directories
    ///   was removed; [`Error::NotDirectory`] if this or `to` is not a directory.
    /// - [`Error::Exists`] with [`RenameFlags::NOREPLACE`].
    /// - [`Error::IsDirectory`], [`Error::NotDirectory`]: only a directory replaces a directory, which must be empty
    ///   ([`Error::NotEmpty`]).
    /// - [`Error::Invalid`] for a directory that would move into itself, names that no directory can have, and flags
    ///   that do not go together; [`Error::NameTooLong`].
    /// - [`Error::NotPermitted`] for immutable and append-only files and directories; [`Error::OtherProject`],
    ///   [`Error::OtherVolume`].
    /// - [`Error::Limit`], [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::Incompatible`], [`Error::Corrupt`].
    ///
    /// Nothing was changed then. Freeing what was replaced can fail with other errors: the names have changed then.
    pub fn rename(
        &self,
        name: impl AsRef<[u8]>,
        to: &Node,
        new_name: impl AsRef<[u8]>,
        flags: RenameFlags,
    ) -> Result<()> {
        let volume = self.volume();
        volume.check_changes()?;
        if !Arc::ptr_eq(self.held.shared(), to.held.shared()) {
            return Err(Error::OtherVolume);
        }
        if volume.has_late_writes() {
            let exchanged = flags.contains(RenameFlags::EXCHANGE).then(|| to.look_up(new_name.as_ref()));
            for moved in [self.look_up(name.as_ref())].into_iter().chain(exchanged).flatten() {
                volume.write_late(&moved.held)?;
            }
        }
        let from = Place { directory: &self.held, name: name.as_ref(), slash: false };
        let to = Place { directory: &to.held, name: new_name.as_ref(), slash: false };
        rename::rename(&volume.shared.fs, from, to, flags)
    }
}

impl Volume {
    /// Renames a file or directory, replacing what has the new name, as [`std::fs::rename`] does. A symbolic link at
    /// the end of a path is not followed.
    ///
    /// # Errors
    /// As of [`Volume::rename_with`].
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// The same with flags.
    ///
    /// # Errors
    /// As of [`Node::rename`], which also says when it is durable; [`Error::InUse`] for paths that end in `.` or `..`,
    /// or lead to the root; those of resolving the paths.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.check_changes()?;
        flags.check()?;
        if self.has_late_writes() {
            let exchanged =
                flags.contains(RenameFlags::EXCHANGE).then(|| self.resolve_inode(to.as_ref(), false));
            for moved in [self.resolve_inode(from.as_ref(), false)].into_iter().chain(exchanged).flatten() {
                self.write_late(&moved)?;
            }
        }
        let [from, to] = [from.as_ref(), to.as_ref()].map(|path| path.as_os_str().as_bytes());
        let (old, new) = (self.end_of(from)?, self.end_of(to)?);
        let busy = || Error::InUse("the path: it ends in `.` or `..`, or is the root".into());
        let (from_directory, Some(name)) = old else { return Err(busy()) };
        let (to_directory, Some(new_name)) = new else {
            let exists = flags.contains(RenameFlags::NOREPLACE);
            return Err(if exists { Error::Exists } else { busy() });
        };
        let from = Place { directory: &from_directory, name: &name, slash: from.ends_with(b"/") };
        let to = Place { directory: &to_directory, name: &new_name, slash: to.ends_with(b"/") };
        rename::rename(&self.shared.fs, from, to, flags)
    }

    /// Whether some buffered writes are in memory only.
    fn has_late_writes(&self) -> bool {
        self.engine().page_bytes().1 > 0
    }

    /// Writes the pages of a file home before it gets another name: programs replace files in this way, and after a
    /// crash the name must not lead to a file without its contents.
    fn write_late(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.kind() != FileKind::Regular {
            return Ok(());
        }
        let open = OpenFile::new(Arc::clone(inode), true, false, Switches::ON);
        self.engine().write_pages_of(&open)
    }

    /// The directory that a path leads to, and the last name.
    fn end_of(&self, path: &[u8]) -> Result<(Arc<Inode>, Option<Vec<u8>>)> {
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        path::any_parent(self.state(), self.state().root()?, path)
    }
}
