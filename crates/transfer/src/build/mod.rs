//! Inputs become the tree of a new volume: directories of the host, archives, images of containers.
//!
//! [`Gathering`] takes them in order, as layers: each joins, replaces or hides what those before it have. Nothing is
//! unpacked. The tree is built in memory, and contents stay where they are, in files of directories and in archives
//! that can be read anywhere; those of pipes and of compressed archives go to one temporary file. [`Gathered`] is the
//! tree, and reads its contents for the writer of the volume.
//!
//! What is not sure is refused by name, and nothing is left out: a file that cannot be read, an entry that leads out
//! of the tree. All such are listed at the end.
//!
//! Reading path: here → `archive` (entries become files) → `tar` (headers, bounded), `steps` (paths), `whiteouts` →
//! `draft` (the tree while it grows) → `gathered` (the finished one) → `holes` (on request). Beside them: `host`
//! (directories), `oci`, `input`, `decode`, `spool` (bytes); `owners`, `fakeroot`, `mtree` (attributes that are said
//! elsewhere).

mod archive;
mod decode;
mod draft;
mod error;
mod fakeroot;
mod gathered;
mod holes;
mod host;
mod input;
mod mtree;
mod oci;
mod owners;
mod spool;
mod steps;
mod tar;
mod whiteouts;

pub use archive::ArchiveInput;
pub use error::{Failures, GatherCause, GatherError};
pub use fakeroot::Fakeroot;
pub use gathered::Gathered;
pub use owners::IdRange;

use crate::devices::Devices;
use archive::{Contents, How, Opened, Unpacker};
use draft::{Draft, Limits};
use gathered::{Store, StoreKind};
use host::HostWalk;
use input::From;
use mtree::Manifest;
use oci::{Hash, Layout};
use owners::Owners;
use spool::Spool;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use steps::Through;
use uext4::Timestamp;

/// Memory that names and attributes take, if nothing else is said: more than ten million files.
const MEMORY_MAX: u64 = 4 << 30;

/// How inputs become a tree.
pub struct GatherOptions {
    /// Owner and group of everything, instead of those that the inputs say.
    pub owner: Option<(u32, u32)>,
    /// Users that become others, in access control lists too. The first range counts that has one.
    pub users: Vec<IdRange>,
    /// Same, for groups.
    pub groups: Vec<IdRange>,
    /// What files of directories are in the eyes of fakeroot.
    pub fakeroot: Option<Fakeroot>,
    /// Times later than this many seconds since 1970 become it, as with `tar --clamp-mtime`.
    pub latest: Option<i64>,
    /// The time of directories that no input describes. The default is now.
    pub time: Timestamp,
    /// Bytes of contents at most, without holes: the size of the device.
    pub bytes_max: Option<u64>,
    /// Bytes of memory for names and attributes, roughly. The default is 4 GiB.
    pub memory_max: u64,
    /// Where the temporary file is, which takes the contents of pipes and of compressed archives. The default is
    /// [`std::env::temp_dir`].
    pub spool: PathBuf,
    /// Called with bytes of contents that were written to it.
    pub spooled: Option<Arc<dyn Fn(u64) + Send + Sync>>,
    /// The devices under the volume, which are not gathered.
    pub devices: Devices,
    /// The platform of images that are for several: `OS/ARCHITECTURE` or `OS/ARCHITECTURE/VARIANT`, in the words of
    /// Go. The default is Linux on this machine.
    pub platform: Option<String>,
}

impl Default for GatherOptions {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        GatherOptions {
            owner: None,
            users: Vec::new(),
            groups: Vec::new(),
            fakeroot: None,
            latest: None,
            time: Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() },
            bytes_max: None,
            memory_max: MEMORY_MAX,
            spool: std::env::temp_dir(),
            spooled: None,
            devices: Devices::default(),
            platform: None,
        }
    }
}

/// Collects the layers of a tree, in order. After an error it gathers nothing of use.
pub struct Gathering {
    options: GatherOptions,
    draft: Draft,
    stores: Vec<Store>,
    /// The temporary file and its number among the stores, once there is one.
    spool: Option<(Spool, u32)>,
    failures: Failures,
}

impl Gathering {
    /// An empty tree.
    pub fn new(options: GatherOptions) -> Gathering {
        let limits = Limits { data: options.bytes_max.unwrap_or(u64::MAX), memory: options.memory_max };
        let (users, groups) = (options.users.clone(), options.groups.clone());
        let owners = Owners { all: options.owner, users, groups, latest: options.latest };
        let draft = Draft::new(limits, owners, options.time);
        Gathering { options, draft, stores: Vec::new(), spool: None, failures: Failures::default() }
    }

    /// Adds a directory of the host and everything in it: holes, hard links, devices, pipes, sockets, attributes.
    /// Its own attributes become those of the root. Contents are read when the volume is written; a file that changed
    /// meanwhile is an error then.
    ///
    /// # Errors
    /// What keeps the directory from being read. What cannot be read in it is told by [`Gathering::finish`].
    pub fn host(&mut self, directory: &Path) -> Result<(), Failures> {
        self.draft.begin_layer();
        let store = self.stores.len() as u32;
        let how = (&self.options.devices, self.options.fakeroot.as_ref());
        let walk = HostWalk::new(directory, how, &mut self.draft, store, &mut self.failures);
        match walk.run() {
            Ok(store) => {
                self.stores.push(store);
                Ok(())
            }
            Err(error) => Err(self.failures.ended_by(error)),
        }
    }

    /// Adds an archive of tar (v7, ustar, GNU, pax), compressed with gzip or zstd or not at all; the data tells. In
    /// the first layer a path through a symbolic link is refused; in later ones it is followed within the tree, and
    /// `.wh.NAME` hides what lower layers have. `name` is for messages.
    ///
    /// # Errors
    /// An archive that cannot be read to its end. Entries that are refused are told by [`Gathering::finish`].
    pub fn archive(&mut self, name: &Path, input: ArchiveInput) -> Result<(), Failures> {
        self.draft.begin_layer();
        let layered = self.draft.is_layered();
        let through = if layered { Through::Links } else { Through::Nothing };
        let how = How { through, whiteouts: layered, verified: false };
        let added = match Opened::new(input) {
            Ok(opened) => self.layer(name, how, opened, None),
            Err(cause) => Err(GatherError::new(name, cause)),
        };
        added.map_err(|error| self.failures.ended_by(error))
    }

    /// Adds the layers of a container image in an OCI layout folder. `reference` is its name there (the annotation
    /// `org.opencontainers.image.ref.name`) or its digest; none: the only image. All digests and sizes are checked.
    /// Paths through symbolic links are followed within the tree, as containers' programs do, and whiteouts hide what
    /// lower layers have.
    ///
    /// # Errors
    /// An image that is not there, is damaged or has layers that cannot be read. Entries that are refused are told by
    /// [`Gathering::finish`].
    pub fn oci(&mut self, folder: &Path, reference: Option<&str>) -> Result<(), Failures> {
        self.image(folder, reference).map_err(|error| self.failures.ended_by(error))
    }

    fn image(&mut self, folder: &Path, reference: Option<&str>) -> Result<(), GatherError> {
        let how = How { through: Through::Links, whiteouts: true, verified: true };
        let fail = |cause| GatherError::new(folder, cause);
        let layout = Layout::open(folder).map_err(fail)?;
        for layer in layout.layers(reference, self.options.platform.as_deref()).map_err(fail)? {
            self.draft.begin_layer();
            let name = folder.join(layer.digest.path());
            let opened = layout.open_layer(&layer).and_then(|file| Opened::new(ArchiveInput::File(file)));
            let opened = opened.map_err(|cause| GatherError::new(&name, cause))?;
            let mut hash = Hash::default();
            self.layer(&name, how, opened, Some(&mut hash))?;
            hash.check(&layer).map_err(|cause| GatherError::new(&name, cause))?;
        }
        Ok(())
    }

    fn layer(
        &mut self,
        name: &Path,
        how: How,
        opened: Opened,
        hash: Option<&mut Hash>,
    ) -> Result<(), GatherError> {
        let number = self.stores.len() as u32;
        if let Some(store) = archive::store(name, &opened) {
            self.stores.push(store);
        }
        let (contents, from) = match opened {
            Opened::InPlace(file, _, size) => (Contents::InPlace(number), From::File(file, size)),
            Opened::Stream(stream, compression) => {
                let spooled = spooled(&mut self.spool, &mut self.stores, &self.options);
                let (spool, number) = spooled.map_err(|cause| GatherError::new(name, cause))?;
                let decoded = compression.decode(stream);
                (Contents::Spooled(spool, number), From::Stream(oci::hashed(decoded, hash)))
            }
        };
        let (draft, failures) = (&mut self.draft, &mut self.failures);
        Unpacker { name: name.to_owned(), how, draft, contents, failures }.run(from)
    }

    /// Applies a manifest in the form of mtree(5) to what was gathered so far: what it says of owners, modes and times
    /// counts more than inputs and options, and it may add directories, links and nodes.
    ///
    /// # Errors
    /// A file that cannot be read. Lines that are wrong are told by [`Gathering::finish`].
    pub fn mtree(&mut self, manifest: &Path) -> Result<(), Failures> {
        let mut text = Vec::new();
        let read = File::open(manifest)
            .and_then(|file| file.take(mtree::MANIFEST_MAX + 1).read_to_end(&mut text))
            .map_err(GatherCause::io("read"));
        let applied = match read {
            Ok(size) if size as u64 > mtree::MANIFEST_MAX => {
                let (size, max) = (size as u64, mtree::MANIFEST_MAX);
                Err(GatherError::new(manifest, GatherCause::TooLarge { what: "manifest", size, max }))
            }
            Ok(_) => {
                let (draft, failures, time) = (&mut self.draft, &mut self.failures, self.options.time);
                Manifest { draft, time, name: manifest, failures }.run(&text)
            }
            Err(cause) => Err(GatherError::new(manifest, cause)),
        };
        applied.map_err(|error| self.failures.ended_by(error))
    }

    /// The finished tree.
    ///
    /// # Errors
    /// All that was refused and all that could not be read.
    pub fn finish(mut self) -> Result<Gathered, Failures> {
        if let Some((spool, _)) = &mut self.spool
            && let Err(cause) = spool.flush()
        {
            self.failures.push(GatherError::new(&self.options.spool, cause));
        }
        if !self.failures.errors.is_empty() {
            return Err(self.failures);
        }
        let gathered = Gathered::new(self.draft, self.options.time, self.stores);
        gathered.map_err(|error| self.failures.ended_by(error))
    }
}

/// The temporary file, which is made when the first archive needs it.
fn spooled<'s>(
    spool: &'s mut Option<(Spool, u32)>,
    stores: &mut Vec<Store>,
    options: &GatherOptions,
) -> Result<(&'s mut Spool, u32), GatherCause> {
    let (spool, number) = match spool.take() {
        Some(made) => spool.insert(made),
        None => {
            let made = Spool::new(&options.spool, options.spooled.clone())?;
            let number = stores.len() as u32;
            stores.push(Store { name: options.spool.clone(), kind: StoreKind::Spool(made.file()) });
            spool.insert((made, number))
        }
    };
    Ok((spool, *number))
}
