//! Creates the image file for a volume, if there is none yet.

use super::error::{Error, Result};
use crate::ground::error::Error as VolumeError;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4_blockdev::spec::{DeviceSpec, Format, Locator};
use uext4_blockdev::{Error as DeviceError, Geometry};
use uext4_images::{Qcow2Options, create_at, format_of_new};

/// The length of an image file is a multiple of a page, whatever the volume's size.
const PAGE: u64 = 4096;
/// Logical block size assumed for a file that does not exist yet.
const SECTOR: u32 = 512;

/// An image file created for a volume. Removed on drop unless [`Image::keep`] was called.
#[derive(Debug)]
pub struct Image(Option<PathBuf>);

impl Image {
    /// Creates the image file that `spec` names, empty (a hole), if it does not exist: with `size` bytes after the
    /// start of the device (`?offset=`). It is a qcow2 image if `?format=` or the end of its name says so. An existing
    /// file stays as it is.
    ///
    /// # Errors
    /// [`Error::Device`] if it does not exist and no size is given, if the format cannot be made, or if the system
    /// refuses.
    pub fn create(spec: &DeviceSpec, size: Option<u64>) -> Result<Image> {
        let Some((path, length)) = absent(spec, size)? else { return Ok(Image(None)) };
        let file = File::create_new(path).map_err(|error| failed(path, "create", &error))?;
        let image = Image(Some(path.clone()));
        let refused = |error| Error::Device(VolumeError::from(error));
        match format_of_new(spec) {
            Format::Qcow2 => create_at(path, Qcow2Options::new(length)).map_err(refused)?,
            Format::Vmdk => {
                return Err(refused(DeviceError::Unsupported("a new VMDK image".into())));
            }
            Format::Raw => file.set_len(length).map_err(|error| failed(path, "size", &error))?,
        }
        Ok(image)
    }

    /// The geometry of the device that [`Image::create`] would create, assuming sectors of 512 bytes; `None` if the
    /// file exists. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Device`] if it does not exist and no size is given.
    pub fn would_be(spec: &DeviceSpec, size: Option<u64>) -> Result<Option<Geometry>> {
        let absent = absent(spec, size)?;
        let start = spec.options.offset.unwrap_or(0);
        Ok(absent.map(|(_, length)| Geometry {
            size: length.saturating_sub(start),
            logical_block: SECTOR,
            memory_align: SECTOR,
        }))
    }

    /// Whether the file was created by this call.
    pub fn is_new(&self) -> bool {
        self.0.is_some()
    }

    /// Keeps the file: it holds a volume now.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

/// The image file that `spec` names, if it does not exist, with the length that it would get.
fn absent(spec: &DeviceSpec, size: Option<u64>) -> Result<Option<(&PathBuf, u64)>> {
    let Locator::Path(path) = &spec.locator else { return Ok(None) };
    if path.exists() {
        return Ok(None);
    }
    let Some(size) = size else {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        return Err(failed(path, "open (a size would create it)", &missing));
    };
    let end = size.checked_add(spec.options.offset.unwrap_or(0));
    let length = end.and_then(|end| end.checked_next_multiple_of(PAGE)).unwrap_or(u64::MAX);
    Ok(Some((path, length)))
}

fn failed(path: &Path, action: &'static str, error: &io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let failed = DeviceError::Open { path: path.display().to_string(), action, errno };
    Error::Device(VolumeError::Io(Arc::new(failed)))
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // A drop cannot report an error; the worst case is a left-over empty file.
            let _gone = std::fs::remove_file(path);
        }
    }
}
