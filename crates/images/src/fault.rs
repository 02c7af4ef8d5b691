//! Errors about images.

use std::path::Path;
use uext4_blockdev::{Error, ImageFault};

/// A fault of the image at `path`.
pub(crate) fn fault(path: &Path, fault: ImageFault) -> Error {
    Error::Image { path: path.display().to_string(), fault }
}

/// What is wrong with a file that an image names.
pub(crate) fn below(image: &Path, name: &str, error: Error) -> Error {
    match error {
        Error::InUse(user) => {
            Error::InUse(format!("{user} (the file {name} that {} names)", image.display()))
        }
        error => fault(image, ImageFault::Below { name: name.to_owned(), error: Box::new(error) }),
    }
}
