//! The tree of files that a new volume begins with, as it is described before anything is written.

use super::error::{Error, Result};
use super::seal::Seal;
use crate::inode::metadata::Timestamp;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a name, at most.
const NAME_MAX: usize = 255;
/// Bytes of the target of a symbolic link, at most: it is in one block, and system calls have no longer path.
const TARGET_MAX: usize = 4095;

/// An item of a [`Tree`]. Only valid for the tree that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(u32);

impl ItemId {
    /// Its number: items are numbered from 0 (the root directory) in the order in which they were added.
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// A file of any kind, with its attributes but without names: several names may lead to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub kind: ItemKind,
    /// Permissions, with set-user-id, set-group-id and sticky (`0o7777`).
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Time of the last change of its contents, and of the last access.
    pub modified: Timestamp,
    /// Extended attributes by their full names, with values as system calls have them; access control lists too
    /// (`system.posix_acl_access`).
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What an item is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemKind {
    /// A directory and its names.
    Directory(BTreeMap<Vec<u8>, ItemId>),
    /// A regular file.
    Regular(Contents),
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device and its major and minor number.
    Char(u32, u32),
    /// A block device and its major and minor number.
    Block(u32, u32),
}

/// The contents of a regular file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Size in bytes.
    pub size: u64,
    /// The ranges of bytes that are not holes, in order, apart from each other, none beyond the size.
    pub data: Vec<Range<u64>>,
    /// How the [`Source`] knows it.
    pub key: u64,
}

impl Contents {
    /// Whether the ranges are as [`Contents::data`] says.
    pub(super) fn is_sound(&self) -> bool {
        let mut end = 0;
        self.data.iter().all(|range| {
            let follows = range.start >= end && range.start < range.end && range.end <= self.size;
            end = range.end;
            follows
        })
    }

    /// Contents without holes.
    pub fn whole(size: u64, key: u64) -> Contents {
        let data = Some(0..size).filter(|range| !range.is_empty());
        Contents { size, data: data.into_iter().collect(), key }
    }
}

/// Why the contents of a file could not be read.
pub type SourceError = Arc<dyn StdError + Send + Sync>;

/// Reads the bytes of the regular files of a tree, from several threads at once.
pub trait Source: Sync {
    /// Fills the buffer with the bytes from `pos` of the contents with this key. The range is within one range of
    /// [`Contents::data`].
    ///
    /// # Errors
    /// Whatever keeps the bytes from being read, such as a file that has become shorter. The text names it.
    fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> std::result::Result<(), SourceError>;

    /// Called with a number of bytes that were written to the device.
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }
}

/// A tree of files for a new volume. It has no limits of its own but those of names: what does not fit the volume is
/// refused when it is laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    items: Vec<Item>,
    seals: BTreeMap<ItemId, Seal>,
}

impl Tree {
    /// The item of the root directory.
    pub const ROOT: ItemId = ItemId(0);

    /// A tree with an empty root directory: `root:root`, mode 0755, last changed at `time`.
    pub fn new(time: Timestamp) -> Tree {
        let root = Item {
            kind: ItemKind::Directory(BTreeMap::new()),
            mode: 0o755,
            uid: 0,
            gid: 0,
            modified: time,
            xattrs: BTreeMap::new(),
        };
        Tree { items: vec![root], seals: BTreeMap::new() }
    }

    /// An item.
    ///
    /// # Panics
    /// If another tree gave the identifier.
    pub fn item(&self, id: ItemId) -> &Item {
        &self.items[id.number()]
    }

    /// An item, to change its attributes. A directory must stay one.
    ///
    /// # Panics
    /// If another tree gave the identifier.
    pub fn item_mut(&mut self, id: ItemId) -> &mut Item {
        &mut self.items[id.number()]
    }

    /// The names of a directory, in the order of their bytes; none if it is something else.
    pub fn names(&self, directory: ItemId) -> impl Iterator<Item = (&[u8], ItemId)> + '_ {
        let names = match &self.item(directory).kind {
            ItemKind::Directory(names) => Some(names),
            _ => None,
        };
        names.into_iter().flatten().map(|(name, id)| (name.as_slice(), *id))
    }

    /// What a name in a directory leads to.
    pub fn find(&self, directory: ItemId, name: &[u8]) -> Option<ItemId> {
        match &self.item(directory).kind {
            ItemKind::Directory(names) => names.get(name).copied(),
            _ => None,
        }
    }

    /// Adds an item under a name. What had the name before loses it. A directory's names may be those of items that
    /// exist already.
    ///
    /// # Errors
    /// [`Error::Contents`] if the name or a symbolic link's target is empty, too long or has forbidden bytes, or if
    /// there are too many items.
    pub fn add(&mut self, directory: ItemId, name: &[u8], item: Item) -> Result<ItemId> {
        if let ItemKind::Symlink(target) = &item.kind
            && (target.is_empty() || target.len() > TARGET_MAX || target.contains(&0))
        {
            return Err(refused(name, "a symbolic link's target has 1 to 4095 bytes and no NUL"));
        }
        let number = u32::try_from(self.items.len());
        let id = number.map(ItemId).map_err(|_| refused(name, "there are too many files"))?;
        self.put(directory, name, id)?;
        self.items.push(item);
        Ok(id)
    }

    /// Adds another name for an item. What had the name before loses it.
    ///
    /// # Errors
    /// [`Error::Contents`] if the name is not possible or the item is a directory.
    pub fn link(&mut self, directory: ItemId, name: &[u8], id: ItemId) -> Result<()> {
        if matches!(self.item(id).kind, ItemKind::Directory(_)) {
            return Err(refused(name, "a directory has one name"));
        }
        self.put(directory, name, id)
    }

    /// Removes a name, and what only that name led to.
    pub fn remove(&mut self, directory: ItemId, name: &[u8]) -> Option<ItemId> {
        match &mut self.items[directory.number()].kind {
            ItemKind::Directory(names) => names.remove(name),
            _ => None,
        }
    }

    /// Has a regular file sealed by fs-verity: a hash tree is stored behind its contents, and Linux refuses to write
    /// it. The volume gets the feature `verity`.
    ///
    /// # Errors
    /// [`Error::Option`] if it is no regular file.
    pub fn seal(&mut self, id: ItemId, seal: Seal) -> Result<()> {
        match self.item(id).kind {
            ItemKind::Regular(_) => self.seals.insert(id, seal),
            _ => return Err(Error::Option("fs-verity seals only regular files".into())),
        };
        Ok(())
    }

    /// How an item is to be sealed.
    pub fn seal_of(&self, id: ItemId) -> Option<&Seal> {
        self.seals.get(&id)
    }

    fn put(&mut self, directory: ItemId, name: &[u8], id: ItemId) -> Result<()> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(refused(name, "a name has 1 to 255 bytes"));
        }
        if name == b"." || name == b".." || name.iter().any(|&byte| byte == 0 || byte == b'/') {
            return Err(refused(name, "no file can have this name"));
        }
        match &mut self.items[directory.number()].kind {
            ItemKind::Directory(names) => names.insert(name.to_vec(), id),
            _ => return Err(refused(name, "its parent is no directory")),
        };
        Ok(())
    }

    /// Number of items, with those that no name leads to any more.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.names(Tree::ROOT).next().is_none()
    }
}

fn refused(path: &[u8], why: &'static str) -> Error {
    let error = io::Error::new(io::ErrorKind::InvalidInput, why);
    Error::Contents { path: path.to_vec(), error: Arc::new(error) }
}
