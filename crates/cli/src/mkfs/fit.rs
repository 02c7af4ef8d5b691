//! An image file that exists gets the length of a volume whose size follows from its files.

use crate::error::CliError;
use rustix::fs::FileType;
use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use uext4::DeviceSpec;
use uext4::device::{self as devices, Locator};

/// The length of an image file is a multiple of a page, whatever the volume's size.
const PAGE: u64 = 4096;

/// An image file that was made longer. Gets its old length back on drop unless [`Fitted::keep`] was called.
pub struct Fitted {
    path: PathBuf,
    before: u64,
    wanted: u64,
}

impl Fitted {
    /// Makes the file as long as the volume, if it exists and is shorter. `None` if the device is no regular file, or
    /// is only a part of one.
    ///
    /// # Errors
    /// Those of the host.
    pub fn grow(spec: &DeviceSpec, wanted: u64) -> Result<Option<Fitted>, CliError> {
        let Locator::Path(path) = &spec.locator else { return Ok(None) };
        // The length of a disk inside an image stays as it is.
        let inside = devices::format_of(spec).is_ok_and(|format| format != devices::Format::Raw);
        let part = spec.options.offset.is_some() || spec.options.partition.is_some() || inside;
        let regular =
            |stat: &rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let Some(stat) = rustix::fs::stat(path).ok().filter(regular).filter(|_| !part) else {
            return Ok(None);
        };
        // As long as a new file would be.
        let wanted = wanted.next_multiple_of(PAGE);
        let fitted = Fitted { path: path.clone(), before: stat.st_size as u64, wanted };
        if fitted.before < wanted {
            fitted.set(wanted)?;
        }
        Ok(Some(fitted))
    }

    fn set(&self, length: u64) -> Result<(), CliError> {
        let refused = |action| move |error| CliError::host(self.path.as_os_str(), action, &error);
        let file: File = OpenOptions::new().write(true).open(&self.path).map_err(refused("open"))?;
        file.set_len(length).map_err(refused("size"))
    }

    /// The volume is there: the file ends with it.
    ///
    /// # Errors
    /// Those of the host.
    pub fn keep(mut self) -> Result<(), CliError> {
        let (before, wanted) = (self.before, self.wanted);
        // Nothing is left for the drop.
        self.before = wanted;
        if before > wanted { self.set(wanted) } else { Ok(()) }
    }
}

impl Drop for Fitted {
    fn drop(&mut self) {
        if self.before < self.wanted {
            // A drop cannot report an error; the worst case is a hole at the file's end.
            let _as_before = self.set(self.before);
        }
    }
}
