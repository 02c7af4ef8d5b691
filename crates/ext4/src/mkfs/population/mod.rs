//! Puts the files of a [`Tree`] into a volume that is being laid out: inodes in the order of a walk, directories and
//! attributes together before all contents, each file in one piece.
//!
//! Reading path: [`populate`] here → `names` (directories), `attributes`, `maps` → `room` (which blocks). The contents
//! are written later, by `../pour.rs`.

mod attributes;
mod maps;
mod names;
mod room;
mod sealed;

use super::error::{Error, Result};
use super::files::{LOST_FOUND, LOST_FOUND_BYTES, fresh};
use super::layout::{EXTRA_ISIZE, Layout};
use super::pieces::Pieces;
use super::seal::SealPlan;
use super::tree::{Contents, Item, ItemId, ItemKind, SourceError, Tree};
use crate::ground::error::{Error as VolumeError, Limit};
use crate::xattr::values;
use attributes::{Attributes, Kept};
use maps::Map;
use names::{Directories, Name};
use room::Room;
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::ext4::{
    DeviceNumber, FileType, I_BLOCK_SIZE, Incompat, Inode, InodeFlags, RoCompat, Timestamp,
    update_inode_checksum,
};
use uext4_ondisk::{Ino, Pblk};

/// Names of a file, and of a directory's subdirectories, at most (`EXT4_LINK_MAX`).
const LINKS_MAX: u32 = 65_000;
/// Inodes for what is not in the tree.
const RESERVED_INODES: u32 = 16;
const LOST_FOUND_NAME: &[u8] = b"lost+found";

/// The items of a tree that names lead to.
pub(super) struct Population<'t> {
    tree: &'t Tree,
    /// In the order of their inodes; the root and `lost+found` first.
    order: Vec<ItemId>,
    /// By the number of an item: 1 + its position in `order`, 0 if no name leads to it.
    position: Vec<u32>,
    /// By position: the number of names, of a directory that of its subdirectories.
    links: Vec<u32>,
    /// By position: the directory that the item was found in, and where its name is.
    parent: Vec<u32>,
}

impl<'t> Population<'t> {
    /// Walks the tree: the names of a directory one after the other, then what is in its directories.
    ///
    /// # Errors
    /// [`Error::Contents`] if `lost+found` is no directory, or if a file has too many names.
    pub(super) fn of(tree: &'t Tree) -> Result<Population<'t>> {
        let mut found = Population {
            tree,
            order: vec![Tree::ROOT],
            position: vec![0; tree.len()],
            links: vec![0],
            parent: vec![0],
        };
        found.position[Tree::ROOT.number()] = 1;
        if let Some(lost) = tree.find(Tree::ROOT, LOST_FOUND_NAME) {
            if !matches!(tree.item(lost).kind, ItemKind::Directory(_)) {
                return Err(refused(LOST_FOUND_NAME, VolumeError::NotDirectory));
            }
            found.add(lost, 0);
        }
        let mut open = vec![Tree::ROOT];
        while let Some(directory) = open.pop() {
            let here = found.position[directory.number()] - 1;
            let before = open.len();
            for (name, id) in tree.names(directory) {
                let is_directory = matches!(tree.item(id).kind, ItemKind::Directory(_));
                if is_directory {
                    open.push(id);
                    found.links[here as usize] += 1;
                }
                match found.position[id.number()] {
                    0 => found.add(id, here),
                    _ if is_directory => {}
                    known => {
                        let links = &mut found.links[known as usize - 1];
                        *links += 1;
                        if *links > LINKS_MAX {
                            return Err(refused(name, VolumeError::Limit(Limit::Links)));
                        }
                    }
                }
            }
            // The first name is entered first.
            open[before..].reverse();
        }
        Ok(found)
    }

    fn add(&mut self, id: ItemId, parent: u32) {
        self.order.push(id);
        self.position[id.number()] = self.order.len() as u32;
        self.links.push(u32::from(!matches!(self.tree.item(id).kind, ItemKind::Directory(_))));
        self.parent.push(parent);
    }

    /// Inodes that the items need beside the root and `lost+found`.
    pub(super) fn inodes(&self) -> u32 {
        self.order.len() as u32 - 1 - u32::from(self.has_lost_found())
    }

    /// Inodes of a volume with the items: the reserved ones, those of the volume's own files, and some for later.
    pub(super) fn inodes_with_own(&self) -> u32 {
        let items = self.inodes();
        items.saturating_add(items / 10).saturating_add(RESERVED_INODES)
    }

    /// No more inodes than these are needed, those for values of attributes included.
    pub(super) fn inodes_most(&self) -> u32 {
        let values: usize = self.order.iter().map(|&id| self.tree.item(id).xattrs.len()).sum();
        self.inodes_with_own().saturating_add(u32::try_from(values).unwrap_or(u32::MAX))
    }

    /// Bytes of all contents, without holes.
    pub(super) fn bytes(&self) -> u64 {
        let of = |contents: &Contents| contents.data.iter().map(|range| range.end - range.start).sum::<u64>();
        (0..self.order.len()).map(|position| of(self.contents(position as u32))).sum()
    }

    /// The contents of a regular file.
    pub(super) fn contents(&self, position: u32) -> &Contents {
        const NONE: &Contents = &Contents { size: 0, data: Vec::new(), key: 0 };
        match self.order.get(position as usize).map(|&id| &self.tree.item(id).kind) {
            Some(ItemKind::Regular(contents)) => contents,
            _ => NONE,
        }
    }

    /// The error for a file whose contents cannot be read.
    pub(super) fn failed(&self, position: u32, error: SourceError) -> Error {
        Error::Contents { path: self.path(position as usize), error }
    }

    fn has_lost_found(&self) -> bool {
        self.tree.find(Tree::ROOT, LOST_FOUND_NAME).is_some()
    }

    /// The path of an item, for messages.
    fn path(&self, position: usize) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = position;
        while at != 0 {
            let parent = self.parent[at] as usize;
            let name = self.tree.names(self.order[parent]).find(|(_, id)| *id == self.order[at]);
            names.push(name.map_or(&b"?"[..], |(name, _)| name));
            at = parent;
        }
        names.iter().rev().flat_map(|name| [&b"/"[..], name]).flatten().copied().collect()
    }

    fn refused(&self, position: usize, error: VolumeError) -> Error {
        refused(&self.path(position), error)
    }
}

fn refused(path: &[u8], error: VolumeError) -> Error {
    Error::Contents { path: path.to_vec(), error: Arc::new(error) }
}

/// Puts all files into the volume. Returns where their contents go.
///
/// # Errors
/// [`Error::TooSmall`] if they do not fit; [`Error::TooLarge`], [`Error::Contents`] for what the format cannot hold.
pub(super) fn populate(layout: &mut Layout, population: &Population<'_>) -> Result<Pieces> {
    let first = layout.next_inode().get();
    let have = layout.superblock.geometry.inodes_count();
    let last = u64::from(first) + u64::from(population.inodes());
    if last > u64::from(have) + 1 {
        return Err(Error::TooSmall {
            have: format!("{have} inodes"),
            reason: format!("{} files are to be stored", population.order.len()),
        });
    }
    let inos = numbers(population, first);
    let room = Room::of(layout);
    let attributes = Attributes::new(Ino(last as u32));
    let making = Making { layout, population, inos, room, attributes, pieces: Pieces::default() };
    making.run()
}

/// The inodes of the items, by position.
fn numbers(population: &Population<'_>, first: u32) -> Vec<Ino> {
    let mut next = first;
    let lost = usize::from(population.has_lost_found());
    (0..population.order.len())
        .map(|position| match position {
            0 => Ino::ROOT,
            1 if lost == 1 => LOST_FOUND,
            _ => {
                next += 1;
                Ino(next - 1)
            }
        })
        .collect()
}

struct Making<'l, 't> {
    layout: &'l mut Layout,
    population: &'l Population<'t>,
    inos: Vec<Ino>,
    room: Room,
    attributes: Attributes,
    pieces: Pieces,
}

/// What a file's inode points to.
struct Body {
    size: u64,
    /// Blocks of the contents and, each in a cluster of its own, of the map.
    blocks: (u64, u64),
    i_block: [u8; I_BLOCK_SIZE],
    flags: InodeFlags,
}

impl Body {
    fn empty(i_block: [u8; I_BLOCK_SIZE]) -> Body {
        Body { size: 0, blocks: (0, 0), i_block, flags: InodeFlags::empty() }
    }
}

impl Making<'_, '_> {
    fn run(mut self) -> Result<Pieces> {
        let kept = self.keep_attributes()?;
        let order: Vec<ItemId> = self.population.order.clone();
        let mut bodies = Vec::with_capacity(order.len());
        // What a walk reads lies together; then the contents.
        for (position, &id) in order.iter().enumerate() {
            bodies.push(match &self.population.tree.item(id).kind {
                ItemKind::Directory(_) => Some(self.directory(position)?),
                ItemKind::Symlink(target) => Some(self.symlink(position, target)?),
                ItemKind::Char(major, minor) | ItemKind::Block(major, minor) => {
                    let number = DeviceNumber { major: *major, minor: *minor };
                    let error = |error| self.population.refused(position, VolumeError::from(error));
                    Some(Body::empty(number.encode().map_err(error)?))
                }
                ItemKind::Fifo | ItemKind::Socket => Some(Body::empty([0; I_BLOCK_SIZE])),
                ItemKind::Regular(_) => None,
            });
        }
        if !self.population.has_lost_found() {
            self.lost_found()?;
        }
        let blocks = self.attribute_blocks()?;
        self.values()?;
        for (position, (&id, body)) in order.iter().zip(bodies).enumerate() {
            let item = self.population.tree.item(id);
            let body = match (&item.kind, body) {
                (ItemKind::Regular(contents), _) => self.contents(position, contents)?,
                (_, body) => body.unwrap_or_else(|| Body::empty([0; I_BLOCK_SIZE])),
            };
            let Some(kept) = kept.get(position) else { break };
            let block = kept.block.and_then(|block| blocks.get(block)).copied();
            self.inode(position, item, body, kept, block)?;
        }
        self.room.settle(self.layout);
        Ok(self.pieces)
    }

    fn large(&self) -> bool {
        self.layout.superblock.geometry.inode_size() > 128
    }

    /// The attributes of all items.
    fn keep_attributes(&mut self) -> Result<Vec<Kept>> {
        let extra = if self.large() { usize::from(EXTRA_ISIZE) } else { 0 };
        let room = usize::from(self.layout.superblock.geometry.inode_size()) - 128 - extra;
        let mut kept = Vec::with_capacity(self.population.order.len());
        for (position, &id) in self.population.order.iter().enumerate() {
            let item = self.population.tree.item(id);
            let added = self.attributes.add(item, &self.layout.superblock, room);
            kept.push(added.map_err(|error| self.population.refused(position, error))?);
        }
        Ok(kept)
    }

    fn kind(&self, id: ItemId) -> FileType {
        match self.population.tree.item(id).kind {
            ItemKind::Directory(_) => FileType::Directory,
            ItemKind::Regular(_) => FileType::Regular,
            ItemKind::Symlink(_) => FileType::Symlink,
            ItemKind::Fifo => FileType::Fifo,
            ItemKind::Socket => FileType::Socket,
            ItemKind::Char(..) => FileType::CharDevice,
            ItemKind::Block(..) => FileType::BlockDevice,
        }
    }

    /// Blocks with these contents and a map of them.
    fn store(&mut self, ino: Ino, blocks: Vec<Vec<u8>>) -> Result<Body> {
        let count = blocks.len() as u64;
        let size = count * self.layout.block_size() as u64;
        let runs = self.room.take(count)?;
        let map = self.map(ino, std::slice::from_ref(&(0..count)), &runs)?;
        let places = runs.iter().flat_map(|&(start, length)| start..start + length);
        self.layout.blocks.extend(places.zip(blocks));
        Ok(self.body(size, count, map))
    }

    fn body(&mut self, size: u64, count: u64, map: Map) -> Body {
        let blocks = (count, map.nodes.len() as u64);
        self.layout.blocks.extend(map.nodes);
        let extents = self.layout.superblock.features.incompat.contains(Incompat::EXTENTS);
        let flags = if extents { InodeFlags::EXTENTS } else { InodeFlags::empty() };
        Body { size, blocks, i_block: map.i_block, flags }
    }

    fn map(&mut self, ino: Ino, logical: &[Range<u64>], runs: &[(u64, u64)]) -> Result<Map> {
        let block = self.layout.block_size() as u32;
        let seed = self.layout.seed(ino);
        let room = &mut self.room;
        let take = &mut || room.take_one();
        match self.layout.superblock.features.incompat.contains(Incompat::EXTENTS) {
            true => maps::extents(logical, runs, (block, seed), take),
            false => maps::pointers(logical, runs, block, take),
        }
    }

    fn directory(&mut self, position: usize) -> Result<Body> {
        let (population, id) = (self.population, self.population.order[position]);
        let ino = self.inos[position];
        let mut names: Vec<Name<'_>> = population
            .tree
            .names(id)
            .map(|(name, child)| {
                let at = population.position[child.number()] as usize - 1;
                (name, self.inos[at], self.kind(child))
            })
            .collect();
        if position == 0 && !population.has_lost_found() {
            names.push((LOST_FOUND_NAME, LOST_FOUND, FileType::Directory));
            names.sort_unstable_by_key(|&(name, ..)| name);
        }
        let parent = self.inos[population.parent[position] as usize];
        let least = if ino == LOST_FOUND { self.lost_found_blocks() } else { 1 };
        let seed = self.layout.seed(ino);
        let directories = Directories::new(&self.layout.superblock);
        let done = directories.lay_out((ino, parent), &names, least, seed)?;
        let mut body = self.store(ino, done.blocks)?;
        body.flags.set(InodeFlags::INDEX, done.indexed);
        Ok(body)
    }

    fn lost_found_blocks(&self) -> usize {
        (LOST_FOUND_BYTES / self.layout.block_size() as u64).clamp(2, 12) as usize
    }

    /// An empty `lost+found`.
    fn lost_found(&mut self) -> Result<()> {
        let (least, seed) = (self.lost_found_blocks(), self.layout.seed(LOST_FOUND));
        let directories = Directories::new(&self.layout.superblock);
        let done = directories.lay_out((LOST_FOUND, Ino::ROOT), &[], least, seed)?;
        let body = self.store(LOST_FOUND, done.blocks)?;
        let inode = fresh(self.layout, FileType::Directory.mode_bits() | 0o700, 2);
        let inode = self.with_body(inode, &body);
        self.layout.add(LOST_FOUND, &inode)
    }

    fn symlink(&mut self, position: usize, target: &[u8]) -> Result<Body> {
        let size = target.len() as u64;
        let mut i_block = [0; I_BLOCK_SIZE];
        if let Some(place) = i_block.get_mut(..target.len()).filter(|_| target.len() < I_BLOCK_SIZE) {
            place.copy_from_slice(target);
            return Ok(Body { size, ..Body::empty(i_block) });
        }
        let block = self.layout.block_size();
        if target.len() >= block {
            let error = VolumeError::TooLarge { size, most: block as u64 - 1 };
            return Err(self.population.refused(position, error));
        }
        let mut bytes = target.to_vec();
        bytes.resize(block, 0);
        let body = self.store(self.inos[position], vec![bytes])?;
        Ok(Body { size, ..body })
    }

    /// Writes the attribute blocks; where each is.
    fn attribute_blocks(&mut self) -> Result<Vec<u64>> {
        let mut places = Vec::new();
        for shared in &mut self.attributes.blocks {
            let place = self.room.take_one()?;
            let bytes = shared.list.encode_block(shared.references, Pblk(place), &self.layout.superblock)?;
            self.layout.blocks.insert(place, bytes);
            places.push(place);
        }
        Ok(places)
    }

    /// The inodes that hold large values of attributes.
    fn values(&mut self) -> Result<()> {
        let held = std::mem::take(&mut self.attributes.values);
        let last = held.values().map(|value| value.ino.get()).max().unwrap_or(0);
        let have = self.layout.superblock.geometry.inodes_count();
        if last > have {
            let reason = "values of attributes need inodes of their own".into();
            return Err(Error::TooSmall { have: format!("{have} inodes"), reason });
        }
        if !held.is_empty() && self.layout.superblock.features.ro_compat.contains(RoCompat::QUOTA) {
            let text = "attributes of this size with the features ea_inode and quota: not supported";
            return Err(Error::Option(text.into()));
        }
        let block = self.layout.block_size();
        for (bytes, value) in held {
            let blocks = bytes.chunks(block).map(|part| {
                let mut part = part.to_vec();
                part.resize(block, 0);
                part
            });
            let body = self.store(value.ino, blocks.collect())?;
            let inode = fresh(self.layout, FileType::Regular.mode_bits() | 0o600, 1);
            let mut inode = self.with_body(inode, &Body { size: bytes.len() as u64, ..body });
            inode.flags |= InodeFlags::EA_INODE;
            values::set_references(&mut inode, u64::from(value.references));
            values::set_checksum(&mut inode, value.checksum);
            self.layout.add(value.ino, &inode)?;
        }
        Ok(())
    }

    fn contents(&mut self, position: usize, contents: &Contents) -> Result<Body> {
        if !contents.is_sound() {
            let what = "ranges of contents that are out of order or reach beyond the size".into();
            return Err(self.population.refused(position, VolumeError::Invalid(what)));
        }
        let block = self.layout.block_size() as u64;
        let seal = self.seal(position, contents.size)?;
        let logical = self.blocks_of(contents, seal.as_ref());
        let count = logical.iter().map(|range| range.end - range.start).sum();
        let runs = self.room.take(count)?;
        let ino = self.inos[position];
        let map = self.map(ino, &logical, &runs).map_err(|error| match error {
            Error::TooLarge(_) => self.population.refused(position, VolumeError::Limit(Limit::Map)),
            error => error,
        })?;
        let pieces = maps::pieces(&logical, &runs, u64::MAX);
        let mut body = self.body(contents.size, count, map);
        match seal {
            Some(plan) => {
                body.flags |= InodeFlags::VERITY;
                self.add_sealed(position, plan, pieces);
            }
            None => pieces.into_iter().for_each(|(at, to, length)| {
                self.pieces.add(position as u32, at * block..(at + length) * block, to * block);
            }),
        }
        Ok(body)
    }

    /// Blocks of a file that are not holes, in whole clusters but for the last.
    fn blocks_of(&self, contents: &Contents, seal: Option<&SealPlan>) -> Vec<Range<u64>> {
        let block = self.layout.block_size() as u64;
        let grain = u64::from(self.layout.superblock.geometry.cluster_blocks());
        let end = seal.map_or(contents.size, |plan| plan.end).div_ceil(block);
        let mut logical: Vec<Range<u64>> = Vec::new();
        let tree = seal.map(|plan| plan.start..plan.end);
        for range in contents.data.iter().chain(&tree) {
            let first = range.start / block / grain * grain;
            let behind = range.end.div_ceil(block).next_multiple_of(grain).min(end);
            match logical.last_mut() {
                Some(last) if last.end >= first => last.end = last.end.max(behind),
                _ => logical.push(first..behind),
            }
        }
        logical
    }

    fn with_body(&self, mut inode: Inode, body: &Body) -> Inode {
        inode.size = body.size;
        inode.i_block = body.i_block;
        inode.flags |= body.flags;
        inode.blocks_raw = self.layout.sectors(body.blocks.0) + self.layout.sectors(1) * body.blocks.1;
        inode
    }

    fn links(&self, position: usize, kind: FileType) -> Result<u16> {
        let mut links = self.population.links[position];
        if kind == FileType::Directory {
            links += 2 + u32::from(position == 0 && !self.population.has_lost_found());
            if links > LINKS_MAX {
                let uncounted = self.layout.superblock.features.ro_compat.contains(RoCompat::DIR_NLINK);
                let error = || self.population.refused(position, VolumeError::Limit(Limit::Links));
                return if uncounted { Ok(1) } else { Err(error()) };
            }
        }
        Ok(links as u16)
    }

    fn inode(
        &mut self,
        position: usize,
        item: &Item,
        body: Body,
        kept: &Kept,
        block: Option<u64>,
    ) -> Result<()> {
        let ino = self.inos[position];
        let kind = self.kind(self.population.order[position]);
        let links = self.links(position, kind)?;
        let mut inode = fresh(self.layout, kind.mode_bits() | kept.mode, links);
        let modified = Timestamp {
            seconds: item.modified.seconds.clamp(Timestamp::MIN_SECONDS, self.latest()),
            ..item.modified
        };
        (inode.uid, inode.gid) = (item.uid, item.gid);
        (inode.modified, inode.accessed) = (modified, modified);
        let mut inode = self.with_body(inode, &body);
        if let Some(block) = block {
            inode.xattr_block = Pblk(block);
            inode.blocks_raw += self.layout.sectors(1);
        }
        let add = self.layout.add(ino, &inode);
        add.map_err(|error| match error {
            Error::Option(text) => self.population.refused(position, VolumeError::Invalid(text)),
            error => error,
        })?;
        if !kept.record.entries.is_empty()
            && let Some(record) = self.layout.inodes.get_mut(&ino.get())
            && let Some(place) = record.get_mut(inode.xattr_range(&self.layout.superblock))
        {
            kept.record.encode_in_inode(place)?;
            update_inode_checksum(record, ino, &self.layout.superblock)?;
        }
        Ok(())
    }

    /// The last second that an inode can hold.
    fn latest(&self) -> i64 {
        if self.large() { Timestamp::MAX_SECONDS } else { i64::from(i32::MAX) }
    }
}
