//! The one error of the library, each kind with one errno.

use crate::ground::foreign::Foreign;
use std::fmt;
use std::sync::Arc;
use uext4_blockdev as blockdev;
use uext4_buffer as buffer;
use uext4_iomap as iomap;
use uext4_jbd2 as jbd2;
use uext4_ondisk::ext4::QuotaKind;
use uext4_ondisk::{Corrupt, CorruptKind, EncodeError, Ino, Pblk};

impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Self {
        *error
    }
}

/// Result of a library call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. Cheap to clone: one failure may be reported to many waiters.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or refused a request as the kernel would.
    #[error("{0}")]
    Io(Arc<blockdev::Error>),
    /// The device failed while a metadata block was transferred.
    #[error("metadata block {block}: {source}")]
    MetadataIo {
        /// The file-system block.
        block: u64,
        /// The device's error.
        source: Arc<blockdev::Error>,
    },
    /// The volume uses a feature that this version does not support; the text names it.
    #[error("cannot {action}: the volume uses {feature}")]
    Incompatible {
        /// `open`, `open for writing`, `recover`, `read`, `write`.
        action: &'static str,
        /// The feature as `dumpe2fs` prints it, or a description.
        feature: String,
    },
    /// The journal holds transactions that are not written home yet.
    #[error("the journal needs recovery (mount the volume once, or run e2fsck): {0}")]
    NeedsRecovery(String),
    /// There is no superblock of an ext2, ext3 or ext4 volume on the device; the text says what it looks like.
    #[error("not an ext2/3/4 volume: {0}")]
    NotExt4(Arc<Foreign>),
    /// Metadata is damaged; kind and place say what and where.
    #[error("corrupt volume: {0}")]
    Corrupt(Arc<Corrupt>),
    /// The volume's journal is on a device of its own, which was not named, or the device named is not it; the text
    /// says which journal the volume needs.
    #[error("{0}")]
    ExternalJournal(Arc<str>),
    /// The journal is damaged or cannot do what was requested.
    #[error("journal: {0}")]
    Journal(Arc<jbd2::Error>),
    /// The fast commits at the end of the journal cannot be replayed. Everything before them can be read; nothing may
    /// be written, because their changes would be lost.
    #[error(
        "record {record} of the fast commits cannot be replayed: {cause} (open it read-only, or run e2fsck)"
    )]
    FastCommit {
        /// The record, counted from 0, including head, padding and tail records.
        record: u32,
        /// Why.
        cause: Arc<Error>,
    },
    /// Metadata structures contradict each other.
    #[error("corrupt volume: inode {ino}: {what}")]
    CorruptInode {
        /// The inode.
        ino: Ino,
        /// What is wrong, with block numbers.
        what: String,
    },
    /// The device is smaller than the volume on it.
    #[error("the volume has {blocks} blocks of {block} bytes, but the device only {device} bytes")]
    TooSmall {
        /// Blocks of the volume.
        blocks: u64,
        /// Bytes of a block.
        block: u32,
        /// Bytes of the device.
        device: u64,
    },
    /// No such file or directory.
    #[error("no such file or directory")]
    NotFound,
    /// The inode with this generation was freed; its number may belong to another inode now.
    #[error("inode {0} was freed, and its number may belong to another inode now")]
    Stale(Ino),
    /// The name exists already.
    #[error("it already exists")]
    Exists,
    /// The volume has no free block or inode left.
    #[error("no space left on the volume")]
    NoSpace,
    /// A limit of quota is reached. Limits hold for callers other than root.
    #[error("quota exceeded: {} {id} has reached the limit of {limit}", kind.name())]
    QuotaExceeded {
        /// Whose limit.
        kind: QuotaKind,
        /// The user, group or project.
        id: u32,
        /// What is limited.
        limit: QuotaLimit,
    },
    /// The format cannot hold more.
    #[error("{0}")]
    Limit(Limit),
    /// A path component is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The path names a directory where a file is needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has names.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The directory passes its project on to what is in it, and the file has another one.
    #[error("the file belongs to another project than the directory")]
    OtherProject,
    /// The two nodes belong to different volumes.
    #[error("the nodes belong to different volumes")]
    OtherVolume,
    /// Not a regular file (a device node, pipe or socket).
    #[error("not a regular file")]
    NotRegular,
    /// Not a symbolic link.
    #[error("not a symbolic link")]
    NotSymlink,
    /// Too many symbolic links on one path.
    #[error("too many levels of symbolic links")]
    TooManyLinks,
    /// A path component is longer than 255 bytes.
    #[error("a name is longer than 255 bytes")]
    NameTooLong,
    /// The file has no extended attribute of this name.
    #[error("no such attribute")]
    NoAttribute,
    /// An attribute cannot be set like this.
    #[error("{0}")]
    Attribute(AttributeError),
    /// The value is longer than the limit.
    #[error("the value has {size} bytes, more than the limit of {most}")]
    TooLarge {
        /// Bytes of the value.
        size: u64,
        /// The limit.
        most: u64,
    },
    /// The file is longer than may be read in one call.
    #[error("the file has {size} bytes, more than the {most} that are read at once")]
    FileTooLarge {
        /// Bytes of the file.
        size: u64,
        /// Most that may be read.
        most: u64,
    },
    /// Memory allocation failed.
    #[error("cannot allocate {bytes} bytes of memory")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A position, length or memory address breaks the device's alignment; nothing was transferred.
    #[error("{what} {value:#x} is not a multiple of {align}")]
    Misaligned {
        /// Which of these.
        what: blockdev::Misaligned,
        /// Its value.
        value: u64,
        /// The alignment in bytes.
        align: u32,
    },
    /// The write is not a pure overwrite, and the volume is one whose blocks and sizes are not changed. Nothing was
    /// changed.
    #[error("{0}")]
    NeedsAllocation(Allocation),
    /// Another user has the device or image.
    #[error("in use by {0}")]
    InUse(String),
    /// The volume or device is read-only, or the file is not open for writing.
    #[error("read-only: {0}")]
    ReadOnly(&'static str),
    /// The file's flags forbid it; the text names the flag.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// The volume, or a file of this type, cannot have it; the text says what.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The file was not opened for this.
    #[error("the file is not open for {0}")]
    BadMode(&'static str),
    /// The request would have to wait and was asked not to, or the queue is full.
    #[error("would block: {0}")]
    WouldBlock(&'static str),
    /// The volume was aborted after a failure that broke a durability promise; the text is the cause.
    #[error("the volume was aborted: {0}")]
    Aborted(Arc<str>),
    /// The mapping of this byte was evicted repeatedly before it could be used.
    #[error("the mapping at byte {0} was evicted each time it was loaded")]
    MapUnstable(u64),
    /// An argument is invalid; the text says which.
    #[error("{0}")]
    Invalid(String),
}

/// A limit of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Limit {
    /// An inode has the most names it can count, or a directory the most subdirectories.
    #[error("too many links")]
    Links,
    /// A map has the most levels it can have, or needs a block beyond its reach.
    #[error("the file's map cannot reach that far")]
    Map,
    /// A directory is as large as it can be.
    #[error("the directory is full")]
    Directory,
    /// The extended attributes of an inode take all room they can have.
    #[error("the extended attributes of one inode have no room for it")]
    Attributes,
    /// A limit of quota is larger than Linux takes.
    #[error("limits of quota end at 2^63 - 1 bytes and inodes")]
    Quota,
}

/// Why an extended attribute cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// A full name has 1 to 255 bytes.
    #[error("an attribute's name has 1 to 255 bytes")]
    NameLength,
    /// Only directories have a default access control list.
    #[error("only directories have a default access control list")]
    DefaultAcl,
}

impl AttributeError {
    fn errno(self) -> i32 {
        match self {
            AttributeError::NameLength => libc::ERANGE,
            AttributeError::DefaultAcl => libc::EACCES,
        }
    }
}

impl Limit {
    fn errno(self) -> i32 {
        match self {
            Limit::Links => libc::EMLINK,
            Limit::Map => libc::EFBIG,
            Limit::Quota => libc::ERANGE,
            Limit::Directory | Limit::Attributes => libc::ENOSPC,
        }
    }
}

/// What a write would have to do beyond overwriting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// First byte of the request.
    pub pos: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Bytes in unwritten extents.
    pub unwritten: u64,
    /// Bytes in holes.
    pub hole: u64,
    /// Whether it ends past the end of the file.
    pub extends: bool,
    /// Why the file gets no blocks: what of the volume or its map rules that out.
    pub why: Arc<str>,
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writing {} bytes at byte {} needs allocation", self.length, self.pos)?;
        let mut sep = " (";
        if self.hole > 0 {
            write!(f, "{sep}{} bytes lie in holes", self.hole)?;
            sep = ", ";
        }
        if self.unwritten > 0 {
            write!(f, "{sep}{} bytes are unwritten", self.unwritten)?;
            sep = ", ";
        }
        if self.extends {
            write!(f, "{sep}the file would grow")?;
            sep = ", ";
        }
        if sep == ", " {
            f.write_str(")")?;
        }
        write!(f, ": {}", self.why)
    }
}

/// What quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaLimit {
    /// Blocks.
    Space,
    /// Inodes.
    Inodes,
}

impl std::fmt::Display for QuotaLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            QuotaLimit::Space => "space",
            QuotaLimit::Inodes => "inodes",
        })
    }
}

impl Error {
    /// Whether there is no room, or not allowed to be: no space, a limit of the format or of quota.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Error::NoSpace | Error::Limit(_) | Error::QuotaExceeded { .. })
    }

    /// The one errno of this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io(error) => error.errno(),
            Error::Journal(error) => error.errno(),
            Error::FastCommit { cause, .. } => cause.errno(),
            Error::MetadataIo { source, .. } => source.errno(),
            Error::Incompatible { .. } | Error::NeedsAllocation(_) | Error::NotSupported(_) => {
                libc::EOPNOTSUPP
            }
            Error::NeedsRecovery(_) | Error::Corrupt(_) | Error::CorruptInode { .. } => EUCLEAN,
            Error::TooSmall { .. } | Error::ExternalJournal(_) => libc::ENXIO,
            Error::NotFound => libc::ENOENT,
            Error::NoSpace => libc::ENOSPC,
            Error::QuotaExceeded { .. } => libc::EDQUOT,
            Error::Limit(limit) => limit.errno(),
            Error::Attribute(error) => error.errno(),
            Error::Stale(_) => libc::ESTALE,
            Error::Exists => libc::EEXIST,
            Error::NotDirectory => libc::ENOTDIR,
            Error::IsDirectory => libc::EISDIR,
            Error::NotEmpty => libc::ENOTEMPTY,
            Error::OtherProject | Error::OtherVolume => libc::EXDEV,
            Error::NotRegular
            | Error::NotSymlink
            | Error::Misaligned { .. }
            | Error::NotExt4(_)
            | Error::Invalid(_) => libc::EINVAL,
            Error::NoAttribute => libc::ENODATA,
            Error::TooLarge { .. } => libc::E2BIG,
            Error::FileTooLarge { .. } => libc::EFBIG,
            Error::OutOfMemory { .. } => libc::ENOMEM,
            Error::TooManyLinks => libc::ELOOP,
            Error::NameTooLong => libc::ENAMETOOLONG,
            Error::InUse(_) => libc::EBUSY,
            Error::ReadOnly(_) => libc::EROFS,
            Error::BadMode(_) => libc::EBADF,
            Error::NotPermitted(_) => libc::EPERM,
            Error::WouldBlock(_) => libc::EAGAIN,
            Error::Aborted(_) | Error::MapUnstable(_) => libc::EIO,
        }
    }

    /// The block that the error is about, if any.
    pub fn block(&self) -> Option<u64> {
        match self {
            Error::Corrupt(corrupt) => corrupt.place.block.map(|block| block.get()),
            Error::MetadataIo { block, .. } => Some(*block),
            Error::FastCommit { cause, .. } => cause.block(),
            _ => None,
        }
    }

    /// The inode that the error is about, if any.
    pub fn inode(&self) -> Option<u32> {
        match self {
            Error::Corrupt(corrupt) => corrupt.place.inode.map(|ino| ino.get()),
            Error::CorruptInode { ino, .. } => Some(ino.get()),
            Error::FastCommit { cause, .. } => cause.inode(),
            _ => None,
        }
    }

    /// Of a write that `needs` blocks, which a file does not get because of what `refused` says.
    pub(crate) fn needs_allocation(needs: iomap::Error, refused: &Error) -> Error {
        let why = match refused {
            Error::Incompatible { feature, .. } => format!("the volume uses {feature}"),
            other => other.to_string(),
        };
        match Error::from(needs) {
            Error::NeedsAllocation(found) => Error::NeedsAllocation(Allocation { why: why.into(), ..found }),
            other => other,
        }
    }

    /// Whether the device specification was malformed: a usage error.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Io(error) if matches!(**error, blockdev::Error::BadSpec { .. }))
    }
}

/// What Linux returns for a damaged file system ("Structure needs cleaning").
pub(crate) const EUCLEAN: i32 = 117;

impl From<blockdev::Error> for Error {
    fn from(error: blockdev::Error) -> Self {
        match error {
            blockdev::Error::Misaligned { what, value, align } => Error::Misaligned { what, value, align },
            blockdev::Error::InUse(by) => Error::InUse(by),
            blockdev::Error::ReadOnly => Error::ReadOnly("the device"),
            other => Error::Io(Arc::new(other)),
        }
    }
}

impl From<iomap::Error> for Error {
    fn from(error: iomap::Error) -> Self {
        match error {
            iomap::Error::Device(error) => error.into(),
            iomap::Error::NeedsAllocation { pos, length, unwritten, hole, extends } => {
                let why = "the file system does not allocate".into();
                Error::NeedsAllocation(Allocation { pos, length, unwritten, hole, extends, why })
            }
            iomap::Error::BadMode(mode) => Error::BadMode(mode),
            iomap::Error::WouldBlock => Error::WouldBlock(
                "it has to wait: for others in the file, room, or metadata that is not in memory",
            ),
            iomap::Error::QueueFull => Error::WouldBlock("the queue is full"),
            iomap::Error::BadSlot => {
                Error::BadMode("this queue: the slot was detached or is another queue's")
            }
            iomap::Error::MapUnknown(pos) => Error::MapUnstable(pos),
            other => Error::Invalid(other.to_string()),
        }
    }
}

/// A value that the format cannot hold, although earlier checks passed it.
impl From<EncodeError> for Error {
    fn from(error: EncodeError) -> Self {
        Error::Invalid(error.to_string())
    }
}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Self {
        Error::Corrupt(Arc::new(corrupt))
    }
}

impl From<uext4_buffer::Error> for Error {
    fn from(error: buffer::Error) -> Self {
        match error {
            buffer::Error::Device { block, source } => Error::MetadataIo { block, source: Arc::new(source) },
            buffer::Error::Flush(error) => error.into(),
            // Every block number we ask for was read from the volume, or computed from such numbers.
            buffer::Error::OutOfRange { block, .. } => {
                let corrupt = Corrupt::from(CorruptKind::BlockOutsideVolume("metadata"));
                corrupt.at_block(Pblk(block)).into()
            }
            other => Error::Invalid(other.to_string()),
        }
    }
}

impl From<uext4_jbd2::Error> for Error {
    fn from(error: jbd2::Error) -> Self {
        match error {
            jbd2::Error::Buffer(error) => error.into(),
            jbd2::Error::Aborted(cause) => Error::Aborted(cause.to_string().into()),
            jbd2::Error::Unsupported { feature } => {
                Error::Incompatible { action: "use the journal", feature: feature.to_string() }
            }
            other if matches!(other, jbd2::Error::NeedsRecovery { .. }) => {
                Error::NeedsRecovery(other.to_string())
            }
            other => Error::Journal(Arc::new(other)),
        }
    }
}
