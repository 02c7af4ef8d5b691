//! Directories under change: names added and removed where they are on the volume.
//!
//! All names of a directory are kept in memory from its first change on, so that a look-up reads nothing. In a hash
//! tree a name goes to the block of its hash, which is divided if it is full; where the node above has no room for
//! another block the index is given up, as e2fsck does with every hash tree it adds a name to, and the directory goes
//! on as a row of blocks.

use super::chain::{self, Entry};
use super::inode::Node;
use super::waiting::NAME_COST;
use super::{Parts, htree, inline};
use crate::ground::canvas::Canvas;
use crate::ground::error::{Error, Result};
use std::borrow::Cow;
use std::collections::HashMap;
use uext4_ondisk::ext4::{
    CaseFolder, DirBlock, DirBlockKind, DirFormat, Extent, FileType, HashVersion, HtreeIndex, Incompat,
    InodeFlags, dir_hash, encode_dir_tail, verify_dir_checksum, verify_htree_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// Where a name is: a block of the directory; the inode itself if its entries are there.
type Place = u32;

/// What a name stands for, and where it is.
struct Named {
    ino: Ino,
    place: Place,
    /// How it is spelt, if that is not what it is compared by.
    spelt: Option<Box<[u8]>>,
}

/// A directory.
pub(super) struct Directory {
    /// By what they are compared by.
    names: HashMap<Box<[u8]>, Named>,
    /// Folds names, if they are compared by their folded form.
    folder: Option<CaseFolder>,
    /// Bytes of the longest entry that fits each block.
    room: Vec<u32>,
    inline: bool,
    pub(super) format: DirFormat,
}

/// A block of a directory.
pub(super) struct Block {
    pub(super) physical: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) kind: DirBlockKind,
}

/// Bytes of a block's checksum record.
const TAIL_SIZE: u32 = 12;

impl Directory {
    /// Reads all of a directory.
    pub(super) fn load(parts: &mut Parts<'_>, node: &mut Node) -> Result<Directory> {
        if !node.is_directory() {
            return Err(node.corrupt("names go into it, but it is no directory"));
        }
        let mut directory = Directory::empty(parts, node)?;
        let format = directory.format;
        if directory.inline {
            for entry in inline::entries(&parts.canvas, node, &format)? {
                directory.note(&mut parts.canvas, entry, 0)?;
            }
            return Ok(directory);
        }
        let size = u64::from(format.block_size);
        let whole = node.draft.disk.size > 0 && node.draft.disk.size.is_multiple_of(size);
        let blocks = node.draft.disk.size / size;
        let possible = blocks <= parts.canvas.ground.superblock.geometry.blocks_count();
        let Some(blocks) = u32::try_from(blocks).ok().filter(|_| whole && possible) else {
            return Err(Corrupt::from(CorruptKind::DirectorySize).in_inode(node.draft.ino).into());
        };
        parts.canvas.load_directory(blocks)?;
        for number in 0..blocks {
            let block = directory.block(parts, node, number)?;
            parts.canvas.claim(block.physical, node.draft.ino)?;
            for entry in directory.entries(&block, node, number)? {
                directory.note(&mut parts.canvas, entry, number)?;
            }
            let room = directory.room_of(&block, node, number)?;
            directory.room.push(room);
        }
        Ok(directory)
    }

    /// One without names.
    fn empty(parts: &Parts<'_>, node: &Node) -> Result<Directory> {
        let superblock = &parts.canvas.ground.superblock;
        if node.draft.disk.flags.contains(InodeFlags::ENCRYPT) {
            let feature = format!("fast commits in an encrypted directory (inode {})", node.draft.ino);
            return Err(Error::Incompatible { action: "recover", feature });
        }
        let folds = node.draft.disk.flags.contains(InodeFlags::CASEFOLD);
        if folds && !superblock.features.incompat.contains(Incompat::CASEFOLD) {
            return Err(node.corrupt("a case-folded directory without the feature"));
        }
        Ok(Directory {
            names: HashMap::new(),
            folder: folds.then(CaseFolder::new),
            room: Vec::new(),
            inline: node.draft.disk.has_inline_data(),
            format: DirFormat::new(superblock),
        })
    }

    /// What a name is compared by. `.` and `..` are no names: what is spelt otherwise but folds to them is another one.
    pub(super) fn key<'n>(&mut self, name: &'n [u8]) -> Cow<'n, [u8]> {
        let folded = self.folder.as_mut().and_then(|folder| folder.fold(name));
        match folded {
            None => name.into(),
            Some(form) if form == name => name.into(),
            Some(form @ (b"." | b"..")) => [form, b"\0"].concat().into(),
            Some(form) => form.to_vec().into(),
        }
    }

    /// Remembers an entry, unless another one of its name came before it.
    fn note(&mut self, canvas: &mut Canvas<'_>, entry: Entry, place: Place) -> Result<()> {
        let key = self.key(&entry.name);
        let spelt = (*key != *entry.name).then_some(&entry.name);
        canvas.charge(key.len() + spelt.map_or(0, |name| name.len()) + NAME_COST)?;
        if !self.names.contains_key(&*key) {
            let named = Named { ino: entry.ino, place, spelt: spelt.cloned() };
            self.names.insert(key.into(), named);
        }
        Ok(())
    }

    /// What a name stands for.
    pub(super) fn get(&mut self, name: &[u8]) -> Option<Ino> {
        let key = self.key(name);
        self.names.get(&*key).map(|named| named.ino)
    }

    /// The hash that a name has in this directory; `None` if it cannot be told.
    pub(super) fn hash_of(&mut self, canvas: &Canvas<'_>, name: &[u8], version: HashVersion) -> Option<u32> {
        let form = self.folder.as_mut().and_then(|folder| folder.fold(name)).unwrap_or(name);
        dir_hash(form, version, &canvas.ground.superblock.hash.seed).ok().map(|hash| hash.major)
    }

    /// Whether there are no names but `.` and `..`.
    pub(super) fn is_empty(&self) -> bool {
        self.names.keys().all(|name| matches!(&**name, b"." | b".."))
    }

    fn seed(parts: &Parts<'_>, node: &Node) -> Option<u32> {
        node.seed(&parts.canvas)
    }

    /// Reads and checks a block.
    pub(super) fn block(&self, parts: &mut Parts<'_>, node: &mut Node, number: u32) -> Result<Block> {
        let place = |corrupt: Corrupt| corrupt.in_inode(node.draft.ino).at_lblk(Lblk(number));
        let hole = Error::from(place(CorruptKind::DirectoryHole.into()));
        let ino = node.draft.ino;
        let physical = node.written(parts, Lblk(number))?.ok_or(hole)?.get();
        let bytes = parts.canvas.read(physical)?;
        let indexed = node.draft.disk.flags.contains(InodeFlags::INDEX);
        let mut kind = DirBlockKind::of(&bytes, indexed, Lblk(number), &self.format);
        // Without checksums, a block from which all names were taken looks like a node at first.
        if kind == DirBlockKind::HtreeNode
            && !self.format.checksums
            && HtreeIndex::decode_node(&bytes, &self.format).is_err()
        {
            kind = DirBlockKind::Linear;
        }
        if let Some(seed) = Self::seed(parts, node) {
            let checked = match kind {
                DirBlockKind::Linear => verify_dir_checksum(&bytes, seed),
                _ => verify_htree_checksum(&bytes, kind, seed),
            };
            checked
                .map_err(|corrupt| corrupt.in_inode(ino).at_lblk(Lblk(number)).at_block(Pblk(physical)))?;
        }
        Ok(Block { physical, bytes, kind })
    }

    /// Bytes of a block that entries may use.
    pub(super) fn area_length(&self, kind: DirBlockKind) -> usize {
        let tail = if kind == DirBlockKind::Linear && self.format.checksums { TAIL_SIZE } else { 0 };
        (self.format.block_size - tail) as usize
    }

    /// All entries of a block.
    pub(super) fn entries(&self, block: &Block, node: &Node, number: u32) -> Result<Vec<Entry>> {
        DirBlock::new(&block.bytes, block.kind, &self.format)?;
        let area = &block.bytes[..self.area_length(block.kind)];
        chain::entries(area, &self.format).map_err(|error| at(error, node.draft.ino, number))
    }

    fn room_of(&self, block: &Block, node: &Node, number: u32) -> Result<u32> {
        if block.kind != DirBlockKind::Linear {
            return Ok(0);
        }
        let area = &block.bytes[..self.area_length(block.kind)];
        chain::room(area, &self.format).map_err(|error| at(error, node.draft.ino, number))
    }

    /// Writes a block of entries, checksum included.
    pub(super) fn put_block(
        &mut self,
        parts: &mut Parts<'_>,
        node: &Node,
        number: u32,
        mut block: Block,
    ) -> Result<()> {
        if let Some(seed) = Self::seed(parts, node) {
            if block.kind == DirBlockKind::Linear {
                encode_dir_tail(&mut block.bytes, seed).map_err(crate::inode::fields::unencodable)?;
            } else {
                htree::seal(&mut block.bytes, seed)?;
            }
        }
        let room = self.room_of(&block, node, number)?;
        if let Some(place) = self.room.get_mut(number as usize) {
            *place = room;
        }
        parts.canvas.write(block.physical, block.bytes)
    }

    /// Notes that a name is in another block now.
    pub(super) fn moved(&mut self, name: &[u8], number: u32) {
        let key = self.key(name);
        if let Some(named) = self.names.get_mut(&*key) {
            named.place = number;
        }
    }

    /// Adds a name that is not there.
    pub(super) fn insert(&mut self, parts: &mut Parts<'_>, node: &mut Node, entry: Entry) -> Result<()> {
        let strict = self.folder.is_some() && parts.canvas.ground.superblock.strict_encoding();
        if strict && str::from_utf8(&entry.name).is_err() {
            return Err(node.corrupt("a fast commit adds a name that is not UTF-8, which the volume wants"));
        }
        node.changed = true;
        let number = self.place(parts, node, &entry)?;
        self.note(&mut parts.canvas, entry, number)
    }

    /// Puts an entry where it belongs.
    fn place(&mut self, parts: &mut Parts<'_>, node: &mut Node, entry: &Entry) -> Result<Place> {
        if self.inline {
            let format = self.format;
            let done = inline::rows(&parts.canvas, node, |row| {
                Ok(chain::insert(row, entry, &format)?.then_some(()))
            })?;
            if done.is_some() {
                return Ok(0);
            }
            self.leave_inode(parts, node)?;
        }
        if node.draft.disk.flags.contains(InodeFlags::INDEX) {
            if let Some(number) = htree::insert(self, parts, node, entry)? {
                return Ok(number);
            }
            self.give_up_index(parts, node)?;
        }
        let needed = entry.length();
        let number = match self.room.iter().position(|room| *room >= needed) {
            Some(number) => number as u32,
            None => self.append(parts, node)?,
        };
        self.insert_into(parts, node, number, entry)?;
        Ok(number)
    }

    /// Puts an entry into a block that has room for it.
    pub(super) fn insert_into(
        &mut self,
        parts: &mut Parts<'_>,
        node: &mut Node,
        number: u32,
        entry: &Entry,
    ) -> Result<()> {
        let mut block = self.block(parts, node, number)?;
        let length = self.area_length(block.kind);
        let fits = chain::insert(&mut block.bytes[..length], entry, &self.format)?;
        if !fits || block.kind != DirBlockKind::Linear {
            return Err(node.corrupt(format!("no room in block {number} of the directory")));
        }
        self.put_block(parts, node, number, block)
    }

    /// Whether a block has room for an entry of this length.
    pub(super) fn has_room(&self, number: u32, length: u32) -> bool {
        self.room.get(number as usize).is_some_and(|room| *room >= length)
    }

    /// Removes a name, if it stands for `ino`. Returns whether it did.
    pub(super) fn remove(
        &mut self,
        parts: &mut Parts<'_>,
        node: &mut Node,
        name: &[u8],
        ino: Ino,
    ) -> Result<bool> {
        let key = self.key(name);
        let Some(named) = self.names.get(&*key).filter(|named| named.ino == ino) else { return Ok(false) };
        let (number, name) = (named.place, named.spelt.as_deref().unwrap_or(&key).to_vec());
        node.changed = true;
        let format = self.format;
        let removed = if self.inline {
            let row = inline::rows(&parts.canvas, node, |row| {
                Ok(chain::remove(row, &name, ino, &format)?.then_some(()))
            })?;
            row.is_some()
        } else {
            let mut block = self.block(parts, node, number)?;
            let length = self.area_length(block.kind);
            let removed = chain::remove(&mut block.bytes[..length], &name, ino, &format)?;
            self.put_block(parts, node, number, block)?;
            removed
        };
        if !removed {
            // Only where a name is there twice, one may be taken for the other.
            return Err(node.corrupt(format!("no entry `{}` in block {number}", name.escape_ascii())));
        }
        self.names.remove(&*key);
        Ok(true)
    }

    /// Adds an empty block and returns its number.
    pub(super) fn append(&mut self, parts: &mut Parts<'_>, node: &mut Node) -> Result<u32> {
        let number = self.room.len() as u32;
        let physical = node.allocate(parts)?;
        let extent = Extent { logical: Lblk(number), length: 1, physical, unwritten: false };
        node.insert(parts, extent)?;
        node.draft.disk.size = u64::from(number + 1) * u64::from(self.format.block_size);
        node.changed = true;
        self.room.push(0);
        let mut block = Block {
            physical: physical.get(),
            bytes: vec![0; self.format.block_size as usize],
            kind: DirBlockKind::Linear,
        };
        let length = self.area_length(block.kind) as u32;
        chain::free(&mut block.bytes, 0, length, &self.format)?;
        self.put_block(parts, node, number, block)?;
        Ok(number)
    }

    /// Writes `.` and `..` into the first block of a directory that has nothing else yet.
    fn dots(&mut self, parts: &mut Parts<'_>, node: &mut Node, parent: Ino) -> Result<()> {
        for (name, ino) in [(&b"."[..], node.draft.ino), (b"..", parent)] {
            let entry = Entry { name: name.into(), ino, kind: Some(FileType::Directory) };
            self.insert_into(parts, node, 0, &entry)?;
            self.note(&mut parts.canvas, entry, 0)?;
        }
        Ok(())
    }

    /// Makes an empty directory of an inode.
    pub(super) fn start(parts: &mut Parts<'_>, node: &mut Node, parent: Ino) -> Result<Directory> {
        node.draft.disk.flags &= !InodeFlags::INDEX;
        let mut directory = Directory::empty(parts, node)?;
        if directory.inline {
            inline::start(&parts.canvas, node, parent, &directory.format)?;
            return Ok(directory);
        }
        directory.append(parts, node)?;
        directory.dots(parts, node, parent)?;
        Ok(directory)
    }

    /// Moves the entries from the inode to a block.
    fn leave_inode(&mut self, parts: &mut Parts<'_>, node: &mut Node) -> Result<()> {
        let entries = inline::entries(&parts.canvas, node, &self.format)?;
        let parent = inline::parent(node).ok_or_else(|| {
            let what = CorruptKind::InlineData("the number of the parent directory is out of range");
            Error::from(Corrupt::from(what).in_inode(node.draft.ino))
        })?;
        node.start_map(parts)?;
        self.inline = false;
        self.append(parts, node)?;
        self.dots(parts, node, parent)?;
        for entry in entries {
            // Room for what fitted an inode is in any block, unless that holds no more than the inode did.
            let full = !self.has_room(self.room.len() as u32 - 1, entry.length());
            let number = if full { self.append(parts, node)? } else { self.room.len() as u32 - 1 };
            self.insert_into(parts, node, number, &entry)?;
            self.moved(&entry.name, number);
        }
        Ok(())
    }

    /// Makes a row of blocks of a hash tree.
    fn give_up_index(&mut self, parts: &mut Parts<'_>, node: &mut Node) -> Result<()> {
        for number in 0..self.room.len() as u32 {
            let mut block = self.block(parts, node, number)?;
            if block.kind == DirBlockKind::Linear {
                continue;
            }
            let dots = self.entries(&block, node, number)?;
            block.kind = DirBlockKind::Linear;
            let length = self.area_length(block.kind);
            block.bytes.fill(0);
            chain::free(&mut block.bytes, 0, length as u32, &self.format)?;
            for entry in &dots {
                chain::insert(&mut block.bytes[..length], entry, &self.format)?;
            }
            self.put_block(parts, node, number, block)?;
        }
        node.draft.disk.flags &= !InodeFlags::INDEX;
        Ok(())
    }
}

fn at(error: Error, ino: Ino, number: u32) -> Error {
    match error {
        Error::Corrupt(corrupt) => (*corrupt).in_inode(ino).at_lblk(Lblk(number)).into(),
        other => other,
    }
}

/// Refuses names that no directory can hold.
pub(super) fn check_name(name: &[u8], parent: Ino) -> Result<()> {
    let valid = !name.iter().any(|byte| matches!(*byte, b'/' | 0)) && !matches!(name, b"." | b"..");
    if valid && (1..=255).contains(&name.len()) {
        return Ok(());
    }
    Err(Corrupt::from(CorruptKind::FastCommitRecord("fc_dname")).in_inode(parent).into())
}
