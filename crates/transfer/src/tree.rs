//! Recursive copies: walks the volume and recreates the tree on the host.

use crate::attributes::Attributes;
use crate::error::{Cause, Error, Result};
use crate::export::{Destination, Keep, Observer, Sparse, volume_size};
use crate::host::Host;
use crate::made::{First, Made};
use crate::read_ahead::{Sink, pour};
use crate::target::Target;
use rustix::fd::AsFd;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::format::RoCompat;
use uext4::{File, FileKind, Ino, Metadata, OpenOptions, State, Visit, Volume, WalkEntry, WalkOptions};

/// Files up to this size are read without a queue.
const SMALL: u64 = 256 << 10;
/// Hard links are kept if the first name's path is at most this long (the kernel's limit, including the zero byte).
const LINK_PATH_MAX: usize = 4095;
/// How many times its size is copied out of a volume with the feature for shared blocks. Such images are made by
/// merging equal blocks: a system image saves a few percent, one of backups is said to contain 20 times its size. More
/// than three times that is made to fill hosts, and its directories can still be copied one by one.
pub const SHARING_MAX: u64 = 64;

struct Copier<'a> {
    volume: &'a Volume,
    destination: &'a Destination,
    host: Host,
    made: &'a mut Made,
    /// Bytes of data that may still be copied.
    allowance: u64,
    /// Of these, bytes that may be copied again where the host cannot create a hard link.
    unlinked: u64,
    /// Whether files may share blocks.
    shares: bool,
    attributes: Attributes<'a>,
    /// Remove files that cannot be opened for writing.
    force: bool,
    observer: &'a mut dyn Observer,
    memory: Vec<u8>,
}

/// Copies the tree at `source`. Reports failures of single paths to `observer`, and goes on.
pub fn copy(
    volume: &Volume,
    source: &Path,
    destination: &Destination,
    (keep, force): (Keep, bool),
    made: &mut Made,
    observer: &mut dyn Observer,
) -> Result<()> {
    let walk = volume.walk(source, WalkOptions::new().brackets(true));
    let mut walk = walk.map_err(|error| Error::source(b"", error))?;
    let host = Host::new(&destination.base, made.devices())
        .map_err(|error| Error::refused(&destination.base, "open", error))?;
    observer.begin(None);
    let geometry = &volume.superblock().geometry;
    let records = u64::from(geometry.inodes_count()) * u64::from(geometry.inode_size());
    let shares = volume.superblock().features.ro_compat.contains(RoCompat::SHARED_BLOCKS);
    let mut copier = Copier {
        volume,
        destination,
        host,
        made,
        allowance: allowance(volume_size(volume), records, shares),
        unlinked: volume_size(volume),
        shares,
        attributes: Attributes::new(volume, destination, keep),
        force,
        observer,
        memory: Vec::new(),
    };
    while let Some(told) = walk.advance() {
        let entered = match told {
            Err(error) => {
                copier.observer.trouble(Error::source(&error.shown(), error.error));
                continue;
            }
            Ok(entry) => copier.visit(&entry).map_err(|error| (error, entry.visit)),
        };
        match entered {
            Ok(()) => {}
            // Without its directory nothing below can be created.
            Err((error, Visit::Enter)) => {
                copier.observer.trouble(error);
                walk.skip();
            }
            Err((error, _)) if error.is_closed_pipe() => return Err(error),
            Err((error, _)) => copier.observer.trouble(error),
        }
        if copier.host.is_lost() {
            return Err(Error::host(&destination.base, Cause::Moved));
        }
    }
    copier.attributes.finish(copier.observer);
    Ok(())
}

/// Bytes of data that may be copied out of a volume of `size` bytes that claims this many bytes of inodes. In an honest
/// volume no block belongs to two files, unless a feature allows it; one with more data than blocks would fill the
/// host. Small contents may be inside inodes, of which a hostile volume may claim any number.
fn allowance(size: u64, records: u64, shares: bool) -> u64 {
    let blocks = if shares { size.saturating_mul(SHARING_MAX) } else { size };
    blocks.saturating_add(records.min(size))
}

impl Copier<'_> {
    fn visit(&mut self, entry: &WalkEntry<'_>) -> Result<()> {
        let Some(metadata) = entry.metadata else { return Ok(()) };
        match entry.visit {
            Visit::Found if metadata.kind == FileKind::Directory => Ok(()),
            Visit::Found => self.make(entry, metadata),
            Visit::Enter => {
                let entered = match self.destination.name_of(entry) {
                    Some(name) => self.host.enter(name, self.attributes.at_first(metadata.mode)),
                    None => self.host.enter_base(),
                };
                entered.map_err(|error| self.refused(entry.path, "make directory", error))?;
                if self.host.made_here() {
                    self.observer.copying(entry.path, &self.destination.below(entry.path));
                }
                Ok(())
            }
            Visit::Leave => {
                let (left, back) = self.host.leave();
                if let Some(left) = left {
                    let target = Target::Open(left.fd.as_fd());
                    self.attributes.keep(entry.path, target, metadata, left.made, self.observer);
                }
                back.map_err(|error| self.refused(entry.path, "go back to", error))
            }
        }
    }

    fn refused(&self, relative: &[u8], action: &'static str, error: Errno) -> Error {
        self.destination.refused(relative, action, error)
    }

    /// Copies anything but a directory.
    fn make(&mut self, entry: &WalkEntry<'_>, metadata: &Metadata) -> Result<()> {
        let Some(name) = self.destination.name_of(entry).map(<[u8]>::to_vec) else { return Ok(()) };
        if self.made.minds_names()
            && let Ok(there) = self.host.identity_of(&name)
        {
            if self.made.is_earlier(there) {
                return Err(Error::host(self.destination.below(entry.path), Cause::JustMade));
            }
            self.made.forget(there);
        }
        self.observer.copying(entry.path, &self.destination.below(entry.path));
        let linked = if metadata.links > 1 { self.link(entry, metadata, &name)? } else { None };
        if linked == Some(Ok(())) {
            return Ok(());
        }
        match metadata.kind {
            FileKind::Regular => self.file(entry, metadata, &name)?,
            FileKind::Symlink => self.symlink(entry, metadata, &name)?,
            _ => self.node(entry, metadata, &name)?,
        }
        if self.made.of_several()
            && let Ok(new) = self.host.identity_of(&name)
        {
            self.made.note(new);
        }
        if metadata.links > 1 {
            self.remember(entry, metadata, &name)?;
        }
        match linked {
            Some(Err(error)) => Err(self.refused(entry.path, "becomes a separate file: link", error)),
            _ => Ok(()),
        }
    }

    /// Creates a hard link to an earlier copy: `None` if there is none. If the host cannot create the link, the entry
    /// may become a separate file (inner `Err`), as long as such files together do not exceed the volume.
    fn link(
        &mut self,
        entry: &WalkEntry<'_>,
        metadata: &Metadata,
        name: &[u8],
    ) -> Result<Option<std::result::Result<(), Errno>>> {
        let Some(first) = self.made.first(entry.ino) else { return Ok(None) };
        let linked = self.host.link(&first.path, first.made, name);
        self.made.count_name(entry.ino);
        if let Err(error) = linked {
            let bytes = metadata.size.min(metadata.blocks.saturating_mul(512));
            match self.unlinked.checked_sub(bytes) {
                Some(rest) if error != Errno::BUSY => self.unlinked = rest,
                _ => return Err(self.refused(entry.path, "link", error)),
            }
            self.allowance = self.allowance.saturating_add(bytes);
        }
        Ok(Some(linked))
    }

    fn remember(&mut self, entry: &WalkEntry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
        let mut path =
            self.destination.name.as_deref().map_or_else(Vec::new, |name| name.as_bytes().to_vec());
        if !path.is_empty() && !entry.path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(entry.path);
        if path.len() > LINK_PATH_MAX {
            return Err(Error::host(self.destination.below(entry.path), Cause::LongPath(path.len())));
        }
        let made = self.host.identity_of(name).map_err(|error| self.refused(entry.path, "stat", error))?;
        self.made.remember(entry.ino, First { path, made, left: metadata.links - 1 });
        Ok(())
    }

    fn file(&mut self, entry: &WalkEntry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
        let at = |error: uext4::Error| Error::source(entry.path, error);
        let file = self.volume.open_inode(entry.ino, OpenOptions::new().read(true)).map_err(at)?;
        let make = if self.force { Host::file_by_force } else { Host::file };
        let made = make(&self.host, name, self.attributes.at_first(metadata.mode));
        let (target, existed) = made.map_err(|error| self.refused(entry.path, "create", error))?;
        let path = self.destination.below(entry.path);
        let emptied = if existed { target.set_len(0) } else { Ok(()) };
        let done = emptied
            .map_err(|error| Error::refused(&path, "empty", error))
            .and_then(|()| self.contents(entry, &file, &target, &path));
        if done.is_err() && !existed {
            // A partial file under the right name would pass for a whole one. Report the first error.
            let _already_failing = self.host.remove(name);
        }
        done?;
        // Complete contents stay even if setting the attributes fails.
        self.attributes.keep(entry.path, Target::Open(target.as_fd()), metadata, !existed, self.observer);
        Ok(())
    }

    fn contents(
        &mut self,
        entry: &WalkEntry<'_>,
        file: &File,
        target: &std::fs::File,
        path: &Path,
    ) -> Result<()> {
        let advance = &mut |bytes| self.observer.advance(bytes);
        let mut sink = Bounded {
            inner: Sparse { file: target, name: path, advance },
            path: entry.path,
            ino: entry.ino,
            allowance: &mut self.allowance,
            shares: self.shares,
        };
        if file.size() <= SMALL {
            pour_small(entry.path, file, &mut self.memory, &mut sink)?;
        } else {
            pour(entry.path, self.volume, file, 1, &mut sink)?;
        }
        target.set_len(file.size()).map_err(|error| Error::refused(path, "set size", error))
    }

    fn symlink(&mut self, entry: &WalkEntry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
        let target = self.volume.read_link_of(entry.ino);
        let target = target.map_err(|error| Error::source(entry.path, error))?;
        let target = OsStr::from_bytes(&target);
        self.host
            .replace(name, |here, name| rustix::fs::symlinkat(target, here, name))
            .map_err(|error| self.refused(entry.path, "make link", error))?;
        self.keep_held(entry, metadata, name)
    }

    fn node(&mut self, entry: &WalkEntry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
        let kind = file_type(metadata.kind);
        let device = rustix::fs::makedev(metadata.rdev.0, metadata.rdev.1);
        let mode = Mode::from_raw_mode(metadata.mode & 0o777);
        self.host
            .replace(name, |here, name| rustix::fs::mknodat(here, name, kind, mode, device))
            .map_err(|error| self.refused(entry.path, "make node", error))?;
        self.keep_held(entry, metadata, name)
    }

    /// Sets the attributes of a file just created under this name that cannot be opened.
    fn keep_held(&mut self, entry: &WalkEntry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
        if !self.attributes.any() {
            return Ok(());
        }
        let device = matches!(metadata.kind, FileKind::CharDevice | FileKind::BlockDevice)
            .then(|| rustix::fs::makedev(metadata.rdev.0, metadata.rdev.1));
        let held = self.host.hold(name, file_type(metadata.kind), device);
        let held = held.map_err(|error| self.refused(entry.path, "keep attributes", error))?;
        let target = Target::Held { held: held.as_fd(), around: self.host.here() };
        self.attributes.keep(entry.path, target, metadata, true, self.observer);
        Ok(())
    }
}

/// The node to create for it on the host.
fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Socket => FileType::Socket,
        _ => FileType::Fifo,
    }
}

/// Charges data against the volume's capacity.
struct Bounded<'a, S> {
    inner: S,
    path: &'a [u8],
    ino: Ino,
    allowance: &'a mut u64,
    shares: bool,
}

impl<S: Sink> Sink for Bounded<'_, S> {
    fn data(&mut self, pos: u64, bytes: &[u8]) -> Result<()> {
        match self.allowance.checked_sub(bytes.len() as u64) {
            Some(rest) => *self.allowance = rest,
            None if self.shares => return Err(Error::source(self.path, Cause::TooMuchData)),
            None => {
                let what = "the files hold more data than the volume: they share blocks".into();
                return Err(Error::source(self.path, uext4::Error::CorruptInode { ino: self.ino, what }));
            }
        }
        self.inner.data(pos, bytes)
    }

    fn zeros(&mut self, pos: u64, length: u64) -> Result<()> {
        self.inner.zeros(pos, length)
    }
}

/// Reads the data of a small file piece by piece.
fn pour_small(path: &[u8], file: &File, memory: &mut Vec<u8>, sink: &mut dyn Sink) -> Result<()> {
    let at = |error: uext4::Error| Error::source(path, error);
    let size = file.size();
    for piece in file.map() {
        let piece = piece.map_err(at)?;
        let length = piece.length.min(size.saturating_sub(piece.logical));
        if matches!(piece.state, State::Unwritten | State::Hole) {
            sink.zeros(piece.logical, length)?;
            continue;
        }
        // At most SMALL bytes.
        memory.resize(length as usize, 0);
        let read = file.read_any_at(memory, piece.logical).map_err(at)? as u64;
        if read != length {
            return Err(Error::source(path, Cause::ShortRead { pos: piece.logical, read, length }));
        }
        sink.data(piece.logical, memory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimed_inodes_do_not_add_to_the_allowance() {
        assert_eq!(allowance(1 << 20, 1 << 16, false), (1 << 20) + (1 << 16));
        assert_eq!(allowance(1 << 20, 1 << 40, false), 2 << 20);
        assert_eq!(allowance(1 << 20, 1 << 40, true), (64 << 20) + (1 << 20));
        assert_eq!(allowance(u64::MAX, u64::MAX, false), u64::MAX);
        assert_eq!(allowance(u64::MAX / 2, 1, true), u64::MAX);
    }
}
