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
/// [`Error::Remote`](uext4_blockdev::Error::Remote) if the server refuses,
/// [`Error::Partition`](uext4_blockdev::Error::Partition) if there is no such partition,
/// [`Error::Overlay`](uext4_blockdev::Error::Overlay) for an overlay file that cannot be used,
/// [`Error::OutOfRange`](uext4_blockdev::Error::OutOfRange) or
/// [`Error::Misaligned`](uext4_blockdev::Error::Misaligned) for an impossible `offset`, and
/// [`Error::Unsupported`](uext4_blockdev::Error::Unsupported) for options that claim what the device lacks.
pub fn open(spec: &DeviceSpec, options: OpenOptions) -> Result<Opened> {
    uext4_blockdev::open_with(spec, options, &REGISTRY)
}
