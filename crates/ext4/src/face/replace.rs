//! A file that replaces another one as a whole.

use super::file::File;
use super::volume::{Shared, Volume};
use crate::ground::error::Result;
use crate::ground::options::OpenOptions;
use crate::operations::create::NewFile;
use crate::operations::replace::{self, Begun};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// A file that has no name yet and is to take one, from [`Volume::replace_file`]. Fill [`Replacement::file`], then call
/// [`Replacement::finish`]. Dropped before that, it goes, and the name leads to what it led to.
pub struct Replacement {
    begun: Begun,
    // Behind the other use of its inode.
    file: File,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Replacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replacement").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Volume {
    /// Begins to replace the file that `path` names, or to make it if there is none: an empty file without a name, open
    /// for reading and writing. Symbolic links are followed. Nobody sees it before [`Replacement::finish`]; after a
    /// crash or a failure the name leads to the old file, whole.
    ///
    /// The new file has owner, group, permissions, access control lists, other extended attributes, project and
    /// inherited flags of the old one, without what a write takes away (set-user-id, set-group-id, capabilities). If
    /// there is no old one, mode and owner are those of `options`. It has one name: other names of the old file keep
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
        let new = NewFile {
            mode: options.new_mode(),
            uid: options.owner.0,
            gid: options.owner.1,
            exclusive: false,
        };
        let begun = replace::begin(&self.shared.fs, path.as_ref().as_os_str().as_bytes(), &new)?;
        let open = OpenOptions { read: true, write: true, ..OpenOptions::new() };
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

    /// Gives the new file its name, in one step, in place of the file that has it by then: it is freed with its last
    /// name and user. What was written through the file and has completed is there whenever the name is. Durable after
    /// the next sync of the file or the volume, or [`Volume::close`].
    ///
    /// On a volume without a journal a crash before the next sync leaves names to e2fsck, as of every change there.
    ///
    /// # Errors
    /// As of [`Volume::replace_file`]: the name leads to the old file then, and the new one is gone. Others come from
    /// freeing the old file: the name leads to the new one.
    pub fn finish(self) -> Result<File> {
        let Replacement { begun, file, shared } = self;
        replace::finish(&shared.fs, begun)?;
        Ok(file)
    }
}
