//! Why no volume was made.

use crate::ground::error::Error as VolumeError;

/// Result of making a volume.
pub type Result<T> = std::result::Result<T, Error>;

/// Why no volume was made.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option, or a combination of them, is invalid or not supported; the text names it. Nothing was written.
    #[error("{0}")]
    Option(String),
    /// There is too little room for the request. Nothing was written.
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
    /// The device already holds something; the text says what. Nothing was written.
    #[error("{0}")]
    Occupied(String),
    /// The device is in use, or cannot be read. Nothing was written.
    #[error(transparent)]
    Device(#[from] VolumeError),
    /// The device failed while it was written. There is no new volume on it, and its old contents are gone, unless
    /// nothing could be written at all.
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

    /// Whether the request was wrong: a usage error.
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
