//! Opening devices with all that this library knows: formats of images, engines for the devices of servers.

use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{OpenOptions, Opened, Registry, Result};

/// What [`open`] knows besides files, block devices and memory.
pub(crate) const REGISTRY: Registry<'static> =
    Registry { formats: &uext4_images::KNOWN, engines: uext4_remote::ENGINES };

/// Opens the device that `spec` names. The disk in an image is the device.
///
/// # Errors
/// [`Error::InUse`](uext4_blockdev::Error::InUse) if it is in use, [`Error::Open`](uext4_blockdev::Error::Open) if the
/// system refuses, [`Error::Image`](uext4_blockdev::Error::Image) for an image that cannot be used,
/// [`Error::Library`](uext4_blockdev::Error::Library) for a device of a server whose library is not installed,
/// [`Error::Remote`](uext4_blockdev::Error::Remote) if the server refuses, and those of
/// [`uext4_blockdev::open_with`].
pub fn open(spec: &DeviceSpec, options: OpenOptions) -> Result<Opened> {
    uext4_blockdev::open_with(spec, options, &REGISTRY)
}
