//! The image file that a volume is made in, where there is none yet.

use super::error::{Error, Result};
use crate::ground::error::Error as VolumeError;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4_blockdev::spec::{DeviceSpec, Locator};
use uext4_blockdev::{Error as DeviceError, Geometry};

/// An image file is whole pages long, whatever the volume in it is.
const PAGE: u64 = 4096;
/// What a file is taken to need that cannot be asked yet.
const SECTOR: u32 = 512;

/// An image file that was created for a volume. Dropped without [`Image::keep`] it is removed again.
#[derive(Debug)]
pub struct Image(Option<PathBuf>);

impl Image {
    /// Creates the image file that `spec` names, without any contents, if it is not there: with `size` bytes behind
    /// where the device begins (`?offset=`). What is there stays as it is.
    ///
    /// # Errors
    /// [`Error::Device`] if it is not there and has no size, or if the system refuses.
    pub fn create(spec: &DeviceSpec, size: Option<u64>) -> Result<Image> {
        let Some((path, length)) = absent(spec, size)? else { return Ok(Image(None)) };
        let file = File::create_new(path).map_err(|error| failed(path, "create", &error))?;
        let image = Image(Some(path.clone()));
        file.set_len(length).map_err(|error| failed(path, "size", &error))?;
        Ok(image)
    }

    /// The device that [`Image::create`] would make of a file that is not there, if that has sectors of 512 bytes;
    /// `None` if there is something. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Device`] if it is not there and has no size.
    pub fn would_be(spec: &DeviceSpec, size: Option<u64>) -> Result<Option<Geometry>> {
        let absent = absent(spec, size)?;
        let start = spec.options.offset.unwrap_or(0);
        Ok(absent.map(|(_, length)| Geometry {
            size: length.saturating_sub(start),
            logical_block: SECTOR,
            memory_align: SECTOR,
        }))
    }

    /// Whether it was created.
    pub fn is_new(&self) -> bool {
        self.0.is_some()
    }

    /// There is a volume in it: it stays.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

/// The image file that `spec` names and that is not there, with the length that it would get.
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
            // Nobody is left to tell; what stays is an empty file.
            let _gone = std::fs::remove_file(path);
        }
    }
}
