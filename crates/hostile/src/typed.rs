//! Which errors a damaged volume may cause.

use uext4::{Error, Result};

/// The value, if there is one.
///
/// # Panics
/// If the error says anything but "this volume is damaged", "this needs more than I can" or "this path leads nowhere":
/// a device in memory does not fail, and no argument of the drivers is wrong.
#[track_caller]
pub fn typed<T>(result: Result<T>) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let damaged = matches!(
        error,
        Error::NotExt4(_)
            | Error::Corrupt(_)
            | Error::CorruptInode { .. }
            | Error::Journal(_)
            | Error::FastCommit { .. }
    );
    let limited = matches!(
        error,
        Error::Incompatible { .. }
            | Error::NeedsRecovery(_)
            | Error::TooSmall { .. }
            | Error::NeedsAllocation(_)
            | Error::ReadOnly(_)
            | Error::TooLarge { .. }
            | Error::FileTooLarge { .. }
            | Error::NotPermitted(_)
            | Error::NotSupported(_)
            // What multi-mount protection says was mutated too.
            | Error::InUse(_)
    );
    let path = matches!(
        error,
        Error::NotFound
            | Error::NotDirectory
            | Error::IsDirectory
            | Error::NotRegular
            | Error::NotSymlink
            | Error::TooManyLinks
            | Error::NameTooLong
            | Error::NoAttribute
    );
    assert!(damaged || limited || path, "not an error of a damaged volume: {error:?}");
    assert_ne!(error.errno(), 0, "{error:?}");
    assert!(!error.to_string().is_empty());
    None
}
