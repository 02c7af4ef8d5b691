//! What keeps inputs from becoming a tree.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uext4::device::describe;

/// Errors that are kept for the report. Those beyond are counted.
const LISTED_MAX: usize = 100;

/// An error of one input.
#[derive(Debug)]
pub struct GatherError {
    /// The archive, directory or image, as it was named.
    pub input: PathBuf,
    /// The path of the entry concerned, as the archive has it.
    pub entry: Option<Vec<u8>>,
    /// Where the entry begins: bytes from the start of the archive, after decompression.
    pub offset: Option<u64>,
    /// Why.
    pub cause: GatherCause,
}

/// Why an input cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatherCause {
    /// A file of a directory cannot be read. The error names it.
    #[error("{0}")]
    Host(Box<crate::Error>),
    /// An error of the host.
    #[error("{action}: {}", describe(error))]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The error.
        error: io::Error,
    },

    /// The archive ends where more must follow.
    #[error("the archive is cut short: {0}")]
    Truncated(&'static str),
    /// No archive that can be read.
    #[error("{0}")]
    Format(String),
    /// A header whose checksum is wrong.
    #[error("no header of a tar archive: its checksum is wrong")]
    Checksum,
    /// A field of a header that is not a number, or none that is possible.
    #[error("the header's {0} is not valid")]
    Field(&'static str),
    /// A record of an extended header that cannot be understood.
    #[error("extended header: {0}")]
    Extended(&'static str),
    /// The description of a sparse file that contradicts itself.
    #[error("map of a sparse file: {0}")]
    Sparse(&'static str),
    /// Something that is larger than what is read.
    #[error("{what} of {size} bytes, of at most {max}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        max: u64,
    },

    /// An image that is not what it says, or none that can be chosen.
    #[error("{0}")]
    Image(String),
    /// Bytes that do not have their digest.
    #[error("its bytes have the digest {found}, not {wanted}")]
    Digest {
        /// The digest that the image says.
        wanted: String,
        /// The digest of the bytes.
        found: String,
    },

    /// A path with a component `..`.
    #[error("the path leads out of its directory (`..`)")]
    Outside,
    /// A path that leads through a symbolic link.
    #[error("the path leads through the symbolic link {}", OsStr::from_bytes(.0).display())]
    ThroughLink(Vec<u8>),
    /// A path through more symbolic links than are followed.
    #[error("the path leads through more than {0} symbolic links")]
    TooManyLinks(usize),
    /// A path through something that is no directory.
    #[error("the path leads through {}, which is not a directory", OsStr::from_bytes(.0).display())]
    NotDirectory(Vec<u8>),
    /// A name or a target that no file can have.
    #[error("{0}")]
    Name(&'static str),
    /// A hard link to something that is not there.
    #[error("a hard link to {}, {why}", OsStr::from_bytes(target).display())]
    Link {
        /// What it links to.
        target: Vec<u8>,
        /// Why not.
        why: &'static str,
    },
    /// A type of entry that is not known.
    #[error("an entry of unknown type {0:#04x}")]
    Type(u8),
    /// An access control list that cannot be kept.
    #[error("access control list: {0}")]
    Acl(String),
    /// A file that is not what it was when the tree was gathered.
    #[error("changed while it was read")]
    Changed,

    /// The files hold more than the limit allows.
    #[error("the files hold more than {0} bytes")]
    TooMuchData(u64),
    /// The names and attributes take more memory than the limit allows.
    #[error("names and attributes take more than {0} bytes of memory")]
    TooMuchMemory(u64),
}

impl GatherCause {
    /// The Linux errno that comes closest.
    pub fn errno(&self) -> i32 {
        use GatherCause as C;
        match self {
            C::Host(error) => error.errno(),
            C::Io { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            C::Digest { .. }
            | C::Truncated(_)
            | C::Checksum
            | C::Field(_)
            | C::Extended(_)
            | C::Sparse(_) => libc::EBADMSG,
            C::Format(_) | C::Image(_) | C::Type(_) | C::Acl(_) => libc::EINVAL,
            C::TooLarge { .. } => libc::E2BIG,
            C::Outside | C::ThroughLink(_) => libc::EXDEV,
            C::TooManyLinks(_) => libc::ELOOP,
            C::NotDirectory(_) => libc::ENOTDIR,
            C::Name(_) => libc::EINVAL,
            C::Link { .. } => libc::ENOENT,
            C::Changed => libc::ESTALE,
            C::TooMuchData(_) => libc::ENOSPC,
            C::TooMuchMemory(_) => libc::ENOMEM,
        }
    }

    /// Whether the input can be read on to find more of the kind, before the whole fails.
    pub(super) fn is_refusal(&self) -> bool {
        use GatherCause as C;
        matches!(
            self,
            C::Host(_)
                | C::Outside
                | C::ThroughLink(_)
                | C::TooManyLinks(_)
                | C::NotDirectory(_)
                | C::Name(_)
                | C::Link { .. }
                | C::Type(_)
                | C::Acl(_)
        )
    }

    pub(super) fn io(action: &'static str) -> impl Fn(io::Error) -> GatherCause {
        move |error| GatherCause::Io { action, error }
    }
}

impl From<crate::Error> for GatherCause {
    fn from(error: crate::Error) -> Self {
        GatherCause::Host(Box::new(error))
    }
}

impl GatherError {
    /// An error of an input as a whole.
    pub(super) fn new(input: &Path, cause: impl Into<GatherCause>) -> Self {
        GatherError { input: input.to_owned(), entry: None, offset: None, cause: cause.into() }
    }

    /// The Linux errno.
    pub fn errno(&self) -> i32 {
        self.cause.errno()
    }
}

impl std::error::Error for GatherError {}

impl fmt::Display for GatherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let GatherCause::Host(error) = &self.cause {
            return error.fmt(f);
        }
        write!(f, "{}: ", self.input.display())?;
        if let Some(entry) = &self.entry {
            write!(f, "{}: ", OsStr::from_bytes(entry).display())?;
        }
        self.cause.fmt(f)?;
        match self.offset {
            Some(offset) => write!(f, " (at byte {offset})"),
            None => Ok(()),
        }
    }
}

/// All that keeps inputs from becoming a tree.
#[derive(Debug, Default)]
pub struct Failures {
    /// The first ones. At least one.
    pub errors: Vec<GatherError>,
    /// The number of further ones.
    pub more: u64,
}

impl Failures {
    pub(super) fn push(&mut self, error: GatherError) {
        if self.errors.len() < LISTED_MAX {
            self.errors.push(error);
        } else {
            self.more += 1;
        }
    }

    /// Ends the list with the error that stopped everything, which is always in it.
    pub(super) fn ended_by(&mut self, error: GatherError) -> Failures {
        self.errors.push(error);
        std::mem::take(self)
    }

    /// The Linux errno of the last one listed.
    pub fn errno(&self) -> i32 {
        self.errors.last().map_or(libc::EIO, GatherError::errno)
    }
}

impl std::error::Error for Failures {}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.errors.iter().enumerate() {
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        if self.more > 0 {
            write!(f, "\n{} more", self.more)?;
        }
        Ok(())
    }
}
