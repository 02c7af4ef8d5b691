//! The image file that a volume is made in, where there is none yet.

use super::error::{Error, Result};
use crate::ground::error::Error as VolumeError;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use uext4_blockdev::Error as DeviceError;
use uext4_blockdev::spec::{DeviceSpec, Locator};

/// An image file is whole pages long, whatever the volume in it is.
const PAGE: u64 = 4096;

/// An image file that was created for a volume. Dropped without [`Image::keep`] it is removed again.
#[derive(Debug)]
pub struct Image(Option<PathBuf>);

impl Image {
    /// Creates the image file that `spec` names, of `size` bytes without any contents, if it is not there. What is
    /// there stays as it is.
    ///
    /// # Errors
    /// [`Error::Device`] if it is not there and has no size, or if the system refuses.
    pub fn create(spec: &DeviceSpec, size: Option<u64>) -> Result<Image> {
        let Locator::Path(path) = &spec.locator else { return Ok(Image(None)) };
        if path.exists() {
            return Ok(Image(None));
        }
        let failed = |action: &'static str, error: &io::Error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let failed = DeviceError::Open { path: path.display().to_string(), action, errno };
            Error::Device(VolumeError::Io(Arc::new(failed)))
        };
        let Some(size) = size else {
            return Err(failed("open (a size would create it)", &io::Error::from_raw_os_error(libc::ENOENT)));
        };
        let file = File::create_new(path).map_err(|error| failed("create", &error))?;
        let image = Image(Some(path.clone()));
        let length = size.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        file.set_len(length).map_err(|error| failed("size", &error))?;
        Ok(image)
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

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Nobody is left to tell; what stays is an empty file.
            let _gone = std::fs::remove_file(path);
        }
    }
}
