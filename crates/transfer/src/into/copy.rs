//! The walk: directories are made when they are entered, and get their attributes when they are left.

use super::made::{self, HOST, Links};
use super::origin::{Item, Origin};
use super::pool::{self, Job, Pool, Told};
use super::{ImportOptions, inside};
use crate::error::{Cause, Error, Result};
use crate::export::Observer;
use crate::import::{Dest, fill};
use crate::options::Follow;
use std::collections::HashSet;
use std::path::Path;
use uext4::{FileKind, Ino, Node, NodeKind, Timestamp, Volume};

/// The copy of one source.
pub struct Copier<'a, O: Origin> {
    pub volume: &'a Volume,
    pub options: &'a ImportOptions,
    pub origin: &'a O,
    /// The time of the volume, if it is changed deterministically.
    pub fixed: Option<Timestamp>,
    /// Of the tree, among those whose hard links are known.
    pub number: usize,
    /// If the tree is on the volume that is copied into: that directory and those above it.
    pub above: Option<HashSet<Ino>>,
    /// The directory that is copied into.
    pub path: &'a Path,
    /// Whether the name of the copy is part of paths below the destination.
    pub shown: bool,
    /// Whether only a directory may be copied.
    pub directory_wanted: bool,
    pub links: &'a mut Links,
    pub earlier: &'a HashSet<Ino>,
    /// What was created or replaced.
    pub made: HashSet<Ino>,
    /// Directories of the tree that were entered.
    pub entered: HashSet<(u64, u64)>,
    /// Names found in directories.
    pub found: u64,
    /// For contents.
    pub buffer: &'a mut [u8],
    /// The threads that fill new files.
    pub pool: Option<Pool<O::Thing>>,
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
        let thing = self.origin.root()?;
        let item = self.item(&thing);
        let mut paths = Paths::default();
        join(&mut paths.copy, name.unwrap_or_default());
        if item.kind != FileKind::Directory {
            let Some(name) = name else {
                let plain = self.options.plain;
                return Err(self.at(&paths, if plain { Cause::OverDirectory } else { Cause::NoDirectory }));
            };
            if self.directory_wanted {
                return Err(self.at(&paths, uext4::Error::NotDirectory));
            }
            return self.leaf(thing, &item, directory, name, &paths).and_then(|()| self.finish());
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
                if self.options.follow == Follow::All {
                    // Links may lead to it again, but not from inside.
                    self.entered.remove(&self.origin.item(&level.thing).identity);
                }
                continue;
            };
            paths.push(&name);
            self.found += 1;
            if self.found > self.origin.names_max() {
                return Err(Error::source(&paths.source, Cause::TooMuchLinked));
            }
            let mut entered = self.child(&level.thing, &level.node, &name, &paths);
            if let (Err(error), Some(pool)) = (&entered, &self.pool)
                && error.is_no_space()
            {
                // What is in the way may be a part of a file that does not fit either.
                pool.let_finish();
                entered = self.child(&level.thing, &level.node, &name, &paths);
            }
            match entered {
                Ok(None) => {}
                Ok(Some(level)) => stack.push(level),
                // The volume takes no more changes: every further step would fail.
                Err(error) if error.is_of_aborted_volume() => return Err(error),
                Err(error) => self.observer.trouble(error),
            }
            self.hear()?;
        }
        self.finish()
    }

    /// The attributes of something in the tree, with the times that its copy may have.
    fn item(&self, thing: &O::Thing) -> Item {
        let mut item = self.origin.item(thing).clone();
        if let Some(fixed) = self.fixed {
            item.modified = item.modified.min(fixed);
            // On the host, looking at a file changes when it was last read.
            item.accessed = if self.number == HOST { item.modified } else { item.accessed.min(fixed) };
        }
        item
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
        let item = self.item(&thing);
        match item.kind {
            FileKind::Directory => self.enter(thing, &item, to, Some(name), paths).map(Some),
            _ => self.leaf(thing, &item, to, name, paths).map(|()| None),
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
        let ino = Ino(item.identity.1 as u32);
        // A link may lead to what this copy made.
        if self.above.as_ref().is_some_and(|above| above.contains(&ino) || self.made.contains(&ino)) {
            return Err(self.at(paths, Cause::IntoItself));
        }
        // Without links, only a damaged tree has a directory twice, or bind mounts: a copy of those could go on for
        // ever, as one in a directory that a link inside it leads to.
        if self.entered.contains(&item.identity) {
            let looped = self.options.follow == Follow::All;
            return Err(Error::source(&paths.source, if looped { Cause::Loop } else { Cause::Twice }));
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
        self.entered.insert(item.identity);
        if made {
            self.observer.copying(&paths.source, &inside(Path::new(""), self.below(paths)));
            self.made.insert(node.ino());
        }
        let observer = &mut *self.observer;
        let names = self.origin.names(&thing, &paths.source, &mut |error| observer.trouble(error));
        // Without its names it is still a directory with attributes.
        let mut names = names.unwrap_or_else(|error| {
            observer.trouble(error);
            Vec::new()
        });
        if self.fixed.is_some() {
            names.sort_unstable();
        }
        Ok(Level { thing, node, names: names.into_iter(), lengths: paths.lengths() })
    }

    fn leave(&mut self, level: &Level<O::Thing>, paths: &Paths) {
        let item = self.item(&level.thing);
        self.attributes(&level.thing, &item, &level.node, paths);
    }

    /// Copies anything but a directory.
    fn leaf(
        &mut self,
        thing: O::Thing,
        item: &Item,
        parent: &Node,
        name: &[u8],
        paths: &Paths,
    ) -> Result<()> {
        if self.origin.is_destination(&thing) {
            return Err(Error::source(&paths.source, Cause::DestinationDevice));
        }
        let shown = self.below(paths).to_vec();
        let at = |error: uext4::Error| Error::destination(&shown, error);
        let existing = made::look_up(parent, name).map_err(at)?;
        if let Some(existing) = &existing {
            if self.options.no_clobber {
                return Ok(());
            }
            self.check_target(existing, item, paths)?;
            if existing.kind() == FileKind::Directory {
                return Err(self.at(paths, Cause::OverDirectory));
            }
        }
        self.observer.copying(&paths.source, &inside(Path::new(""), self.below(paths)));
        let linked = self.options.keep.links && (item.links > 1 || self.followed(paths));
        if linked && let Some(first) = self.links.find(self.volume, self.number, item) {
            return self.link(&first, existing, parent, name).map_err(at);
        }
        let fills = match item.kind {
            FileKind::Regular => true,
            FileKind::Symlink => false,
            _ => !self.options.recursive,
        };
        let node = match existing {
            Some(existing) if fills && !matches!(existing.kind(), FileKind::Fifo | FileKind::Socket) => {
                self.refill(&thing, item, paths)?
            }
            Some(_) if !fills => {
                let make = |spare: &[u8]| self.make(&thing, item, parent, spare, paths);
                made::replace(parent, name, make, |error| Error::destination(&shown, error))?
            }
            existing => {
                if existing.is_some() {
                    parent.unlink(name).map_err(at)?;
                }
                let node = self.make(&thing, item, parent, name, paths)?;
                if fills {
                    let paths = (paths.source.clone(), shown);
                    let job = Job {
                        thing,
                        item: item.clone(),
                        node,
                        parent: parent.clone(),
                        name: name.to_vec(),
                        paths,
                    };
                    return self.fill(job, linked);
                }
                node
            }
        };
        self.made.insert(node.ino());
        if linked {
            self.links.add(self.number, item, &node);
        }
        self.attributes(&thing, item, &node, paths);
        Ok(())
    }

    /// Whether it may have been reached through a link, and so more often than it has names.
    fn followed(&self, paths: &Paths) -> bool {
        match self.options.follow {
            Follow::Never => false,
            Follow::Sources => paths.source.is_empty(),
            Follow::All => true,
        }
    }

    /// Fills a new file: in a thread, unless it is needed at once for the next of its names.
    fn fill(&mut self, job: Job<O::Thing>, linked: bool) -> Result<()> {
        self.made.insert(job.node.ino());
        let job = match &self.pool {
            Some(pool) if !linked => {
                let (observer, mut ended) = (&mut *self.observer, Ok(()));
                let refused = pool.fill(job, &mut |told| {
                    let heard = hear(told, observer);
                    if ended.is_ok() {
                        ended = heard;
                    }
                });
                ended?;
                match refused {
                    Ok(()) => return Ok(()),
                    Err(job) => *job,
                }
            }
            _ => job,
        };
        pool::fill(self.origin, &job, self.buffer, &mut |bytes| self.observer.advance(bytes))?;
        if linked {
            self.links.add(self.number, &job.item, &job.node);
        }
        let tell = &mut |error| self.observer.trouble(error);
        made::keep(self.origin, self.options, &job.thing, &job.item, &job.node, &job.paths, tell);
        Ok(())
    }

    /// A further name of what was copied.
    fn link(&self, first: &Node, existing: Option<Node>, parent: &Node, name: &[u8]) -> uext4::Result<()> {
        match existing {
            Some(existing) if existing.ino() == first.ino() => Ok(()),
            Some(_) => made::replace(parent, name, |spare| parent.link(spare, first), |error| error),
            None => parent.link(name, first),
        }
    }

    /// Replaces the contents of an existing file: of the target, if the name is a symbolic link. Returns the file.
    fn refill(&mut self, thing: &O::Thing, item: &Item, paths: &Paths) -> Result<Node> {
        let path = inside(self.path, &paths.copy);
        let shown = self.below(paths).to_vec();
        let at = |error: uext4::Error| Error::destination(&shown, error);
        let target = match self.volume.node_at(&path, true) {
            Err(uext4::Error::NotFound) => None,
            found => Some(found.map_err(at)?),
        };
        if let Some(target) = &target {
            self.check_target(target, item, paths)?;
        }
        let (mode, caller) = made::first(self.options, item);
        let owner = (caller.uid, caller.gid);
        let (onto, holes, umask) = (self.options.onto, self.options.holes, caller.umask);
        let dest = Dest { volume: self.volume, path: &path, owner, umask, onto, holes };
        let (origin, buffer, observer) = (self.origin, &mut *self.buffer, &mut *self.observer);
        let filled = fill(&dest, mode, None, &mut |file| {
            let advance = &mut |bytes| observer.advance(bytes);
            origin.fill(thing, &paths.source, file, buffer, advance).map(|()| 0)
        });
        filled.map_err(|error| error.below(&shown))?;
        // The name may lead to another inode now.
        self.volume.node_at(&path, true).map_err(at)
    }

    /// Refuses to replace the source itself, and what this copy or an earlier one made: in a directory that folds case,
    /// two names of the source may be one.
    fn check_target(&self, target: &Node, item: &Item, paths: &Paths) -> Result<()> {
        if self.above.is_some() && item.identity == (0, u64::from(target.ino().get())) {
            return Err(self.at(paths, Cause::SameFile));
        }
        match self.earlier.contains(&target.ino()) || self.made.contains(&target.ino()) {
            true => Err(self.at(paths, Cause::JustMade)),
            false => Ok(()),
        }
    }

    /// Creates what does not exist. Files are filled later.
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
            FileKind::Symlink => {
                let target = self.origin.target(thing, &paths.source)?;
                return parent.make_symlink(name, target, &caller).map_err(at);
            }
            _ if !self.options.recursive => NodeKind::Regular,
            FileKind::Fifo => NodeKind::Fifo,
            FileKind::Socket => NodeKind::Socket,
            FileKind::CharDevice => NodeKind::Char { major, minor },
            FileKind::BlockDevice => NodeKind::Block { major, minor },
            _ => NodeKind::Regular,
        };
        parent.make_node(name, kind, mode, &caller).map_err(at)
    }

    fn attributes(&mut self, thing: &O::Thing, item: &Item, node: &Node, paths: &Paths) {
        let paths = (paths.source.clone(), self.below(paths).to_vec());
        let tell = &mut |error| self.observer.trouble(error);
        made::keep(self.origin, self.options, thing, item, node, &paths, tell);
    }

    /// Passes on what the threads tell.
    fn hear(&mut self) -> Result<()> {
        let told = self.pool.as_ref().map(|pool| pool.told().collect::<Vec<_>>());
        told.into_iter().flatten().try_for_each(|told| hear(told, self.observer))
    }

    /// Waits for the threads.
    fn finish(&mut self) -> Result<()> {
        let mut done = Ok(());
        if let Some(pool) = self.pool.take() {
            pool.finish(|told| {
                let heard = hear(told, self.observer);
                if done.is_ok() {
                    done = heard;
                }
            });
        }
        done
    }
}

/// An error is one after which nothing more can be copied.
fn hear(told: Told, observer: &mut dyn Observer) -> Result<()> {
    match told {
        Told::Advanced(bytes) => observer.advance(bytes),
        Told::Trouble(error) if error.is_of_aborted_volume() => return Err(error),
        Told::Trouble(error) => observer.trouble(error),
    }
    Ok(())
}
