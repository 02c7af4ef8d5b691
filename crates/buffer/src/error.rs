//! Errors of the cache.

use crate::Tid;

/// Result of a cache call.
pub type Result<T> = std::result::Result<T, Error>;

/// A cache error. Cheap to clone: a failed load is reported to everybody who waited for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed a read, write or flush.
    #[error("block {block}: {source}")]
    Device {
        /// File-system block that was being transferred.
        block: u64,
        /// What the device said.
        source: uext4_blockdev::Error,
    },
    /// The device failed a flush. Which of the writes before it are durable is unknown.
    #[error("flush failed: {0}")]
    Flush(uext4_blockdev::Error),
    /// The block number lies outside the volume.
    #[error("block {block} lies outside the volume of {blocks} blocks")]
    OutOfRange {
        /// The number asked for.
        block: u64,
        /// Blocks of the volume.
        blocks: u64,
    },
    /// The options cannot be used with this device.
    #[error("bad cache option {option} = {value}: {reason}")]
    BadOption {
        /// Name of the field.
        option: &'static str,
        /// Its value.
        value: u64,
        /// Why it was refused.
        reason: &'static str,
    },
    /// The device can only write units larger than a block: changing one block would rewrite its neighbours,
    /// which could tear them. Reading works.
    #[error(
        "cannot change blocks of {block_size} bytes on a device that writes {logical_block} bytes at once"
    )]
    SubBlockWrite {
        /// Block size in bytes.
        block_size: u32,
        /// Logical block size of the device in bytes.
        logical_block: u32,
    },
    /// The device is read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// The block belongs to somebody else, or to nobody and the caller did not join first.
    #[error("block {block} cannot be used by {}: it {}", describe_wanted(*wanted), describe_owner(*owner))]
    NotOwner {
        /// The block.
        block: u64,
        /// Transaction on whose behalf the call was made, none for a direct change.
        wanted: Option<Tid>,
        /// Transaction that owns the block (running one first), none if none does.
        owner: Option<Tid>,
    },
    /// The call needs the transaction to let go of the block first.
    #[error("block {block} is still in use by transaction {tid}")]
    Busy {
        /// The block.
        block: u64,
        /// The transaction that uses it.
        tid: Tid,
    },
    /// The pin was handed out by another cache.
    #[error("the pin of block {block} belongs to another cache")]
    ForeignPin {
        /// The block of the pin.
        block: u64,
    },
    /// The thread that was loading the block panicked; nothing was cached.
    #[error("loading block {block} was interrupted")]
    LoadInterrupted {
        /// The block.
        block: u64,
    },
}

impl Error {
    /// The one errno this error maps to.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Error::Device { source, .. } | Error::Flush(source) => source.errno(),
            Error::OutOfRange { .. } | Error::LoadInterrupted { .. } => libc::EIO,
            Error::SubBlockWrite { .. } => libc::EOPNOTSUPP,
            Error::ReadOnly => libc::EROFS,
            Error::Busy { .. } => libc::EBUSY,
            Error::BadOption { .. } | Error::NotOwner { .. } | Error::ForeignPin { .. } => libc::EINVAL,
        }
    }
}

fn describe_wanted(tid: Option<Tid>) -> String {
    tid.map_or_else(|| "a direct change".into(), |tid| format!("transaction {tid}"))
}

fn describe_owner(tid: Option<Tid>) -> String {
    tid.map_or_else(|| "belongs to no transaction".into(), |tid| format!("belongs to transaction {tid}"))
}
