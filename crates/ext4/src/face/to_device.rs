//! Ways to name a volume's device: text in the device grammar, or a path of this machine.

use crate::ground::error::Result;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use uext4_blockdev::spec::DeviceSpec;

/// Names the device of a volume, for [`Volume::open`](crate::Volume::open).
///
/// | given | read as |
/// |---|---|
/// | [`str`], [`String`] | the device grammar ([`DeviceSpec`]): `dax:disk.img`, `disk.img?partition=2` |
/// | [`Path`], [`PathBuf`], [`OsStr`], [`OsString`] | the path of an image file or block device, byte by byte |
/// | [`DeviceSpec`] | itself: any path with options or another engine |
///
/// References, boxes and [`Cow`]s of these work the same.
///
/// **Text is grammar, everything else is a path.** In text, `:/`, `?`, `&`, `%` and anything like a scheme have a
/// meaning: `"a%20b.img"` is the file `a b.img`. A path is taken byte for byte, UTF-8 or not: it came from a directory
/// listing or a file dialog, and must never open another file. So a program that takes devices from its user passes
/// text, and one that has a file name passes a path: `Volume::open(Path::new(name), …)`.
///
/// ```
/// use std::path::{Path, PathBuf};
/// use uext4::device::{Locator, Scheme};
/// use uext4::{DeviceSpec, ToDevice};
///
/// let spec = "dax:disk.img?partition=2".to_device()?;
/// assert_eq!((spec.scheme, spec.options.partition), (Scheme::Dax, Some(2)));
///
/// // The same bytes as a path are the name of a file.
/// let spec = Path::new("dax:disk.img?partition=2").to_device()?;
/// assert_eq!(spec.locator, Locator::Path(PathBuf::from("dax:disk.img?partition=2")));
/// assert_eq!((spec.scheme, spec.options.partition), (Scheme::File, None));
///
/// // A path with options.
/// let mut spec = DeviceSpec::file("100%.img");
/// spec.options.partition = Some(2);
/// assert_eq!(spec.to_string(), "100%25.img?partition=2");
/// # Ok::<(), uext4::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a device",
    note = "text is read in the device grammar, a `Path` or `OsStr` is the path of an image file or block device"
)]
pub trait ToDevice {
    /// The device.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) for text that breaks the grammar
    /// ([`Error::is_usage`](crate::Error::is_usage)). A path is never an error here, only when it is opened.
    fn to_device(&self) -> Result<DeviceSpec>;
}

impl ToDevice for str {
    fn to_device(&self) -> Result<DeviceSpec> {
        Ok(DeviceSpec::parse(self)?)
    }
}

impl ToDevice for String {
    fn to_device(&self) -> Result<DeviceSpec> {
        self.as_str().to_device()
    }
}

impl ToDevice for Path {
    fn to_device(&self) -> Result<DeviceSpec> {
        Ok(DeviceSpec::file(self))
    }
}

impl ToDevice for PathBuf {
    fn to_device(&self) -> Result<DeviceSpec> {
        self.as_path().to_device()
    }
}

impl ToDevice for OsStr {
    fn to_device(&self) -> Result<DeviceSpec> {
        Path::new(self).to_device()
    }
}

impl ToDevice for OsString {
    fn to_device(&self) -> Result<DeviceSpec> {
        self.as_os_str().to_device()
    }
}

impl ToDevice for DeviceSpec {
    fn to_device(&self) -> Result<DeviceSpec> {
        Ok(self.clone())
    }
}

impl<T: ToDevice + ?Sized> ToDevice for &T {
    fn to_device(&self) -> Result<DeviceSpec> {
        (**self).to_device()
    }
}

impl<T: ToDevice + ?Sized> ToDevice for Box<T> {
    fn to_device(&self) -> Result<DeviceSpec> {
        (**self).to_device()
    }
}

impl<T: ToDevice + ToOwned + ?Sized> ToDevice for Cow<'_, T> {
    fn to_device(&self) -> Result<DeviceSpec> {
        (**self).to_device()
    }
}
