//! The block maps of a new volume's own files: their blocks, and the 60 bytes of the inode that point to them.

use super::error::{Error, Result};
use super::space::Space;
use std::collections::BTreeMap;
use uext4_ondisk::ext4::{
    DIRECT_POINTERS, Extent, ExtentIndex, I_BLOCK_SIZE, IndirectLayout, MAX_EXTENT_LENGTH, ROOT_CAPACITY,
    block_capacity, encode_extent_index, encode_extent_leaf, update_extent_checksum,
};
use uext4_ondisk::{Lblk, Pblk};

/// A file's blocks, in order.
#[derive(Debug)]
pub(super) struct Mapped {
    /// Physical runs: first block and number of blocks.
    pub(super) runs: Vec<(u64, u64)>,
    /// The inode's `i_block`.
    pub(super) i_block: [u8; I_BLOCK_SIZE],
    /// Blocks of the map itself, with their contents.
    pub(super) nodes: BTreeMap<u64, Vec<u8>>,
}

impl Mapped {
    fn new(runs: Vec<(u64, u64)>) -> Mapped {
        Mapped { runs, i_block: [0; I_BLOCK_SIZE], nodes: BTreeMap::new() }
    }

    /// Blocks of the file, one by one.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(|&(start, count)| start..start + count)
    }
}

pub(super) fn full() -> Error {
    Error::TooSmall { have: "the volume's blocks".into(), reason: "its own files do not fit".into() }
}

/// Takes `count` blocks, searching from `goal`, one free run after another.
fn take(space: &mut Space, goal: u64, count: u64) -> Result<Vec<(u64, u64)>> {
    let (mut runs, mut left, mut goal): (Vec<(u64, u64)>, u64, u64) = (Vec::new(), count, goal);
    while left > 0 {
        let (start, length) = space.run(goal, left.min(u64::from(MAX_EXTENT_LENGTH))).ok_or_else(full)?;
        space.place(start, length);
        (left, goal) = (left - length, start + length);
        runs.push((start, length));
    }
    Ok(runs)
}

/// Builds an extent tree over `count` new blocks. `seed`: the inode's checksum seed, if the volume has checksums.
pub(super) fn extents(
    space: &mut Space,
    goal: u64,
    count: u64,
    block: u32,
    seed: Option<u32>,
) -> Result<Mapped> {
    let runs = take(space, goal, count)?;
    let mut logical = 0;
    let list: Vec<Extent> = runs
        .iter()
        .map(|&(start, length)| {
            let extent = Extent {
                logical: Lblk(logical),
                length: length as u32,
                physical: Pblk(start),
                unwritten: false,
            };
            logical += length as u32;
            extent
        })
        .collect();
    let mut mapped = Mapped::new(runs);
    if list.len() <= usize::from(ROOT_CAPACITY) {
        encode_extent_leaf(&mut mapped.i_block, 0, &list)?;
        return Ok(mapped);
    }
    let capacity = usize::from(block_capacity(block));
    let mut indexes = Vec::new();
    for leaf in list.chunks(capacity) {
        // Put the tree block before the file if there is room, so that the file stays contiguous.
        let before = mapped.runs.first().map_or(0, |(start, _)| start.saturating_sub(1));
        let (node, _) = space.run(before, 1).ok_or_else(full)?;
        space.place(node, 1);
        let mut bytes = vec![0; block as usize];
        encode_extent_leaf(&mut bytes, 0, leaf)?;
        if let Some(seed) = seed {
            update_extent_checksum(&mut bytes, seed)?;
        }
        mapped.nodes.insert(node, bytes);
        indexes.push(ExtentIndex {
            logical: leaf.first().map_or(Lblk(0), |first| first.logical),
            child: Pblk(node),
        });
    }
    if indexes.len() > usize::from(ROOT_CAPACITY) {
        return Err(Error::TooLarge("the free blocks are in too many pieces for the journal".into()));
    }
    encode_extent_index(&mut mapped.i_block, 1, 0, &indexes)?;
    Ok(mapped)
}

/// Builds an indirect map over `count` new blocks: each pointer block precedes the blocks it points to.
pub(super) fn pointers(space: &mut Space, goal: u64, count: u64, block: u32) -> Result<Mapped> {
    let layout = IndirectLayout::new(block);
    let mut mapped = Mapped::new(Vec::new());
    let mut goal = goal;
    let mut next = || {
        let (start, _) = space.run(goal, 1).ok_or_else(full)?;
        space.place(start, 1);
        goal = start + 1;
        Ok::<u64, Error>(start)
    };
    // The pointer blocks on the path to the previous block; the last one points to data.
    let mut way: Vec<(u32, u64)> = Vec::new();
    for number in 0..count {
        let path =
            u32::try_from(number).ok().and_then(|number| layout.path(Lblk(number))).ok_or_else(full)?;
        let depth = path.depth();
        // Keep what this path shares with the previous one.
        let root = path.root_index();
        if depth > 0 {
            for level in (1..=depth).rev() {
                let begins = (1..=level).all(|below| path.index(below) == 0);
                let at = (depth - level) as usize;
                if begins {
                    way.truncate(at);
                    let node = next()?;
                    mapped.nodes.insert(node, vec![0; block as usize]);
                    match way.last() {
                        None => put(&mut mapped.i_block, root, node)?,
                        Some(&(_, parent)) => {
                            let index = path.index(level + 1);
                            put(mapped.nodes.get_mut(&parent).ok_or_else(full)?, index, node)?;
                        }
                    }
                    way.push((level, node));
                }
            }
        }
        let data = next()?;
        match way.last() {
            Some(&(_, parent)) if depth > 0 => {
                put(mapped.nodes.get_mut(&parent).ok_or_else(full)?, path.index(1), data)?;
            }
            _ => put(&mut mapped.i_block, root.min(DIRECT_POINTERS - 1), data)?,
        }
        match mapped.runs.last_mut() {
            Some((start, length)) if *start + *length == data => *length += 1,
            _ => mapped.runs.push((data, 1)),
        }
    }
    Ok(mapped)
}

/// Writes a block number at position `index`.
pub(super) fn put(bytes: &mut [u8], index: u32, block: u64) -> Result<()> {
    let number =
        u32::try_from(block).map_err(|_| Error::TooLarge("a block map has 32-bit numbers".into()))?;
    let place = bytes.get_mut(index as usize * 4..).and_then(|rest| rest.get_mut(..4)).ok_or_else(full)?;
    place.copy_from_slice(&number.to_le_bytes());
    Ok(())
}
