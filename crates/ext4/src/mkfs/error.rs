//! Why no volume was made.

use crate::ground::error::Error as VolumeError;

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
    /// The device failed during the format. There is no new volume on it, and its old contents are lost unless nothing
    /// could be written at all.
    #[error("the device failed, and there is no new volume on it: {0}")]
    Failed(VolumeError),
}

impl Error {
    /// The one errno of this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Option(_) => libc::EINVAL,
            Error::TooSmall { .. } => libc::ENOSPC,
            Error::TooLarge(_) => libc::EFBIG,
            Error::Occupied(_) => libc::EEXIST,
            Error::Device(error) | Error::Failed(error) => error.errno(),
        }
    }

    /// Whether this is a usage error: the request was wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Option(_)) || matches!(self, Error::Device(error) if error.is_usage())
    }
}

/// A value that the format cannot hold and earlier checks did not catch.
impl From<uext4_ondisk::EncodeError> for Error {
    fn from(error: uext4_ondisk::EncodeError) -> Self {
        Error::Option(error.to_string())
    }
}
