//! The finished tree, and the source of its contents.

use super::draft::{Attributes, Body, Draft, Link, Names, Node, ROOT};
use super::error::{GatherCause, GatherError};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, Stat};
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use uext4::Timestamp;
use uext4::mkfs::{Contents, Item, ItemId, ItemKind, Source, Tree};

/// Files of directories that are kept open for the next part. A writer reads some files at a time, each in order.
const OPEN_MAX: usize = 16;
/// Bytes of a path that one call takes.
const CALL_MAX: usize = 4000;

/// A gathered tree, and its contents. It holds the archives open, and a directory for each directory that was gathered.
pub struct Gathered {
    /// The tree. Its contents are for this source alone.
    pub tree: Tree,
    /// Bytes of contents, without holes.
    pub data: u64,
    contents: Vec<Place>,
    stores: Vec<Store>,
    open: Mutex<Vec<(u64, Arc<File>)>>,
}

/// Where the bytes of a file are: those of its ranges, one after the other.
#[derive(Debug, Default)]
pub enum Place {
    /// There are none.
    #[default]
    Nowhere,
    /// From this offset of an archive or of the spool.
    Packed { store: u32, offset: u64, starts: Starts },
    /// In a file of a directory.
    Host { store: u32, path: Box<[u8]>, print: Print },
}

/// Of several ranges: where each begins in the file, and how many bytes are in those before it.
pub type Starts = Option<Box<[(u64, u64)]>>;

impl Place {
    /// Bytes of memory, beside those for each range.
    pub fn memory(&self) -> usize {
        match self {
            Place::Host { path, .. } => path.len(),
            _ => 0,
        }
    }
}

/// By what a file is known again, unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Print {
    dev: u64,
    ino: u64,
    size: i64,
    modified: (i64, u64),
}

impl Print {
    pub fn of(stat: &Stat) -> Print {
        let modified = (stat.st_mtime, stat.st_mtime_nsec as u64);
        Print { dev: stat.st_dev, ino: stat.st_ino, size: stat.st_size, modified }
    }

    fn check(&self, file: &File) -> Result<(), GatherCause> {
        let stat = rustix::fs::fstat(file).map_err(|error| GatherCause::io("stat")(error.into()))?;
        if Print::of(&stat) == *self { Ok(()) } else { Err(GatherCause::Changed) }
    }
}

/// What contents are read from.
pub struct Store {
    /// As it was named.
    pub name: PathBuf,
    pub kind: StoreKind,
}

pub enum StoreKind {
    /// An archive that is read in place.
    Archive(Arc<File>, Print),
    /// A file without a name that only we know.
    Spool(Arc<File>),
    /// A directory whose files are opened when they are read.
    Directory(OwnedFd),
}

impl Gathered {
    /// Makes a tree of a draft: names in order, directory by directory.
    pub(super) fn new(
        mut draft: Draft,
        time: Timestamp,
        stores: Vec<Store>,
    ) -> Result<Gathered, GatherError> {
        let mut gathered = Gathered {
            tree: Tree::new(time),
            data: draft.data,
            contents: Vec::new(),
            stores,
            open: Mutex::new(Vec::new()),
        };
        let mut known: Vec<Option<ItemId>> = vec![None; draft.len()];
        let mut directories = Vec::new();
        if let Some(Node { attributes, body: Body::Directory(names), .. }) = draft.take(ROOT) {
            *gathered.tree.item_mut(Tree::ROOT) = item(ItemKind::Directory(BTreeMap::new()), attributes);
            directories.push((names, Tree::ROOT));
        }
        while let Some((names, directory)) = directories.pop() {
            let first = directories.len();
            for (name, Link { node, .. }) in names {
                let refused = |error| refused(&name, &error);
                if let Some(id) = known[node.number()] {
                    gathered.tree.link(directory, &name, id).map_err(refused)?;
                } else if let Some(Node { attributes, body, .. }) = draft.take(node) {
                    let (kind, below) = gathered.kind(body);
                    let id = gathered.tree.add(directory, &name, item(kind, attributes)).map_err(refused)?;
                    known[node.number()] = Some(id);
                    directories.extend(below.map(|names| (names, id)));
                }
            }
            // The first one next.
            directories[first..].reverse();
        }
        Ok(gathered)
    }

    /// What it becomes, and the names of a directory.
    fn kind(&mut self, body: Body) -> (ItemKind, Option<Names>) {
        let kind = match body {
            Body::Directory(names) => return (ItemKind::Directory(BTreeMap::new()), Some(names)),
            Body::Regular(bytes) => {
                let key = self.contents.len() as u64;
                self.contents.push(bytes.place);
                ItemKind::Regular(Contents { size: bytes.size, data: bytes.data, key })
            }
            Body::Symlink(target) => ItemKind::Symlink(target.into_vec()),
            Body::Fifo => ItemKind::Fifo,
            Body::Socket => ItemKind::Socket,
            Body::Char(major, minor) => ItemKind::Char(major, minor),
            Body::Block(major, minor) => ItemKind::Block(major, minor),
        };
        (kind, None)
    }

    pub(super) fn read_at(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), GatherError> {
        let place = usize::try_from(key).ok().and_then(|key| self.contents.get(key));
        let (store, read) = match place {
            Some(Place::Packed { store, offset, starts }) => {
                let at = offset + packed(starts, pos);
                (*store, self.read_packed(*store, at, buffer))
            }
            Some(Place::Host { store, path, print }) => {
                (*store, self.read_host(key, (*store, path, print), pos, buffer))
            }
            Some(Place::Nowhere) | None => (u32::MAX, Err(short())),
        };
        read.map_err(|cause| {
            let input = self.stores.get(store as usize).map(|store| store.name.clone());
            let entry = path_of(&self.tree, key);
            GatherError { input: input.unwrap_or_default(), entry, offset: None, cause }
        })
    }

    fn read_packed(&self, store: u32, at: u64, buffer: &mut [u8]) -> Result<(), GatherCause> {
        match &self.stores[store as usize].kind {
            StoreKind::Archive(file, print) => {
                exactly(file, at, buffer)?;
                print.check(file)
            }
            StoreKind::Spool(file) => exactly(file, at, buffer),
            StoreKind::Directory(_) => Err(short()),
        }
    }

    fn read_host(
        &self,
        key: u64,
        (store, path, print): (u32, &[u8], &Print),
        pos: u64,
        buffer: &mut [u8],
    ) -> Result<(), GatherCause> {
        let StoreKind::Directory(base) = &self.stores[store as usize].kind else { return Err(short()) };
        // Most files are read at once, and their threads need not wait for each other.
        let whole = pos == 0 && i64::try_from(buffer.len()).is_ok_and(|length| length == print.size);
        let file = match if whole { None } else { self.is_open(key) } {
            Some(file) => file,
            None => {
                let file = Arc::new(open_below(base, path)?);
                if !whole {
                    self.keep_open(key, file.clone());
                }
                file
            }
        };
        let read = exactly(&file, pos, buffer);
        print.check(&file)?;
        read
    }

    fn is_open(&self, key: u64) -> Option<Arc<File>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().find(|(known, _)| *known == key).map(|(_, file)| file.clone())
    }

    fn keep_open(&self, key: u64, file: Arc<File>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if open.len() >= OPEN_MAX { Some(open.remove(0)) } else { None };
        open.push((key, file));
        drop(open);
        // Closed without the lock.
        drop(oldest);
    }
}

/// What a tree refuses although the draft had it.
fn refused(name: &[u8], error: &uext4::mkfs::Error) -> GatherError {
    let cause = GatherCause::Format(error.to_string());
    GatherError { input: PathBuf::from("tree"), entry: Some(name.to_vec()), offset: None, cause }
}

fn item(kind: ItemKind, attributes: Attributes) -> Item {
    let Attributes { mode, uid, gid, modified, xattrs } = attributes;
    Item { kind, mode, uid, gid, modified, xattrs }
}

fn short() -> GatherCause {
    GatherCause::io("read")(io::ErrorKind::UnexpectedEof.into())
}

fn exactly(file: &File, at: u64, buffer: &mut [u8]) -> Result<(), GatherCause> {
    file.read_exact_at(buffer, at).map_err(GatherCause::io("read"))
}

/// How many bytes of the ranges are before a position.
fn packed(starts: &Starts, pos: u64) -> u64 {
    let Some(starts) = starts else { return pos };
    let next = starts.partition_point(|(start, _)| *start <= pos);
    let Some((start, before)) = next.checked_sub(1).map(|at| starts[at]) else { return pos };
    before + (pos - start)
}

/// Where each range begins, packed. `None` if that is where it begins in the file.
pub fn starts(data: &[std::ops::Range<u64>]) -> Starts {
    if matches!(data, [] | [std::ops::Range { start: 0, .. }]) {
        return None;
    }
    let mut before = 0;
    let starts = data.iter().map(|range| {
        let start = (range.start, before);
        before += range.end - range.start;
        start
    });
    Some(starts.collect())
}

/// Opens a file below a directory, in pieces that one call takes. A link in place of a directory may lead elsewhere;
/// what is opened is compared with what was gathered before its bytes are used.
fn open_below(base: &OwnedFd, path: &[u8]) -> Result<File, GatherCause> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = |at: &OwnedFd, path: &[u8], flags: OFlags| {
        rustix::fs::openat(at, path, flags, Mode::empty())
            .map_err(|error| GatherCause::io("open")(error.into()))
    };
    let (mut held, mut rest) = (None, path);
    while rest.len() > CALL_MAX {
        // A name is much shorter.
        let cut = rest[..CALL_MAX].iter().rposition(|&byte| byte == b'/').unwrap_or(CALL_MAX);
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        held = Some(open(held.as_ref().unwrap_or(base), &rest[..cut], how)?);
        rest = rest.get(cut + 1..).unwrap_or_default();
    }
    // Do not wait for the other end of a pipe that has the name by now.
    open(held.as_ref().unwrap_or(base), rest, flags | OFlags::NONBLOCK).map(File::from)
}

/// A path of the file with these contents, for a message.
fn path_of(tree: &Tree, key: u64) -> Option<Vec<u8>> {
    let mut directories = vec![(Tree::ROOT, Vec::new())];
    while let Some((directory, path)) = directories.pop() {
        for (name, id) in tree.names(directory) {
            let below = if path.is_empty() { name.to_vec() } else { [&path, name].join(&b'/') };
            match &tree.item(id).kind {
                ItemKind::Regular(contents) if contents.key == key => return Some(below),
                ItemKind::Directory(_) => directories.push((id, below)),
                _ => {}
            }
        }
    }
    None
}

impl fmt::Debug for Gathered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered")
            .field("items", &self.tree.len())
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

impl Source for Gathered {
    fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), Arc<dyn StdError + Send + Sync>> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.read_at(key, pos, buffer).map_err(|error| Arc::new(error) as _)
    }
}
