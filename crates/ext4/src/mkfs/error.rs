//! Why no volume was made.

use crate::ground::error::Error as VolumeError;
use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

/// Result of making a volume.
pub type Result<T> = std::result::Result<T, Error>;

/// Why no volume was made.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option or a combination of options is invalid or not supported; the text names it. Nothing was written.
    #[error("{0}")]
    Option(String),
    /// There is not enough space for the request. Nothing was written.
    #[error("{have} are too few: {reason}")]
    TooSmall {
        /// Bytes or blocks available.
        have: String,
        /// What they are too few for.
        reason: String,
    },
    /// The size exceeds what the features or the format can count. Nothing was written.
    #[error("too large: {0}")]
    TooLarge(String),
    /// The device already holds data; the text says what. Nothing was written.
    #[error("{0}")]
    Occupied(String),
    /// The device is in use, or cannot be read. Nothing was written.
    #[error(transparent)]
    Device(#[from] VolumeError),
    /// A file of the new volume's tree cannot be described, or its contents cannot be read. If the contents cannot be
    /// read, there is no new volume on the device, and its old contents are lost.
    #[error("{}: {error}", path.escape_ascii())]
    Contents {
        /// The file's path below the root directory, or its name.
        path: Vec<u8>,
        /// Why.
        error: Arc<dyn StdError + Send + Sync>,
    },
    /// The device failed during the format. There is no new volume on it, and its old contents are lost unless nothing
    /// could be written at all.
    #[error("the device failed, and there is no new volume on it: {0}")]
    Failed(VolumeError),
    /// A device failed when the hash tree of dm-verity was made. The volume is there and sound, its tree is not.
    #[error("the volume is made, but not its hash tree: {0}")]
    HashTree(VolumeError),
}

impl Error {
    /// The one errno of this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Option(_) => libc::EINVAL,
            Error::TooSmall { .. } => libc::ENOSPC,
            Error::TooLarge(_) => libc::EFBIG,
            Error::Occupied(_) => libc::EEXIST,
            Error::Contents { error, .. } => errno_of(&**error),
            Error::Device(error) | Error::Failed(error) | Error::HashTree(error) => error.errno(),
        }
    }

    /// Whether this is a usage error: the request was wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Option(_)) || matches!(self, Error::Device(error) if error.is_usage())
    }
}

/// The system's error among the causes of an error.
fn errno_of(error: &(dyn StdError + 'static)) -> i32 {
    let mut next = Some(error);
    while let Some(cause) = next {
        match cause.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::InvalidInput => return libc::EINVAL,
            Some(error) if error.raw_os_error().is_some() => {
                return error.raw_os_error().unwrap_or(libc::EIO);
            }
            _ => {}
        }
        next = cause.source();
    }
    libc::EIO
}

/// A value that the format cannot hold and earlier checks did not catch.
impl From<uext4_ondisk::EncodeError> for Error {
    fn from(error: uext4_ondisk::EncodeError) -> Self {
        Error::Option(error.to_string())
    }
}
