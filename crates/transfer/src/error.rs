//! What could not be copied, and why.

use crate::tree::SHARING_MAX;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use uext4::Ino;
use uext4::device::describe;

/// Result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// What a failure is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// This path below what is copied, bytes without a leading slash; empty: what is copied.
    Source(Vec<u8>),
    /// A file of the host.
    Host(PathBuf),
}

/// A failure.
#[derive(Debug)]
pub struct Error {
    /// What it is about.
    pub subject: Subject,
    /// The name of the extended attribute that it is about.
    pub attribute: Option<Vec<u8>>,
    /// Why.
    pub cause: Cause,
}

/// Why something could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The volume's answer.
    #[error("{0}")]
    Volume(uext4::Error),
    /// The host's answer.
    #[error("{action}: {}", describe(error))]
    Host {
        /// What was tried.
        action: &'static str,
        /// The answer.
        error: io::Error,
    },
    /// Several sources go into a directory.
    #[error("not a directory, and there are several sources")]
    NotDirectory,
    /// The destination has no name that could be made.
    #[error("no such directory")]
    NoDirectory,
    /// The copy would destroy what it is taken from.
    #[error("is the device of a source")]
    SourceDevice,
    /// A copy does not replace what the same export made from another source.
    #[error("was made from another source just now, and is kept")]
    JustMade,
    /// What is filled is not where it was: nothing more can be made.
    #[error("the destination was moved while it was being filled")]
    Moved,
    /// The path of a file with other names has this many bytes, too many for links to it.
    #[error("its other names will be files of their own: a path of {0} bytes")]
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
        /// Bytes asked for.
        length: u64,
    },
    /// The device kept the memory of a read.
    #[error("a read came back without its memory")]
    NoMemory,
    /// So many bad attributes of one file, after those told one by one.
    #[error("{0} more attributes could not be copied")]
    MoreAttributes(u64),
    /// The allowance for attributes is spent.
    #[error(
        "attributes of inode {0} are left out: all copied so far hold more than the volume (they share values)"
    )]
    AttributesLeftOut(Ino),
    /// So many files without their attributes, after those told one by one.
    #[error("attributes of {0} more files are left out for the same reason")]
    MoreLeftOut(u64),
}

impl Error {
    /// About a path below the source.
    pub(crate) fn source(path: &[u8], cause: impl Into<Cause>) -> Self {
        Error { subject: Subject::Source(path.to_vec()), attribute: None, cause: cause.into() }
    }

    /// About a file of the host.
    pub(crate) fn host(path: impl Into<PathBuf>, cause: Cause) -> Self {
        Error { subject: Subject::Host(path.into()), attribute: None, cause }
    }

    /// The host's answer about one of its files.
    pub(crate) fn refused(
        path: impl Into<PathBuf>,
        action: &'static str,
        error: impl Into<io::Error>,
    ) -> Self {
        Error::host(path, Cause::Host { action, error: error.into() })
    }

    /// The same, about one attribute of it.
    pub(crate) fn about_attribute(self, name: &[u8]) -> Self {
        Error { attribute: Some(name.to_vec()), ..self }
    }

    /// Whether nobody reads what is written any more.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(&self.cause, Cause::Host { error, .. } if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Linux's number for it.
    pub fn errno(&self) -> i32 {
        match &self.cause {
            Cause::Volume(error) => error.errno(),
            Cause::Host { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            Cause::NotDirectory => libc::ENOTDIR,
            Cause::NoDirectory => libc::ENOENT,
            Cause::SourceDevice => libc::EINVAL,
            Cause::JustMade => libc::EEXIST,
            Cause::Moved => libc::ESTALE,
            Cause::LongPath(_) => libc::ENAMETOOLONG,
            Cause::TooMuchData => libc::EFBIG,
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
            Subject::Source(path) => OsStr::from_bytes(path),
            Subject::Host(path) => path.as_os_str(),
        };
        write!(f, "{}: ", path.display())?;
        if let Some(name) = &self.attribute {
            write!(f, "attribute {}: ", OsStr::from_bytes(name).display())?;
        }
        self.cause.fmt(f)
    }
}
