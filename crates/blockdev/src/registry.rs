//! What other crates add to this one, for [`open_with`](crate::open_with): formats of images, and engines that load a C
//! library when a device needs it.

use crate::spec::{DeviceSpec, Scheme};
use crate::store::{Formats, RawOnly};
use crate::{Device, Error, Result};
use std::fmt;
use std::sync::Arc;

/// How to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenOptions {
    /// Open for writing (a `?ro` in the specification wins).
    pub write: bool,
    /// Open read-only even if the device is in use. Has no effect on writers, which are still refused.
    pub force: bool,
}

/// An engine for the devices of servers.
pub trait Engine: Sync {
    /// The schemes whose devices it opens ([`Scheme::is_remote`]).
    fn schemes(&self) -> &'static [Scheme];

    /// Opens the device that `spec` names, for writing if `options` ask for it. Partition, overlay, masks and delays of
    /// the options are not its work.
    ///
    /// # Errors
    /// [`Error::Library`] if the library is not installed, [`Error::InUse`], [`Error::Remote`], and its own.
    fn open(&self, spec: &DeviceSpec, options: OpenOptions) -> Result<Arc<dyn Device>>;
}

/// Formats and engines.
#[derive(Clone, Copy)]
pub struct Registry<'a> {
    /// Formats of images.
    pub formats: &'a dyn Formats,
    /// Engines, one for a scheme.
    pub engines: &'a [&'a dyn Engine],
}

impl Registry<'static> {
    /// Raw images, and no devices of servers.
    pub const EMPTY: Registry<'static> = Registry { formats: &RawOnly, engines: &[] };
}

impl Registry<'_> {
    pub(crate) fn open(&self, spec: &DeviceSpec, options: OpenOptions) -> Result<Arc<dyn Device>> {
        match self.engines.iter().find(|engine| engine.schemes().contains(&spec.scheme)) {
            Some(engine) => engine.open(spec, options),
            None => {
                let scheme = spec.scheme;
                Err(Error::Unsupported(format!(
                    "devices of `{scheme}:`: this program has no engine for them"
                )))
            }
        }
    }
}

impl fmt::Debug for Registry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schemes: Vec<_> = self.engines.iter().flat_map(|engine| engine.schemes()).collect();
        f.debug_struct("Registry").field("schemes", &schemes).finish_non_exhaustive()
    }
}
