//! Trees of volumes as archives of tar, sorted by name: the same tree makes the same bytes. A whole tree ([`pack`]), or
//! what changed from one tree to another ([`pack_changes`]), as a layer of a container's image.
//!
//! Reading path: here (entries and contents) → `tar` (their form). `changes` compares two trees.

mod changes;
mod tar;

use crate::error::{Cause, Error, Result};
use crate::export::{Observer, volume_size};
use crate::read_ahead::{Sink, pour};
use crate::tree::allowance;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use tar::{Entry, Kind, Writer};
use uext4::format::RoCompat;
use uext4::{File, FileKind, Ino, Metadata, Node, OpenOptions, State, Timestamp, Volume};

/// Files up to this size are read at once.
const SMALL: u64 = 1 << 20;

/// How trees become archives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackOptions {
    /// Owner and group of everything, instead of those in the volume.
    pub owner: Option<(u32, u32)>,
    /// Times later than this many seconds since 1970 become it.
    pub latest: Option<i64>,
}

/// An archive that is being written.
struct Pack<'a> {
    volume: &'a Volume,
    options: PackOptions,
    writer: Writer<'a>,
    /// Paths of inodes with several names: the first one written.
    first: HashMap<Ino, Vec<u8>>,
    /// Bytes of contents that may still come: no honest volume has more.
    allowance: u64,
    memory: Vec<u8>,
    observer: &'a mut dyn Observer,
}

/// Writes the tree at `path` of a volume to `to`, whose name in errors is `name`. A directory's entry is `./`, and
/// paths begin below it; a single file has its own name. Sockets are left out, and told to the observer.
///
/// # Errors
/// The first thing that cannot be read or written: the archive has no end then.
pub fn pack(
    volume: &Volume,
    path: &Path,
    (to, name): (&mut dyn Write, &Path),
    options: PackOptions,
    observer: &mut dyn Observer,
) -> Result<()> {
    let root = volume.node_at(path, true).map_err(|error| Error::source(b"", error))?;
    let mut pack = Pack::new(volume, (to, name), options, observer);
    pack.observer.begin(None);
    if root.kind() != FileKind::Directory {
        let name = path.file_name().unwrap_or_default();
        pack.entry(std::os::unix::ffi::OsStrExt::as_bytes(name), &root)?;
        return pack.writer.finish();
    }
    let mut walk = Sorted::new(root.clone());
    pack.entry(b"", &root)?;
    while let Some((path, node)) = walk.next()? {
        pack.entry(&path, &node)?;
    }
    pack.writer.finish()
}

/// Writes what changed from the first tree to the second, both directories: what the second one has, with contents if
/// they are new or not the same, and an empty file `.wh.NAME` for each name that is gone. Contents are compared byte by
/// byte where size, times and all other attributes are the same.
///
/// # Errors
/// As of [`pack`]; errors of the first tree too.
pub fn pack_changes(
    old: (&Volume, &Path),
    new: (&Volume, &Path),
    (to, name): (&mut dyn Write, &Path),
    options: PackOptions,
    observer: &mut dyn Observer,
) -> Result<()> {
    let changes = changes::between(old, new)?;
    let mut pack = Pack::new(new.0, (to, name), options, observer);
    pack.observer.begin(None);
    for (path, change) in changes {
        match change {
            changes::Change::Is(node) => pack.entry(&path, &node)?,
            changes::Change::Gone => pack.whiteout(&path)?,
        }
    }
    pack.writer.finish()
}

impl<'a> Pack<'a> {
    fn new(
        volume: &'a Volume,
        (to, name): (&'a mut dyn Write, &'a Path),
        options: PackOptions,
        observer: &'a mut dyn Observer,
    ) -> Pack<'a> {
        let geometry = &volume.superblock().geometry;
        let records = u64::from(geometry.inodes_count()) * u64::from(geometry.inode_size());
        let shares = volume.superblock().features.ro_compat.contains(RoCompat::SHARED_BLOCKS);
        Pack {
            volume,
            options,
            writer: Writer::new(to, name),
            first: HashMap::new(),
            allowance: allowance(volume_size(volume), records, shares),
            memory: Vec::new(),
            observer,
        }
    }

    /// The time that an entry has.
    fn time(&self, time: Timestamp) -> Timestamp {
        match self.options.latest {
            Some(latest) if time.seconds >= latest => Timestamp { seconds: latest, nanoseconds: 0 },
            _ => time,
        }
    }

    /// An empty file that hides a name.
    fn whiteout(&mut self, path: &[u8]) -> Result<()> {
        let base = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let hiding = [&path[..base], b".wh.", &path[base..]].concat();
        let time = self.time(Timestamp { seconds: self.options.latest.unwrap_or(0), nanoseconds: 0 });
        self.writer.begin(&Entry {
            path: &hiding,
            kind: Kind::File,
            mode: 0,
            owner: (0, 0),
            modified: time,
            size: 0,
            target: b"",
            device: (0, 0),
            xattrs: &[],
            sparse: None,
        })
    }

    /// Writes an entry with its contents.
    fn entry(&mut self, path: &[u8], node: &Node) -> Result<()> {
        let at = |error| Error::source(path, error);
        let found = node.attributes();
        let kind = match found.kind {
            FileKind::Regular => Kind::File,
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink,
            FileKind::CharDevice => Kind::Char,
            FileKind::BlockDevice => Kind::Block,
            FileKind::Fifo => Kind::Fifo,
            _ => {
                self.observer.trouble(Error::source(path, Cause::NoSocket));
                return Ok(());
            }
        };
        let full = match (kind, path) {
            (Kind::Directory, b"") => b"./".to_vec(),
            (Kind::Directory, path) => [path, b"/"].concat(),
            (_, path) => path.to_vec(),
        };
        if kind != Kind::Directory && found.links > 1 {
            if let Some(first) = self.first.get(&found.ino) {
                let first = first.clone();
                let entry = self.head(&full, Kind::Link, &found);
                return self.writer.begin(&Entry { target: &first, ..entry });
            }
            self.first.insert(found.ino, full.clone());
        }
        let target = if kind == Kind::Symlink { node.read_link().map_err(at)? } else { Vec::new() };
        let mut xattrs = Vec::new();
        for name in node.xattrs() {
            let name = name.map_err(at)?;
            let value =
                node.xattr(name.as_bytes()).map_err(|error| at(error).about_attribute(name.as_bytes()))?;
            xattrs.push((name.into_bytes(), value));
        }
        xattrs.sort();
        let head = Entry { target: &target, xattrs: &xattrs, ..self.head(&full, kind, &found) };
        match kind {
            Kind::File => self.file(path, node, head),
            _ => self.writer.begin(&head),
        }
    }

    fn head<'e>(&self, path: &'e [u8], kind: Kind, found: &Metadata) -> Entry<'e> {
        Entry {
            path,
            kind,
            mode: found.mode & 0o7777,
            owner: self.options.owner.unwrap_or((found.uid, found.gid)),
            modified: self.time(found.modified),
            size: 0,
            target: b"",
            device: if matches!(kind, Kind::Char | Kind::Block) { found.rdev } else { (0, 0) },
            xattrs: &[],
            sparse: None,
        }
    }

    fn file(&mut self, path: &[u8], node: &Node, head: Entry<'_>) -> Result<()> {
        let at = |error| Error::source(path, error);
        let file = node.open(OpenOptions::new().read(true).direct(true)).map_err(at)?;
        let size = file.size();
        let ranges = data(&file).map_err(at)?;
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        self.allowance =
            self.allowance.checked_sub(bytes).ok_or_else(|| Error::source(path, Cause::TooMuchData))?;
        let sparse = Some(ranges.as_slice()).filter(|_| bytes < size);
        self.writer.begin(&Entry { size, sparse, ..head })?;
        if size <= SMALL {
            for range in &ranges {
                self.memory.resize((range.end - range.start) as usize, 0);
                let read = file.read_any_at(&mut self.memory, range.start).map_err(at)?;
                if read < self.memory.len() {
                    let (read, length) = (read as u64, self.memory.len() as u64);
                    return Err(Error::source(path, Cause::ShortRead { pos: range.start, read, length }));
                }
                self.writer.put(&self.memory)?;
            }
            self.observer.advance(bytes);
        } else {
            let mut sink = Contents { writer: &mut self.writer, observer: self.observer };
            pour(path, self.volume, &file, 1, &mut sink)?;
        }
        self.writer.pad()
    }
}

/// The ranges of a file that are not holes.
fn data(file: &File) -> uext4::Result<Vec<Range<u64>>> {
    let size = file.size();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for piece in file.map() {
        let piece = piece?;
        let end = piece.end().min(size);
        if matches!(piece.state, State::Hole | State::Unwritten) || piece.logical >= end {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.end == piece.logical => last.end = end,
            _ => ranges.push(piece.logical..end),
        }
    }
    Ok(ranges)
}

/// Data goes on, holes are left out.
struct Contents<'c, 'w> {
    writer: &'c mut Writer<'w>,
    observer: &'c mut dyn Observer,
}

impl Sink for Contents<'_, '_> {
    fn data(&mut self, _pos: u64, bytes: &[u8]) -> Result<()> {
        self.writer.put(bytes)?;
        self.observer.advance(bytes.len() as u64);
        Ok(())
    }

    fn zeros(&mut self, _pos: u64, _length: u64) -> Result<()> {
        Ok(())
    }
}

/// The names of a directory in the order of their bytes, without `.` and `..`, and without the volume's own
/// `lost+found` as long as it is empty: no tree that was put into a volume had it.
fn sorted_names(directory: &Node, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let at = |error| Error::source(path, error);
    let is_root = directory.ino() == Ino::ROOT;
    let mut names = Vec::new();
    for entry in directory.read_dir().map_err(at)? {
        let entry = entry.map_err(at)?;
        let own =
            is_root && entry.name == b"lost+found" && is_empty(&directory.look_up(&entry.name).map_err(at)?);
        if entry.name != b"." && entry.name != b".." && !own {
            names.push(entry.name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether this is a directory without names.
fn is_empty(node: &Node) -> bool {
    let mut names = node.read_dir().into_iter().flatten();
    node.kind() == FileKind::Directory
        && names.all(|entry| entry.is_ok_and(|entry| entry.name == b"." || entry.name == b".."))
}

/// What is below a directory, sorted by name: each directory before what is in it.
struct Sorted {
    open: Vec<(Node, Vec<u8>, std::vec::IntoIter<Vec<u8>>)>,
    pending: Option<(Node, Vec<u8>)>,
    /// Directories that were entered: a damaged volume may lead to one again.
    entered: HashSet<Ino>,
}

impl Sorted {
    fn new(root: Node) -> Sorted {
        Sorted { open: Vec::new(), entered: HashSet::from([root.ino()]), pending: Some((root, Vec::new())) }
    }

    /// The next path, and what is there.
    fn next(&mut self) -> Result<Option<(Vec<u8>, Node)>> {
        if let Some((directory, path)) = self.pending.take() {
            let names = sorted_names(&directory, &path)?;
            self.open.push((directory, path, names.into_iter()));
        }
        while let Some((directory, path, names)) = self.open.last_mut() {
            let Some(name) = names.next() else {
                self.open.pop();
                continue;
            };
            let path = below(path, &name);
            let node = directory.look_up(&name).map_err(|error| Error::source(&path, error))?;
            if node.kind() == FileKind::Directory {
                if !self.entered.insert(node.ino()) {
                    return Err(Error::source(&path, Cause::Twice));
                }
                self.pending = Some((node.clone(), path.clone()));
            }
            return Ok(Some((path, node)));
        }
        Ok(None)
    }
}

fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}
