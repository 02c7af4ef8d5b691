//! Lists a directory in pieces, in an order in which names do not move (`cookie.rs`): a name that exists throughout is
//! listed once, whatever is added or removed between the pieces.
//!
//! A piece is one leaf of the hash tree, along with following leaves that have names of the same hash, or one block of
//! a directory without a tree. A damaged tree could hide names and have cycles, so all its nodes are checked when a
//! listing begins. If they do not lead once to each block, or the root holds other names than `.` and `..`, the blocks
//! are listed as in a directory without a tree.

use super::cookie::{DirCookie, Hasher, Place};
use super::htree;
use super::rows::Rows;
use super::{DirEntry, Directory, inline};
use crate::ground::error::{Error, Limit, Result};
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use std::collections::VecDeque;
use uext4_ondisk::ext4::{DirEntry as DiskEntry, DirHash};
use uext4_ondisk::{CorruptKind, Ino};

/// Most entries of a piece. Only crafted names of one hash exceed it: their leaves are read again.
const PIECE: usize = 1 << 12;

/// The order of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Not determined yet.
    Unseen,
    /// Along the tree, if there is one.
    Tree,
    /// Ignoring the tree.
    Blocks,
}

/// A listing in progress.
#[derive(Debug)]
pub(crate) struct Listing {
    order: Order,
    /// Where the next piece begins …
    from: Place,
    /// … and the last listed name at that position.
    listed: Option<Vec<u8>>,
    piece: VecDeque<DirEntry>,
    cookie: DirCookie,
    ended: bool,
}

impl Listing {
    pub(crate) fn new() -> Listing {
        let (piece, cookie) = (VecDeque::new(), DirCookie::START);
        Listing { order: Order::Unseen, from: Place::DOT, listed: None, piece, cookie, ended: false }
    }

    /// The position where it continues.
    pub(crate) fn cookie(&self) -> DirCookie {
        self.cookie
    }

    /// Continues at another position. Does nothing if that is the current one.
    pub(crate) fn seek(&mut self, cookie: DirCookie) {
        self.ended = false;
        if cookie == self.cookie {
            return;
        }
        self.piece.clear();
        (self.from, self.listed, self.cookie) = (cookie.place(), None, cookie);
        if cookie == DirCookie::START {
            self.order = Order::Unseen;
        }
    }

    /// The next entry. `None` if a piece has to be read first, or no entry is left.
    pub(crate) fn take(&mut self) -> Option<DirEntry> {
        let entry = self.piece.pop_front()?;
        self.cookie = entry.cookie;
        Some(entry)
    }

    /// Ends the listing, until a seek.
    pub(crate) fn end(&mut self) {
        self.piece.clear();
        self.ended = true;
    }

    /// Reads a piece with entries if the previous one is used up. The caller holds the directory's names.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::CorruptInode`], those of the device; [`Error::Limit`] past 16 GiB of a directory
    /// without a tree, where cookies end.
    pub(crate) fn fill(&mut self, state: &Ext4State, inode: &Inode) -> Result<()> {
        if !self.piece.is_empty() || self.ended {
            return Ok(());
        }
        if inline::is_inline(inode) {
            self.fill_inline(state, inode)?;
        } else {
            let directory = Directory::open(state, inode)?;
            // Each leaf has a higher hash than the previous one, so a sound tree takes at most as many steps as blocks.
            let mut steps = 0..=directory.blocks();
            while self.piece.is_empty() && !self.ended {
                if steps.next().is_none() {
                    return Err(htree::circle(&directory));
                }
                self.step(&directory)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, directory: &Directory<'_>) -> Result<()> {
        if self.order == Order::Unseen && directory.shape.indexed {
            // Who goes on in the middle was here when the listing began.
            let begins = self.from <= Place::NAMES;
            // A root with other names than `.` and `..` has them outside the tree.
            let sound = || {
                htree::leads_to_all(directory) && directory.block(0, |root| htree::dots(root, true)).is_ok()
            };
            self.order = if begins && !sound() { Order::Blocks } else { Order::Tree };
        }
        if let Some(byte) = self.from.byte() {
            return self.block(directory, byte);
        }
        if !directory.shape.indexed || self.order == Order::Blocks {
            return self.first_block(directory);
        }
        if self.from < Place::NAMES {
            return self.dots(directory);
        }
        if self.from >= Place::HASHES_END {
            self.ended = true;
            return Ok(());
        }
        self.leaf(directory)
    }

    /// `.` and `..`, from the root of a tree.
    fn dots(&mut self, directory: &Directory<'_>) -> Result<()> {
        let mut piece = Piece::of(self);
        directory.scan(0, |entry| {
            match entry.name {
                b"." => piece.push(Place::DOT, entry.name, entry.inode, entry.file_type),
                b".." => piece.push(Place::DOT_DOT, entry.name, entry.inode, entry.file_type),
                _ => {}
            }
            None::<()>
        })?;
        self.put(piece, Place::NAMES);
        Ok(())
    }

    /// The next leaf of a tree.
    fn leaf(&mut self, directory: &Directory<'_>) -> Result<()> {
        let mut path = htree::descend_to(directory, self.from.major())?;
        let mut hasher = Hasher::new(directory.superblock(), &directory.shape, path.version);
        let mut piece = Piece::of(self);
        let mut end;
        let mut leaves = 0..directory.blocks();
        loop {
            if leaves.next().is_none() {
                return Err(htree::circle(directory));
            }
            let hashes = path.hashes;
            end = hashes.end();
            htree::with_leaf(directory, path.leaf, |block| {
                let failed = block.scan(|entry| {
                    let hash = match hasher.hash(entry.name) {
                        Ok(hash) => hash,
                        Err(error) => return Some(error),
                    };
                    // A misplaced name is ordered with the lowest hash of its leaf, and stays there when the leaf
                    // splits.
                    let major = if hashes.contain(hash.major) { hash.major } else { hashes.first() };
                    let place = Place::of_hash(DirHash { major, ..hash });
                    piece.push(place, entry.name, entry.inode, entry.file_type);
                    None
                })?;
                failed.map_or(Ok(()), Err)
            })?;
            if !path.follow(directory)? {
                break;
            }
        }
        let next = end.map_or(Place::HASHES_END, |major| Place::of_hash(DirHash { major, minor: 0 }));
        if next <= self.from {
            return directory.block(0, |root| Err(root.corrupt(CorruptKind::HtreeOrder)));
        }
        self.put(piece, next);
        Ok(())
    }

    /// The first block of a directory without a tree: by hash, since the directory may get a tree meanwhile.
    fn first_block(&mut self, directory: &Directory<'_>) -> Result<()> {
        if self.from >= Place::HASHES_END {
            let second = u64::from(directory.shape.format.block_size);
            return self.block(directory, second);
        }
        let mut hasher = Hasher::of_new_tree(directory.superblock(), &directory.shape);
        let mut piece = Piece::of(self);
        let failed = directory.scan(0, |entry| push_hashed(&mut piece, &mut hasher, entry).err())?;
        failed.map_or(Ok(()), Err)?;
        self.put(piece, Place::HASHES_END);
        Ok(())
    }

    /// A further block of a directory without a tree, starting at a byte of the directory.
    fn block(&mut self, directory: &Directory<'_>, byte: u64) -> Result<()> {
        let size = u64::from(directory.shape.format.block_size);
        let number = byte / size;
        let Some(number) = u32::try_from(number).ok().filter(|number| *number < directory.blocks()) else {
            self.ended = true;
            return Ok(());
        };
        let start = u64::from(number) * size;
        let full = || Error::Limit(Limit::Directory);
        let mut piece = Piece::of(self);
        let far = directory.scan(number, |entry| {
            let Some(place) = Place::of_byte(start + u64::from(entry.offset)) else { return Some(()) };
            piece.push(place, entry.name, entry.inode, entry.file_type);
            None
        })?;
        if far.is_some() {
            return Err(full());
        }
        match Place::of_byte(start + size) {
            Some(next) => self.put(piece, next),
            // Positions past this have no cookie.
            None if number + 1 == directory.blocks() => self.put(piece, Place::END),
            None => return Err(full()),
        }
        Ok(())
    }

    fn fill_inline(&mut self, state: &Ext4State, inode: &Inode) -> Result<()> {
        let shape = super::rows::Shape::of(&state.superblock, inode.ino(), &inode.disk())?;
        let mut hasher = Hasher::of_new_tree(&state.superblock, &shape);
        let mut piece = Piece::of(self);
        let mut failed = None;
        inline::list(state, inode, |name, ino, kind| match place_of(&mut hasher, name) {
            Ok(place) => piece.push(place, name, ino, kind),
            Err(error) => failed = failed.take().or(Some(error)),
        })?;
        failed.map_or(Ok(()), Err)?;
        self.put(piece, Place::HASHES_END);
        self.ended = self.piece.is_empty();
        Ok(())
    }

    /// Takes over a piece. The next one begins at `next`, or where this one was cut.
    fn put(&mut self, mut piece: Piece, next: Place) {
        if piece.cut {
            piece.cut();
        }
        piece.found.sort_unstable_by(Found::by_place);
        (self.from, self.listed) = (next, None);
        if piece.cut {
            // Only needed to see whether the previous one shares its position.
            let Some(rest) = piece.found.pop() else { return };
            let last = piece.found.last().filter(|last| last.place == rest.place);
            self.listed = last.map(|last| last.name.clone());
            self.from = rest.place;
        }
        let mut found = piece.found.into_iter().peekable();
        while let Some(Found { place, name, ino, kind }) = found.next() {
            let next = found.peek().map_or(self.from, |next| next.place);
            // Among names that share a position, the last one's cookie continues after them: repeating some is better
            // than skipping some.
            let cookie = if next == place { place.here() } else { place.behind() };
            self.piece.push_back(DirEntry { name, ino, kind, cookie });
        }
    }
}

fn place_of(hasher: &mut Hasher<'_>, name: &[u8]) -> Result<Place> {
    Ok(match name {
        b"." => Place::DOT,
        b".." => Place::DOT_DOT,
        _ => Place::of_hash(hasher.hash(name)?),
    })
}

fn push_hashed(piece: &mut Piece, hasher: &mut Hasher<'_>, entry: &DiskEntry<'_>) -> Result<()> {
    piece.push(place_of(hasher, entry.name)?, entry.name, entry.inode, entry.file_type);
    Ok(())
}

struct Found {
    place: Place,
    name: Vec<u8>,
    ino: Ino,
    kind: Option<FileKind>,
}

impl Found {
    fn by_place(&self, other: &Found) -> std::cmp::Ordering {
        (self.place, &self.name).cmp(&(other.place, &other.name))
    }
}

/// The entries of one piece found so far.
struct Piece {
    from: Place,
    listed: Option<Vec<u8>>,
    found: Vec<Found>,
    /// Whether all but the first of those with the highest positions were left out.
    cut: bool,
}

impl Piece {
    fn of(listing: &Listing) -> Piece {
        Piece { from: listing.from, listed: listing.listed.clone(), found: Vec::new(), cut: false }
    }

    fn push(&mut self, place: Place, name: &[u8], ino: Ino, kind: Option<FileKind>) {
        let listed = place == self.from && self.listed.as_deref().is_some_and(|listed| name <= listed);
        if place < self.from || listed {
            return;
        }
        self.found.push(Found { place, name: name.to_vec(), ino, kind });
        if self.found.len() > 2 * PIECE {
            self.cut();
        }
    }

    /// Keeps the first ones, and one more.
    fn cut(&mut self) {
        self.found.select_nth_unstable_by(PIECE, Found::by_place);
        self.found.truncate(PIECE + 1);
        self.cut = true;
    }
}
