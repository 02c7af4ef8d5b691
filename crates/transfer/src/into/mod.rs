//! Copies of trees into a volume: from the host, from another volume, or within one.
//!
//! Reading path: here (destinations) → `copy` (the walk) → `made` (what is created, and its attributes), `pool` (the
//! threads that fill files). What is copied is an `origin`: a tree of the host or of a volume.

mod copy;
pub(crate) mod host_tree;
mod made;
pub(crate) mod origin;
mod pool;
mod volume_tree;

use crate::devices::Devices;
use crate::error::{Cause, Error, Result};
use crate::export::Observer;
use crate::import::{Onto, memory};
use crate::options::{Follow, Holes, Keep};
use copy::Copier;
use host_tree::HostTree;
use made::Links;
use origin::Origin;
use pool::{Pool, Queue};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uext4::{Buffer, Caller, FileKind, Ino, Node, Volume};
use volume_tree::VolumeTree;

/// What is copied into a volume.
#[derive(Clone, Copy)]
pub enum From<'a> {
    /// A path of the host.
    Host(&'a Path),
    /// A path of a volume.
    Volume(&'a Volume, &'a Path),
}

/// How things are copied into a volume.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// Whether directories are copied, with everything in them, and pipes and devices as such. Otherwise a pipe or
    /// device is read to its end.
    pub recursive: bool,
    /// Which symbolic links are followed. The others are copied as links.
    pub follow: Follow,
    /// Which zeros become holes.
    pub holes: Holes,
    /// The destination is a name even if a directory has it: a directory is then copied onto that one.
    pub plain: bool,
    /// The attributes that copies keep. Owners can always be kept: the volume belongs to who may write it.
    pub keep: Keep,
    /// Owner and group of what is created, and the mask of its permissions, if they are not kept.
    pub caller: Caller,
    /// Owner and group of everything that is copied, instead of the kept ones.
    pub owner: Option<(u32, u32)>,
    /// What a copy does with an existing file.
    pub onto: Onto,
    /// Leave what exists as it is. Existing directories are entered.
    pub no_clobber: bool,
}

/// Copies one or several sources to one destination in a volume. What it copied is not replaced by what comes later.
/// Durable after the next sync or [`Volume::close`].
pub struct Import<'v> {
    volume: &'v Volume,
    options: ImportOptions,
    /// The directory that is copied into, and its path.
    directory: Node,
    path: PathBuf,
    /// Its name there, if that is not the source's.
    name: Option<Vec<u8>>,
    /// Whether that name must be a directory's: the path ends with a slash.
    directory_wanted: bool,
    devices: Devices,
    links: Links,
    /// Inodes that are not replaced: those of earlier sources.
    earlier: HashSet<Ino>,
    buffer: Buffer,
}

impl<'v> Import<'v> {
    /// Copies to `dest`: into it if it is a directory, else under its name. With several sources it must be a
    /// directory. `devices` are those of the volume, which are not copied into it.
    ///
    /// # Errors
    /// [`Cause::NotDirectory`], [`Cause::NoDirectory`], those of the volume; with an empty path.
    pub fn new(
        volume: &'v Volume,
        dest: &Path,
        several: bool,
        devices: Devices,
        options: ImportOptions,
    ) -> Result<Import<'v>> {
        let at = |error| Error::destination(b"", Cause::Volume(error));
        let (directory, path, name) = match volume.node_at(dest, true) {
            Ok(found)
                if found.kind() == FileKind::Directory && !(options.plain && dest.file_name().is_some()) =>
            {
                (found, dest.to_owned(), None)
            }
            Ok(_) | Err(uext4::Error::NotFound) if several => {
                return Err(Error::destination(b"", Cause::NotDirectory));
            }
            Ok(_) | Err(uext4::Error::NotFound) => {
                let name = dest.file_name().ok_or_else(|| Error::destination(b"", Cause::NoDirectory))?;
                let parent = dest.parent().unwrap_or(Path::new("/"));
                let directory = match volume.node_at(parent, true) {
                    Err(uext4::Error::NotFound) => return Err(Error::destination(b"", Cause::NoDirectory)),
                    found => found.map_err(at)?,
                };
                if directory.kind() != FileKind::Directory {
                    return Err(at(uext4::Error::NotDirectory));
                }
                (directory, parent.to_owned(), Some(name.as_bytes().to_vec()))
            }
            Err(error) => return Err(at(error)),
        };
        let directory_wanted = dest.as_os_str().as_bytes().ends_with(b"/");
        let (links, earlier, buffer) = (Links::default(), HashSet::new(), memory()?);
        Ok(Import {
            volume,
            options,
            directory,
            path,
            name,
            directory_wanted,
            devices,
            links,
            earlier,
            buffer,
        })
    }

    /// Copies a source. `observer` is told what cannot be copied or kept, and the copy goes on. Hard links among what
    /// is copied from one device are hard links again.
    ///
    /// Into a volume that is changed deterministically ([`Volume::fixed_time`]) everything goes in the order of names,
    /// no time is later than the volume's, and a host's times of access become those of the last change.
    ///
    /// # Errors
    /// What concerns the source as a whole: then nothing of it was copied, unless the volume takes no more changes:
    /// then a part of it may be.
    pub fn copy(&mut self, from: From<'_>, observer: &mut dyn Observer) -> Result<()> {
        observer.begin(None);
        match from {
            From::Host(base) => {
                let devices = std::mem::take(&mut self.devices);
                let how = (self.options.recursive, self.options.follow, self.options.holes);
                let in_turn = self.volume.fixed_time().is_some();
                let done = self.tree(
                    &HostTree { base, devices: &devices, how, in_turn },
                    base,
                    made::HOST,
                    None,
                    observer,
                );
                self.devices = devices;
                done
            }
            From::Volume(volume, path) => {
                let (follow, holes) = (self.options.follow, self.options.holes);
                let tree = VolumeTree { volume, path, follow, holes };
                let above =
                    tree.is_on(self.volume).then(|| above(self.volume, &self.directory)).transpose()?;
                let number = self.links.number(volume);
                self.tree(&tree, path, number, above, observer)
            }
        }
    }

    fn tree<O: Origin>(
        &mut self,
        origin: &O,
        source: &Path,
        number: usize,
        above: Option<HashSet<Ino>>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let name = match (&self.name, source.file_name()) {
            (Some(name), _) => Some(name.clone()),
            // `.` at the end is dropped by `file_name`.
            (None, Some(name)) if !ends_in_dot(source) && !self.options.plain => {
                Some(name.as_bytes().to_vec())
            }
            _ => None,
        };
        let queue = Queue::default();
        std::thread::scope(|scope| {
            let start = || Pool::start(scope, &queue, origin, &self.options);
            let fixed = self.volume.fixed_time();
            // Threads would take blocks in an order of their own.
            let pool = (self.options.recursive && fixed.is_none()).then(start).transpose()?;
            let mut copier = Copier {
                volume: self.volume,
                options: &self.options,
                origin,
                fixed,
                number,
                above,
                path: &self.path,
                // Paths below the destination begin with the source's name if that is below it.
                shown: self.name.is_none(),
                directory_wanted: self.name.is_some() && self.directory_wanted,
                links: &mut self.links,
                earlier: &self.earlier,
                made: HashSet::new(),
                entered: HashSet::new(),
                found: 0,
                buffer: &mut self.buffer,
                pool,
                observer,
            };
            let done = copier.run(&self.directory, name.as_deref());
            let made = std::mem::take(&mut copier.made);
            drop(copier);
            self.earlier.extend(made);
            done
        })
    }
}

fn ends_in_dot(path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    path[..end] == *b"." || path[..end].ends_with(b"/.")
}

/// A directory and all directories above it.
fn above(volume: &Volume, directory: &Node) -> Result<HashSet<Ino>> {
    let at = |error| Error::destination(b"", Cause::Volume(error));
    let mut above = HashSet::from([directory.ino()]);
    let root = volume.root().map_err(at)?.ino();
    let mut now = directory.ino();
    let mut up = directory.look_up(b"..").map_err(at)?;
    while now != root && above.insert(up.ino()) {
        now = up.ino();
        up = up.look_up(b"..").map_err(at)?;
    }
    Ok(above)
}

/// A path of the volume.
fn inside(directory: &Path, below: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(below))
}
