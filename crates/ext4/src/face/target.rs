//! Program arguments that name a device and a path inside its volume.

use std::fmt;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{Error, Result};

/// A device and, for a file, its path inside the volume: `DEVICE[:/path]`.
///
/// The path begins at the `/` of the first `:/` after the device's scheme, and is taken verbatim to the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The device.
    pub spec: DeviceSpec,
    /// The path with its leading `/`, bytes as given. `None` if the text has none.
    pub path: Option<Vec<u8>>,
}

impl Target {
    /// Parses a device with an optional path.
    ///
    /// # Errors
    /// [`Error::BadSpec`] for anything malformed, and those of [`DeviceSpec::parse`].
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_bytes(text.as_bytes())
    }

    /// [`Target::parse`] for arguments that may not be UTF-8 (paths of the host and of the volume are bytes).
    ///
    /// # Errors
    /// Those of [`Target::parse`].
    pub fn parse_bytes(text: &[u8]) -> Result<Self> {
        let bad =
            |reason: String| Error::BadSpec { spec: String::from_utf8_lossy(text).into_owned(), reason };
        let colon = DeviceSpec::scheme_length(text).and_then(|start| find_path(text, start));
        let (device, path) = match colon {
            Some(colon) => (&text[..colon], Some(text[colon + 1..].to_vec())),
            None => (text, None),
        };
        if path.as_ref().is_some_and(|path| path.contains(&0)) {
            return Err(bad("the path inside the volume has a NUL byte".into()));
        }
        let spec = DeviceSpec::parse_bytes(device).map_err(|error| match error {
            Error::BadSpec { reason, .. } => bad(reason),
            other => other,
        })?;
        Ok(Target { spec, path })
    }

    /// Whether an argument of `cp` names a file inside a volume. Without an inner path it is a path of the host,
    /// whatever else it looks like. This reports no error: for an inner path with an unknown scheme (`s3://bucket`) it
    /// returns `true`, and [`Target::parse_bytes`] refuses the argument.
    #[must_use]
    pub fn has_inner_path(text: &[u8]) -> bool {
        find_path(text, DeviceSpec::scheme_length(text).unwrap_or(0)).is_some()
    }
}

/// Index of the colon of the first `:/` at or after `start`.
fn find_path(text: &[u8], start: usize) -> Option<usize> {
    text[start..].windows(2).position(|pair| pair == b":/").map(|at| start + at)
}

/// The canonical spelling. Bytes of the path that are not UTF-8 are printed as replacement characters.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)?;
        match &self.path {
            Some(path) => write!(f, ":{}", String::from_utf8_lossy(path)),
            None => Ok(()),
        }
    }
}
