//! Digests of a new volume: files that fs-verity seals, and a hash tree of dm-verity over the whole.

use super::files::Files;
use super::fit::Fitted;
use super::{MkfsArgs, geometry, told};
use crate::args::{Globals, choice};
use crate::error::CliError;
use crate::hex::{self, Hex};
use crate::open::{self, OpenHow};
use crate::out::Out;
use crate::text;
use clap::{Args, ValueHint};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use uext4::device::{Device, Geometry, Locator};
use uext4::mkfs::{self, DmVerity, HashedDevice, Image, ItemId, ItemKind, Options, Seal, Tree};
use uext4::{DeviceSpec, HashAlgorithm, Superblock};

/// Block size of a volume with sealed files, of small ones too, in bytes: what every Linux takes.
pub const BLOCK: u32 = 4096;

fn algorithm() -> impl clap::builder::TypedValueParser<Value = HashAlgorithm> {
    let words = HashAlgorithm::ALL.map(|algorithm| match algorithm {
        HashAlgorithm::Sha256 => (algorithm.name(), algorithm, "SHA-256"),
        HashAlgorithm::Sha512 => (algorithm.name(), algorithm, "SHA-512"),
    });
    choice(words)
}

/// Digests of files and of the volume.
#[derive(Args, Debug, Clone)]
pub struct DigestArgs {
    /// Seal this file of the tree with fs-verity, or all regular files below this directory: a hash tree is stored
    /// behind its contents, and Linux compares what it reads with it. May be given several times.
    #[arg(long, value_name = "PATH", requires = "from")]
    pub verity: Vec<OsString>,
    /// The hash function of fs-verity; sha256.
    #[arg(long, value_name = "HASH", requires = "verity", value_parser = algorithm())]
    pub verity_algorithm: Option<HashAlgorithm>,
    /// A salt for fs-verity, at most 32 bytes; none by default.
    #[arg(long, value_name = "HEX", requires = "verity", value_parser = hex::parse)]
    pub verity_salt: Option<Hex>,
    /// Make a hash tree of dm-verity over the whole volume, as veritysetup makes it, behind the volume, and print the
    /// root hash.
    #[arg(long)]
    pub dm_verity: bool,
    /// Put that tree into this file or device instead.
    #[arg(long, value_name = "DEVICE", requires = "dm_verity", value_hint = ValueHint::FilePath)]
    pub dm_verity_file: Option<OsString>,
    /// The hash function of dm-verity; sha256.
    #[arg(long, value_name = "HASH", requires = "dm_verity", value_parser = algorithm())]
    pub dm_verity_algorithm: Option<HashAlgorithm>,
    /// The salt of dm-verity, at most 256 bytes, - for none; by default it follows from the volume's UUID.
    #[arg(long, value_name = "HEX", requires = "dm_verity", value_parser = hex::parse)]
    pub dm_verity_salt: Option<Hex>,
}

impl DigestArgs {
    /// Seals the files of a tree.
    ///
    /// # Errors
    /// Names each path that does not exist, or is neither a regular file nor a directory.
    pub fn seal(&self, tree: &mut Tree, globals: &Globals) -> Result<(), CliError> {
        let salt = self.verity_salt.as_ref().map_or(&[][..], |salt| &salt.0);
        let seal = Seal::new(self.verity_algorithm.unwrap_or_default(), salt);
        let seal = seal.map_err(|error| CliError::usage(error.to_string()))?;
        let mut failures = globals.failures();
        for path in &self.verity {
            let sealed = find(tree, path.as_bytes()).and_then(|id| seal_all(tree, id, seal));
            if let Err((text, errno)) = sealed {
                failures.tell(&CliError::failed(path, format!("--verity: {text}"), errno));
            }
        }
        failures.finish()
    }

    /// What is to be hashed, and where that goes; `None` if nothing is. Nothing is opened for writing.
    pub fn hashed(
        &self,
        args: &MkfsArgs,
        spec: &DeviceSpec,
        (options, files): (&Options, Option<&Files>),
    ) -> Result<Option<Hashed>, CliError> {
        if !self.dm_verity {
            return Ok(None);
        }
        let how = DmVerity {
            algorithm: self.dm_verity_algorithm.unwrap_or_default(),
            salt: self.dm_verity_salt.as_ref().map(|salt| salt.0.clone()),
        };
        let failed = |error: mkfs::Error| told(&args.device, error);
        how.check().map_err(failed)?;
        if self.dm_verity_file.is_none() && options.size.is_none() {
            let text = "--dm-verity puts the hash tree behind the volume: give the volume a size, or the tree a file";
            return Err(CliError::usage(text));
        }
        let device = geometry(spec)?;
        // Of an image that will be longer.
        let device = Geometry { size: device.size.max(options.size.unwrap_or(0)), ..device };
        let made = match files {
            Some(files) => mkfs::dry_run_tree(device, options, files.tree()),
            None => mkfs::dry_run(device, options),
        };
        let made = made.map_err(failed)?.superblock.geometry;
        let size = how.size(&made);
        let place = match &self.dm_verity_file {
            Some(file) => Place::File(file.clone(), open::device(file)?),
            None => Place::Behind(DmVerity::offset(&made)),
        };
        Ok(Some(Hashed { how, place, size }))
    }
}

/// What a path of the tree leads to, links not followed.
fn find(tree: &Tree, path: &[u8]) -> Result<ItemId, (&'static str, i32)> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let mut at = Tree::ROOT;
    for name in names {
        at = tree.find(at, name).ok_or(("no such file in the tree", libc::ENOENT))?;
    }
    Ok(at)
}

/// Seals a regular file, or those below a directory.
fn seal_all(tree: &mut Tree, id: ItemId, seal: Seal) -> Result<(), (&'static str, i32)> {
    if !matches!(tree.item(id).kind, ItemKind::Directory(_)) {
        return tree.seal(id, seal).map_err(|_| ("neither a regular file nor a directory", libc::EINVAL));
    }
    let mut open = vec![id];
    while let Some(directory) = open.pop() {
        let below: Vec<ItemId> = tree.names(directory).map(|(_, id)| id).collect();
        for id in below {
            match tree.item(id).kind {
                ItemKind::Directory(_) => open.push(id),
                ItemKind::Regular(_) => tree.seal(id, seal).map_err(|_| ("not sealed", libc::EINVAL))?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Where a hash tree goes.
#[allow(clippy::large_enum_variant, reason = "one in a command")]
enum Place {
    /// Behind the volume, from this byte on.
    Behind(u64),
    /// Into a file, as it was named.
    File(OsString, DeviceSpec),
}

/// A hash tree of dm-verity that is to be made.
pub struct Hashed {
    how: DmVerity,
    place: Place,
    /// Bytes of superblock and tree.
    size: u64,
}

/// The file for a hash tree.
pub struct HashFile {
    device: Arc<dyn Device>,
    image: Image,
    fitted: Option<Fitted>,
}

impl Hashed {
    /// Where the volume and the tree behind it end.
    pub fn end(&self) -> Option<u64> {
        match self.place {
            Place::Behind(offset) => offset.checked_add(self.size),
            Place::File(..) => None,
        }
    }

    /// Refuses a device that is too short, and opens the file for the tree.
    pub fn open(
        &self,
        args: &MkfsArgs,
        volume: &dyn Device,
        how: &OpenHow<'_>,
    ) -> Result<Option<HashFile>, CliError> {
        let Place::File(name, spec) = &self.place else {
            let (end, have) = (self.end().unwrap_or(u64::MAX), volume.geometry().size);
            if end > have {
                let text = format!("volume and hash tree need {end} bytes, and the device has {have}");
                return Err(CliError::failed(&args.device, text, libc::ENOSPC));
            }
            return Ok(None);
        };
        let failed = |error: mkfs::Error| told(name, error);
        let image = Image::create(spec, Some(self.size)).map_err(failed)?;
        let at = |error: uext4::Error| CliError::at(name, error);
        let mut fitted = None;
        if !image.is_new() {
            let device = how.open_device(spec).map_err(at)?;
            if !args.force {
                mkfs::refuse_occupied(&*device).map_err(failed)?;
            }
            drop(device);
            fitted = Fitted::grow(spec, self.size)?;
        }
        let device = how.open_device(spec).map_err(at)?;
        Ok(Some(HashFile { device, image, fitted }))
    }

    /// Hashes a volume that was made.
    pub fn make(
        &self,
        args: &MkfsArgs,
        volume: &dyn Device,
        superblock: &Superblock,
        file: Option<HashFile>,
    ) -> Result<Told, CliError> {
        let at = match self.place {
            Place::Behind(offset) => offset,
            Place::File(..) => 0,
        };
        let hashes = file.as_ref().map(|file| &*file.device);
        let made = self.how.format(volume, superblock, hashes, at);
        let made = made.map_err(|error| told(&args.device, error))?;
        if let Some(HashFile { device, image, fitted }) = file {
            image.keep();
            drop(device);
            fitted.map_or(Ok(()), Fitted::keep)?;
        }
        let name = match &self.place {
            Place::File(name, _) => Some(text::visible(name.as_bytes())),
            Place::Behind(_) => None,
        };
        Ok(Told { made, at, file: name })
    }
}

/// A hash tree that was made, for the reader.
pub struct Told {
    made: HashedDevice,
    at: u64,
    file: Option<String>,
}

#[derive(Serialize)]
pub struct JsonHashed<'a> {
    root_hash: String,
    algorithm: &'static str,
    salt: String,
    uuid: String,
    data_block_size: u32,
    hash_block_size: u32,
    data_blocks: u64,
    hash_offset: u64,
    file: Option<&'a str>,
}

impl Told {
    /// The root hash, and how the device is opened with it.
    pub fn print(&self, out: &mut Out, spec: &DeviceSpec) -> Result<(), CliError> {
        let root = hex::digits(&self.made.root_hash);
        let data = match &spec.locator {
            Locator::Path(path) => text::visible(path.as_os_str().as_bytes()),
            _ => text::visible(OsStr::new(&spec.to_string()).as_bytes()),
        };
        writeln!(out, "dm-verity root hash {root}")?;
        match &self.file {
            Some(file) => writeln!(out, "veritysetup open {data} NAME {file} {root}"),
            None => writeln!(out, "veritysetup open {data} NAME {data} {root} --hash-offset={}", self.at),
        }
    }

    pub fn json(&self) -> JsonHashed<'_> {
        let superblock = &self.made.superblock;
        JsonHashed {
            root_hash: hex::digits(&self.made.root_hash),
            algorithm: superblock.algorithm.name(),
            salt: hex::digits(&superblock.salt),
            uuid: text::uuid(&superblock.uuid),
            data_block_size: superblock.data_block_size,
            hash_block_size: superblock.hash_block_size,
            data_blocks: superblock.data_blocks,
            hash_offset: self.at,
            file: self.file.as_deref(),
        }
    }
}
