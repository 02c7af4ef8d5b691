//! Recursive copies: walks the volume and recreates the tree on the host.

use crate::attributes::Attributes;
use crate::error::{Cause, Error, Result};
use crate::export::{Destination, How, Observer, Sparse, volume_size};
use crate::host::Host;
use crate::made::{First, Made};
use crate::options::Follow;
use crate::read_ahead::{Sink, pour};
use crate::steps::{Below, Entry};
use crate::target::Target;
use rustix::fd::AsFd;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::format::RoCompat;
use uext4::{File, FileKind, Ino, Metadata, OpenOptions, State, Visit, Volume};

/// Files up to this size are read without a queue.
const SMALL: u64 = 256 << 10;
/// Hard links are kept if the first name's path is at most this long (the kernel's limit, including the zero byte).
const LINK_PATH_MAX: usize = 4095;
/// How many times its size is copied out of a volume with the feature for shared blocks. Such images are made by
/// merging equal blocks: a system image saves a few percent, one of backups is said to contain 20 times its size. More
/// than three times that is made to fill hosts, and its directories can still be copied one by one. The same holds for
/// names of one file that become several, and for what links lead to.
pub const SHARING_MAX: u64 = 64;

/// What each entry below a link takes of the allowance for that, beside the size of directories: no more than its share
/// of an honest volume.
const ENTRY: u64 = 512;

struct Copier<'a> {
    volume: &'a Volume,
    source: &'a Path,
    destination: &'a Destination,
    host: Host,
    made: &'a mut Made,
    /// Bytes of data that may still be copied.
    allowance: u64,
    /// Of these, bytes that may be copied again where the host cannot create a hard link.
    unlinked: u64,
    /// Bytes of data that may be copied again under other names.
    again: u64,
    /// Bytes of directories and entries that links may lead to.
    linked: u64,
    /// Files that may come again.
    copied: HashSet<Ino>,
    /// If links are followed: the directories from the source down to the one that is copied.
    inside: HashSet<Ino>,
    /// Whether files may share blocks.
    shares: bool,
    attributes: Attributes<'a>,
    how: How,
    observer: &'a mut dyn Observer,
    memory: Vec<u8>,
}

/// Copies the tree at `source`. Reports failures of single paths to `observer`, and goes on.
pub fn copy(
    volume: &Volume,
    source: &Path,
    destination: &Destination,
    how: How,
    made: &mut Made,
    observer: &mut dyn Observer,
) -> Result<()> {
    let start = volume.resolve(source, how.follow != Follow::Never);
    let start = start.map_err(|error| Error::source(b"", error))?;
    let host = Host::new(&destination.base, made.devices())
        .map_err(|error| Error::refused(&destination.base, "open", error))?;
    observer.begin(None);
    let geometry = &volume.superblock().geometry;
    let records = u64::from(geometry.inodes_count()) * u64::from(geometry.inode_size());
    let shares = volume.superblock().features.ro_compat.contains(RoCompat::SHARED_BLOCKS);
    let mut copier = Copier {
        volume,
        source,
        destination,
        host,
        made,
        allowance: allowance(volume_size(volume), records, shares),
        unlinked: volume_size(volume),
        again: volume_size(volume).saturating_mul(SHARING_MAX),
        linked: volume_size(volume).saturating_mul(SHARING_MAX),
        copied: HashSet::new(),
        inside: HashSet::new(),
        shares,
        attributes: Attributes::new(volume, destination, how),
        how,
        observer,
        memory: Vec::new(),
    };
    let mut walks = vec![Below::new(volume, start, None)];
    while let Some(below) = walks.last_mut() {
        let step = below.advance(|told| match told {
            Err((path, error)) => (Visit::Found, Err(Error::source(&path, error))),
            Ok(entry) => (entry.visit, copier.visit(&entry)),
        });
        match step {
            None => drop(walks.pop()),
            Some(None | Some((_, Ok(None)))) => {}
            Some(Some((_, Ok(Some(link))))) => walks.push(link),
            Some(Some((_, Err(error)))) if error.ends_source() => return Err(error),
            Some(Some((visit, Err(error)))) => {
                copier.observer.trouble(error);
                if visit == Visit::Enter {
                    // Without its directory nothing below can be created.
                    below.walk.skip();
                }
            }
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
pub fn allowance(size: u64, records: u64, shares: bool) -> u64 {
    let blocks = if shares { size.saturating_mul(SHARING_MAX) } else { size };
    blocks.saturating_add(records.min(size))
}

impl Copier<'_> {
    /// Copies it. A link that leads to a directory gives the walk over that.
    fn visit(&mut self, entry: &Entry<'_>) -> Result<Option<Below>> {
        let metadata = entry.metadata;
        if entry.below_link && entry.visit != Visit::Leave {
            let size = if entry.visit == Visit::Enter { metadata.size } else { 0 };
            self.linked = self
                .linked
                .checked_sub(size.saturating_add(ENTRY))
                .ok_or_else(|| Error::source(entry.path, Cause::TooMuchLinked))?;
        }
        match entry.visit {
            Visit::Found if metadata.kind == FileKind::Directory => Ok(None),
            Visit::Found if metadata.kind == FileKind::Symlink && self.how.follow == Follow::All => {
                self.follow(entry)
            }
            Visit::Found => self.make(entry, metadata).map(|()| None),
            Visit::Enter => self.enter(entry, metadata).map(|()| None),
            Visit::Leave => {
                self.inside.remove(&entry.ino);
                let (left, back) = self.host.leave();
                if let Some(left) = left {
                    let target = Target::Open(left.fd.as_fd());
                    self.attributes.keep(entry.path, target, metadata, left.made, self.observer);
                }
                back.map_err(|error| self.refused(entry.path, "go back to", error)).map(|()| None)
            }
        }
    }

    fn enter(&mut self, entry: &Entry<'_>, metadata: &Metadata) -> Result<()> {
        if self.inside.contains(&entry.ino) {
            return Err(Error::source(entry.path, Cause::Loop));
        }
        let entered = match self.destination.name_of(entry) {
            Some(name) => self.host.enter(name, self.attributes.at_first(metadata)),
            None => self.host.enter_base(),
        };
        entered.map_err(|error| self.refused(entry.path, "make directory", error))?;
        if self.how.follow == Follow::All {
            self.inside.insert(entry.ino);
        }
        if self.host.made_here() {
            self.observer.copying(entry.path, &self.destination.below(entry.path));
        }
        Ok(())
    }

    /// Copies what a link leads to.
    fn follow(&mut self, entry: &Entry<'_>) -> Result<Option<Below>> {
        let at = |error| Error::source(entry.path, error);
        if entry.path.len() > LINK_PATH_MAX {
            return Err(at(uext4::Error::NameTooLong));
        }
        let path = self.source.join(OsStr::from_bytes(entry.path));
        let metadata = self.volume.metadata(path).map_err(at)?;
        let target = Entry { ino: metadata.ino, metadata: &metadata, ..*entry };
        if metadata.kind != FileKind::Directory {
            return self.make(&target, &metadata).map(|()| None);
        }
        if self.inside.contains(&metadata.ino) {
            return Err(Error::source(entry.path, Cause::Loop));
        }
        let name = entry.name.unwrap_or_default();
        Ok(Some(Below::new(self.volume, metadata.ino, Some((entry.path, name)))))
    }

    /// Whether it may be reached under more names than are counted in it.
    fn followed(&self, entry: &Entry<'_>) -> bool {
        match self.how.follow {
            Follow::Never => false,
            Follow::Sources => entry.name.is_none(),
            Follow::All => true,
        }
    }

    fn refused(&self, relative: &[u8], action: &'static str, error: Errno) -> Error {
        self.destination.refused(relative, action, error)
    }

    /// Copies anything but a directory.
    fn make(&mut self, entry: &Entry<'_>, metadata: &Metadata) -> Result<()> {
        let Some(name) = self.destination.name_of(entry).map(<[u8]>::to_vec) else {
            return Err(Error::host(self.destination.below(b""), Cause::OverDirectory));
        };
        if self.made.minds_names()
            && let Ok(there) = self.host.identity_of(&name)
        {
            if self.made.is_earlier(there) {
                return Err(Error::host(self.destination.below(entry.path), Cause::JustMade));
            }
            self.made.forget(there);
        }
        self.observer.copying(entry.path, &self.destination.below(entry.path));
        let several = self.how.keep.links && (metadata.links > 1 || self.followed(entry));
        let linked = if several { self.link(entry, metadata, &name)? } else { None };
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
        if several {
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
        entry: &Entry<'_>,
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

    fn remember(&mut self, entry: &Entry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
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
        let left = if self.followed(entry) { u32::MAX } else { metadata.links.saturating_sub(1) };
        self.made.remember(entry.ino, First { path, made, left });
        Ok(())
    }

    fn file(&mut self, entry: &Entry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
        let at = |error: uext4::Error| Error::source(entry.path, error);
        let file =
            self.volume.open_inode(entry.ino, OpenOptions::new().read(true).direct(true)).map_err(at)?;
        let make = if self.how.force { Host::file_by_force } else { Host::file };
        let made = make(&self.host, name, self.attributes.at_first(metadata));
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
        entry: &Entry<'_>,
        file: &File,
        target: &std::fs::File,
        path: &Path,
    ) -> Result<()> {
        let advance = &mut |bytes| self.observer.advance(bytes);
        let may_come_again = entry.metadata.links > 1 || self.how.follow == Follow::All;
        let again = !self.how.keep.links && may_come_again && !self.copied.insert(entry.ino);
        let mut sink = Bounded {
            inner: Sparse::new(target, self.how.holes, path, advance),
            path: entry.path,
            ino: entry.ino,
            allowance: if again { &mut self.again } else { &mut self.allowance },
            shares: self.shares || again,
        };
        if file.size() <= SMALL {
            pour_small(entry.path, file, &mut self.memory, &mut sink)?;
        } else {
            pour(entry.path, self.volume, file, 1, &mut sink)?;
        }
        target.set_len(file.size()).map_err(|error| Error::refused(path, "set size", error))
    }

    fn symlink(&mut self, entry: &Entry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
        let target = self.volume.read_link_of(entry.ino);
        let target = target.map_err(|error| Error::source(entry.path, error))?;
        let target = OsStr::from_bytes(&target);
        self.host
            .replace(name, |here, name| rustix::fs::symlinkat(target, here, name))
            .map_err(|error| self.refused(entry.path, "make link", error))?;
        self.keep_held(entry, metadata, name)
    }

    fn node(&mut self, entry: &Entry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
        let kind = file_type(metadata.kind);
        let device = rustix::fs::makedev(metadata.rdev.0, metadata.rdev.1);
        let mode = Mode::from_raw_mode(match self.how.keep.mode {
            // Later it takes /proc to set it.
            true => metadata.mode & 0o777,
            false => self.attributes.at_first(metadata) & 0o777,
        });
        self.host
            .replace(name, |here, name| rustix::fs::mknodat(here, name, kind, mode, device))
            .map_err(|error| self.refused(entry.path, "make node", error))?;
        self.keep_held(entry, metadata, name)
    }

    /// Sets the attributes of a file just created under this name that cannot be opened.
    fn keep_held(&mut self, entry: &Entry<'_>, metadata: &Metadata, name: &[u8]) -> Result<()> {
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
