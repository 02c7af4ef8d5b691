//! Setting attributes of files: by handle, and by path as `std::fs` names it.

use super::node::Node;
use super::volume::Volume;
use crate::ground::error::Result;
use crate::ground::options::OpenOptions;
use crate::inode::metadata::{FileKind, InodeFlags};
use crate::inode::set_attributes::{SetAttributes, Time};
use crate::operations::directories::Directories;
use std::path::Path;
use std::sync::Arc;
use uext4_iomap::OpenFile;
use uext4_iomap::switches::Switches;

impl Node {
    /// Sets attributes in one transaction, and the time of change to now. A size is set first, in transactions of its
    /// own ([`File::set_len`](crate::File::set_len)). Durable after the next sync of the file, or of the volume. If
    /// there is nothing to set, nothing changes.
    ///
    /// # Errors
    /// [`Error::NotPermitted`](crate::Error::NotPermitted) if the file is immutable, or append-only (which allows
    /// setting both times to [`Time::Now`]); [`Error::NotSupported`](crate::Error::NotSupported) for permissions of a
    /// symbolic link, or what the inode has no room for; [`Error::Invalid`](crate::Error::Invalid);
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); [`Error::Incompatible`](crate::Error::Incompatible) naming what
    /// cannot be changed; those of [`File::set_len`](crate::File::set_len) if a size is set. Nothing was changed then,
    /// except that the size may have changed if one was to be set and the device, the journal or the space fails.
    pub fn set_attributes(&self, set: &SetAttributes) -> Result<()> {
        let volume = self.volume();
        volume.check_changes()?;
        let files = volume.shared.fs.files();
        files.check_attributes(&self.held, set)?;
        if let Some(size) = set.size {
            self.open(OpenOptions::new().write(true))?.set_len(size)?;
        }
        if set.only_size() {
            return Ok(());
        }
        let inode = &self.held;
        let names = (inode.kind() == FileKind::Directory).then(|| Directories::one(inode));
        let _names_stay = names.filter(|_| set.flags.is_some());
        if set.flags.is_none() || inode.kind() != FileKind::Regular {
            return files.set_attributes(inode, set);
        }
        // Requests that began before are complete. Later ones find the new flags: nobody writes to what is immutable by
        // now, or in the way that the old flags asked for. Two changes of flags come one after the other.
        let open = OpenFile::new(Arc::clone(inode), false, true, Switches::ON);
        let held = volume.shared.engine.lock_exclusive(&open, true)?;
        if files.switches_log(inode, set) {
            return files.switch_log(inode, &held, set);
        }
        files.set_attributes(inode, set)
    }
}

impl Volume {
    /// Sets the permissions of a file, as `chmod`: `mode` has at most the bits `0o7777`. A symbolic link at the end is
    /// followed if `follow`; it has no permissions of its own.
    ///
    /// # Errors
    /// As of [`Node::set_attributes`]; those of resolving the path.
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u32, follow: bool) -> Result<()> {
        self.set_attributes_at(path, follow, &SetAttributes::new().mode(mode))
    }

    /// Sets owner, group or both, as `chown`: strips set-user-id, set-group-id and `security.capability`, even if
    /// neither is given ([`SetAttributes::uid`]).
    ///
    /// # Errors
    /// As of [`Node::set_attributes`]; those of resolving the path.
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> Result<()> {
        self.set_attributes_at(path, follow, &SetAttributes::chown(uid, gid))
    }

    /// Sets the times of the last access and of the last change of the contents, as `utimensat`. `None` leaves a time
    /// as it is; two of them change nothing.
    ///
    /// # Errors
    /// As of [`Node::set_attributes`]; those of resolving the path.
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<Time>,
        modified: Option<Time>,
        follow: bool,
    ) -> Result<()> {
        self.set_attributes_at(path, follow, &SetAttributes { accessed, modified, ..SetAttributes::new() })
    }

    /// Sets the flags of a file, as `chattr` ([`SetAttributes::flags`]). Immutable: nothing of the file can be changed,
    /// also through files that are open already. Append-only: it can only be opened for appending
    /// ([`File::append`](crate::File::append)); files that are open for writing stay so, as in Linux. Synchronous: each
    /// write from now on is durable, also through files that are open already, and each change of names in a directory
    /// (also with [`InodeFlags::DIRSYNC`]).
    ///
    /// # Errors
    /// As of [`Node::set_attributes`]; those of resolving the path.
    pub fn set_flags(&self, path: impl AsRef<Path>, flags: InodeFlags, follow: bool) -> Result<()> {
        self.set_attributes_at(path, follow, &SetAttributes::new().flags(flags))
    }

    /// Sets the project of a file ([`SetAttributes::project`]).
    ///
    /// # Errors
    /// As of [`Node::set_attributes`]; those of resolving the path.
    pub fn set_project(&self, path: impl AsRef<Path>, project: u32, follow: bool) -> Result<()> {
        self.set_attributes_at(path, follow, &SetAttributes::new().project(project))
    }

    fn set_attributes_at(&self, path: impl AsRef<Path>, follow: bool, set: &SetAttributes) -> Result<()> {
        self.check_changes()?;
        self.node_at(path, follow)?.set_attributes(set)
    }
}
