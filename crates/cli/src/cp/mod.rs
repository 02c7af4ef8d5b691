//! `uext4 cp`: out of a volume, holes kept.

mod attributes;
mod devices;
mod host;
mod made;
mod target;
mod tree;
mod xattrs;

use crate::args::{CpArgs, Globals};
use crate::cat::{Stream, Volumes};
use crate::error::{CliError, Troubles};
use crate::open::{How, Place};
use crate::progress::Progress;
use crate::pump::{Sink, pour};
use attributes::Attributes;
pub use devices::Devices;
use made::Made;
use rustix::fd::AsFd;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File as HostFile, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uext4::{File, Target, Volume, WalkEntry};

/// A sparse copy: data at its place, nothing elsewhere.
struct Sparse<'a> {
    file: &'a HostFile,
    name: &'a OsStr,
    progress: &'a mut Progress,
}

impl Sink for Sparse<'_> {
    fn data(&mut self, pos: u64, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all_at(bytes, pos).map_err(|error| CliError::host(self.name, "write", &error))?;
        self.progress.advance(bytes.len() as u64);
        Ok(())
    }

    fn zeros(&mut self, _pos: u64, length: u64) -> Result<(), CliError> {
        self.progress.advance(length);
        Ok(())
    }
}

/// Runs it.
pub fn run(args: &CpArgs, globals: &Globals) -> Result<(), CliError> {
    let Some((dest, sources)) = args.paths.split_last() else {
        return Err(CliError::usage("cp needs a source and a destination"));
    };
    refuse_directions(sources, dest)?;
    // What is named twice is copied once.
    let mut named = HashSet::new();
    let once = sources.iter().filter(|source| named.insert(*source));
    let places = once.map(|source| Place::parse(source)).collect::<Result<Vec<_>, _>>()?;
    let dest_is_dir = fs::metadata(dest).is_ok_and(|metadata| metadata.is_dir());
    if sources.len() > 1 && !dest_is_dir {
        return Err(CliError::failed(dest, "not a directory, and there are several sources", libc::ENOTDIR));
    }
    if args.recursive || args.archive {
        return copy_trees(args, globals, &places, Path::new(dest), dest_is_dir);
    }
    let how = How::reading(globals, args.force.force, args.switches.switches);
    let mut volumes = Volumes::default();
    let mut troubles = Troubles::new("cp", globals.json);
    let mut made = HashSet::new();
    let devices = Devices::of(&places);
    for place in &places {
        let mut one = || {
            let path =
                if dest_is_dir { Path::new(dest).join(base_name(place)?) } else { PathBuf::from(dest) };
            let volume = volumes.get(place, &how)?;
            if made.contains(&path) {
                return Err(just_made(path.as_os_str()));
            }
            if devices.are_at(&path) {
                return Err(CliError::failed(path.as_os_str(), "is the device of a source", libc::EINVAL));
            }
            copy(place, &volume, &path, args.preserve, &mut troubles)?;
            made.insert(path);
            Ok(())
        };
        let done = one();
        troubles.one_of(places.len(), done)?;
    }
    troubles.finish()
}

/// A copy does not replace what the same command made from another source.
fn just_made(path: &OsStr) -> CliError {
    CliError::failed(path, "was made from another source just now, and is kept", libc::EEXIST)
}

/// What copies take over beside their contents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Permissions, less the umask.
    Nothing,
    /// Owner, all mode bits with the access control lists that they are part of, times.
    Attributes,
    /// Extended attributes too.
    Everything,
}

impl Keep {
    /// The permissions that something is made with. If its own are set afterwards, nobody else gets any before: with
    /// an access control list the mode says more than that.
    fn at_first(self, mode: u32) -> u32 {
        if self == Keep::Nothing { mode } else { mode & 0o700 }
    }
}

/// Where a tree goes.
struct Destination {
    /// A directory that exists.
    base: PathBuf,
    /// The name to make in it; `None`: what is in the source goes into it.
    name: Option<OsString>,
}

impl Destination {
    fn path(&self) -> PathBuf {
        self.name.as_ref().map_or_else(|| self.base.clone(), |name| self.base.join(name))
    }

    /// What an entry is called on the host, for messages.
    fn below(&self, relative: &[u8]) -> OsString {
        let mut path = self.path().into_os_string().into_vec();
        if !relative.is_empty() {
            path.push(b'/');
            path.extend_from_slice(relative);
        }
        OsString::from_vec(path)
    }

    /// The host's answer about an entry.
    fn refused(&self, relative: &[u8], action: &str, error: rustix::io::Errno) -> CliError {
        CliError::host(&self.below(relative), action, &error.into())
    }

    /// The name of an entry on the host; `None`: the directory itself.
    fn name_of<'e>(&'e self, entry: &WalkEntry<'e>) -> Option<&'e [u8]> {
        if entry.depth > 0 { Some(entry.name) } else { self.name.as_deref().map(OsStr::as_bytes) }
    }
}

/// As cp(1): into a directory that exists, under the name of the source; else as what is to be made. The root
/// of a volume has no name, nor has what is given as `.` or `..`: what is in it goes into the directory itself.
fn destination(place: &Place, dest: &Path, is_dir: bool) -> Result<Destination, CliError> {
    if is_dir {
        let last = place.path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty());
        let nameless = matches!(last, None | Some(b"." | b".."));
        let name = if nameless { None } else { Some(base_name(place)?.to_owned()) };
        return Ok(Destination { base: dest.to_owned(), name });
    }
    let Some(name) = dest.file_name() else {
        return Err(CliError::failed(dest.as_os_str(), "no such directory", libc::ENOENT));
    };
    let base = match dest.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok(Destination { base, name: Some(name.to_owned()) })
}

fn copy_trees(
    args: &CpArgs,
    globals: &Globals,
    places: &[Place],
    dest: &Path,
    dest_is_dir: bool,
) -> Result<(), CliError> {
    let how = How::walking(globals, args.force.force, args.switches.switches);
    let mut volumes = Volumes::default();
    let mut troubles = Troubles::new("cp", globals.json);
    let keep = match (args.archive, args.preserve) {
        (true, _) => Keep::Everything,
        (false, true) => Keep::Attributes,
        (false, false) => Keep::Nothing,
    };
    let mut made = Made::new(places.len(), Devices::of(places));
    for place in places {
        let mut one = || {
            let destination = destination(place, dest, dest_is_dir)?;
            let (number, volume) = volumes.numbered(place, &how)?;
            made.next_source(number);
            tree::copy(place, &volume, &destination, keep, &mut made, &mut troubles)
        };
        let done = one();
        troubles.one_of(places.len(), done)?;
    }
    troubles.finish()
}

/// Only out of a volume: into one needs allocation, and from host to host is not for us.
fn refuse_directions(sources: &[OsString], dest: &OsString) -> Result<(), CliError> {
    if Target::has_inner_path(dest.as_bytes()) {
        // A malformed device is bad usage even here.
        Place::parse(dest)?;
        let reason = "copying into a volume needs allocation, which is not supported yet";
        return Err(CliError::unsupported(dest, reason));
    }
    match sources.iter().find(|source| !Target::has_inner_path(source.as_bytes())) {
        None => Ok(()),
        Some(source) => Err(CliError::usage(format!(
            "`{}` names no file of a volume: a source is DEVICE:/path",
            crate::text::visible(source.as_bytes())
        ))),
    }
}

fn base_name(place: &Place) -> Result<&OsStr, CliError> {
    place.inner().file_name().ok_or_else(|| place.error(uext4::Error::IsDirectory))
}

/// Bytes of a volume.
fn volume_size(volume: &Volume) -> u64 {
    let geometry = &volume.superblock().geometry;
    geometry.blocks_count().saturating_mul(geometry.block_size().into())
}

fn copy(
    place: &Place,
    volume: &Volume,
    path: &Path,
    preserve: bool,
    troubles: &mut Troubles,
) -> Result<(), CliError> {
    let file = place.file(volume)?;
    let metadata = file.metadata();
    let name = path.as_os_str();
    let (target, existed) = create(path, if preserve { metadata.mode & 0o700 } else { metadata.mode })?;
    let regular = target.metadata().is_ok_and(|metadata| metadata.is_file());
    let done = if regular {
        pour_sparse(place, volume, &file, &target, name)
    } else {
        let progress = Progress::new(crate::text::visible(&place.path), file.size(), true);
        pour(place, volume, &file, u64::MAX, &mut Stream { file: &target, name, progress })
    };
    if done.is_err() && !existed {
        // Half a file under the right name would pass for a whole one. The first error is the one to tell.
        let _already_failing = fs::remove_file(path);
    }
    done?;
    // Whole contents stay, whatever becomes of the attributes.
    if preserve {
        let destination = Destination { base: PathBuf::new(), name: Some(name.to_owned()) };
        let mut attributes = Attributes::new(place, volume, &destination, Keep::Attributes);
        attributes.keep(b"", target::Target::Open(target.as_fd()), &metadata, !existed, troubles);
    }
    Ok(())
}

fn pour_sparse(
    place: &Place,
    volume: &Volume,
    file: &File,
    target: &HostFile,
    name: &OsStr,
) -> Result<(), CliError> {
    let mut progress = Progress::new(crate::text::visible(&place.path), file.size(), true);
    pour(place, volume, file, 1, &mut Sparse { file: target, name, progress: &mut progress })?;
    target.set_len(file.size()).map_err(|error| CliError::host(name, "set size", &error))
}

/// Opens the destination; whether it existed before. As cp(1), an existing file keeps its mode and a new
/// one gets the source's, less the umask.
fn create(path: &Path, mode: u32) -> Result<(HostFile, bool), CliError> {
    let mut options = OpenOptions::new();
    options.write(true).mode(mode & 0o777 | 0o200);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // The write permission was for us.
            if mode & 0o200 == 0 {
                attributes::less(&file, mode)
                    .map_err(|(action, error)| CliError::host(path.as_os_str(), action, &error.into()))?;
            }
            Ok((file, false))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Not `create` again: through a symbolic link to what does not exist, a file would be made anywhere.
            let opened = options.truncate(true).open(path);
            Ok((opened.map_err(|error| CliError::host(path.as_os_str(), "open", &error))?, true))
        }
        Err(error) => Err(CliError::host(path.as_os_str(), "create", &error)),
    }
}
