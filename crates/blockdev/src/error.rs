//! Device errors: what failed, where, and the errno that it maps to.

use std::fmt;

/// Result of a device call.
pub type Result<T> = std::result::Result<T, Error>;

/// Which part of a request broke the alignment rules of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misaligned {
    /// The position is not a multiple of the logical block size.
    Position,
    /// The length is zero or not a multiple of the logical block size.
    Length,
    /// The memory address is not a multiple of the device's memory alignment.
    Memory,
}

impl fmt::Display for Misaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Misaligned::Position => "position",
            Misaligned::Length => "length",
            Misaligned::Memory => "memory address",
        })
    }
}

/// A device error. Cheap to clone, so that one failure can be reported to every waiter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused or failed a transfer.
    #[error("{op} of {length} bytes at byte {pos} failed: {}", describe_errno(*errno))]
    Io {
        /// Which operation: `read`, `write`, `flush`, `discard`.
        op: &'static str,
        /// First byte of the request on this device.
        pos: u64,
        /// Length of the request in bytes.
        length: u64,
        /// The operating system's error number (`EIO` for a short transfer).
        errno: i32,
    },
    /// An NVMe command completed with an error status. Assume that nothing was transferred.
    #[error("{op} of {length} bytes at byte {pos} failed: NVMe status {status:#x} ({})", describe_errno(*errno))]
    Nvme {
        /// Which operation: `read`, `write`, `flush`, `discard`.
        op: &'static str,
        /// First byte of the request on this device.
        pos: u64,
        /// Length of the request in bytes.
        length: u64,
        /// Status as the kernel passes it on: code in bits 0 to 7, type in bits 8 to 10.
        status: u16,
        /// The errno that the kernel's block layer would have returned.
        errno: i32,
    },
    /// The device asked to retry a request too many times. Assume that nothing was transferred.
    #[error("{op} of {length} bytes at byte {pos} gave up after {trials} attempts: {}", describe_errno(*errno))]
    GaveUp {
        /// Which operation: `read`, `write`.
        op: &'static str,
        /// First byte of the request on this device.
        pos: u64,
        /// Length of the request in bytes.
        length: u64,
        /// The last answer: `EAGAIN`, `EINTR` or `ECANCELED`.
        errno: i32,
        /// How often the request was sent.
        trials: u32,
    },
    /// The thread may not use this I/O priority; nothing was sent.
    #[error("I/O priority {priority}: {}", describe_errno(*errno))]
    Priority {
        /// The priority in words.
        priority: String,
        /// The operating system's error number: `EPERM` for a class that needs a capability.
        errno: i32,
    },
    /// The request lies outside the device.
    #[error("request of {length} bytes at byte {pos} lies outside the device of {size} bytes")]
    OutOfRange {
        /// First byte of the request.
        pos: u64,
        /// Length in bytes.
        length: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The request breaks an alignment rule; nothing was transferred.
    #[error("{what} {value:#x} is not a multiple of {align}")]
    Misaligned {
        /// Which value.
        what: Misaligned,
        /// The value itself.
        value: u64,
        /// The alignment that it must have, in bytes.
        align: u32,
    },
    /// Used in a child of the process that opened the device; nothing was sent. A child can only drop what it inherits.
    #[error("opened before a fork: a child process must open the device itself")]
    Forked,
    /// A write to a device that was opened read-only.
    #[error("the device is opened read-only")]
    ReadOnly,
    /// The device is in use; the text says by whom.
    #[error("in use by {0}")]
    InUse(String),
    /// The device, kernel or engine lacks an explicitly requested feature.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The device specification is malformed (exit code 2 on the command line).
    #[error("bad device `{spec}`: {reason}")]
    BadSpec {
        /// The text that was parsed.
        spec: String,
        /// Why it was refused.
        reason: String,
    },
    /// Opening or setup failed.
    #[error("{path}: {action}: {}", describe_errno(*errno))]
    Open {
        /// The path of the device or image.
        path: String,
        /// What was being done.
        action: &'static str,
        /// The operating system's error number.
        errno: i32,
    },
    /// A buffer pool has no room for another buffer.
    #[error("no buffer of {wanted} bytes: the pool is limited to {limit} bytes")]
    PoolExhausted {
        /// Bytes asked for.
        wanted: u64,
        /// Most bytes the pool may hold.
        limit: u64,
    },
    /// Changes kept in memory would take more than the limit of their layer.
    #[error("the changes kept in memory would exceed {limit} bytes")]
    OverlayFull {
        /// Most bytes it may keep.
        limit: u64,
    },
    /// An overlay file cannot be used.
    #[error("overlay {path}: {fault}")]
    Overlay {
        /// The path of the overlay file.
        path: String,
        /// Why not.
        fault: OverlayFault,
    },
    /// An image of a disk cannot be used.
    #[error("image {path}: {fault}")]
    Image {
        /// The path of the image.
        path: String,
        /// Why not.
        fault: ImageFault,
    },
    /// A C library that the device needs is not installed, or is too old.
    #[error("`{scheme}:` devices need {library} ({install}): {reason}")]
    Library {
        /// The scheme of the device.
        scheme: &'static str,
        /// The file name of the library.
        library: &'static str,
        /// The packages that have it.
        install: &'static str,
        /// What the dynamic linker says.
        reason: String,
    },
    /// A server, or the library that talks to it, refused or failed.
    #[error("{device}: {action}: {reason}")]
    Remote {
        /// The device, as it is spelled.
        device: String,
        /// What was being done.
        action: &'static str,
        /// What the library says.
        reason: String,
        /// The error number.
        errno: i32,
    },
    /// The partition table has no such partition, or cannot be read.
    #[error("partition {number}: {reason}")]
    Partition {
        /// Number asked for, from 1.
        number: u32,
        /// Why it cannot be used.
        reason: String,
    },
}

/// Why an overlay file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayFault {
    /// It does not begin as one.
    #[error("it is not an overlay file")]
    NotOne,
    /// Another version of the format.
    #[error("its format has version {0}, and this uext4 knows version 1")]
    Version(u32),
    /// Its header is damaged, or cannot be made.
    #[error("its header cannot be used: {0}")]
    Header(&'static str),
    /// A unit of its map is damaged.
    #[error("unit {0} of its map is damaged")]
    Map(u64),
    /// The record of a merge is damaged.
    #[error("its record of a merge is damaged")]
    State,
    /// It was cut off.
    #[error("it has {size} bytes, of {wanted}: it was cut off")]
    TooShort {
        /// Bytes that it has.
        size: u64,
        /// Bytes that it must have.
        wanted: u64,
    },
    /// The base has another size.
    #[error("it belongs to a base of {recorded} bytes, and this one has {found}")]
    BaseSize {
        /// Bytes of the base when the overlay was made.
        recorded: u64,
        /// Bytes now.
        found: u64,
    },
    /// The first 64 KiB of the base are others.
    #[error("its base has changed, or is another one; `uext4 overlay drop` throws the overlay away")]
    BaseContents,
    /// The base was written to after the overlay was made, as far as its time of change says.
    #[error(
        "its base was changed at {}, after the overlay was made; if its contents are the same, `touch -d @{}` gives \
         it its time back, and otherwise `uext4 overlay drop` throws the overlay away",
        seconds(*found),
        seconds(*recorded)
    )]
    BaseTime {
        /// Time of change of the base when the overlay was made: seconds since 1970, and nanoseconds.
        recorded: (i64, u32),
        /// The time now.
        found: (i64, u32),
    },
    /// A merge into the base was cut.
    #[error("it was being merged into its base; `uext4 overlay merge` finishes that")]
    Merging,
    /// A write of its map, or a flush, has failed: nothing more is written.
    #[error("an earlier flush of it failed")]
    Failed,
}

/// Why an image of a disk cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFault {
    /// It is not in the format that the user named.
    #[error("it is not a {0} image")]
    NotOne(&'static str),
    /// It needs what this uext4 does not have.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// It is encrypted.
    #[error("it is encrypted ({0}), and this uext4 decrypts nothing")]
    Encrypted(&'static str),
    /// Its header contradicts itself or the limits of the format.
    #[error("its header is damaged: {0}")]
    Header(String),
    /// A structure is damaged.
    #[error("its {what} at byte {pos} is damaged: {reason}")]
    Structure {
        /// Which structure.
        what: &'static str,
        /// Where it is in the image file.
        pos: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// It can be read, not written.
    #[error("it cannot be written: {0}")]
    ReadOnly(String),
    /// It names another file, which is not opened.
    #[error("it names the file {name}, which is not opened: {reason}")]
    Names {
        /// The name, as the image has it.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A file that it names cannot be used.
    #[error("the file {name} that it names: {error}")]
    Below {
        /// The name, as the image has it.
        name: String,
        /// Why not.
        error: Box<Error>,
    },
    /// An earlier write of its tables, or a flush, has failed: nothing more is written.
    #[error("an earlier flush of it failed")]
    Failed,
}

impl ImageFault {
    fn errno(&self) -> i32 {
        match self {
            ImageFault::NotOne(_) => libc::EINVAL,
            ImageFault::Unsupported(_) | ImageFault::Encrypted(_) => libc::EOPNOTSUPP,
            ImageFault::ReadOnly(_) => libc::EROFS,
            ImageFault::Names { .. } => libc::EACCES,
            ImageFault::Below { error, .. } => error.errno(),
            ImageFault::Failed => libc::EIO,
            ImageFault::Header(_) | ImageFault::Structure { .. } => libc::EUCLEAN,
        }
    }
}

/// A time as `touch -d @` takes it.
fn seconds((seconds, nanoseconds): (i64, u32)) -> String {
    format!("{seconds}.{nanoseconds:09}")
}

impl OverlayFault {
    fn errno(&self) -> i32 {
        match self {
            OverlayFault::NotOne | OverlayFault::Version(_) => libc::EINVAL,
            OverlayFault::BaseSize { .. } | OverlayFault::BaseContents | OverlayFault::BaseTime { .. } => {
                libc::ESTALE
            }
            OverlayFault::Merging => libc::EBUSY,
            OverlayFault::Failed => libc::EIO,
            _ => libc::EUCLEAN,
        }
    }
}

impl Error {
    /// The one errno this error maps to.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { errno, .. } | Error::Nvme { errno, .. } => *errno,
            Error::Open { errno, .. } | Error::Priority { errno, .. } | Error::Remote { errno, .. } => *errno,
            Error::OutOfRange { .. } | Error::Misaligned { .. } | Error::BadSpec { .. } => libc::EINVAL,
            // Not the device's errno, which would tell the caller to try again too.
            Error::GaveUp { .. } => libc::EIO,
            Error::Forked => libc::EPERM,
            Error::ReadOnly => libc::EROFS,
            Error::InUse(_) => libc::EBUSY,
            Error::Unsupported(_) | Error::Library { .. } => libc::EOPNOTSUPP,
            Error::PoolExhausted { .. } | Error::OverlayFull { .. } => libc::ENOMEM,
            Error::Overlay { fault, .. } => fault.errno(),
            Error::Image { fault, .. } => fault.errno(),
            Error::Partition { .. } => libc::ENXIO,
        }
    }
}

fn describe_errno(errno: i32) -> String {
    describe(&std::io::Error::from_raw_os_error(errno))
}

/// The system's message for an error, without the number that Rust appends: `No such file or directory`.
#[must_use]
pub fn describe(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    match text.rsplit_once(" (os error ") {
        Some((words, number)) if number.ends_with(')') => words.to_owned(),
        _ => text,
    }
}
