//! What differs between two states of a volume: on a device, and on an overlay over that device.
//!
//! Both trees are walked at once. Contents are only read where the device has other bytes, or where a file lies
//! elsewhere. Memory: the directories of one path.

use std::ops::Range;
use uext4::{Error, File, FileKind, Metadata, Node, OpenOptions, Piece, ReadDir, Result, State, Volume};
use uext4_ondisk::Ino;

/// Bytes of contents that are compared at once, and in which unit they are told to differ.
const CHUNK: usize = 64 << 10;
const UNIT: usize = 512;

/// The first range of bytes of the device, at this position or after it, that the second state may have other contents
/// of.
pub type NextChange<'c> = dyn Fn(u64) -> Option<Range<u64>> + 'c;

/// What became of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// Only the second state has it, or it leads to another inode there.
    Added,
    /// Only the first state has it, or it led to another inode there.
    Removed,
    /// It leads to the same inode, of which something is different.
    Changed(Changes),
}

/// What is different about an inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// Contents of a file, target of a symbolic link.
    pub contents: bool,
    /// Names in a directory.
    pub names: bool,
    /// Mode, owner, flags, links, project, device number.
    pub attributes: bool,
    /// Extended attributes and access control lists.
    pub xattrs: bool,
    /// Times.
    pub times: bool,
    /// Where its contents lie on the device, or how many blocks it takes.
    pub place: bool,
}

/// A name that is different.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The path from the root, with a slash before each name.
    pub path: Vec<u8>,
    /// The inode it leads or led to.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// What became of it.
    pub fate: Fate,
    /// Bytes of contents that are different, in units of 512 bytes; those past the end of the shorter file among them.
    pub bytes: u64,
}

/// Something that could not be compared.
#[derive(Debug)]
pub struct Unknown {
    /// Its path.
    pub path: Vec<u8>,
    /// Why.
    pub error: Error,
}

/// A directory that is being compared.
struct Level {
    /// Length of its path.
    length: usize,
    old: Option<Node>,
    new: Option<Node>,
    /// The names of the second state, then those of the first.
    listing: ReadDir,
    lists_old: bool,
    changes: Changes,
}

/// Iterates over the names that differ between two states of a volume; a changed directory comes after what is in it. A
/// file with several names comes with each. Goes on after what cannot be read.
pub struct Compare<'c> {
    next_change: &'c NextChange<'c>,
    path: Vec<u8>,
    levels: Vec<Level>,
    ready: Vec<std::result::Result<Difference, Unknown>>,
}

impl<'c> Compare<'c> {
    /// Of `old` and `new`, whose device differs from that of `old` in the ranges of `next_change` at the most.
    ///
    /// # Errors
    /// Those of reading the root directories.
    pub fn new(old: &Volume, new: &Volume, next_change: &'c NextChange<'c>) -> Result<Compare<'c>> {
        let (path, levels, ready) = (Vec::new(), Vec::new(), Vec::new());
        let mut compare = Compare { next_change, path, levels, ready };
        let changes = inode_changes(&old.root()?, &new.root()?)?;
        compare.enter(Some(old.root()?), Some(new.root()?), changes)?;
        Ok(compare)
    }

    fn enter(&mut self, old: Option<Node>, new: Option<Node>, changes: Changes) -> Result<()> {
        let known = |level: &Level| {
            let same = |one: &Option<Node>, other: &Option<Node>| match (one, other) {
                (Some(one), Some(other)) => one.ino() == other.ino(),
                _ => false,
            };
            same(&level.old, &old) || same(&level.new, &new)
        };
        if self.levels.iter().any(known) {
            return Err(Error::Invalid("the directory is inside itself".into()));
        }
        let lists_old = new.is_none();
        let Some(listed) = new.as_ref().or(old.as_ref()) else { return Ok(()) };
        let listing = listed.read_dir()?;
        self.levels.push(Level { length: self.path.len(), old, new, listing, lists_old, changes });
        Ok(())
    }

    fn fail(&mut self, error: Error) {
        self.ready.push(Err(Unknown { path: self.path.clone(), error }));
    }

    fn tell(&mut self, node: &Node, fate: Fate, bytes: u64) {
        let path = if self.path.is_empty() { b"/".to_vec() } else { self.path.clone() };
        self.ready.push(Ok(Difference { path, ino: node.ino(), kind: node.kind(), fate, bytes }));
    }

    /// The next name of the innermost directory.
    fn step(&mut self) {
        let Some(level) = self.levels.last_mut() else { return };
        self.path.truncate(level.length);
        match level.listing.next() {
            Some(Ok(entry)) if entry.name == b"." || entry.name == b".." => {}
            Some(Ok(entry)) => {
                self.path.push(b'/');
                self.path.extend_from_slice(&entry.name);
                if let Err(error) = self.name(&entry.name) {
                    self.fail(error);
                }
            }
            Some(Err(error)) => self.fail(error),
            None => self.end_of_listing(),
        }
    }

    fn end_of_listing(&mut self) {
        let Some(level) = self.levels.last_mut() else { return };
        if let (false, Some(old)) = (level.lists_old, &level.old) {
            match old.read_dir() {
                Ok(listing) => (level.listing, level.lists_old) = (listing, true),
                Err(error) => {
                    level.lists_old = true;
                    self.fail(error);
                }
            }
            return;
        }
        let Some(level) = self.levels.pop() else { return };
        if let (Some(_), Some(new)) = (&level.old, &level.new)
            && level.changes != Changes::default()
        {
            self.tell(new, Fate::Changed(level.changes), 0);
        }
    }

    /// A name of the innermost directory, in the state that is listed.
    fn name(&mut self, name: &[u8]) -> Result<()> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let find = |node: &Option<Node>| match node.as_ref().map(|node| node.look_up(name)) {
            None | Some(Err(Error::NotFound)) => Ok(None),
            Some(found) => found.map(Some),
        };
        let (old, new) = (find(&level.old)?, find(&level.new)?);
        let same = match (&old, &new) {
            (Some(old), Some(new)) => is_same(old, new),
            _ => false,
        };
        if !same && (old.is_some() || new.is_some()) {
            level.changes.names = true;
        }
        if level.lists_old {
            // What both have came with the names of the second state.
            return match old {
                Some(old) if new.is_none() || !same => self.alone(old, Fate::Removed),
                _ => Ok(()),
            };
        }
        match (old, new) {
            (Some(old), Some(new)) if same => self.both(old, new),
            (_, Some(new)) => self.alone(new, Fate::Added),
            _ => Ok(()),
        }
    }

    /// A name that one state has, with what is below it.
    fn alone(&mut self, node: Node, fate: Fate) -> Result<()> {
        let bytes = if node.kind() == FileKind::Regular { node.attributes().size } else { 0 };
        self.tell(&node, fate, bytes);
        match (node.kind(), fate) {
            (FileKind::Directory, Fate::Added) => self.enter(None, Some(node), Changes::default()),
            (FileKind::Directory, _) => self.enter(Some(node), None, Changes::default()),
            _ => Ok(()),
        }
    }

    /// A name that leads to the same inode in both states.
    fn both(&mut self, old: Node, new: Node) -> Result<()> {
        let mut changes = inode_changes(&old, &new)?;
        let mut bytes = 0;
        match new.kind() {
            FileKind::Directory => return self.enter(Some(old), Some(new), changes),
            FileKind::Symlink => changes.contents = old.read_link()? != new.read_link()?,
            FileKind::Regular => {
                let reading = || OpenOptions::new().read(true).direct(true);
                let (old, new) = (old.open(reading())?, new.open(reading())?);
                let mut files = Files { old: &old, new: &new, bytes: 0, moved: false };
                files.compare(self.next_change)?;
                bytes = files.bytes;
                changes.contents = bytes > 0;
                changes.place |= files.moved;
            }
            _ => {}
        }
        if changes != Changes::default() {
            self.tell(&new, Fate::Changed(changes), bytes);
        }
        Ok(())
    }
}

impl Iterator for Compare<'_> {
    type Item = std::result::Result<Difference, Unknown>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.levels.is_empty() {
            self.step();
        }
        // At most one difference, followed by the reason why what is below it is unknown.
        (!self.ready.is_empty()).then(|| self.ready.remove(0))
    }
}

/// Whether it is the same inode, and was not freed in between.
fn is_same(old: &Node, new: &Node) -> bool {
    let generation = |node: &Node| node.attributes().generation;
    old.ino() == new.ino() && old.kind() == new.kind() && generation(old) == generation(new)
}

/// What is different without a look at the contents.
fn inode_changes(old: &Node, new: &Node) -> Result<Changes> {
    let (one, other) = (old.attributes(), new.attributes());
    let attributes = |m: &Metadata| (m.mode, m.uid, m.gid, m.links, m.rdev, m.flags, m.project, m.generation);
    let times = |m: &Metadata| (m.accessed, m.modified, m.changed, m.created);
    Ok(Changes {
        attributes: attributes(&one) != attributes(&other),
        times: times(&one) != times(&other),
        place: one.blocks != other.blocks,
        xattrs: xattrs(old)? != xattrs(new)?,
        ..Changes::default()
    })
}

/// All extended attributes, sorted.
fn xattrs(node: &Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let volume = node.volume();
    if !volume.may_have_xattrs(node.ino())? {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for xattr in volume.xattrs_of(node.ino())? {
        let xattr = xattr?;
        let name = xattr.name().as_bytes().to_vec();
        match xattr.value() {
            Ok(value) => all.push((name, value)),
            // An access control list without entries is none.
            Err(Error::NoAttribute) => {}
            Err(error) => return Err(error),
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// A file in both states.
struct Files<'f> {
    old: &'f File,
    new: &'f File,
    bytes: u64,
    moved: bool,
}

impl Files<'_> {
    fn compare(&mut self, next_change: &NextChange<'_>) -> Result<()> {
        let both = self.old.size().min(self.new.size());
        let longer = self.old.size().max(self.new.size());
        self.bytes = longer - both;
        if self.old.is_inline() || self.new.is_inline() {
            self.moved = self.old.is_inline() != self.new.is_inline();
            return self.contents(0..both);
        }
        let (mut olds, mut news) = (self.old.map(), self.new.map());
        let (mut old, mut new) = (olds.next().transpose()?, news.next().transpose()?);
        let mut at = 0;
        while let (Some(one), Some(other)) = (old, new) {
            let end = one.end().min(other.end());
            self.part(at..end, &one, &other, both, next_change)?;
            at = end;
            if one.end() == end {
                old = olds.next().transpose()?;
            }
            if other.end() == end {
                new = news.next().transpose()?;
            }
        }
        Ok(())
    }

    /// A range that is one piece in both states.
    fn part(
        &mut self,
        range: Range<u64>,
        old: &Piece,
        new: &Piece,
        size: u64,
        next_change: &NextChange<'_>,
    ) -> Result<()> {
        let at = |piece: &Piece| match piece.state {
            State::Hole => None,
            _ => Some(piece.physical + (range.start - piece.logical)),
        };
        let is_read = |piece: &Piece| !matches!(piece.state, State::Hole | State::Unwritten);
        let whole = range.start..range.end.min(size);
        if at(old) != at(new) || old.state != new.state {
            self.moved = true;
            return if is_read(old) || is_read(new) { self.contents(whole) } else { Ok(()) };
        }
        let Some(start) = at(new).filter(|_| is_read(new)) else { return Ok(()) };
        let end = start + (range.end - range.start);
        let mut pos = start;
        while let Some(change) = next_change(pos).filter(|change| change.start < end) {
            let (first, last) = (change.start.max(start), change.end.min(end));
            let logical = |physical: u64| range.start + (physical - start);
            self.contents(logical(first).min(size)..logical(last).min(size))?;
            pos = change.end;
        }
        Ok(())
    }

    /// Compares these bytes, which both have.
    fn contents(&mut self, range: Range<u64>) -> Result<()> {
        let (mut old, mut new) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut at = range.start;
        while at < range.end {
            let length = usize::try_from(range.end - at).unwrap_or(CHUNK).min(CHUNK);
            let read = |file: &File, bytes: &mut [u8]| -> Result<()> {
                let mut done = 0;
                while done < bytes.len() {
                    match file.read_any_at(&mut bytes[done..], at + done as u64)? {
                        0 => return Err(Error::Invalid("the file ended early".into())),
                        more => done += more,
                    }
                }
                Ok(())
            };
            read(self.old, &mut old[..length])?;
            read(self.new, &mut new[..length])?;
            let units = old[..length].chunks(UNIT).zip(new[..length].chunks(UNIT));
            self.bytes +=
                units.filter(|(one, other)| one != other).map(|(one, _)| one.len() as u64).sum::<u64>();
            at += length as u64;
        }
        Ok(())
    }
}
