//! The map of a file whose blocks are known: extents, or block pointers on volumes without them.

use super::super::error::{Error, Result};
use super::super::map::put;
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_ondisk::ext4::{
    DIRECT_POINTERS, Extent, ExtentIndex, I_BLOCK_SIZE, IndirectLayout, MAX_EXTENT_LENGTH, ROOT_CAPACITY,
    block_capacity, encode_extent_index, encode_extent_leaf, update_extent_checksum,
};
use uext4_ondisk::{Lblk, Pblk};

/// The root of a map, and its blocks with their contents.
pub(super) struct Map {
    pub(super) i_block: [u8; I_BLOCK_SIZE],
    pub(super) nodes: Vec<(u64, Vec<u8>)>,
}

/// Logical runs over physical ones: each piece is a logical block, a physical one, and a number of blocks.
pub(super) fn pieces(logical: &[Range<u64>], physical: &[(u64, u64)], most: u64) -> Vec<(u64, u64, u64)> {
    let mut pieces = Vec::new();
    let mut runs = physical.iter().copied();
    let mut run = (0, 0);
    for range in logical {
        let mut at = range.start;
        while at < range.end {
            if run.1 == 0 {
                match runs.next() {
                    Some(next) => run = next,
                    None => return pieces,
                }
            }
            let count = run.1.min(range.end - at).min(most);
            pieces.push((at, run.0, count));
            (at, run) = (at + count, (run.0 + count, run.1 - count));
        }
    }
    pieces
}

/// An extent tree. `take`: a block for a node. `seed`: the inode's checksum seed, on volumes with checksums.
///
/// # Errors
/// [`Error::TooLarge`] beyond 2^32 blocks; those of `take`.
pub(super) fn extents(
    logical: &[Range<u64>],
    physical: &[(u64, u64)],
    (block, seed): (u32, Option<u32>),
    take: &mut dyn FnMut() -> Result<u64>,
) -> Result<Map> {
    let list = pieces(logical, physical, u64::from(MAX_EXTENT_LENGTH))
        .into_iter()
        .map(|(at, to, count)| {
            let logical = u32::try_from(at).map(Lblk).map_err(|_| too_large())?;
            Ok(Extent { logical, length: count as u32, physical: Pblk(to), unwritten: false })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut map = Map { i_block: [0; I_BLOCK_SIZE], nodes: Vec::new() };
    if list.len() <= usize::from(ROOT_CAPACITY) {
        encode_extent_leaf(&mut map.i_block, 0, &list)?;
        return Ok(map);
    }
    let capacity = usize::from(block_capacity(block));
    let mut add = |first: Lblk, mut bytes: Vec<u8>| {
        if let Some(seed) = seed {
            update_extent_checksum(&mut bytes, seed)?;
        }
        let node = take()?;
        map.nodes.push((node, bytes));
        Ok::<ExtentIndex, Error>(ExtentIndex { logical: first, child: Pblk(node) })
    };
    let mut above = Vec::new();
    for leaf in list.chunks(capacity) {
        let mut bytes = vec![0; block as usize];
        encode_extent_leaf(&mut bytes, 0, leaf)?;
        above.push(add(leaf.first().map_or(Lblk(0), |first| first.logical), bytes)?);
    }
    let mut depth = 1;
    while above.len() > usize::from(ROOT_CAPACITY) {
        let mut next = Vec::new();
        for node in above.chunks(capacity) {
            let mut bytes = vec![0; block as usize];
            encode_extent_index(&mut bytes, depth, 0, node)?;
            next.push(add(node.first().map_or(Lblk(0), |first| first.logical), bytes)?);
        }
        (above, depth) = (next, depth + 1);
    }
    encode_extent_index(&mut map.i_block, depth, 0, &above)?;
    Ok(map)
}

/// A map of block pointers, likewise.
///
/// # Errors
/// [`Error::TooLarge`] beyond the last block that pointers reach; those of `take`.
pub(super) fn pointers(
    logical: &[Range<u64>],
    physical: &[(u64, u64)],
    block: u32,
    take: &mut dyn FnMut() -> Result<u64>,
) -> Result<Map> {
    let layout = IndirectLayout::new(block);
    let mut root = [0; I_BLOCK_SIZE];
    let mut nodes = BTreeMap::<u64, Vec<u8>>::new();
    for (at, to, count) in pieces(logical, physical, u64::MAX) {
        for step in 0..count {
            let path = u32::try_from(at + step).ok().and_then(|at| layout.path(Lblk(at)));
            let path = path.ok_or_else(too_large)?;
            if path.depth() == 0 {
                put(&mut root, path.root_index().min(DIRECT_POINTERS - 1), to + step)?;
                continue;
            }
            let mut node = child(&mut root, path.root_index(), &mut nodes, block, take)?;
            for level in (2..=path.depth()).rev() {
                let mut bytes = nodes.remove(&node).ok_or_else(too_large)?;
                let below = child(&mut bytes, path.index(level), &mut nodes, block, take);
                nodes.insert(node, bytes);
                node = below?;
            }
            put(nodes.get_mut(&node).ok_or_else(too_large)?, path.index(1), to + step)?;
        }
    }
    Ok(Map { i_block: root, nodes: nodes.into_iter().collect() })
}

/// The block that a pointer leads to, which is made if there is none.
fn child(
    bytes: &mut [u8],
    index: u32,
    nodes: &mut BTreeMap<u64, Vec<u8>>,
    block: u32,
    take: &mut dyn FnMut() -> Result<u64>,
) -> Result<u64> {
    let place = bytes.get(index as usize * 4..).and_then(|rest| rest.first_chunk());
    match place.map_or(0, |word| u32::from_le_bytes(*word)) {
        0 => {
            let node = take()?;
            put(bytes, index, node)?;
            nodes.insert(node, vec![0; block as usize]);
            Ok(node)
        }
        known => Ok(u64::from(known)),
    }
}

fn too_large() -> Error {
    Error::TooLarge("a file with more blocks than a map can count".into())
}
