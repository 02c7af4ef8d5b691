//! Paths through the hash tree of an indexed directory.

use super::rows::{Block, Rows};
use crate::ground::error::{Error, Result};
use uext4_ondisk::ext4::{DirBlockKind, HashVersion, HtreeIndex, HtreeRoot, dir_hash};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk};

/// The range of hashes under a node or in a leaf, according to the tree: at least `low`, and below `high`. Bit 0 of
/// `low` says that names of this hash begin in the previous block.
#[derive(Clone, Copy)]
pub(super) struct Hashes {
    low: u32,
    high: u32,
}

impl Hashes {
    const ALL: Hashes = Hashes { low: 0, high: u32::MAX };

    /// Whether a name with this hash may be there.
    pub(super) fn contain(self, hash: u32) -> bool {
        (self.low & !1..self.high).contains(&hash)
    }

    /// The lowest of them.
    pub(super) fn first(self) -> u32 {
        self.low & !1
    }

    /// The first hash after them; `None` if they are the last.
    pub(super) fn end(self) -> Option<u32> {
        (self.high != Self::ALL.high).then_some(self.high & !1)
    }

    fn of_child(self, index: &HtreeIndex<'_>, position: usize) -> Hashes {
        let border = |position| index.entry(position).map(|entry| entry.hash);
        let low = if position == 0 { self.low } else { border(position).unwrap_or(self.low) };
        Hashes { low, high: border(position + 1).unwrap_or(self.high) }
    }
}

/// A node on the path: its block in the directory, and the child taken.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) block: u32,
    pub(super) position: usize,
    hashes: Hashes,
}

/// The path to a leaf.
pub(super) struct Path {
    pub(super) version: HashVersion,
    pub(super) hash: u32,
    /// From the root on.
    pub(super) frames: Vec<Frame>,
    pub(super) leaf: u32,
    /// The hashes that the leaf's names may have.
    pub(super) hashes: Hashes,
}

/// Finds the path to the first block that may hold a name.
pub(super) fn descend<R: Rows>(rows: &R, hashed: &[u8]) -> Result<Path> {
    down_to(rows, |version| hash_of(rows, hashed, version))
}

/// Finds the path to the first block that may hold names of a hash.
pub(super) fn descend_to<R: Rows>(rows: &R, hash: u32) -> Result<Path> {
    down_to(rows, |_| Ok(hash))
}

/// The hash version, and the number of node levels between the root and the leaves.
fn kind<R: Rows>(rows: &R) -> Result<(HashVersion, usize)> {
    rows.block(0, |block| {
        let root = root_of(rows, block)?;
        Ok((root.hash_version, usize::from(root.indirect_levels)))
    })
}

fn down_to<R: Rows>(rows: &R, hash: impl FnOnce(HashVersion) -> Result<u32>) -> Result<Path> {
    let (mut path, levels) = rows.block(0, |block| {
        let root = root_of(rows, block)?;
        let (version, levels) = (root.hash_version, usize::from(root.indirect_levels));
        let hash = hash(version)?;
        let frames = Vec::with_capacity(levels + 1);
        let mut path = Path { version, hash, frames, leaf: 0, hashes: Hashes::ALL };
        let step = path.choose(rows, block, &root.index, |index| index.find(hash))?;
        path.take(rows, step)?;
        Ok((path, levels))
    })?;
    for _ in 0..levels {
        let hash = path.hash;
        path.down(rows, |index| index.find(hash))?;
    }
    Ok(path)
}

/// The hash that decides a name's place.
pub(super) fn hash_of<R: Rows>(rows: &R, hashed: &[u8], version: HashVersion) -> Result<u32> {
    let hash = dir_hash(hashed, version, &rows.superblock().hash.seed).map_err(|_| {
        // The keyed hash is for encrypted directories, and this one is not encrypted.
        Corrupt::from(CorruptKind::HtreeRoot("hash_version")).in_inode(rows.shape().ino)
    })?;
    Ok(hash.major)
}

/// Calls `each` for the leaves with names of the path's hash until it returns `Some`.
pub(super) fn chain<T, R: Rows>(
    rows: &R,
    path: &mut Path,
    mut each: impl FnMut(&Block<'_>) -> Result<Option<T>>,
) -> Result<Option<T>> {
    // Names of one hash may continue in the next blocks; a sound tree has no more of these than the directory has
    // blocks.
    for _ in 0..rows.shape().blocks {
        if let Some(found) = rows.block(path.leaf, |block| each(leaf_of(rows, block)?))? {
            return Ok(Some(found));
        }
        if !path.next(rows)? {
            return Ok(None);
        }
    }
    Err(circle(rows))
}

/// The error for a tree that has more leaves than the directory has blocks.
pub(super) fn circle<R: Rows>(rows: &R) -> Error {
    let what = "the hash tree of the directory runs in circles".into();
    Error::CorruptInode { ino: rows.shape().ino, what }
}

/// Calls `look` with a leaf of the tree.
pub(super) fn with_leaf<T, R: Rows>(
    rows: &R,
    number: u32,
    look: impl FnOnce(&Block<'_>) -> Result<T>,
) -> Result<T> {
    rows.block(number, |block| look(leaf_of(rows, block)?))
}

impl Path {
    /// Goes from the node in `leaf` to one of its children.
    fn down<R: Rows>(&mut self, rows: &R, position: impl FnOnce(&HtreeIndex<'_>) -> usize) -> Result<()> {
        let step = with_index(rows, self.leaf, |block, index| self.choose(rows, block, index, position))?;
        self.take(rows, step)
    }

    /// A child of the node in `leaf`: its position, its block, and the hashes there.
    fn choose<R: Rows>(
        &self,
        _: &R,
        block: &Block<'_>,
        index: &HtreeIndex<'_>,
        position: impl FnOnce(&HtreeIndex<'_>) -> usize,
    ) -> Result<(usize, u32, Hashes)> {
        if R::EDITS {
            check(block, index, self.hashes)?;
        }
        let position = position(index);
        let child = index.entry(position).map_or(Lblk(0), |entry| entry.child);
        Ok((position, child.get(), self.hashes.of_child(index, position)))
    }

    fn take<R: Rows>(&mut self, rows: &R, (position, child, of_child): (usize, u32, Hashes)) -> Result<()> {
        self.frames.push(Frame { block: self.leaf, position, hashes: self.hashes });
        // A node on this path, read as a leaf, would look empty: names would be missing without an error.
        if child == 0 || self.frames.iter().any(|frame| frame.block == child) {
            let what = format!("the hash tree of the directory leads back to block {child}");
            return Err(Error::CorruptInode { ino: rows.shape().ino, what });
        }
        (self.leaf, self.hashes) = (child, of_child);
        Ok(())
    }

    /// Goes to the next leaf if names of one hash lie in this one and the next. Returns whether it did.
    pub(super) fn follow<R: Rows>(&mut self, rows: &R) -> Result<bool> {
        match self.hashes.end() {
            Some(hash) if self.hashes.high & 1 != 0 => {
                self.hash = hash;
                self.next(rows)
            }
            _ => Ok(false),
        }
    }

    /// Goes to the next leaf that may hold names of the same hash. Returns whether there is one.
    fn next<R: Rows>(&mut self, rows: &R) -> Result<bool> {
        let levels = self.frames.len();
        let position = loop {
            let Some(Frame { block, position, hashes }) = self.frames.pop() else { return Ok(false) };
            (self.leaf, self.hashes) = (block, hashes);
            let goes_on = with_index(rows, block, |_, index| {
                // After the last child of a node the answer is one level up.
                Ok((position + 1 < index.len()).then(|| index.continues(position, self.hash)))
            })?;
            match goes_on {
                None => {}
                Some(false) => return Ok(false),
                Some(true) => break position + 1,
            }
        };
        self.down(rows, |_| position)?;
        while self.frames.len() < levels {
            self.down(rows, |_| 0)?;
        }
        Ok(true)
    }
}

/// Calls `look` with the index of a root or node.
pub(super) fn with_index<T, R: Rows>(
    rows: &R,
    number: u32,
    look: impl FnOnce(&Block<'_>, &HtreeIndex<'_>) -> Result<T>,
) -> Result<T> {
    rows.block(number, |block| {
        let index = match number {
            0 => root_of(rows, block)?.index,
            _ => HtreeIndex::decode_node(block.bytes, &block.shape.format)
                .map_err(|corrupt| block.corrupt(corrupt))?,
        };
        look(block, &index)
    })
}

fn root_of<'b, R: Rows>(rows: &R, block: &Block<'b>) -> Result<HtreeRoot<'b>> {
    let format = &block.shape.format;
    let root = HtreeRoot::decode(block.bytes, rows.superblock().hash_unsigned(), format)
        .map_err(|corrupt| block.corrupt(corrupt))?;
    if R::EDITS {
        // Without checksums only its dots identify a root.
        dots(block, true)?;
    }
    Ok(root)
}

/// Checks that a block can be a leaf.
fn leaf_of<'a, 'b, R: Rows>(_: &R, block: &'a Block<'b>) -> Result<&'a Block<'b>> {
    // Without checksums an empty leaf looks like a node of the tree; with them it has a tail.
    let format = &block.shape.format;
    let is_node = block.kind != DirBlockKind::Linear
        && (format.checksums || R::EDITS && HtreeIndex::decode_node(block.bytes, format).is_ok());
    if is_node { Err(block.corrupt(CorruptKind::HtreeDepth)) } else { Ok(block) }
}

/// Checks all entries of a node, because an edit moves them.
fn check(block: &Block<'_>, index: &HtreeIndex<'_>, hashes: Hashes) -> Result<()> {
    let mut before = hashes.low;
    for (position, entry) in index.entries().enumerate() {
        if !(1..block.shape.blocks).contains(&entry.child.get()) {
            return Err(block.corrupt(CorruptKind::HtreeChild));
        }
        if position > 0 {
            if !(before..=hashes.high).contains(&entry.hash) {
                return Err(block.corrupt(CorruptKind::HtreeOrder));
            }
            before = entry.hash;
        }
    }
    Ok(())
}

/// Checks that a directory's first block begins with `.` and `..`, and returns the parent. `alone`: they must be the
/// only entries, as in a hash tree's root.
pub(super) fn dots(block: &Block<'_>, alone: bool) -> Result<Ino> {
    let wrong = || block.corrupt(CorruptKind::DirectoryDots);
    let mut slots = block.row()?.slots();
    let mut next = || slots.next().transpose().map_err(|corrupt| block.corrupt(corrupt));
    let (first, second) = (next()?, next()?);
    let dot = first.filter(|slot| !alone || slot.record_length == 12).and_then(|slot| slot.entry);
    let dot_dot = second.filter(|_| !alone || slots.next().is_none()).and_then(|slot| slot.entry);
    match (dot, dot_dot) {
        (Some(dot), Some(dot_dot))
            if dot.is_dot() && dot_dot.is_dot_dot() && dot.inode == block.shape.ino =>
        {
            Ok(dot_dot.inode)
        }
        _ => Err(wrong()),
    }
}

/// Most consecutive leaves with names of one hash: a listing keeps all of them in memory while it reads the first one's
/// names.
const SHARING_MAX: u32 = 1024;

/// Whether the tree leads to each block of the directory once, in the order of hashes, so that it can be used to list
/// all names. Reads the nodes, not the leaves.
pub(super) fn leads_to_all<R: Rows>(rows: &R) -> bool {
    let mut survey = Survey { seen: vec![0; rows.shape().blocks as usize / 64 + 1], count: 0, sharing: 0 };
    let known = matches!(kind(rows), Ok((version, levels))
        if version != HashVersion::SipHash && survey.node(rows, 0, levels, Hashes::ALL));
    known && survey.count == rows.shape().blocks
}

/// The blocks of a tree found so far.
struct Survey {
    /// A bit for each block of the directory.
    seen: Vec<u64>,
    count: u32,
    /// How many previous leaves continue the hash of another one.
    sharing: u32,
}

impl Survey {
    /// Checks a node with this many levels of nodes below it. Returns false if the tree cannot be used.
    fn node<R: Rows>(&mut self, rows: &R, number: u32, levels: usize, hashes: Hashes) -> bool {
        let children = with_index(rows, number, |_, index| {
            let child =
                |position| Some((index.entry(position)?.child.get(), hashes.of_child(index, position)));
            Ok((0..index.len()).filter_map(child).collect::<Vec<_>>())
        });
        self.is_new(rows, number)
            && children.is_ok_and(|children| {
                children.into_iter().all(|(child, hashes)| match levels {
                    0 => self.leaf(rows, child, hashes),
                    _ => self.node(rows, child, levels - 1, hashes),
                })
            })
    }

    fn leaf<R: Rows>(&mut self, rows: &R, number: u32, hashes: Hashes) -> bool {
        self.sharing = if hashes.low & 1 == 0 { 0 } else { self.sharing + 1 };
        hashes.first() < hashes.high && self.sharing < SHARING_MAX && self.is_new(rows, number)
    }

    fn is_new<R: Rows>(&mut self, rows: &R, number: u32) -> bool {
        let bit = 1_u64 << (number % 64);
        let word = self.seen.get_mut(number as usize / 64).filter(|word| **word & bit == 0);
        let new = number < rows.shape().blocks && word.is_some();
        if let Some(word) = word {
            *word |= bit;
        }
        self.count += u32::from(new);
        new
    }
}
