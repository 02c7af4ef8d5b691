//! What changed from one tree to another.

use super::{below, sorted_names};
use crate::error::{Cause, Error, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use uext4::{FileKind, Ino, Node, OpenOptions, Volume};

/// Bytes that are compared at a time.
const PIECE: usize = 1 << 20;

/// What a path is in the new tree.
pub enum Change {
    /// New, or not the same as before.
    Is(Node),
    /// It is gone.
    Gone,
}

/// The changes by path, sorted so that each directory comes before what is in it.
pub type Changes = BTreeMap<Vec<u8>, Change>;

/// A directory of the new tree, and the old one of that name.
struct Pair {
    path: Vec<u8>,
    old: Option<Node>,
    new: Node,
}

struct Comparison {
    changes: Changes,
    /// Names of inodes of the new tree that have several.
    names: HashMap<Ino, Vec<(Vec<u8>, Node)>>,
    /// Of these, inodes with a name that changed.
    changed: HashSet<Ino>,
    /// Which inode of one tree has the names of which one of the other.
    partners: (HashMap<Ino, Ino>, HashMap<Ino, Ino>),
    entered: HashSet<Ino>,
    memory: [Vec<u8>; 2],
}

/// Compares two directories and everything in them.
///
/// # Errors
/// What cannot be read, in either.
pub fn between(old: (&Volume, &Path), new: (&Volume, &Path)) -> Result<Changes> {
    let root = |(volume, path): (&Volume, &Path)| {
        let node = volume.node_at(path, true).map_err(|error| Error::source(b"", error))?;
        match node.kind() {
            FileKind::Directory => Ok(node),
            _ => Err(Error::source(b"", uext4::Error::NotDirectory)),
        }
    };
    let (old, new) = (root(old).map_err(Error::before)?, root(new)?);
    let mut comparison = Comparison {
        changes: Changes::new(),
        names: HashMap::new(),
        changed: HashSet::new(),
        partners: Default::default(),
        entered: HashSet::from([new.ino()]),
        memory: [Vec::new(), Vec::new()],
    };
    if !comparison.same(b"", &old, &new)? {
        comparison.changes.insert(Vec::new(), Change::Is(new.clone()));
    }
    let mut open = vec![Pair { path: Vec::new(), old: Some(old), new }];
    while let Some(pair) = open.pop() {
        comparison.directory(pair, &mut open)?;
    }
    comparison.all_names();
    Ok(comparison.changes)
}

impl Comparison {
    fn directory(&mut self, pair: Pair, open: &mut Vec<Pair>) -> Result<()> {
        let Pair { path, old, new } = pair;
        let before: Vec<Vec<u8>> = match &old {
            Some(old) => sorted_names(old, &path).map_err(Error::before)?,
            None => Vec::new(),
        };
        let now = sorted_names(&new, &path)?;
        for name in before.iter().filter(|&name| now.binary_search(name).is_err()) {
            self.changes.insert(below(&path, name), Change::Gone);
        }
        for name in &now {
            let path = below(&path, name);
            if name.starts_with(b".wh.") {
                return Err(Error::source(&path, Cause::WhiteoutName));
            }
            let at = |error| Error::source(&path, error);
            let node = new.look_up(name).map_err(at)?;
            let was = match &old {
                Some(old) if before.binary_search(name).is_ok() => {
                    Some(old.look_up(name).map_err(|error| at(error).before())?)
                }
                _ => None,
            };
            let same = match &was {
                Some(was) => self.same(&path, was, &node)?,
                None => false,
            };
            let found = node.attributes();
            if found.kind == FileKind::Directory {
                if !self.entered.insert(found.ino) {
                    return Err(Error::source(&path, Cause::Twice));
                }
                let was = was.filter(|was| was.kind() == FileKind::Directory);
                open.push(Pair { path: path.clone(), old: was, new: node.clone() });
            } else if found.links > 1 {
                self.names.entry(found.ino).or_default().push((path.clone(), node.clone()));
                if !same {
                    self.changed.insert(found.ino);
                }
            }
            if !same {
                self.changes.insert(path, Change::Is(node));
            }
        }
        Ok(())
    }

    /// A layer cannot link to a file of the layer below: all names of a file come with it.
    fn all_names(&mut self) {
        for ino in &self.changed {
            for (path, node) in self.names.remove(ino).unwrap_or_default() {
                self.changes.insert(path, Change::Is(node));
            }
        }
    }

    /// Whether two files are the same but for their places in the volumes.
    fn same(&mut self, path: &[u8], old: &Node, new: &Node) -> Result<bool> {
        let (one, other) = (old.attributes(), new.attributes());
        let (old_partner, new_partner) = &mut self.partners;
        // If other names of it are those of another file, its links changed.
        let partners = *old_partner.entry(one.ino).or_insert(other.ino) == other.ino
            && *new_partner.entry(other.ino).or_insert(one.ino) == one.ino;
        let is_directory = one.kind == FileKind::Directory;
        let equal = one.kind == other.kind
            && one.mode == other.mode
            && (one.uid, one.gid) == (other.uid, other.gid)
            && one.modified == other.modified
            && one.rdev == other.rdev
            && (is_directory || one.size == other.size && one.links == other.links && partners);
        if !equal {
            return Ok(false);
        }
        let at = |error| Error::source(path, error);
        let was = |error| at(error).before();
        if one.kind == FileKind::Symlink && old.read_link().map_err(was)? != new.read_link().map_err(at)? {
            return Ok(false);
        }
        let attributes = |node: &Node| {
            let names = node.xattrs().map(|name| {
                let name = name?;
                Ok((name.as_bytes().to_vec(), node.xattr(name.as_bytes())?))
            });
            names.collect::<uext4::Result<BTreeMap<Vec<u8>, Vec<u8>>>>()
        };
        if attributes(old).map_err(was)? != attributes(new).map_err(at)? {
            return Ok(false);
        }
        if one.kind == FileKind::Regular { self.same_contents(path, old, new) } else { Ok(true) }
    }

    fn same_contents(&mut self, path: &[u8], old: &Node, new: &Node) -> Result<bool> {
        let of = |is_old: bool, cause: Cause| {
            let error = Error::source(path, cause);
            if is_old { error.before() } else { error }
        };
        let open = |node: &Node| node.open(OpenOptions::new().read(true).direct(true));
        let files = [
            open(old).map_err(|error| of(true, error.into()))?,
            open(new).map_err(|error| of(false, error.into()))?,
        ];
        let size = files[1].size();
        let mut pos = 0;
        while pos < size {
            let length = (size - pos).min(PIECE as u64) as usize;
            for (number, (file, memory)) in files.iter().zip(&mut self.memory).enumerate() {
                memory.resize(length, 0);
                let read = file.read_any_at(memory, pos).map_err(|error| of(number == 0, error.into()))?;
                if read < length {
                    let (read, length) = (read as u64, length as u64);
                    return Err(of(number == 0, Cause::ShortRead { pos, read, length }));
                }
            }
            if self.memory[0] != self.memory[1] {
                return Ok(false);
            }
            pos += length as u64;
        }
        Ok(true)
    }
}
