//! The formats of images that [`open_with`](crate::open_with) asks, and the files that they open.

use crate::engine::{FileDevice, FileEngine};
use crate::spec::{Format, Named};
use crate::{Device, Result, Store};
use std::path::Path;
use std::sync::Arc;

/// How a file is opened that may be an image.
#[derive(Debug, Clone, Copy)]
pub struct ImageOptions<'a> {
    /// Its path.
    pub path: &'a Path,
    /// For writing.
    pub write: bool,
    /// Read even if it is in use.
    pub force: bool,
    /// Without io_uring.
    pub sync: bool,
    /// What the user said that it is.
    pub format: Option<Format>,
    /// Which files it may name.
    pub named: Named,
}

/// Formats of images.
pub trait Formats: Sync {
    /// What `file` holds.
    ///
    /// # Errors
    /// Read errors, and [`Error::Image`](crate::Error::Image) for a file that is not what the user said.
    fn recognise(&self, file: &dyn Store, options: &ImageOptions<'_>) -> Result<Format>;

    /// Opens the image in `file`, which is not a raw one.
    ///
    /// # Errors
    /// [`Error::Image`](crate::Error::Image) if it cannot be used, and those of the files that it names.
    fn open(
        &self,
        format: Format,
        file: Arc<dyn Store>,
        options: &ImageOptions<'_>,
    ) -> Result<Arc<dyn Device>>;
}

/// Raw images only.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawOnly;

impl Formats for RawOnly {
    fn recognise(&self, _: &dyn Store, options: &ImageOptions<'_>) -> Result<Format> {
        match options.format {
            None | Some(Format::Raw) => Ok(Format::Raw),
            Some(format) => Err(not_built_in(format)),
        }
    }

    fn open(&self, format: Format, _: Arc<dyn Store>, _: &ImageOptions<'_>) -> Result<Arc<dyn Device>> {
        Err(not_built_in(format))
    }
}

fn not_built_in(format: Format) -> crate::Error {
    crate::Error::Unsupported(format!("images in the format {format}: `uext4_images::open` has them"))
}

/// Opens and claims a file, as `file:` or `sync:` does.
///
/// # Errors
/// Those of [`open`](crate::open()).
pub fn open_store(options: &ImageOptions<'_>) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(open_file(options)?.growing()))
}

pub(crate) fn open_file(options: &ImageOptions<'_>) -> Result<FileDevice> {
    let engine = if options.sync { FileEngine::Sync } else { FileEngine::Uring };
    FileDevice::open(options.path, engine, options.write, options.force)
}
