//! Replaces a file as a whole.

use super::file::File;
use super::volume::{Shared, Volume};
use crate::ground::caller::Caller;
use crate::ground::error::Result;
use crate::ground::options::OpenOptions;
use crate::operations::create::NewFile;
use crate::operations::replace::{self, Begun};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// A new file, still without a name, from [`Volume::replace_file`]. Fill [`Replacement::file`], then call
/// [`Replacement::finish`]. If it is dropped before that, the new file is freed and the name still leads to the old
/// one.
pub struct Replacement {
    begun: Begun,
    // After `begun`, which refers to the same inode.
    file: File,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Replacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replacement").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Volume {
    /// Starts replacing the file at `path`, or creating it if there is none: makes an empty file without a name, open
    /// for reading and writing. Symbolic links are followed. Nobody sees the new file before [`Replacement::finish`];
    /// after a crash or a failure the name leads to the old file, whole.
    ///
    /// The new file takes owner, group, permissions, access control lists, other extended attributes, project and
    /// inherited flags from the old one, except what a write strips (set-user-id, set-group-id, capabilities). If there
    /// is no old file, mode and owner are those of `options`. The new file has one name: other hard links still lead to
    /// the old file. Until [`Replacement::finish`] both take space.
    ///
    /// # Errors
    /// [`Error::NotRegular`](crate::Error::NotRegular), [`Error::IsDirectory`](crate::Error::IsDirectory);
    /// [`Error::NotPermitted`](crate::Error::NotPermitted) for immutable, append-only and sealed files and immutable or
    /// append-only directories; [`Error::Incompatible`](crate::Error::Incompatible) where this version changes no names
    /// or cannot free the old file; [`Error::Corrupt`](crate::Error::Corrupt) if the old file is damaged;
    /// [`Error::NoSpace`](crate::Error::NoSpace), [`Error::ReadOnly`](crate::Error::ReadOnly). Nothing was changed
    /// then.
    pub fn replace_file(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<Replacement> {
        self.check_changes()?;
        let owner = Caller::new(options.owner.0, options.owner.1);
        let new = NewFile::of_open(&owner, &options);
        let begun = replace::begin(&self.shared.fs, path.as_ref().as_os_str().as_bytes(), &new)?;
        let open = OpenOptions { read: true, write: true, direct: options.direct, ..OpenOptions::new() };
        let open = match options.switches {
            Some(switches) => open.switches(switches),
            None => open,
        };
        let file = self.open_loaded(begun.inode.clone(), open)?;
        Ok(Replacement { begun, file, shared: self.shared.clone() })
    }
}

impl Replacement {
    /// The new file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Links the new file at the name, in one transaction, replacing the file that has the name by then. That one is
    /// freed with its last name and user. Writes that completed on the new file are never missing once the name leads
    /// to it. Durable after the next sync of the file or the volume, or [`Volume::close`].
    ///
    /// On a volume without a journal, a crash before the next sync leaves the names to e2fsck, like any other change
    /// there.
    ///
    /// # Errors
    /// As of [`Volume::replace_file`]: the name still leads to the old file then, and the new one is gone. Freeing the
    /// old file can fail with other errors: the name leads to the new one then.
    pub fn finish(self) -> Result<File> {
        let Replacement { begun, file, shared } = self;
        shared.check_process()?;
        // The name must not lead to a file whose bytes are in memory only.
        shared.engine.write_pages_of(file.open_file())?;
        replace::finish(&shared.fs, begun)?;
        Ok(file)
    }
}
