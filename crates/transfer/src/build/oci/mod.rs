//! Images of containers in an OCI layout folder: `oci-layout`, `index.json`, and blobs named by their digests.
//!
//! The folder is not believed: every blob is opened by its digest alone, below the folder, and has the size and the
//! digest that led to it before anything in it is used. So only `index.json` is without proof.

mod choice;
mod digest;
mod json;

use super::error::GatherCause;
use digest::{Hashing, of_file};
use json::{Config, Index, Manifest};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use digest::{Digest, Hash};

/// Bytes of a document, at most. containerd has the same limit for manifests.
const DOCUMENT_MAX: u64 = 4 << 20;

/// A folder with images.
pub struct Layout {
    folder: OwnedFd,
}

/// A layer of an image.
#[derive(Debug)]
pub struct Layer {
    pub digest: Digest,
    size: u64,
    /// The digest of what is compressed.
    diff_id: Digest,
}

impl Layout {
    pub fn open(folder: &Path) -> Result<Layout, GatherCause> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, folder, flags, Mode::empty());
        let layout = Layout { folder: opened.map_err(|error| GatherCause::io("open")(error.into()))? };
        let version: json::Layout = parse("oci-layout", &layout.document("oci-layout", None)?)?;
        if !version.image_layout_version.starts_with("1.") {
            let text = format!("oci-layout: version {} is not known", version.image_layout_version);
            return Err(GatherCause::Image(text));
        }
        Ok(layout)
    }

    /// The layers of an image, the lowest first.
    pub fn layers(&self, reference: Option<&str>, platform: Option<&str>) -> Result<Vec<Layer>, GatherCause> {
        let index: Index = parse("index.json", &self.document("index.json", None)?)?;
        let manifest = choice::choose(index, reference, platform, &|descriptor| self.blob(descriptor))?;
        let manifest: Manifest = self.blob(&manifest)?;
        if !json::is_config(&manifest.config.media_type) {
            let text = format!("not an image for containers, but {}", manifest.config.media_type);
            return Err(GatherCause::Image(text));
        }
        let config: Config = self.blob(&manifest.config)?;
        let diff_ids = config.rootfs.diff_ids;
        if diff_ids.len() != manifest.layers.len() {
            let (layers, ids) = (manifest.layers.len(), diff_ids.len());
            return Err(GatherCause::Image(format!("{layers} layers, but {ids} digests of their contents")));
        }
        let layers = manifest.layers.into_iter().zip(diff_ids);
        layers
            .map(|(layer, diff_id)| {
                if !json::is_layer(&layer.media_type) {
                    let text = format!("a layer is of the unknown type {}", layer.media_type);
                    return Err(GatherCause::Image(text));
                }
                let (digest, diff_id) = (Digest::parse(&layer.digest)?, Digest::parse(&diff_id)?);
                Ok(Layer { digest, size: layer.size, diff_id })
            })
            .collect()
    }

    /// The file of a layer, which has its size and its digest.
    pub fn open_layer(&self, layer: &Layer) -> Result<File, GatherCause> {
        let file = self.open_file(&layer.digest.path(), Some(layer.size))?;
        layer.digest.check(&of_file(&file)?)?;
        Ok(file)
    }

    /// The document that a descriptor is of.
    fn blob<T: DeserializeOwned>(&self, descriptor: &json::Descriptor) -> Result<T, GatherCause> {
        let digest = Digest::parse(&descriptor.digest)?;
        let path = digest.path();
        let bytes = self.document(&path, Some(descriptor.size))?;
        digest.check(&Digest::of(&bytes))?;
        parse(&path, &bytes)
    }

    fn document(&self, path: &str, size: Option<u64>) -> Result<Vec<u8>, GatherCause> {
        let file = self.open_file(path, size)?;
        let mut bytes = Vec::new();
        file.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes).map_err(GatherCause::io("read"))?;
        if bytes.len() as u64 > DOCUMENT_MAX {
            let size = size.unwrap_or(bytes.len() as u64);
            return Err(GatherCause::TooLarge { what: "document", size, max: DOCUMENT_MAX });
        }
        Ok(bytes)
    }

    fn open_file(&self, path: &str, size: Option<u64>) -> Result<File, GatherCause> {
        // Not a link, and nothing that must be waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.folder, path, flags, Mode::empty());
        let opened = opened.map_err(|error| GatherCause::Image(format!("{path}: {}", error.kind())))?;
        let stat = rustix::fs::fstat(&opened).map_err(|error| GatherCause::io("stat")(error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(GatherCause::Image(format!("{path}: not a regular file")));
        }
        match size.filter(|size| *size != stat.st_size as u64) {
            Some(size) => {
                Err(GatherCause::Image(format!("{path}: {} bytes instead of {size}", stat.st_size)))
            }
            None => Ok(File::from(opened)),
        }
    }
}

/// What is read, and hashed on the way if that is wanted.
pub fn hashed<'a>(from: Box<dyn Read + 'a>, hash: Option<&'a mut Hash>) -> Box<dyn Read + 'a> {
    match hash {
        Some(hash) => Box::new(Hashing { from, hash }),
        None => from,
    }
}

fn parse<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T, GatherCause> {
    serde_json::from_slice(bytes).map_err(|error| GatherCause::Image(format!("{path}: {error}")))
}
