//! Files that an image names. Whoever made the image chose the name, and it may be any that the reader can open: a
//! guest that writes the header of an image onto its raw disk would otherwise read its host's files.

use crate::bytes::Bytes;
use crate::disk::Disk;
use crate::fault::{below, fault};
use crate::recognise::is_named;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4_blockdev::spec::{Format, Named};
use uext4_blockdev::{Error, ImageFault, ImageOptions, Result, open_store};

/// Most images in a chain of backing files.
const CHAIN_MAX: usize = 32;

/// Opens a backing file: the chain so far, the path of the image, the name in it, and the format that it states.
pub(crate) type OpenBacking = dyn Fn(&Chain, &Path, &str, Option<&str>) -> Result<Arc<dyn Disk>>;

/// Where a chain of images began, and what it has come by.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    named: Named,
    force: bool,
    sync: bool,
    /// Whether the user said that the first file is an image.
    said: bool,
    /// The directory of the first image, without symbolic links.
    home: PathBuf,
    /// Device and inode number of each file that holds an image.
    seen: Vec<(u64, u64)>,
}

/// A file that an image names, opened.
pub(crate) struct Opened {
    pub(crate) bytes: Bytes,
    /// Its path.
    pub(crate) path: PathBuf,
    /// The chain down to it.
    pub(crate) chain: Chain,
}

impl Chain {
    /// Begins with the image that the user named.
    pub(crate) fn begin(options: &ImageOptions<'_>, format: Format) -> Result<Chain> {
        let home = directory(options.path);
        let failed = |error: std::io::Error| Error::Open {
            path: options.path.display().to_string(),
            action: "resolve",
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        };
        let stat = fs::metadata(options.path).map_err(failed)?;
        Ok(Chain {
            named: options.named,
            force: options.force,
            sync: options.sync,
            said: options.format.is_some() || is_named(options.path, format),
            home: fs::canonicalize(home).map_err(failed)?,
            seen: vec![(stat.dev(), stat.ino())],
        })
    }

    /// Opens the file that the image at `image` names.
    pub(crate) fn open(&self, image: &Path, name: &str, write: bool) -> Result<Opened> {
        let refused = |reason: String| fault(image, ImageFault::Names { name: name.to_owned(), reason });
        let (path, identity) = self.resolve(image, name).map_err(refused)?;
        if self.seen.contains(&identity) {
            return Err(refused("the chain of backing files comes back to it".to_owned()));
        }
        if self.seen.len() >= CHAIN_MAX {
            return Err(refused(format!("the chain of backing files is longer than {CHAIN_MAX}")));
        }
        let options = ImageOptions {
            path: &path,
            write,
            force: self.force,
            sync: self.sync,
            format: None,
            named: self.named,
        };
        let store = open_store(&options).map_err(|error| below(image, name, error))?;
        let mut chain = self.clone();
        chain.seen.push(identity);
        Ok(Opened { bytes: Bytes::new(store), path, chain })
    }

    /// The path of a file that may be opened, and what tells it from others. The error is the reason.
    fn resolve(&self, image: &Path, name: &str) -> std::result::Result<(PathBuf, (u64, u64)), String> {
        if self.named == Named::No {
            return Err("`backing=no`".to_owned());
        }
        if self.named == Named::Beside && !self.said {
            return Err("a raw image can pretend to be one: `format=` says what it is".to_owned());
        }
        let name = name.strip_prefix("file:").unwrap_or(name);
        let protocol = name.split('/').next().is_some_and(|first| first.contains(':'));
        if protocol || name.is_empty() || name.contains('\0') {
            return Err("it is not a path".to_owned());
        }
        let failed = |error: std::io::Error| uext4_blockdev::describe(&error);
        let path = fs::canonicalize(directory(image).join(name)).map_err(failed)?;
        let stat = fs::metadata(&path).map_err(failed)?;
        let kind = stat.file_type();
        let fits = kind.is_file() || (kind.is_block_device() && self.named == Named::Any);
        if !fits {
            return Err("it is not a regular file".to_owned());
        }
        if self.named == Named::Beside && !path.starts_with(&self.home) {
            return Err(format!("it is not in {}: `backing=any` opens it anyway", self.home.display()));
        }
        Ok((path, (stat.dev(), stat.ino())))
    }
}

/// The directory that a file is in.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
