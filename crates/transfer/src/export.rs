//! Copies out of a volume, holes kept: choice of the destination, and single files.

use crate::attributes::{self, Attributes};
use crate::devices::Devices;
use crate::error::{Cause, Error, Result};
use crate::made::Made;
use crate::options::{Follow, Holes, Keep, without_zeros};
use crate::read_ahead::{Sink, pour, stream};
use crate::steps::Entry;
use crate::{target, tree};
use rustix::fd::AsFd;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File as HostFile, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uext4::{DeviceSpec, File, FileKind, Volume};

/// Receives the progress of a copy.
pub trait Observer {
    /// The copy of a source begins: a file of `total` bytes, or a tree of unknown size.
    fn begin(&mut self, total: Option<u64>);
    /// This many more bytes are done.
    fn advance(&mut self, bytes: u64);
    /// Something could not be copied or kept, and the copy goes on.
    fn trouble(&mut self, error: Error);
    /// `source`, a path below the copied source (empty: the source itself), is about to be copied to `dest`.
    fn copying(&mut self, _source: &[u8], _dest: &Path) {}
}

/// How files are copied to the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub keep: Keep,
    /// Of the process, for what gets an owner and not its mode.
    pub umask: u32,
    /// Of trees.
    pub follow: Follow,
    /// Remove and recreate files that cannot be opened for writing.
    pub force: bool,
    pub holes: Holes,
}

/// Copies one or several sources to one destination on the host. A file from one source is not replaced by one from
/// another, and nothing is written to the devices of the sources. Nothing is synced.
pub struct Export {
    dest: PathBuf,
    dest_is_dir: bool,
    plain: bool,
    how: How,
    made: Made,
    /// Destinations of single files.
    files: HashSet<PathBuf>,
}

impl Export {
    /// Copies to `dest`: into it if it is a directory, else under its name. `sources` are the devices of all sources to
    /// come, one for each; with several, `dest` must be a directory.
    pub fn new(dest: &Path, sources: &[&DeviceSpec], keep: Keep) -> Result<Export> {
        let dest_is_dir = fs::metadata(dest).is_ok_and(|metadata| metadata.is_dir());
        if sources.len() > 1 && !dest_is_dir {
            return Err(Error::host(dest, Cause::NotDirectory));
        }
        let made = Made::new(sources.len(), Devices::of(sources.iter().copied()));
        let how = How { keep, umask: 0o077, follow: Follow::Never, force: false, holes: Holes::Source };
        Ok(Export { dest: dest.to_owned(), dest_is_dir, plain: false, how, made, files: HashSet::new() })
    }

    /// Whether to remove and recreate an existing file that cannot be opened for writing.
    pub fn force(self, force: bool) -> Export {
        Export { how: How { force, ..self.how }, ..self }
    }

    /// Which zeros become holes.
    pub fn holes(self, holes: Holes) -> Export {
        Export { how: How { holes, ..self.how }, ..self }
    }

    /// Which symbolic links are followed. [`Export::file`] copies a link only with [`Follow::Never`].
    pub fn follow(self, follow: Follow) -> Export {
        Export { how: How { follow, ..self.how }, ..self }
    }

    /// The process's umask, for what gets the owner of its source but not its mode. If it is not given, that has no
    /// rights for others.
    pub fn umask(self, umask: u32) -> Export {
        Export { how: How { umask, ..self.how }, ..self }
    }

    /// The destination is a name even if a directory has it: a directory is then copied onto that one.
    pub fn plain(self) -> Export {
        Export { plain: true, ..self }
    }

    /// The destination must be a directory.
    pub fn into_directory(self) -> Result<Export> {
        if self.dest_is_dir { Ok(self) } else { Err(Error::host(self.dest, Cause::NotDirectory)) }
    }

    /// Copies the directory at `source` with everything in it, or any other file there: symbolic links that are not
    /// followed, pipes, sockets and (as root) device nodes too. `observer` is told what cannot be copied, and the copy
    /// goes on; an error ends this source and, if it is [`Cause::Moved`], all of them.
    pub fn tree(&mut self, volume: &Volume, source: &Path, observer: &mut dyn Observer) -> Result<()> {
        let destination = self.destination(source)?;
        self.made.next_source(volume);
        tree::copy(volume, source, &destination, self.how, &mut self.made, observer)
    }

    /// Copies the contents of one file, following symbolic links, into a file or anything else of that name. On
    /// failure, a file that it created is removed. Links that are not followed, and files whose hard links are kept,
    /// go to the name itself, as in a tree.
    pub fn file(&mut self, volume: &Volume, source: &Path, observer: &mut dyn Observer) -> Result<()> {
        let into = self.dest_is_dir && !self.plain;
        let path = if into { self.dest.join(base_name(source)?) } else { self.dest.clone() };
        if self.files.contains(&path) {
            return Err(Error::host(path, Cause::JustMade));
        }
        if self.made.devices().are_at(&path) {
            return Err(Error::host(path, Cause::SourceDevice));
        }
        if self.as_tree(volume, source)? {
            self.tree(volume, source, observer)?;
        } else {
            copy(volume, source, &path, self.how, observer)?;
        }
        self.files.insert(path);
        Ok(())
    }

    /// Whether it is a link to copy, or a file that another source may be a name of.
    fn as_tree(&self, volume: &Volume, source: &Path) -> Result<bool> {
        let linked = self.how.keep.links && self.made.of_several();
        let found = match self.how.follow {
            Follow::Never => volume.symlink_metadata(source),
            _ if !linked => return Ok(false),
            _ => volume.metadata(source),
        };
        let kind = found.map_err(|error| Error::source(b"", error))?.kind;
        Ok(kind == FileKind::Symlink || linked && kind == FileKind::Regular)
    }

    /// As in cp(1): into an existing directory under the source's name; otherwise under the destination's name. The
    /// root of a volume, `.` and `..` have no name: their contents go into the directory itself.
    fn destination(&self, source: &Path) -> Result<Destination> {
        let dest = &self.dest;
        if self.dest_is_dir && self.plain && dest.file_name().is_none() {
            return Ok(Destination { base: dest.clone(), name: None });
        }
        if self.dest_is_dir && !self.plain {
            let path = source.as_os_str().as_bytes();
            let last = path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty());
            let nameless = matches!(last, None | Some(b"." | b".."));
            let name = if nameless { None } else { Some(base_name(source)?.to_owned()) };
            return Ok(Destination { base: dest.clone(), name });
        }
        let Some(name) = dest.file_name() else {
            return Err(Error::host(dest, Cause::NoDirectory));
        };
        let base = match dest.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Ok(Destination { base, name: Some(name.to_owned()) })
    }
}

/// Where a tree goes.
pub struct Destination {
    /// A directory that exists.
    pub base: PathBuf,
    /// The name to create in it; `None`: the source's contents go into it.
    pub name: Option<OsString>,
}

impl Destination {
    fn path(&self) -> PathBuf {
        self.name.as_ref().map_or_else(|| self.base.clone(), |name| self.base.join(name))
    }

    /// Name of an entry on the host, for messages.
    pub fn below(&self, relative: &[u8]) -> PathBuf {
        let mut path = self.path().into_os_string().into_vec();
        if !relative.is_empty() {
            path.push(b'/');
            path.extend_from_slice(relative);
        }
        PathBuf::from(OsString::from_vec(path))
    }

    /// The host's error for an entry.
    pub fn refused(&self, relative: &[u8], action: &'static str, error: rustix::io::Errno) -> Error {
        Error::refused(self.below(relative), action, error)
    }

    /// The name of an entry on the host; `None`: the directory itself.
    pub fn name_of<'e>(&'e self, entry: &Entry<'e>) -> Option<&'e [u8]> {
        entry.name.or_else(|| self.name.as_deref().map(OsStr::as_bytes))
    }
}

fn base_name(source: &Path) -> Result<&OsStr> {
    source.file_name().ok_or_else(|| Error::source(b"", uext4::Error::IsDirectory))
}

/// Size of a volume in bytes.
pub fn volume_size(volume: &Volume) -> u64 {
    let geometry = &volume.superblock().geometry;
    geometry.blocks_count().saturating_mul(geometry.block_size().into())
}

/// Largest block of a host that counts: some name their favourite size of reads.
const UNIT_MAX: u64 = 64 << 10;
/// Size of the writes of zeros.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Writes a sparse copy: data at its offset, nothing elsewhere.
pub struct Sparse<'a> {
    pub file: &'a HostFile,
    pub holes: Holes,
    /// Bytes that become a hole together.
    pub unit: usize,
    pub name: &'a Path,
    pub advance: &'a mut dyn FnMut(u64),
}

impl<'a> Sparse<'a> {
    pub fn new(
        file: &'a HostFile,
        holes: Holes,
        name: &'a Path,
        advance: &'a mut dyn FnMut(u64),
    ) -> Sparse<'a> {
        let looked = (holes == Holes::Zeros).then(|| file.metadata().ok()).flatten();
        let block = looked.map_or(0, |metadata| metadata.blksize());
        Sparse { file, holes, unit: block.clamp(512, UNIT_MAX) as usize, name, advance }
    }
}

impl Sink for Sparse<'_> {
    fn data(&mut self, pos: u64, bytes: &[u8]) -> Result<()> {
        without_zeros(self.holes, self.unit, pos, bytes, |pos, bytes| self.file.write_all_at(bytes, pos))
            .map_err(|error| Error::refused(self.name, "write", error))?;
        (self.advance)(bytes.len() as u64);
        Ok(())
    }

    fn zeros(&mut self, pos: u64, length: u64) -> Result<()> {
        let mut done = 0;
        while self.holes == Holes::None && done < length {
            let step = (length - done).min(ZEROS.len() as u64);
            let written = self.file.write_all_at(&ZEROS[..step as usize], pos + done);
            written.map_err(|error| Error::refused(self.name, "write", error))?;
            done += step;
        }
        (self.advance)(length);
        Ok(())
    }
}

fn copy(volume: &Volume, source: &Path, path: &Path, how: How, observer: &mut dyn Observer) -> Result<()> {
    let file = volume.open_file(source, uext4::OpenOptions::new().read(true).direct(true));
    let file = file.map_err(|error| Error::source(b"", error))?;
    let metadata = file.metadata();
    observer.copying(b"", path);
    let mode = how.keep.at_first(metadata.mode, metadata.kind);
    let created = create(path, mode);
    // A directory stays, and is reported as the file that could not be opened.
    let removed = created.is_err() && how.force && fs::remove_file(path).is_ok();
    let (target, existed) = if removed { create(path, mode)? } else { created? };
    observer.begin(Some(file.size()));
    let advance = &mut |bytes| observer.advance(bytes);
    let regular = target.metadata().is_ok_and(|metadata| metadata.is_file());
    let done = if regular {
        pour_sparse(volume, &file, Sparse::new(&target, how.holes, path, advance))
    } else {
        stream(volume, &file, &target, path, advance)
    };
    if done.is_err() && !existed {
        // A partial file under the right name would pass for a whole one. Report the first error.
        let _already_failing = fs::remove_file(path);
    }
    done?;
    // Complete contents stay even if setting the attributes fails.
    if how.keep.any() {
        let destination = Destination { base: PathBuf::new(), name: Some(path.as_os_str().to_owned()) };
        let mut attributes = Attributes::new(volume, &destination, how);
        attributes.keep(b"", target::Target::Open(target.as_fd()), &metadata, !existed, observer);
    }
    Ok(())
}

fn pour_sparse(volume: &Volume, file: &File, mut sink: Sparse<'_>) -> Result<()> {
    pour(b"", volume, file, 1, &mut sink)?;
    let Sparse { file: target, name, .. } = sink;
    target.set_len(file.size()).map_err(|error| Error::refused(name, "set size", error))
}

/// Opens the destination; returns whether it existed before. As in cp(1), an existing file keeps its mode and a new
/// one gets the source's, less the umask.
fn create(path: &Path, mode: u32) -> Result<(HostFile, bool)> {
    let mut options = OpenOptions::new();
    options.write(true).mode(mode & 0o777 | 0o200);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // The write permission was only for the copy.
            if mode & 0o200 == 0 {
                attributes::less(&file, mode)
                    .map_err(|(action, error)| Error::refused(path, action, error))?;
            }
            Ok((file, false))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // No `create` here: through a dangling symbolic link it would create a file anywhere.
            let opened = options.truncate(true).open(path);
            Ok((opened.map_err(|error| Error::refused(path, "open", error))?, true))
        }
        Err(error) => Err(Error::refused(path, "create", error)),
    }
}
