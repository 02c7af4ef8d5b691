//! Walks a tree: every name below a directory, with attributes, in bounded memory.
//!
//! The entries of a directory come together, sorted by inode number, so that the inode tables are read in order and in
//! large pieces. Its subdirectories follow, one after another. The walk keeps one window of packed entries, the
//! subdirectories still to enter at each level, and a bit for every directory visited.
//!
//! A damaged or hostile volume cannot make the walk endless or large: no directory is entered twice, and all
//! directories together may not be longer than the volume.

mod names;
mod reader;
mod seen;
mod table;

use crate::face::volume::Volume;
use crate::ground::error::{Error, Result};
use crate::inode::Ext4State;
use crate::inode::metadata::{FileKind, Metadata};
use names::{Item, Names};
use reader::Reader;
use seen::InoSet;
use std::path::Path;
use uext4_ondisk::Ino;

pub(crate) use table::TableReader;

/// Options of a walk.
#[derive(Debug, Clone)]
pub struct WalkOptions {
    stat: bool,
    brackets: bool,
    max_depth: u32,
}

impl WalkOptions {
    /// With attributes, without brackets, without a depth limit.
    #[must_use]
    pub fn new() -> Self {
        WalkOptions { stat: true, brackets: false, max_depth: u32::MAX }
    }

    /// Whether entries come with their attributes. Without them, the walk reads names, inode numbers and, if
    /// directories store them, types. A type is then the directory's, not the inode's.
    #[must_use]
    pub fn stat(mut self, stat: bool) -> Self {
        self.stat = stat;
        self
    }

    /// Whether [`Visit::Enter`] and [`Visit::Leave`] are reported too.
    #[must_use]
    pub fn brackets(mut self, brackets: bool) -> Self {
        self.brackets = brackets;
        self
    }

    /// Entries deeper than this are not visited; the start has depth 0.
    #[must_use]
    pub fn max_depth(mut self, depth: u32) -> Self {
        self.max_depth = depth;
        self
    }
}

impl Default for WalkOptions {
    fn default() -> Self {
        WalkOptions::new()
    }
}

/// The kind of a walk's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// A name was found. Every entry is reported once this way, a directory before its contents.
    Found,
    /// A directory is about to be listed: its entries follow. Only with [`WalkOptions::brackets`].
    Enter,
    /// The end of a directory. Comes for every [`Visit::Enter`] that was not skipped.
    Leave,
}

/// A step of the walk.
#[derive(Debug, Clone, Copy)]
pub struct WalkEntry<'w> {
    /// The kind of step.
    pub visit: Visit,
    /// Path from the start, without a leading slash; empty for the start itself. Any bytes but zero, and
    /// never `.` or `..` as a component.
    pub path: &'w [u8],
    /// Its last component; empty for the start.
    pub name: &'w [u8],
    /// Number of components.
    pub depth: u32,
    /// The inode.
    pub ino: Ino,
    /// Type: the inode's if it was read, else the directory's, if it stores types.
    pub kind: Option<FileKind>,
    /// Attributes, unless [`WalkOptions::stat`] was switched off. Directories entered or left always have
    /// them.
    pub metadata: Option<&'w Metadata>,
}

/// Most bytes of a path in an error: with whole paths, a chain of directories with a few broken entries in each would
/// cost the square of its length.
const ERROR_PATH: usize = 4096;

/// A failure to read something. The walk continues with the rest.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: {error}", String::from_utf8_lossy(&self.shown()))]
pub struct WalkError {
    /// Path from the start, as in [`WalkEntry::path`], or its first 4096 bytes.
    pub path: Vec<u8>,
    /// Bytes of the path that were left out.
    pub omitted: usize,
    /// The inode that could not be read, or is damaged.
    pub ino: Ino,
    /// The cause: an inode that cannot be read, a damaged directory, or one with a second name.
    #[source]
    pub error: Error,
}

impl WalkError {
    /// The path. If it was shortened, its first part and a note on the rest.
    #[must_use]
    pub fn shown(&self) -> Vec<u8> {
        let mut shown = self.path.clone();
        if self.omitted > 0 {
            let rest = format!("... ({} bytes more, inode {})", self.omitted, self.ino);
            shown.extend_from_slice(rest.as_bytes());
        }
        shown
    }
}

/// A directory that the walk is in.
struct Level {
    metadata: Metadata,
    /// Length of its path in bytes.
    path: usize,
    /// Reads the rest of it; `None` at its end.
    reader: Option<Reader>,
    /// Subdirectories found and not yet entered.
    waiting: Names,
}

/// The step that [`Walk::skip`] would skip.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    Other,
    /// The start, not entered yet.
    Start,
    /// A directory, put on the waiting list of its level.
    Waiting,
    Entered,
}

/// A walk over a tree, from [`Volume::walk`]. See [`Walk::advance`].
pub struct Walk {
    volume: Volume,
    options: WalkOptions,
    start: Option<Ino>,
    enter_start: Option<Ino>,
    levels: Vec<Level>,
    /// Entries of the innermost level, not yet reported.
    window: Names,
    seen: InoSet,
    /// Bytes of directories that may still be read.
    allowance: u64,
    table: TableReader,
    last: Last,
    // The entry reported last.
    path: Vec<u8>,
    name: usize,
    depth: u32,
    ino: Ino,
    kind: Option<FileKind>,
    metadata: Option<Metadata>,
}

impl Volume {
    /// Walks the tree below `path`, reporting `path` itself first. Symbolic links are not followed, not even as the
    /// last component of `path`.
    ///
    /// # Errors
    /// Those of resolving `path`. [`Walk::advance`] reports all others.
    pub fn walk(&self, path: impl AsRef<Path>, options: WalkOptions) -> Result<Walk> {
        Ok(self.walk_from(self.resolve(path, false)?, options))
    }

    /// Walks the tree below an inode.
    pub fn walk_from(&self, start: Ino, options: WalkOptions) -> Walk {
        let geometry = &self.superblock().geometry;
        let blocks = geometry.blocks_count().saturating_mul(geometry.block_size().into());
        // Small directories may be inline.
        let inodes = u64::from(geometry.inodes_count()) * u64::from(geometry.inode_size());
        Walk {
            volume: self.clone(),
            options,
            start: Some(start),
            enter_start: None,
            levels: Vec::new(),
            window: Names::default(),
            seen: InoSet::default(),
            allowance: blocks.saturating_add(inodes),
            table: TableReader::default(),
            last: Last::Other,
            path: Vec::new(),
            name: 0,
            depth: 0,
            ino: start,
            kind: None,
            metadata: None,
        }
    }
}

type Step = std::result::Result<Visit, WalkError>;

impl Walk {
    /// The next step, or an error; `None` at the end. The walk continues after an error.
    ///
    /// Not an [`Iterator`]: paths and attributes are lent until the next call, so that a walk over millions of
    /// files copies none of them.
    pub fn advance(&mut self) -> Option<std::result::Result<WalkEntry<'_>, WalkError>> {
        let visit = match self.step()? {
            Ok(visit) => visit,
            Err(error) => return Some(Err(error)),
        };
        let metadata = match visit {
            Visit::Enter => self.levels.last().map(|level| &level.metadata),
            _ => self.metadata.as_ref(),
        };
        Some(Ok(WalkEntry {
            visit,
            path: &self.path,
            name: &self.path[self.name..],
            depth: self.depth,
            ino: self.ino,
            kind: self.kind,
            metadata,
        }))
    }

    /// Skips the contents of the directory reported last: after [`Visit::Found`] it is not entered, after
    /// [`Visit::Enter`] neither listed nor left. Does nothing otherwise.
    pub fn skip(&mut self) {
        match self.last {
            Last::Other => {}
            Last::Start => self.enter_start = None,
            Last::Waiting => {
                if let Some(level) = self.levels.last_mut() {
                    level.waiting.pop_last();
                }
            }
            Last::Entered => {
                self.levels.pop();
            }
        }
        self.last = Last::Other;
    }

    fn step(&mut self) -> Option<Step> {
        self.last = Last::Other;
        if let Some(start) = self.start.take() {
            return Some(self.begin(start));
        }
        loop {
            if let Some(start) = self.enter_start.take() {
                match self.enter(start) {
                    Ok(()) if !self.options.brackets => continue,
                    told => return Some(told.map(|()| Visit::Enter)),
                }
            }
            if let Some(item) = self.window.take_next() {
                return Some(self.found(item));
            }
            let level = self.levels.last_mut()?;
            if let Some(item) = level.waiting.take_next() {
                let base = level.path;
                set_path(&mut self.path, base, level.waiting.name(&item));
                match self.enter(item.ino) {
                    Ok(()) if !self.options.brackets => continue,
                    told => return Some(told.map(|()| Visit::Enter)),
                }
            }
            if level.reader.is_some() {
                match self.fill() {
                    Ok(()) => continue,
                    Err(error) => return Some(Err(error)),
                }
            }
            let done = self.levels.pop()?;
            if self.options.brackets {
                self.tell_directory(&done);
                self.metadata = Some(done.metadata);
                return Some(Ok(Visit::Leave));
            }
        }
    }

    fn state(&self) -> &Ext4State {
        self.volume.state()
    }

    fn failed(&self, ino: Ino, error: Error) -> WalkError {
        let kept = self.path.len().min(ERROR_PATH);
        WalkError { path: self.path[..kept].to_vec(), omitted: self.path.len() - kept, ino, error }
    }

    /// The start itself.
    fn begin(&mut self, start: Ino) -> Step {
        let metadata = self.volume.metadata_of(start).map_err(|error| self.failed(start, error))?;
        (self.ino, self.depth, self.kind) = (start, 0, Some(metadata.kind));
        if metadata.kind == FileKind::Directory && self.options.max_depth > 0 {
            self.seen.insert(start);
            self.enter_start = Some(start);
            self.last = Last::Start;
        }
        self.metadata = self.options.stat.then_some(metadata);
        Ok(Visit::Found)
    }

    /// One entry of the window.
    fn found(&mut self, item: Item) -> Step {
        let base = self.levels.last().map_or(0, |level| level.path);
        self.name = set_path(&mut self.path, base, self.window.name(&item));
        // No overflow: the path of a walk that deep would not fit into memory.
        self.depth = u32::try_from(self.levels.len()).unwrap_or(u32::MAX);
        self.ino = item.ino;
        self.kind = item.kind();
        self.metadata = None;
        if self.options.stat || self.kind.is_none() {
            let upcoming = self.window.rest().iter().map(|item| item.ino);
            let metadata = self.table.metadata(self.volume.state(), item.ino, upcoming);
            let metadata = metadata.map_err(|error| self.failed(item.ino, error))?;
            self.kind = Some(metadata.kind);
            self.metadata = self.options.stat.then_some(metadata);
        }
        if self.kind == Some(FileKind::Directory) {
            if !self.seen.insert(item.ino) {
                let what = "a second name of a directory that has one already";
                return Err(self.failed(item.ino, self.state().corrupt_inode(item.ino, what)));
            }
            if self.depth < self.options.max_depth
                && let Some(level) = self.levels.last_mut()
            {
                level.waiting.push(&self.path[self.name..], item.ino, self.kind);
                self.last = Last::Waiting;
            }
        }
        Ok(Visit::Found)
    }

    /// Enters the directory that `path` names.
    fn enter(&mut self, ino: Ino) -> std::result::Result<(), WalkError> {
        let level = self.open_level(ino).map_err(|error| self.failed(ino, error))?;
        self.tell_directory(&level);
        self.levels.push(level);
        self.last = Last::Entered;
        Ok(())
    }

    fn open_level(&mut self, ino: Ino) -> Result<Level> {
        let inode = self.state().inode(ino)?;
        let metadata = inode.metadata(self.state());
        let reader = Reader::new(&self.volume, inode)?;
        // On a sound volume no block belongs to two directories.
        self.allowance = self.allowance.checked_sub(metadata.size).ok_or_else(|| {
            self.state().corrupt_inode(ino, "the directories are longer than the volume: they share blocks")
        })?;
        Ok(Level { metadata, path: self.path.len(), reader: Some(reader), waiting: Names::default() })
    }

    /// Makes a directory the current entry. `levels` ends with its parent.
    fn tell_directory(&mut self, level: &Level) {
        self.path.truncate(level.path);
        self.depth = u32::try_from(self.levels.len()).unwrap_or(u32::MAX);
        let parent = self.levels.last().map_or(0, |parent| parent.path);
        self.name = if parent == 0 { 0 } else { parent + 1 };
        self.ino = level.metadata.ino;
        self.kind = Some(FileKind::Directory);
    }

    /// Reads entries of the innermost directory until the window is full or the directory ends.
    fn fill(&mut self) -> std::result::Result<(), WalkError> {
        let Some(mut level) = self.levels.pop() else { return Ok(()) };
        let result = self.read_entries(&mut level);
        self.path.truncate(level.path);
        let ino = level.metadata.ino;
        self.levels.push(level);
        result.map_err(|error| self.failed(ino, error))
    }

    fn read_entries(&mut self, level: &mut Level) -> Result<()> {
        self.window.clear();
        self.table.reset();
        level.waiting = Names::default();
        let mut result = Ok(());
        while let Some(reader) = level.reader.as_mut() {
            if self.window.is_full() {
                break;
            }
            match reader.read(&mut self.window) {
                Ok(true) => {}
                Ok(false) => level.reader = None,
                Err(error) => {
                    result = Err(error);
                    level.reader = None;
                }
            }
        }
        if let Some(reader) = level.reader.as_mut() {
            reader.rest();
        }
        if self.options.stat {
            self.window.sort_by_inode();
        }
        result
    }
}

/// Cuts `path` to `base` bytes and appends a component; returns where the component starts.
fn set_path(path: &mut Vec<u8>, base: usize, name: &[u8]) -> usize {
    path.truncate(base);
    if !path.is_empty() {
        path.push(b'/');
    }
    let start = path.len();
    path.extend_from_slice(name);
    start
}
