//! Errors of the engine. A file system converts them into its own.

use uext4_blockdev as blockdev;

/// Why the engine refused or failed a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or the request breaks its alignment rules ([`blockdev::Error::Misaligned`]).
    #[error(transparent)]
    Device(#[from] blockdev::Error),
    /// The write needs blocks, conversion or a new size, which the file system cannot do. Nothing was changed.
    #[error(
        "the write at byte {pos} of {length} bytes is not a pure overwrite ({unwritten} bytes unwritten, \
         {hole} bytes in holes{}): the file system does not allocate",
        if *.extends { ", extends the file" } else { "" }
    )]
    NeedsAllocation {
        /// First byte of the request in the file.
        pos: u64,
        /// Length in bytes.
        length: u64,
        /// Bytes of it in unwritten extents.
        unwritten: u64,
        /// Bytes of it in holes.
        hole: u64,
        /// Whether it ends past the end of the file.
        extends: bool,
    },
    /// The file is not open for this.
    #[error("the file is not open for {0}")]
    BadMode(&'static str),
    /// `NOWAIT` was given and the request would have to wait.
    #[error("the request would have to wait")]
    WouldBlock,
    /// As many requests are in flight as the queue holds: reap first.
    #[error("the queue is full")]
    QueueFull,
    /// The slot does not name a file attached to this queue.
    #[error("the file slot does not belong to this queue or was detached")]
    BadSlot,
    /// The range ends past byte 2⁶³ - 1.
    #[error("the range at byte {pos} of {length} bytes ends past byte 2^63")]
    RangeTooLarge {
        /// First byte.
        pos: u64,
        /// Bytes.
        length: u64,
    },
    /// An atomic write of this length, or at this position, is not possible ([`WriteFlags::ATOMIC`]).
    ///
    /// [`WriteFlags::ATOMIC`]: crate::WriteFlags::ATOMIC
    #[error(
        "an atomic write of {length} bytes at byte {pos}: the length must be a power of two from {least} to {most}, \
         and the position a multiple of it"
    )]
    NotAtomic {
        /// First byte.
        pos: u64,
        /// Bytes.
        length: u64,
        /// The file system's block size.
        least: u64,
        /// The longest one.
        most: u64,
    },
    /// A file system reported success but left the mapping of this byte unknown.
    #[error("the mapping at byte {0} stays unknown")]
    MapUnknown(u64),
    /// The write has no valid device block for this byte: the block was written, or allocated for this write, when the
    /// write was planned, and is not any more when it is sent. Nothing was sent for this byte; bytes before it may have
    /// been written.
    #[error("the block at byte {0} is no longer written: the write stops there")]
    NotWritten(u64),
    /// A map update contradicts what the snapshot holds for this block. Nothing was published.
    #[error("a map update of block {0} of the file contradicts the known mapping")]
    MapConflict(u64),
    /// A panic interrupted the work that follows the data of the write: its blocks may not be converted, and the write
    /// is not durable.
    #[error("a panic interrupted the completion of a write: it is not durable")]
    CutOff,
    /// A change that removes or moves written blocks did not hold the file's gate exclusively. Nothing was published.
    #[error("written blocks of a file can be removed only under its exclusive gate")]
    NotExclusive,
}

impl Error {
    /// The one errno this error maps to.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Device(error) => error.errno(),
            // As the kernel answers when asked to allocate where it must not.
            Error::NeedsAllocation { .. } => 95,        // EOPNOTSUPP
            Error::BadMode(_) | Error::BadSlot => 9,    // EBADF
            Error::WouldBlock | Error::QueueFull => 11, // EAGAIN
            Error::RangeTooLarge { .. } | Error::NotAtomic { .. } => 22, // EINVAL
            Error::MapUnknown(_)
            | Error::NotWritten(_)
            | Error::MapConflict(_)
            | Error::CutOff
            | Error::NotExclusive => 5, // EIO
        }
    }
}
