//! Maps of block pointers (ext2, ext3) under change: read into the form of an extent tree, and written from it.
//!
//! A pointer block keeps its place in the map and its block, and only those that get other contents are written.

use super::bitmaps::Groups;
use super::extents::BlockRun;
use crate::ground::canvas::Canvas;
use crate::ground::error::{Error, Result};
use std::collections::BTreeMap;
use uext4_ondisk::ext4::{
    DIRECT_POINTERS, Extent, I_BLOCK_SIZE, IndirectLayout, MAX_EXTENT_LENGTH, MAX_INDIRECT_DEPTH,
    PointerBlock,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// Blocks from here on cannot be named by pointers.
pub(super) const REACH: u64 = 1 << u32::BITS;
/// Bytes of a block number.
const POINTER_SIZE: usize = 4;

/// Where a pointer block is in a map: its level (1: it names data) and the first logical block under it.
type Place = (u32, u64);

/// The pointer blocks of a file.
pub(super) struct Pointers {
    layout: IndirectLayout,
    blocks: BTreeMap<Place, u64>,
}

impl Pointers {
    /// Those of a file without any.
    pub(super) fn empty(canvas: &Canvas<'_>) -> Pointers {
        let layout = IndirectLayout::new(canvas.block_size() as u32);
        Pointers { layout, blocks: BTreeMap::new() }
    }

    /// The blocks that hold pointers.
    pub(super) fn runs(&self) -> impl Iterator<Item = BlockRun> {
        self.blocks.values().map(|block| (*block, 1))
    }

    /// Whether an extent can be stored as pointers: all of it in their reach, and written.
    pub(super) fn can_hold(&self, extent: &Extent) -> bool {
        let logical = u64::from(extent.logical.get()) + u64::from(extent.length);
        let physical = extent.physical.get() + u64::from(extent.length);
        !extent.unwritten && logical <= self.layout.blocks() && physical <= REACH
    }

    /// Reads a whole map.
    pub(super) fn load(
        canvas: &mut Canvas<'_>,
        ino: Ino,
        i_block: &[u8; I_BLOCK_SIZE],
    ) -> Result<(Pointers, Vec<Extent>)> {
        let pointers = Pointers::empty(canvas);
        let mut loader = Loader { canvas, ino, pointers, extents: Vec::new() };
        loader.leaf(&PointerBlock::direct(i_block), 0)?;
        let root = PointerBlock::root(i_block);
        for (level, first) in loader.pointers.roots() {
            if let Some(block) = root.get(DIRECT_POINTERS + level - 1) {
                loader.block(block, (level, first))?;
            }
        }
        Ok((loader.pointers, loader.extents))
    }

    /// Level and first logical block of the pointer blocks that the inode names itself.
    fn roots(&self) -> [Place; MAX_INDIRECT_DEPTH as usize] {
        let mut first = u64::from(DIRECT_POINTERS);
        [1, 2, 3].map(|level| {
            let place = (level, first);
            first += self.span(level);
            place
        })
    }

    /// Logical blocks under a pointer block of this level. At most 14 × 3 bits.
    fn span(&self, level: u32) -> u64 {
        u64::from(self.layout.pointers_per_block()).pow(level)
    }

    /// Writes the map of `extents`, which are in order and can be held, and returns the inode's own part of it.
    pub(super) fn store(
        &mut self,
        canvas: &mut Canvas<'_>,
        groups: &mut Groups,
        ino: Ino,
        extents: &[Extent],
    ) -> Result<[u8; I_BLOCK_SIZE]> {
        let homes = std::mem::take(&mut self.blocks);
        let roots = self.roots();
        let mut root = [0; I_BLOCK_SIZE];
        put_run(&mut root, 0, u64::from(DIRECT_POINTERS), extents);
        let mut writer = Writer { canvas, groups, ino, homes, pointers: self };
        for (level, first) in roots {
            if let Some(block) = writer.block((level, first), extents)? {
                put(&mut root, DIRECT_POINTERS + level - 1, block);
            }
        }
        Ok(root)
    }
}

/// Reads pointer blocks.
struct Loader<'c, 'v> {
    canvas: &'c mut Canvas<'v>,
    ino: Ino,
    pointers: Pointers,
    extents: Vec<Extent>,
}

impl Loader<'_, '_> {
    /// A pointer block and what is under it. Each level is one less, and each block is met once, so this ends.
    fn block(&mut self, block: Pblk, place: Place) -> Result<()> {
        if !self.canvas.ground.zones.allows(block.get(), 1) {
            let corrupt = Corrupt::from(CorruptKind::SystemZone).in_inode(self.ino);
            return Err(corrupt.at_block(block).into());
        }
        self.canvas.claim(block.get(), self.ino)?;
        let bytes = self.canvas.read(block.get())?;
        let (layout, (level, first)) = (self.pointers.layout, place);
        let pointers = PointerBlock::new(&bytes, layout)
            .map_err(|corrupt| Error::from(corrupt.in_inode(self.ino).at_block(block)))?;
        self.pointers.blocks.insert(place, block.get());
        if level == 1 {
            return self.leaf(&pointers, first);
        }
        let span = self.pointers.span(level - 1);
        for position in 0..pointers.count() {
            if let Some(child) = pointers.get(position) {
                self.block(child, (level - 1, first + u64::from(position) * span))?;
            }
        }
        Ok(())
    }

    /// The data blocks that pointers name, the first of which stands for logical block `first`.
    fn leaf(&mut self, pointers: &PointerBlock<'_>, first: u64) -> Result<()> {
        let end = (first + u64::from(pointers.count())).min(self.pointers.layout.blocks());
        for run in pointers.runs((first, end)) {
            let length = u64::from(run.length);
            if !self.canvas.ground.zones.allows(run.physical.get(), length) {
                let corrupt = Corrupt::from(CorruptKind::SystemZone).in_inode(self.ino);
                return Err(corrupt.at_lblk(run.logical).at_block(run.physical).into());
            }
            self.canvas.load_extents(self.ino, 1, length)?;
            let Lblk(logical) = run.logical;
            let next = Extent {
                logical: Lblk(logical),
                length: run.length,
                physical: run.physical,
                unwritten: false,
            };
            match self.extents.last_mut() {
                // A pointer block has at most 16384 of them, so runs go on over its end.
                Some(last) if goes_on(last, &next) => last.length += next.length,
                _ => self.extents.push(next),
            }
        }
        Ok(())
    }
}

fn goes_on(last: &Extent, next: &Extent) -> bool {
    last.logical_end() == next.logical
        && last.physical.get() + u64::from(last.length) == next.physical.get()
        && last.length + next.length <= MAX_EXTENT_LENGTH
}

/// Writes pointer blocks.
struct Writer<'c, 'v> {
    canvas: &'c mut Canvas<'v>,
    groups: &'c mut Groups,
    ino: Ino,
    /// Where pointer blocks were before.
    homes: BTreeMap<Place, u64>,
    pointers: &'c mut Pointers,
}

impl Writer<'_, '_> {
    /// Writes the pointer block of this place and those under it. Returns its block, `None` if nothing is mapped under
    /// it.
    fn block(&mut self, place: Place, extents: &[Extent]) -> Result<Option<u64>> {
        let (level, first) = place;
        let (span, under) = (self.pointers.span(level), self.pointers.span(level - 1));
        let extents = overlapping(extents, first, first + span);
        if extents.is_empty() {
            return Ok(None);
        }
        let block = match self.homes.get(&place) {
            Some(block) => *block,
            None => self.groups.allocate(self.canvas, self.ino, REACH)?,
        };
        self.pointers.blocks.insert(place, block);
        let mut bytes = vec![0; self.canvas.block_size()];
        if level == 1 {
            put_run(&mut bytes, first, span, extents);
        } else {
            let mut next = 0;
            for extent in extents {
                let from = u64::from(extent.logical.get()).max(first) - first;
                let to = u64::from(extent.logical_end().get()).min(first + span) - first;
                // An extent may lie under several of them, and several under one.
                for position in next.max(from / under)..to.div_ceil(under) {
                    if let Some(child) = self.block((level - 1, first + position * under), extents)? {
                        put(&mut bytes, position as u32, child);
                    }
                    next = position + 1;
                }
            }
        }
        if !self.homes.contains_key(&place) || self.canvas.read(block)? != bytes {
            self.canvas.write(block, bytes)?;
        }
        Ok(Some(block))
    }
}

/// The extents of a row in order that map something of `first` .. `end`.
fn overlapping(extents: &[Extent], first: u64, end: u64) -> &[Extent] {
    let from = extents.partition_point(|extent| u64::from(extent.logical_end().get()) <= first);
    let to = extents.partition_point(|extent| u64::from(extent.logical.get()) < end);
    extents.get(from..to).unwrap_or_default()
}

/// Writes number `position` of a row of block numbers. Only blocks below 2^32 come here.
fn put(bytes: &mut [u8], position: u32, block: u64) {
    let start = position as usize * POINTER_SIZE;
    if let Some(place) = bytes.get_mut(start..start + POINTER_SIZE) {
        place.copy_from_slice(&(block as u32).to_le_bytes());
    }
}

/// Writes the numbers of the data blocks from logical block `first` on, `count` of them.
fn put_run(bytes: &mut [u8], first: u64, count: u64, extents: &[Extent]) {
    for extent in overlapping(extents, first, first + count) {
        let logical = u64::from(extent.logical.get());
        for block in logical.max(first)..u64::from(extent.logical_end().get()).min(first + count) {
            put(bytes, (block - first) as u32, extent.physical.get() + (block - logical));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u32, length: u32, physical: u64) -> Extent {
        Extent { logical: Lblk(logical), length, physical: Pblk(physical), unwritten: false }
    }

    #[test]
    fn numbers_are_written_where_they_are_read() {
        let extents = [extent(0, 3, 100), extent(5, 1, 200), extent(9, 8, 300)];
        let mut bytes = [0; I_BLOCK_SIZE];
        put_run(&mut bytes, 0, 12, &extents);
        let read: Vec<_> = PointerBlock::direct(&bytes).runs((0, 12)).collect();
        let expected = [(0, 3, 100), (5, 1, 200), (9, 3, 300)];
        let read = read.iter().map(|run| (run.logical.get(), run.length, run.physical.get()));
        assert!(read.eq(expected));
        assert_eq!(&bytes[48..], [0; 12], "behind the direct blocks nothing is written");
        let mut second = [0; 16];
        put_run(&mut second, 12, 4, &extents);
        assert!((0..4).all(|n| second[4 * n as usize..][..4] == (303_u32 + n).to_le_bytes()));
    }

    #[test]
    fn only_extents_with_a_part_in_a_range_overlap_it() {
        let extents = [extent(0, 3, 1), extent(5, 1, 9), extent(9, 8, 20)];
        for (first, end, count) in [(0, 1, 1), (3, 5, 0), (2, 6, 2), (5, 6, 1), (17, 90, 0), (0, 90, 3)] {
            assert_eq!(overlapping(&extents, first, end).len(), count, "{first}..{end}");
        }
    }
}
