//! File maps: walks extent trees and indirect maps on demand, and publishes the result in the mapping snapshot.

pub(crate) mod edit;
pub(crate) mod indirect;
pub(crate) mod overwrite;

use crate::ground::error::{Error, Result};
use crate::inode::fields::size_max;
use crate::inode::{Ext4State, Inode};
use std::ops::Range;
use std::sync::Arc;
use uext4_iomap::snapshot::BLOCKS_END;
use uext4_iomap::{Found, MapKind, MapSnapshot, PIECES_MAX, Run, State};
use uext4_ondisk::ext4::{Extent, ExtentNode, Incompat, NodeLimits};
use uext4_ondisk::{Corrupt, CorruptKind, Lblk, Pblk};

/// The contents of one leaf of the map: its window of logical blocks and the runs in it; the rest of the window is
/// holes.
struct LeafRuns {
    first: u64,
    end: u64,
    runs: Vec<Run>,
}

impl LeafRuns {
    /// The part that lies in `gap`, which overlaps the window.
    fn within(self, gap: &Range<u64>) -> LeafRuns {
        let (first, end) = (self.first.max(gap.start), self.end.min(gap.end));
        let runs = self.runs.iter().filter_map(|run| run.within(first..end)).collect();
        LeafRuns { first, end, runs }
    }

    /// The part around `block`, which lies in it: from the end of the run before on, with as many runs as one request
    /// looks at.
    fn near(&self, block: u64) -> LeafRuns {
        let from = self.runs.partition_point(|run| u64::from(run.first) + run.length <= block);
        let first = from.checked_sub(1).and_then(|last| self.runs.get(last));
        let first = first.map_or(self.first, |run| u64::from(run.first) + run.length);
        let (runs, rest) = self.runs[from..].split_at(PIECES_MAX.min(self.runs.len() - from));
        let end = rest.first().map_or(self.end, |run| u64::from(run.first));
        LeafRuns { first, end, runs: runs.to_vec() }
    }
}

/// Where a node leads.
enum Step {
    Child { block: Pblk, limits: NodeLimits },
    Here(LeafRuns),
}

/// Refuses sizes that the file's kind of map cannot reach and more space than the volume has: such an inode cannot be
/// trusted.
pub(crate) fn check_inode(state: &Ext4State, inode: &Inode) -> Result<()> {
    let (disk, superblock) = (inode.disk(), &state.superblock);
    let geometry = &superblock.geometry;
    if disk.size > size_max(superblock, &disk) {
        return Err(Corrupt::from(CorruptKind::InodeField("size")).in_inode(inode.ino()).into());
    }
    // The inode of an attribute value counts its blocks for each file that shares it.
    let shares = superblock.features.incompat.contains(Incompat::EA_INODE);
    let whole = geometry.blocks_count().next_multiple_of(u64::from(geometry.cluster_blocks()));
    let sectors = whole.saturating_mul(u64::from(geometry.block_size() / 512));
    if !shares && disk.sectors(superblock) > sectors {
        return Err(Corrupt::from(CorruptKind::InodeField("blocks")).in_inode(inode.ino()).into());
    }
    Ok(())
}

/// Loads the mapping around byte `pos` of a file: the unknown parts of the leaf that covers it, which stays in memory
/// whatever the budget. Takes the map lock. Returns the snapshot that knows `pos`: the published one may already have
/// evicted it for another thread's leaf.
pub(crate) fn load(state: &Ext4State, inode: &Inode, pos: u64) -> Result<Arc<MapSnapshot>> {
    inode.check_contents()?;
    check_inode(state, inode)?;
    let mut map = inode.state.map.lock();
    let Ok(block) = u32::try_from(pos >> inode.state.block_bits()) else {
        // No block can be mapped there, and every snapshot knows that.
        return Ok(Arc::new(MapSnapshot::unknown()));
    };
    if let Found::Known { state, physical, blocks } = map.find(block) {
        // Another thread loaded it while this one waited for the lock.
        let run = Run { first: block, length: blocks, state, physical };
        return Ok(Arc::new(MapSnapshot::of(u64::from(block), u64::from(block) + blocks, &[run])));
    }
    let find = |gap: &Range<u64>| match inode.disk().uses_extents() {
        true => find_leaf(state, inode, Lblk(block), gap).map(|mut window| {
            inode.claims.add_to(&mut window.runs, window.first, window.end);
            window
        }),
        false => indirect::find_window(state, inode, Lblk(block)).map(|window| window.within(gap)),
    };
    // If only a few blocks of the leaf were evicted, load those and not the rest again.
    let mut window = find(&map.unknown_around(block))?;
    if inode.state.kind() == MapKind::Journaled {
        // No direct request may find its blocks.
        let near = window.near(u64::from(block));
        return Ok(Arc::new(MapSnapshot::of(near.first, near.end, &near.runs)));
    }
    map.add(window.first, window.end, &window.runs)?;
    if map.resident_bytes() > state.map_budget {
        map.forget();
        window = find(&(0..BLOCKS_END))?;
        map.add(window.first, window.end, &window.runs)?;
    }
    let near = window.near(u64::from(block));
    Ok(Arc::new(MapSnapshot::of(near.first, near.end, &near.runs)))
}

/// The physical block of one block of a directory or symbolic link; `None` if nothing is written there.
pub(crate) fn metadata_block(state: &Ext4State, inode: &Inode, block: u32) -> Result<Option<u64>> {
    let found = match inode.state.map.find(block) {
        Found::Unknown => load(state, inode, u64::from(block) << inode.state.block_bits())?.find(block),
        known => known,
    };
    match found {
        Found::Known { state: State::Written, physical, .. } => Ok(Some(physical)),
        Found::Known { .. } => Ok(None),
        Found::Unknown => {
            Err(state.corrupt_inode(inode.ino(), format!("the mapping of block {block} stays unknown")))
        }
    }
}

/// The block behind the last one that a map of extents has; 0 if it has none.
pub(crate) fn mapped_end(state: &Ext4State, inode: &Inode) -> Result<u64> {
    inode.check_contents()?;
    check_inode(state, inode)?;
    let last = find_leaf(state, inode, Lblk(u32::MAX - 1), &(0..BLOCKS_END))?;
    Ok(last.runs.last().map_or(0, |run| u64::from(run.first) + run.length))
}

/// Walks from the root to the leaf that covers `block`, which is in `gap`. Each step is one level deeper, so the walk
/// ends. Returns the leaf's mapping of the gap.
fn find_leaf(state: &Ext4State, inode: &Inode, block: Lblk, gap: &Range<u64>) -> Result<LeafRuns> {
    let superblock = &state.superblock;
    let disk = inode.disk();
    let seed = superblock.features.metadata_csum().then(|| disk.checksum_seed(inode.ino(), superblock));
    let in_inode = |corrupt: uext4_ondisk::Corrupt| Error::from(corrupt.in_inode(inode.ino()));
    let root = ExtentNode::root(&disk.i_block, NodeLimits::root(superblock)).map_err(in_inode)?;
    let mut step = descend(state, inode, &root, block, gap)?;
    loop {
        match step {
            Step::Here(window) => return Ok(window.within(gap)),
            Step::Child { block: child, limits } => {
                let buffer = state.cache.read(child.get())?;
                // The checksum depends on the inode, so it is checked on every walk, not once per buffer.
                let node = ExtentNode::block(&buffer, limits, seed)
                    .map_err(|corrupt| in_inode(corrupt.at_block(child)))?;
                step = descend(state, inode, &node, block, gap)?;
            }
        }
    }
}

fn descend(
    state: &Ext4State,
    inode: &Inode,
    node: &ExtentNode<'_>,
    block: Lblk,
    gap: &Range<u64>,
) -> Result<Step> {
    let limits = node.limits();
    let end = window_end(limits.end);
    if node.is_leaf() {
        let missing = node.extents().filter(|extent| {
            u64::from(extent.logical.get()) < gap.end && u64::from(extent.logical_end().get()) > gap.start
        });
        let runs = missing.map(|extent| run_of(state, inode, extent)).collect::<Result<_>>()?;
        return Ok(Step::Here(LeafRuns { first: u64::from(limits.first.get()), end, runs }));
    }
    let Some(position) = node.find_index(block) else {
        // Blocks before the first child are a hole.
        let end = node.index(0).map_or(end, |first| u64::from(first.logical.get()));
        return Ok(Step::Here(LeafRuns { first: u64::from(limits.first.get()), end, runs: Vec::new() }));
    };
    let child = node.index(position).zip(node.child_limits(position));
    let Some((index, limits)) = child else {
        return Err(state.corrupt_inode(inode.ino(), "an extent index without a child"));
    };
    if !state.zones.allows(index.child.get(), 1) {
        return Err(
            state.corrupt_inode(inode.ino(), format!("an extent node in metadata block {}", index.child))
        );
    }
    Ok(Step::Child { block: index.child, limits })
}

/// The tree cannot map the last 32-bit block number; the snapshot treats that block as part of the last window.
fn window_end(end: Lblk) -> u64 {
    if end.get() == u32::MAX { BLOCKS_END } else { u64::from(end.get()) }
}

/// Checks an extent against the system zones: after this, data may be written there.
fn run_of(state: &Ext4State, inode: &Inode, extent: Extent) -> Result<Run> {
    let (physical, length) = (extent.physical.get(), u64::from(extent.length));
    if !state.zones.allows(physical, length) {
        let what = format!(
            "the extent at block {} ({length} blocks at {physical}) lies in metadata or outside the volume",
            extent.logical
        );
        return Err(state.corrupt_inode(inode.ino(), what));
    }
    let kind = if extent.unwritten { State::Unwritten } else { State::Written };
    Ok(Run { first: extent.logical.get(), length, state: kind, physical })
}
