//! An archive of tar: where it is read from, and what each entry does to the tree.

use super::decode::{Compression, LOOK};
use super::draft::{Body, Bytes, Draft, Spot};
use super::error::{Failures, GatherCause, GatherError};
use super::gathered::{Place, Print, Store, StoreKind, starts};
use super::input::{From, Input};
use super::spool::Spool;
use super::steps::{self, Through};
use super::tar::{self, Entries, Entry, EntryKind};
use super::whiteouts::{self, Whiteout};
use rustix::fs::FileType;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes after an archive's end that are read to see whether the compressed data is whole.
const AFTER_MAX: u64 = 64 << 20;

/// What an archive is read from.
pub enum ArchiveInput {
    /// A file. One that can be read anywhere is kept open, and contents that are not compressed are read from it where
    /// they are.
    File(File),
    /// Anything that is read once, from here to its end.
    Stream(Box<dyn Read>),
}

/// Where the contents of an archive's files will be.
pub enum Contents<'a> {
    /// Where they are, in this store.
    InPlace(u32),
    /// In the spool, which is this store.
    Spooled(&'a mut Spool, u32),
}

/// An archive that was looked at.
pub enum Opened {
    InPlace(Arc<File>, Print, u64),
    Stream(Box<dyn Read>, Compression),
}

impl Opened {
    /// Looks at the first bytes.
    pub fn new(input: ArchiveInput) -> Result<Opened, GatherCause> {
        match input {
            ArchiveInput::File(file) => Opened::file(file),
            ArchiveInput::Stream(stream) => Opened::stream(stream),
        }
    }

    fn file(mut file: File) -> Result<Opened, GatherCause> {
        let stat = rustix::fs::fstat(&file).map_err(|error| GatherCause::io("stat")(error.into()))?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || file.stream_position().map_err(GatherCause::io("seek"))? > 0 {
            return Opened::stream(Box::new(file));
        }
        let mut first = Vec::with_capacity(LOOK);
        let from = FromStart { file: Arc::new(file), pos: 0 };
        let read = from.again().take(LOOK as u64).read_to_end(&mut first);
        read.map_err(GatherCause::io("read"))?;
        Ok(match Compression::of(&first)? {
            Compression::None => Opened::InPlace(from.file, Print::of(&stat), stat.st_size as u64),
            compression => Opened::Stream(Box::new(from), compression),
        })
    }

    fn stream(mut stream: Box<dyn Read>) -> Result<Opened, GatherCause> {
        let mut first = Vec::with_capacity(LOOK);
        stream.by_ref().take(LOOK as u64).read_to_end(&mut first).map_err(GatherCause::io("read"))?;
        let compression = Compression::of(&first)?;
        Ok(Opened::Stream(Box::new(io::Cursor::new(first).chain(stream)), compression))
    }
}

/// Reads a file from its start, whatever its position.
pub struct FromStart {
    pub file: Arc<File>,
    pub pos: u64,
}

impl FromStart {
    pub fn again(&self) -> FromStart {
        FromStart { file: self.file.clone(), pos: 0 }
    }
}

impl Read for FromStart {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.pos)?;
        self.pos += read as u64;
        Ok(read)
    }
}

/// The store of an archive that is read in place.
pub fn store(name: &Path, opened: &Opened) -> Option<Store> {
    match opened {
        Opened::InPlace(file, print, _) => {
            Some(Store { name: name.to_owned(), kind: StoreKind::Archive(file.clone(), *print) })
        }
        Opened::Stream(..) => None,
    }
}

/// How the entries of an archive are understood.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub through: Through,
    /// Whether names of whiteouts hide files of lower layers.
    pub whiteouts: bool,
    /// Whether it is known to be whole, so that it needs no end mark.
    pub verified: bool,
}

/// Adds the entries of one archive to a draft.
pub struct Unpacker<'a> {
    pub name: PathBuf,
    pub how: How,
    pub draft: &'a mut Draft,
    pub contents: Contents<'a>,
    pub failures: &'a mut Failures,
}

impl Unpacker<'_> {
    /// Adds everything in an archive.
    pub fn run(mut self, from: From<'_>) -> Result<(), GatherError> {
        let mut entries = Entries::new(Input::new(from), self.how.verified);
        loop {
            let taken = match entries.next() {
                Ok(Some(entry)) => self.take(entry, &mut entries.input),
                Ok(None) => break,
                Err(cause) => Err(cause),
            };
            if let Err(cause) = taken {
                let goes_on = cause.is_refusal();
                let (offset, entry) = entries.place();
                let error = GatherError { input: self.name.clone(), entry, offset: Some(offset), cause };
                if !goes_on {
                    return Err(error);
                }
                self.failures.push(error);
            }
        }
        drain(&mut entries.input).map_err(|cause| GatherError::new(&self.name, cause))
    }

    fn take(&mut self, mut entry: Entry, input: &mut Input<'_>) -> Result<(), GatherCause> {
        let path = std::mem::take(&mut entry.path);
        let path = steps::components(&path)?;
        if self.how.whiteouts
            && let Some(whiteout) = Whiteout::of(&path)?
        {
            return whiteouts::apply(self.draft, &path, whiteout, self.how.through);
        }
        match entry.kind {
            EntryKind::Unknown(kind) => Err(GatherCause::Type(kind)),
            EntryKind::HardLink => self.link(&path, &entry.target),
            _ => self.put(&path, entry, input),
        }
    }

    fn put(&mut self, path: &[&[u8]], entry: Entry, input: &mut Input<'_>) -> Result<(), GatherCause> {
        let is_directory = entry.kind == EntryKind::Directory;
        let mut attributes = entry.attributes;
        tar::apply_acls(&mut attributes, entry.acls, is_directory)?;
        let Some(spot) = steps::locate(self.draft, path, self.how.through)? else {
            return match is_directory {
                true => self.draft.put_root(attributes),
                false => Err(GatherCause::Name("the root is a directory")),
            };
        };
        let body = match entry.kind {
            EntryKind::Directory => Body::directory(),
            EntryKind::Symlink => Body::Symlink(entry.target.into()),
            EntryKind::Fifo => Body::Fifo,
            EntryKind::Char(major, minor) => Body::Char(major, minor),
            EntryKind::Block(major, minor) => Body::Block(major, minor),
            EntryKind::Regular => {
                let bytes = Bytes { size: entry.size, data: entry.data, place: Place::Nowhere };
                Body::Regular(self.bytes(&spot, bytes, input)?)
            }
            EntryKind::HardLink | EntryKind::Unknown(_) => return Err(GatherCause::Type(0)),
        };
        self.draft.put(&spot, attributes, body).map(drop)
    }

    /// Says where contents are, or puts them where they can be read later.
    fn bytes(&mut self, spot: &Spot, mut bytes: Bytes, input: &mut Input<'_>) -> Result<Bytes, GatherCause> {
        // What is replaced needs no room any more.
        self.draft.vacate(spot, false);
        let stored = bytes.stored();
        self.draft.has_room(stored)?;
        if stored == 0 {
            return Ok(bytes);
        }
        let (store, offset) = match &mut self.contents {
            Contents::InPlace(store) => (*store, input.pos()),
            Contents::Spooled(spool, store) => (*store, spool.add(input, stored)?),
        };
        bytes.place = Place::Packed { store, offset, starts: starts(&bytes.data) };
        Ok(bytes)
    }

    fn link(&mut self, path: &[&[u8]], target: &[u8]) -> Result<(), GatherCause> {
        let bad = |why| GatherCause::Link { target: target.to_vec(), why };
        let to = steps::components(target)?;
        let (Some((name, parents)), true) = (to.split_last(), !path.is_empty()) else {
            return Err(bad("which is a directory"));
        };
        let Some(spot) = steps::locate(self.draft, path, self.how.through)? else {
            return Err(bad("at the root"));
        };
        let directory = steps::find(self.draft, parents, self.how.through)?;
        let found = directory.and_then(|directory| self.draft.find(directory, name));
        match found {
            Some(link) if self.draft.is_directory(link.node) => Err(bad("which is a directory")),
            Some(link) => self.draft.link(&spot, link.node),
            None => Err(bad("which is not there")),
        }
    }
}

/// Reads on to the end, since compressed data has its checksum there. What follows the end mark is ignored.
fn drain(input: &mut Input<'_>) -> Result<(), GatherCause> {
    if input.is_in_place() {
        return Ok(());
    }
    let start = input.pos();
    while !input.is_at_end()? {
        input.next(u64::MAX)?;
        if input.pos() - start > AFTER_MAX {
            return Err(GatherCause::TooLarge {
                what: "data after the archive's end",
                size: input.pos() - start,
                max: AFTER_MAX,
            });
        }
    }
    Ok(())
}
