//! Why a measurement did not happen, or does not count.

use rustix::io::Errno;
use std::io;
use uext4::device;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, BenchError>;

/// The reason.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The arguments contradict each other or the device.
    #[error("{0}")]
    Usage(String),
    /// The library answered with an error.
    #[error("{doing}: {}", without_name(doing, error))]
    Library {
        /// What was being done.
        doing: String,
        /// The answer.
        error: uext4::Error,
    },
    /// The system answered with an error.
    #[error("{doing}: {}", device::describe(error))]
    System {
        /// What was being done.
        doing: String,
        /// The answer.
        error: io::Error,
    },
    /// A program failed, a route was wrong, a volume damaged, a floor missed.
    #[error("{0}")]
    Failed(String),
}

impl BenchError {
    /// A failure with its own message.
    pub fn failed(message: impl Into<String>) -> Self {
        BenchError::Failed(message.into())
    }

    /// Linux's number for it: the one of the layer below, else `EINVAL` for bad usage and `EIO`.
    pub fn errno(&self) -> i32 {
        let unknown = Errno::IO.raw_os_error();
        match self {
            BenchError::Usage(_) => Errno::INVAL.raw_os_error(),
            BenchError::Library { error, .. } => error.errno(),
            BenchError::System { error, .. } => error.raw_os_error().unwrap_or(unknown),
            BenchError::Failed(_) => unknown,
        }
    }
}

/// The error's words, without the name of the device in front if `doing` ends with it.
fn without_name(doing: &str, error: &uext4::Error) -> String {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((name, rest)) if doing.ends_with(name) => rest.to_owned(),
        _ => text,
    }
}

/// An error of a layer below.
pub trait Cause {
    /// With what was being done.
    fn while_doing(self, doing: String) -> BenchError;
}

impl Cause for uext4::Error {
    fn while_doing(self, doing: String) -> BenchError {
        BenchError::Library { doing, error: self }
    }
}

impl Cause for device::Error {
    fn while_doing(self, doing: String) -> BenchError {
        BenchError::Library { doing, error: self.into() }
    }
}

impl Cause for io::Error {
    fn while_doing(self, doing: String) -> BenchError {
        BenchError::System { doing, error: self }
    }
}

impl Cause for Errno {
    fn while_doing(self, doing: String) -> BenchError {
        BenchError::System { doing, error: self.into() }
    }
}

/// Says what was being done when something failed.
pub trait Doing<T> {
    /// The value, or the error with these words.
    fn doing(self, words: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Cause> Doing<T> for std::result::Result<T, E> {
    fn doing(self, words: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| error.while_doing(words()))
    }
}
