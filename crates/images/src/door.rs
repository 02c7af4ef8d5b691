//! From a file to the disk in it.

use crate::bytes::Bytes;
use crate::disk::{Disk, RawDisk};
use crate::fault::{below, fault};
use crate::named::{Chain, Opened};
use crate::qcow2::{self, Qcow2Device};
use crate::read_device::ReadDevice;
use crate::recognise::{is_named, recognise};
use crate::vmdk;
use std::path::Path;
use std::sync::Arc;
use uext4_blockdev::spec::{DeviceSpec, Format, Locator};
use uext4_blockdev::{
    Device, Error, Formats, ImageFault, ImageOptions, OpenOptions, Opened as OpenedDevice, Registry, Result,
    Store, open_store,
};

/// The formats of this crate.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known;

/// The formats of this crate, for a [`Registry`].
pub const KNOWN: Known = Known;

/// Opens the device that `spec` names, with the formats of this crate.
///
/// # Errors
/// Those of opening its file or memory, and [`Error::Image`] for an image that cannot be used.
pub fn open(spec: &DeviceSpec, options: OpenOptions) -> Result<OpenedDevice> {
    uext4_blockdev::open_with(spec, options, &Registry { formats: &KNOWN, engines: &[] })
}

/// What the file of this device holds, even if it is in use.
///
/// # Errors
/// [`uext4_blockdev::Error::Unsupported`] for a device without a file, and those of opening a device.
pub fn format_of(spec: &DeviceSpec) -> Result<Format> {
    let Locator::Path(path) = &spec.locator else {
        return Err(Error::Unsupported(format!("`{}:` has no file", spec.scheme)));
    };
    let (format, named) = (spec.options.format, spec.options.named);
    let options = ImageOptions { path, write: false, force: true, sync: true, format, named };
    KNOWN.recognise(&*open_store(&options)?, &options)
}

impl Formats for Known {
    fn recognise(&self, file: &dyn Store, options: &ImageOptions<'_>) -> Result<Format> {
        recognise(file, &options.path.display().to_string(), options.format)
    }

    fn open(
        &self,
        format: Format,
        file: Arc<dyn Store>,
        options: &ImageOptions<'_>,
    ) -> Result<Arc<dyn Device>> {
        let chain = Chain::begin(options, format)?;
        let (path, bytes) = (options.path, Bytes::new(file));
        match format {
            Format::Raw => Ok(Arc::clone(bytes.store()) as Arc<dyn Device>),
            Format::Qcow2 => {
                let image = qcow2::open(path, bytes, &chain, options.write, &open_backing)?;
                Ok(Arc::new(Qcow2Device::new(Arc::new(image))))
            }
            Format::Vmdk if options.write => {
                let reason = "VMDK images are only read".to_owned();
                Err(fault(path, ImageFault::ReadOnly(reason)))
            }
            Format::Vmdk => Ok(Arc::new(ReadDevice::new(Arc::new(vmdk::open(path, bytes, &chain)?))?)),
        }
    }
}

/// Opens a backing file of the image at `image`. `stated`: the format that the image says it has.
pub(crate) fn open_backing(
    chain: &Chain,
    image: &Path,
    name: &str,
    stated: Option<&str>,
) -> Result<Arc<dyn Disk>> {
    let stated = match stated {
        None => None,
        Some(format) => match Format::of(format) {
            Some(format) => Some(format),
            None => {
                let reason = format!("its format is stated as {format}");
                return Err(fault(image, ImageFault::Names { name: name.to_owned(), reason }));
            }
        },
    };
    let Opened { bytes, path, chain } = chain.open(image, name, false)?;
    let shown = path.display().to_string();
    let at = |error| below(image, name, error);
    let format = recognise(&**bytes.store(), &shown, stated).map_err(at)?;
    if stated.is_none() && format != Format::Raw && !is_named(&path, format) {
        let reason = format!("its format is not stated, and a raw image can pretend to be {format}");
        return Err(fault(image, ImageFault::Names { name: name.to_owned(), reason }));
    }
    Ok(match format {
        Format::Raw => Arc::new(RawDisk::open(shown, bytes).map_err(at)?),
        Format::Qcow2 => Arc::new(qcow2::open(&path, bytes, &chain, false, &open_backing).map_err(at)?),
        Format::Vmdk => Arc::new(vmdk::open(&path, bytes, &chain).map_err(at)?),
    })
}
