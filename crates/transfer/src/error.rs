//! Errors of copies.

use crate::tree::SHARING_MAX;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use uext4::Ino;
use uext4::device::describe;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// The file that a failure concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A path below the source, bytes without a leading slash; empty: the source itself.
    Source(Vec<u8>),
    /// A path below the tree that the source is compared with, likewise.
    Before(Vec<u8>),
    /// A path below the destination in a volume, bytes without a leading slash; empty: the destination itself.
    Destination(Vec<u8>),
    /// A file of the host.
    Host(PathBuf),
}

/// A failure.
#[derive(Debug)]
pub struct Error {
    /// The file concerned.
    pub subject: Subject,
    /// The name of the extended attribute concerned.
    pub attribute: Option<Vec<u8>>,
    /// Why.
    pub cause: Cause,
}

/// Why something could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// An error of the volume.
    #[error("{0}")]
    Volume(uext4::Error),
    /// An error of the host.
    #[error("{action}: {}", describe(error))]
    Host {
        /// The operation that failed.
        action: &'static str,
        /// The error.
        error: io::Error,
    },
    /// Several sources need a directory as the destination.
    #[error("not a directory, and there are several sources")]
    NotDirectory,
    /// A directory is in the way of something else.
    #[error("cannot overwrite a directory with something else")]
    OverDirectory,
    /// Something else is in the way of a directory.
    #[error("cannot overwrite something else with a directory")]
    OverOther,
    /// A directory would be copied into itself.
    #[error("cannot copy a directory into itself")]
    IntoItself,
    /// Source and destination are one inode.
    #[error("source and destination are the same file")]
    SameFile,
    /// Directories are copied only if the copy is recursive.
    #[error("is a directory, and -r is not given")]
    NotRecursive,
    /// A directory has several names, or is inside itself.
    #[error("the directory is reached twice, and is copied once")]
    Twice,
    /// A symbolic link that is followed leads back to a directory that is being copied.
    #[error("leads back to a directory above it")]
    Loop,
    /// The allowance for what is reached through symbolic links is spent.
    #[error("links lead to more than {SHARING_MAX} times the volume: copy it in parts")]
    TooMuchLinked,
    /// The file is the device that is copied to.
    #[error("is the device of the destination")]
    DestinationDevice,
    /// The destination has no name that could be created.
    #[error("no such directory")]
    NoDirectory,
    /// The copy would destroy its source.
    #[error("is the device of a source")]
    SourceDevice,
    /// The file was created from another source of the same export, and is not replaced.
    #[error("was created from another source of this copy, and is kept")]
    JustMade,
    /// The destination directory was moved: nothing more can be created.
    #[error("the destination was moved while it was being filled")]
    Moved,
    /// The path of a file with other hard links has this many bytes, too many to link to.
    #[error("its other names will be separate files: a path of {0} bytes")]
    LongPath(usize),
    /// The allowance of a volume whose files may share blocks is spent.
    #[error("the files hold more data than {SHARING_MAX} times the volume: copy them in parts")]
    TooMuchData,
    /// The file ended before its size.
    #[error("short read at byte {pos}: {read} of {length} bytes")]
    ShortRead {
        /// Where in the file.
        pos: u64,
        /// Bytes read.
        read: u64,
        /// Bytes requested.
        length: u64,
    },
    /// The device did not return the buffer of a read.
    #[error("the device did not return the buffer of a read")]
    NoMemory,
    /// Archives have no sockets.
    #[error("a socket is left out: archives have none")]
    NoSocket,
    /// In a layer the name would hide another.
    #[error("a layer cannot have a file of this name: it would hide another")]
    WhiteoutName,
    /// The number of further bad attributes of one file, after those reported individually.
    #[error("{0} more attributes could not be copied")]
    MoreAttributes(u64),
    /// The allowance for attributes is spent.
    #[error(
        "attributes of inode {0} are left out: those copied so far exceed the volume (they share values)"
    )]
    AttributesLeftOut(Ino),
    /// The number of further files without their attributes, after those reported individually.
    #[error("attributes of {0} more files are left out for the same reason")]
    MoreLeftOut(u64),
}

impl Error {
    /// An error for a path below the source.
    pub(crate) fn source(path: &[u8], cause: impl Into<Cause>) -> Self {
        Error { subject: Subject::Source(path.to_vec()), attribute: None, cause: cause.into() }
    }

    /// An error for a path below the destination in a volume.
    pub(crate) fn destination(path: &[u8], cause: impl Into<Cause>) -> Self {
        Error { subject: Subject::Destination(path.to_vec()), attribute: None, cause: cause.into() }
    }

    /// The same error, of the tree that the source is compared with.
    pub(crate) fn before(self) -> Self {
        match self.subject {
            Subject::Source(path) => Error { subject: Subject::Before(path), ..self },
            _ => self,
        }
    }

    /// Sets the path of an error of the destination.
    pub(crate) fn below(self, path: &[u8]) -> Self {
        match self.subject {
            Subject::Destination(_) => Error { subject: Subject::Destination(path.to_vec()), ..self },
            _ => self,
        }
    }

    /// An error for a file of the host.
    pub(crate) fn host(path: impl Into<PathBuf>, cause: Cause) -> Self {
        Error { subject: Subject::Host(path.into()), attribute: None, cause }
    }

    /// The host's error for one of its files.
    pub(crate) fn refused(
        path: impl Into<PathBuf>,
        action: &'static str,
        error: impl Into<io::Error>,
    ) -> Self {
        Error::host(path, Cause::Host { action, error: error.into() })
    }

    /// Same, for one of its attributes.
    pub(crate) fn about_attribute(self, name: &[u8]) -> Self {
        Error { attribute: Some(name.to_vec()), ..self }
    }

    /// Whether the reader closed the output.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(&self.cause, Cause::Host { error, .. } if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether a copy of a tree ends with it.
    pub(crate) fn ends_source(&self) -> bool {
        self.is_closed_pipe() || matches!(self.cause, Cause::TooMuchLinked)
    }

    /// Whether the volume was aborted.
    pub(crate) fn is_of_aborted_volume(&self) -> bool {
        matches!(&self.cause, Cause::Volume(uext4::Error::Aborted(_)))
    }

    /// Whether the volume has no room.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(&self.cause, Cause::Volume(uext4::Error::NoSpace))
    }

    /// The Linux errno.
    pub fn errno(&self) -> i32 {
        match &self.cause {
            Cause::Volume(error) => error.errno(),
            Cause::Host { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            Cause::NotDirectory => libc::ENOTDIR,
            Cause::NoDirectory => libc::ENOENT,
            Cause::SourceDevice | Cause::DestinationDevice | Cause::IntoItself | Cause::SameFile => {
                libc::EINVAL
            }
            Cause::OverDirectory | Cause::NotRecursive => libc::EISDIR,
            Cause::OverOther => libc::ENOTDIR,
            Cause::Twice | Cause::Loop => libc::ELOOP,
            Cause::JustMade => libc::EEXIST,
            Cause::Moved => libc::ESTALE,
            Cause::NoSocket | Cause::WhiteoutName => libc::EOPNOTSUPP,
            Cause::LongPath(_) => libc::ENAMETOOLONG,
            Cause::TooMuchData | Cause::TooMuchLinked => libc::EFBIG,
            Cause::ShortRead { .. } | Cause::NoMemory => libc::EIO,
            Cause::MoreAttributes(_) => libc::EUCLEAN,
            Cause::AttributesLeftOut(_) | Cause::MoreLeftOut(_) => libc::E2BIG,
        }
    }
}

impl From<uext4::Error> for Cause {
    fn from(error: uext4::Error) -> Self {
        Cause::Volume(error)
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match &self.subject {
            Subject::Source(path) | Subject::Before(path) | Subject::Destination(path) => {
                OsStr::from_bytes(path)
            }
            Subject::Host(path) => path.as_os_str(),
        };
        write!(f, "{}: ", path.display())?;
        if let Some(name) = &self.attribute {
            write!(f, "attribute {}: ", OsStr::from_bytes(name).display())?;
        }
        self.cause.fmt(f)
    }
}
