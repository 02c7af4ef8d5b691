//! Calls that answer about a path in one step, like the free functions of `std::fs`.

use crate::face::file::File;
use crate::face::volume::Volume;
use crate::ground::error::{Error, Result};
use crate::ground::options::OpenOptions;
use crate::operations::path;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Bytes read at a time, so that memory grows only as contents arrive.
const STEP: usize = 1 << 20;

impl Volume {
    /// Most bytes that [`Volume::read`] returns, 1 GiB.
    pub const READ_MAX: u64 = 1 << 30;

    /// The whole contents of a regular file, following symbolic links; holes read as zeros. As [`std::fs::read`],
    /// but never more than [`Volume::READ_MAX`] bytes: a few blocks can claim to be a file of 2⁶⁰ bytes of holes.
    /// [`Volume::read_up_to`] takes another limit, [`File::cursor`] and [`File::read_any_at`] read in parts.
    ///
    /// # Errors
    /// [`Error::FileTooLarge`] beyond the limit, before anything is read; [`Error::OutOfMemory`]; those of
    /// [`Volume::open_file`]; and [`Error::Io`] if the device fails.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.read_up_to(path, Self::READ_MAX)
    }

    /// As [`Volume::read`], with at most `most` bytes.
    ///
    /// # Errors
    /// Those of [`Volume::read`].
    pub fn read_up_to(&self, path: impl AsRef<Path>, most: u64) -> Result<Vec<u8>> {
        let file = self.open_file(path, OpenOptions::new().read(true).direct(true))?;
        let size = file.size();
        if size > most {
            return Err(Error::FileTooLarge { size, most });
        }
        read_whole(&file, size)
    }

    /// Whether `path` exists, following symbolic links: a dangling link does not count. As with [`std::fs::exists`],
    /// "no" means that a name is missing and nothing else.
    ///
    /// # Errors
    /// Those that leave the answer unknown: [`Error::NotDirectory`] in the middle of the path, [`Error::TooManyLinks`],
    /// damage, a device that fails.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.resolve(path, true) {
            Ok(_) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The canonical absolute path of `path`: no `.`, no `..`, no symbolic link, no redundant slash, and names spelt as
    /// the directory stores them (which matters in case-folded directories only). As [`std::fs::canonicalize`]. Bytes,
    /// not necessarily UTF-8. Paths start at the root, with or without a leading slash.
    ///
    /// # Errors
    /// Those of [`Volume::resolve`]; [`Error::NotFound`] if the last name is missing too, and [`Error::CorruptInode`]
    /// if the `..` of a directory does not lead to the directory that names it: it has no canonical path then.
    pub fn canonicalize(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let bytes = path::canonical(self.state(), path.as_ref().as_os_str().as_bytes())?;
        Ok(PathBuf::from(OsString::from_vec(bytes)))
    }
}

/// Reads a whole file of `size` bytes. Fails if it does not fit into memory.
fn read_whole(file: &File, size: u64) -> Result<Vec<u8>> {
    let refuse = || Error::OutOfMemory { bytes: size };
    let length = usize::try_from(size).map_err(|_| refuse())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| refuse())?;
    while bytes.len() < length {
        let start = bytes.len();
        bytes.resize(length.min(start + STEP), 0);
        let read = file.read_any_at(&mut bytes[start..], start as u64)?;
        if read < bytes.len() - start {
            // The file was truncated meanwhile.
            bytes.truncate(start + read);
            break;
        }
    }
    Ok(bytes)
}
