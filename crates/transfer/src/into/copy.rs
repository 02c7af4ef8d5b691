//! The walk: directories are made when they are entered, and get their attributes when they are left.

use super::made::{self, Links};
use super::origin::{Item, Origin};
use super::{ImportOptions, inside};
use crate::error::{Cause, Error, Result};
use crate::export::{Keep, Observer};
use crate::import::{Dest, answer, fill};
use std::collections::HashSet;
use std::path::Path;
use uext4::{FileKind, Ino, Node, NodeKind, OpenOptions, Volume};

/// The copy of one source.
pub struct Copier<'a, O: Origin> {
    pub volume: &'a Volume,
    pub options: &'a ImportOptions,
    pub origin: &'a O,
    /// Of the tree, among those whose hard links are known.
    pub number: usize,
    /// If the tree is on the volume that is copied into: that directory and those above it.
    pub above: Option<HashSet<Ino>>,
    /// The directory that is copied into.
    pub path: &'a Path,
    /// Whether the name of the copy is part of paths below the destination.
    pub shown: bool,
    pub links: &'a mut Links,
    pub earlier: &'a HashSet<Ino>,
    /// What was created or replaced.
    pub made: Vec<Ino>,
    /// Directories of the tree that were entered.
    pub entered: HashSet<(u64, u64)>,
    /// For contents.
    pub buffer: &'a mut [u8],
    pub observer: &'a mut dyn Observer,
}

/// A directory being copied.
struct Level<T> {
    thing: T,
    node: Node,
    names: std::vec::IntoIter<Vec<u8>>,
    /// Lengths of its path below the source, and of that of its copy.
    lengths: (usize, usize),
}

/// Paths of what is copied: below the source, below the directory that is copied into.
#[derive(Default)]
struct Paths {
    source: Vec<u8>,
    copy: Vec<u8>,
}

fn join(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

impl Paths {
    fn push(&mut self, name: &[u8]) {
        join(&mut self.source, name);
        join(&mut self.copy, name);
    }

    fn cut(&mut self, lengths: (usize, usize)) {
        self.source.truncate(lengths.0);
        self.copy.truncate(lengths.1);
    }

    fn lengths(&self) -> (usize, usize) {
        (self.source.len(), self.copy.len())
    }
}

impl<O: Origin> Copier<'_, O> {
    /// Copies the root of the tree under a name in `directory`, or its contents into the directory itself.
    pub fn run(&mut self, directory: &Node, name: Option<&[u8]>) -> Result<()> {
        let thing = self.origin.root(!self.options.recursive)?;
        let item = self.origin.item(&thing).clone();
        let mut paths = Paths::default();
        join(&mut paths.copy, name.unwrap_or_default());
        if item.kind != FileKind::Directory {
            let Some(name) = name else { return Err(self.at(&paths, Cause::NoDirectory)) };
            return self.leaf(&thing, &item, directory, name, &paths);
        }
        if !self.options.recursive {
            return Err(Error::source(b"", Cause::NotRecursive));
        }
        let mut stack = vec![self.enter(thing, &item, directory, name, &paths)?];
        while let Some(level) = stack.last_mut() {
            paths.cut(level.lengths);
            let Some(name) = level.names.next() else {
                let Some(level) = stack.pop() else { break };
                self.leave(&level, &paths);
                continue;
            };
            paths.push(&name);
            let entered = self.child(&level.thing, &level.node, &name, &paths);
            match entered {
                Ok(None) => {}
                Ok(Some(level)) => stack.push(level),
                // The volume takes no more changes: every further step would fail.
                Err(error) if error.is_of_aborted_volume() => return Err(error),
                Err(error) => self.observer.trouble(error),
            }
        }
        Ok(())
    }

    /// An error of the copy.
    fn at(&self, paths: &Paths, cause: impl Into<Cause>) -> Error {
        Error::destination(self.below(paths), cause)
    }

    /// The path of the copy below the destination.
    fn below<'p>(&self, paths: &'p Paths) -> &'p [u8] {
        match (self.shown, paths.copy.iter().position(|&byte| byte == b'/')) {
            (true, _) => &paths.copy,
            (false, Some(slash)) => &paths.copy[slash + 1..],
            (false, None) => b"",
        }
    }

    fn child(
        &mut self,
        from: &O::Thing,
        to: &Node,
        name: &[u8],
        paths: &Paths,
    ) -> Result<Option<Level<O::Thing>>> {
        let thing = self.origin.child(from, name, &paths.source)?;
        let item = self.origin.item(&thing).clone();
        match item.kind {
            FileKind::Directory => self.enter(thing, &item, to, Some(name), paths).map(Some),
            _ => self.leaf(&thing, &item, to, name, paths).map(|()| None),
        }
    }

    /// Makes a directory, or finds it.
    fn enter(
        &mut self,
        thing: O::Thing,
        item: &Item,
        parent: &Node,
        name: Option<&[u8]>,
        paths: &Paths,
    ) -> Result<Level<O::Thing>> {
        if self.above.as_ref().is_some_and(|above| above.contains(&Ino(item.identity.1 as u32))) {
            return Err(self.at(paths, Cause::IntoItself));
        }
        // Only a damaged tree has a directory twice, or bind mounts: a copy of those could go on for ever.
        if !self.entered.insert(item.identity) {
            return Err(Error::source(&paths.source, Cause::Twice));
        }
        let shown = self.below(paths).to_vec();
        let at = |error: uext4::Error| Error::destination(&shown, error);
        let existing = match name {
            None => Some(parent.clone()),
            Some(name) => made::look_up(parent, name).map_err(at)?,
        };
        let (node, made) = match (existing, name) {
            (Some(existing), _) if existing.kind() != FileKind::Directory => {
                return Err(self.at(paths, Cause::OverOther));
            }
            (Some(existing), _) => (existing, false),
            (None, name) => {
                let (mode, caller) = made::first(self.options, item);
                let made = parent.make_dir(name.unwrap_or_default(), mode, &caller).map_err(at)?;
                (made, true)
            }
        };
        if made {
            self.observer.copying(&paths.source, &inside(Path::new(""), self.below(paths)));
            self.made.push(node.ino());
        }
        let names = self.origin.names(&thing, &paths.source)?.into_iter();
        Ok(Level { thing, node, names, lengths: paths.lengths() })
    }

    fn leave(&mut self, level: &Level<O::Thing>, paths: &Paths) {
        let item = self.origin.item(&level.thing).clone();
        self.attributes(&level.thing, &item, &level.node, paths);
    }

    /// Copies anything but a directory.
    fn leaf(
        &mut self,
        thing: &O::Thing,
        item: &Item,
        parent: &Node,
        name: &[u8],
        paths: &Paths,
    ) -> Result<()> {
        if self.origin.is_destination(thing) {
            return Err(Error::source(&paths.source, Cause::DestinationDevice));
        }
        let shown = self.below(paths).to_vec();
        let at = |error: uext4::Error| Error::destination(&shown, error);
        let existing = made::look_up(parent, name).map_err(at)?;
        if let Some(existing) = &existing {
            if self.options.no_clobber {
                return Ok(());
            }
            if self.above.is_some() && item.identity == (0, u64::from(existing.ino().get())) {
                return Err(self.at(paths, Cause::SameFile));
            }
            if self.earlier.contains(&existing.ino()) {
                return Err(self.at(paths, Cause::JustMade));
            }
            if existing.kind() == FileKind::Directory {
                return Err(self.at(paths, Cause::OverDirectory));
            }
        }
        self.observer.copying(&paths.source, &inside(Path::new(""), self.below(paths)));
        let linked = self.options.recursive && item.links > 1;
        if linked && let Some(first) = self.links.find(self.volume, self.number, item) {
            return self.link(&first, existing, parent, name).map_err(at);
        }
        let fills = item.kind == FileKind::Regular || !self.options.recursive;
        let node = match existing {
            Some(existing) if fills && !matches!(existing.kind(), FileKind::Fifo | FileKind::Socket) => {
                self.refill(thing, item, paths)?;
                // The name may lead to another inode now, or through a link.
                made::look_up(parent, name).map_err(at)?.ok_or_else(|| at(uext4::Error::NotFound))?
            }
            Some(_) => {
                parent.unlink(name).map_err(at)?;
                self.make(thing, item, parent, name, paths)?
            }
            None => self.make(thing, item, parent, name, paths)?,
        };
        self.made.push(node.ino());
        if linked {
            self.links.add(self.number, item, &node);
        }
        self.attributes(thing, item, &node, paths);
        Ok(())
    }

    /// A further name of what was copied.
    fn link(&self, first: &Node, existing: Option<Node>, parent: &Node, name: &[u8]) -> uext4::Result<()> {
        match existing {
            Some(existing) if existing.ino() == first.ino() => return Ok(()),
            Some(_) => parent.unlink(name)?,
            None => {}
        }
        parent.link(name, first)
    }

    /// Replaces the contents of an existing file.
    fn refill(&mut self, thing: &O::Thing, item: &Item, paths: &Paths) -> Result<()> {
        let path = inside(self.path, &paths.copy);
        let (mode, caller) = made::first(self.options, item);
        let owner = (caller.uid, caller.gid);
        let dest = Dest { volume: self.volume, path: &path, owner, onto: self.options.onto };
        let (origin, buffer, observer) = (self.origin, &mut *self.buffer, &mut *self.observer);
        let filled = fill(&dest, mode & !caller.umask, None, &mut |file| {
            let advance = &mut |bytes| observer.advance(bytes);
            origin.fill(thing, &paths.source, file, buffer, advance).map(|()| 0)
        });
        filled.map(drop).map_err(|error| error.below(self.below(paths)))
    }

    /// Creates what does not exist. A file that cannot be filled is removed again.
    fn make(
        &mut self,
        thing: &O::Thing,
        item: &Item,
        parent: &Node,
        name: &[u8],
        paths: &Paths,
    ) -> Result<Node> {
        let shown = self.below(paths).to_vec();
        let at = |error: uext4::Error| Error::destination(&shown, error);
        let (mode, caller) = made::first(self.options, item);
        let (major, minor) = item.device;
        let kind = match item.kind {
            _ if !self.options.recursive => NodeKind::Regular,
            FileKind::Symlink => {
                let target = self.origin.target(thing, &paths.source)?;
                return parent.make_symlink(name, target, &caller).map_err(at);
            }
            FileKind::Fifo => NodeKind::Fifo,
            FileKind::Socket => NodeKind::Socket,
            FileKind::CharDevice => NodeKind::Char { major, minor },
            FileKind::BlockDevice => NodeKind::Block { major, minor },
            _ => NodeKind::Regular,
        };
        if kind != NodeKind::Regular {
            return parent.make_node(name, kind, mode, &caller).map_err(at);
        }
        let node = parent.create(name, mode, &caller).map_err(at)?;
        let filled = node.open(OpenOptions::new().write(true)).map_err(answer).and_then(|file| {
            let advance = &mut |bytes| self.observer.advance(bytes);
            self.origin.fill(thing, &paths.source, &file, self.buffer, advance)
        });
        if let Err(error) = filled {
            // The first failure is reported. A part of a file is worth less than none.
            let _of_less_interest = parent.unlink(name);
            return Err(error.below(self.below(paths)));
        }
        Ok(node)
    }

    /// Gives a copy the attributes that are kept. Reports each that fails, and sets the others.
    fn attributes(&mut self, thing: &O::Thing, item: &Item, node: &Node, paths: &Paths) {
        let below = self.below(paths).to_vec();
        if self.options.keep != Keep::Nothing {
            let everything = self.options.keep == Keep::Everything;
            let mut troubles = Vec::new();
            made::keep_xattrs(self.origin, thing, node, everything, &paths.source, &mut troubles);
            troubles.into_iter().for_each(|error| self.observer.trouble(error.below(&below)));
        }
        if let Err(error) = made::keep_attributes(self.options, item, node) {
            self.observer.trouble(Error::destination(&below, error));
        }
    }
}
