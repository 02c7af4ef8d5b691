//! Why a measurement did not happen, or does not count.

use crate::error::CliError;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use uext4::blockdev;

/// Result of everything here.
pub type Result<T> = std::result::Result<T, BenchError>;

/// Why not.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The arguments contradict each other or the device.
    #[error("{0}")]
    Usage(String),
    /// The library answered with an error.
    #[error("{doing}: {error}")]
    Library {
        /// What was being done.
        doing: String,
        /// The answer.
        error: uext4::Error,
    },
    /// The system answered with an error.
    #[error("{doing}: {error}")]
    System {
        /// What was being done.
        doing: String,
        /// The answer.
        error: io::Error,
    },
    /// The results could not be printed.
    #[error("{}", .0.line())]
    Output(CliError),
    /// A program failed, a route was wrong, a volume damaged, a floor missed.
    #[error("{0}")]
    Failed(String),
}

impl BenchError {
    /// A failure with its own words.
    pub fn failed(message: impl Into<String>) -> Self {
        BenchError::Failed(message.into())
    }
}

impl From<BenchError> for CliError {
    fn from(error: BenchError) -> Self {
        let errno = match &error {
            BenchError::Usage(message) => return CliError::usage(message.clone()),
            BenchError::Output(_) => libc::EPIPE,
            BenchError::Library { error, .. } => error.errno(),
            BenchError::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            BenchError::Failed(_) => libc::EIO,
        };
        match error {
            BenchError::Output(error) => error,
            other => CliError::failed(OsStr::new("bench"), other.to_string(), errno),
        }
    }
}

/// Says what was being done when something failed.
pub trait Doing<T> {
    /// The value, or the error with these words.
    fn doing(self, words: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for std::result::Result<T, uext4::Error> {
    fn doing(self, words: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| BenchError::Library { doing: words(), error })
    }
}

impl<T> Doing<T> for std::result::Result<T, blockdev::Error> {
    fn doing(self, words: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| BenchError::Library { doing: words(), error: error.into() })
    }
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, words: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| BenchError::System { doing: words(), error })
    }
}

impl<T> Doing<T> for std::result::Result<T, Errno> {
    fn doing(self, words: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| BenchError::System { doing: words(), error: errno.into() })
    }
}
