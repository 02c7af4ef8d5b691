//! An extent tree taken apart: its leaves in order, changed one range at a time, and put together again.
//!
//! Leaves keep their blocks, so that only those that changed are written; the index above them is built anew. The map
//! of a file with block pointers takes the same form while it is changed (`pointers.rs`).

use super::bitmaps::Groups;
use super::pointers::Pointers;
use crate::ground::canvas::Canvas;
use crate::ground::error::{Error, Result};
use crate::inode::fields::unencodable;
use uext4_ondisk::ext4::{
    Extent, ExtentIndex, ExtentNode, I_BLOCK_SIZE, MAX_EXTENT_DEPTH, MAX_EXTENT_LENGTH, MAX_UNWRITTEN_LENGTH,
    NodeLimits, ROOT_CAPACITY, block_capacity, encode_extent_index, encode_extent_leaf,
    update_extent_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// Blocks on the volume: first and number.
pub(super) type BlockRun = (u64, u64);

struct Leaf {
    /// Its block; `None` in the inode, or not allocated yet.
    block: Option<u64>,
    extents: Vec<Extent>,
    changed: bool,
}

/// The tree of one inode.
pub(super) struct Tree {
    /// In order, none of them empty.
    leaves: Vec<Leaf>,
    /// Blocks of nodes that are no longer needed: used again before others are allocated.
    spare: Vec<u64>,
    /// Index nodes of the stored tree.
    index: Vec<u64>,
    /// Extents that fit a leaf.
    capacity: usize,
    changed: bool,
    /// The pointer blocks, if the file is mapped by them: leaves and index have no blocks then.
    pointers: Option<Pointers>,
}

impl Tree {
    /// A tree without extents.
    pub(super) fn empty(canvas: &Canvas<'_>) -> Tree {
        let capacity = usize::from(block_capacity(canvas.block_size() as u32)).max(2);
        let (leaves, spare, index) = (Vec::new(), Vec::new(), Vec::new());
        Tree { leaves, spare, index, capacity, changed: true, pointers: None }
    }

    /// That of a file mapped by pointers, without any.
    pub(super) fn empty_of_pointers(canvas: &Canvas<'_>) -> Tree {
        Tree { pointers: Some(Pointers::empty(canvas)), ..Tree::empty(canvas) }
    }

    /// Reads all block pointers of a file.
    pub(super) fn load_pointers(
        canvas: &mut Canvas<'_>,
        ino: Ino,
        i_block: &[u8; I_BLOCK_SIZE],
    ) -> Result<Tree> {
        let mut tree = Tree { changed: false, ..Tree::empty(canvas) };
        let (pointers, extents) = Pointers::load(canvas, ino, i_block)?;
        let leaf = |extents: &[Extent]| Leaf { block: None, extents: extents.to_vec(), changed: false };
        tree.leaves = extents.chunks(tree.capacity).map(leaf).collect();
        tree.pointers = Some(pointers);
        Ok(tree)
    }

    /// Whether an extent can be mapped: pointers do not reach everything.
    pub(super) fn can_hold(&self, extent: &Extent) -> bool {
        self.pointers.as_ref().is_none_or(|pointers| pointers.can_hold(extent))
    }

    /// Reads a whole tree. `seed` is that of the inode's checksums on volumes that have them.
    pub(super) fn load(
        canvas: &mut Canvas<'_>,
        ino: Ino,
        i_block: &[u8; I_BLOCK_SIZE],
        seed: Option<u32>,
    ) -> Result<Tree> {
        let mut tree = Tree { changed: false, ..Tree::empty(canvas) };
        let limits = NodeLimits::root(&canvas.ground.superblock);
        let root = ExtentNode::root(i_block, limits).map_err(|corrupt| corrupt.in_inode(ino))?;
        let mut loader = Loader { canvas, ino, seed };
        loader.node(&root, None, &mut tree)?;
        Ok(tree)
    }

    /// All blocks that the tree occupies, its own nodes included.
    pub(super) fn runs(&self) -> Vec<BlockRun> {
        let nodes = self.leaves.iter().filter_map(|leaf| leaf.block).chain(self.index.iter().copied());
        let nodes = nodes.map(|block| (block, 1)).chain(self.pointers.iter().flat_map(Pointers::runs));
        self.extents().map(|extent| (extent.physical.get(), u64::from(extent.length))).chain(nodes).collect()
    }

    fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.leaves.iter().flat_map(|leaf| &leaf.extents)
    }

    /// Every node must be written again: what their checksums start from is another one. Returns how many bytes were
    /// looked at.
    pub(super) fn touch(&mut self) -> usize {
        self.changed = true;
        self.leaves.iter_mut().for_each(|leaf| leaf.changed = true);
        self.leaves.len() * size_of::<Leaf>()
    }

    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }

    /// The first leaf that maps `logical` or something behind it.
    fn leaf_at(&self, logical: u32) -> usize {
        let end = |leaf: &Leaf| leaf.extents.last().map_or(0, |last| last.logical_end().get());
        self.leaves.partition_point(|leaf| end(leaf) <= logical)
    }

    /// The extent that maps `logical`.
    fn find(&self, logical: u32) -> Option<&Extent> {
        let leaf = self.leaves.get(self.leaf_at(logical))?;
        let after = leaf.extents.partition_point(|extent| extent.logical.get() <= logical);
        let extent = leaf.extents.get(after.checked_sub(1)?)?;
        extent.physical_of(Lblk(logical)).map(|_| extent)
    }

    /// Where a written block is.
    pub(super) fn written(&self, logical: u32) -> Option<u64> {
        let extent = self.find(logical).filter(|extent| !extent.unwritten)?;
        extent.physical_of(Lblk(logical)).map(Pblk::get)
    }

    /// Unmaps the logical blocks `first` .. `end`. Returns how many bytes were looked at.
    pub(super) fn remove(&mut self, first: u32, end: u32) -> usize {
        let from = self.leaf_at(first);
        let (mut at, mut emptied, mut looked_at) = (from, false, 0);
        while let Some(leaf) = self.leaves.get_mut(at) {
            let begins = |extent: &Extent| extent.logical.get() < end;
            let ends = |extent: &Extent| extent.logical_end().get() <= first;
            let meets = leaf.extents.partition_point(ends)..leaf.extents.partition_point(begins);
            if meets.is_empty() {
                break;
            }
            looked_at += leaf.extents.len() * size_of::<Extent>();
            // One more at most. What is charged for the leaf covers that, but not what growing might reserve.
            let mut kept = Vec::with_capacity(leaf.extents.len() + 1);
            kept.extend(leaf.extents.iter().flat_map(|extent| outside(extent, first, end)));
            emptied |= kept.is_empty();
            leaf.extents = kept;
            (leaf.changed, self.changed) = (true, true);
            at += 1;
        }
        // A hole in an extent is met in one leaf only.
        looked_at += self.halve(from);
        if emptied {
            looked_at += self.leaves.len() * size_of::<Leaf>();
            let spare = &mut self.spare;
            self.leaves.retain(|leaf| {
                if leaf.extents.is_empty() {
                    spare.extend(leaf.block);
                }
                !leaf.extents.is_empty()
            });
        }
        looked_at
    }

    /// Makes two of a leaf that holds more than a block does. Returns how many bytes were moved.
    fn halve(&mut self, at: usize) -> usize {
        let Some(leaf) = self.leaves.get_mut(at).filter(|leaf| leaf.extents.len() > self.capacity) else {
            return 0;
        };
        let extents = leaf.extents.split_off(leaf.extents.len() / 2);
        self.leaves.insert(at + 1, Leaf { block: None, extents, changed: true });
        (self.leaves.len() - at) * size_of::<Leaf>()
    }

    /// Maps an extent in place of what was there. Its blocks and its logical end were checked, and that it can be held.
    /// Returns how many bytes were looked at.
    pub(super) fn insert(&mut self, extent: Extent) -> usize {
        let (first, end) = (extent.logical.get(), extent.logical_end().get());
        if self.find(first) == Some(&extent) {
            return 0;
        }
        let looked_at = self.remove(first, end);
        self.changed = true;
        // Into the leaf that it goes on from, or the one around it.
        let mut at = self.leaf_at(first);
        let inside = self.leaves.get(at).and_then(|leaf| leaf.extents.first());
        if inside.is_none_or(|other| other.logical.get() >= first) {
            at = at.saturating_sub(1);
        }
        let Some(leaf) = self.leaves.get_mut(at) else {
            self.leaves.push(Leaf { block: None, extents: vec![extent], changed: true });
            return looked_at;
        };
        leaf.changed = true;
        let place = leaf.extents.partition_point(|other| other.logical.get() < first);
        leaf.extents.insert(place, extent);
        // The one behind first, so that `place` stays right.
        merge(&mut leaf.extents, place);
        if let Some(before) = place.checked_sub(1) {
            merge(&mut leaf.extents, before);
        }
        let moved = leaf.extents.len() * size_of::<Extent>();
        looked_at + moved + self.halve(at)
    }

    /// Writes what changed and returns the root.
    pub(super) fn store(
        &mut self,
        canvas: &mut Canvas<'_>,
        groups: &mut Groups,
        ino: Ino,
        seed: Option<u32>,
    ) -> Result<[u8; I_BLOCK_SIZE]> {
        let mut root = [0; I_BLOCK_SIZE];
        self.spare.append(&mut self.index);
        self.changed = false;
        if let Some(mut pointers) = self.pointers.take() {
            let all: Vec<_> = self.extents().copied().collect();
            root = pointers.store(canvas, groups, ino, &all)?;
            self.pointers = Some(pointers);
            return Ok(root);
        }
        if self.extents().take(usize::from(ROOT_CAPACITY) + 1).count() <= usize::from(ROOT_CAPACITY) {
            let all: Vec<_> = self.extents().copied().collect();
            encode_extent_leaf(&mut root, 0, &all).map_err(unencodable)?;
            self.spare.clear();
            self.leaves.clear();
            if !all.is_empty() {
                self.leaves.push(Leaf { block: None, extents: all, changed: true });
            }
            return Ok(root);
        }
        let mut level = self.store_leaves(canvas, groups, ino, seed)?;
        let mut depth = 1;
        while level.len() > usize::from(ROOT_CAPACITY) {
            let mut above = Vec::with_capacity(level.len().div_ceil(self.capacity));
            for children in level.chunks(self.capacity) {
                let block = self.take(canvas, groups, ino)?;
                let mut bytes = vec![0; canvas.block_size()];
                encode_extent_index(&mut bytes, depth, 0, children).map_err(unencodable)?;
                put(canvas, block, bytes, seed)?;
                self.index.push(block);
                above.push(ExtentIndex { logical: children[0].logical, child: Pblk(block) });
            }
            level = above;
            depth += 1;
        }
        if depth > MAX_EXTENT_DEPTH {
            return Err(Corrupt::from(CorruptKind::ExtentDepth).in_inode(ino).into());
        }
        encode_extent_index(&mut root, depth, 0, &level).map_err(unencodable)?;
        self.spare.clear();
        Ok(root)
    }

    fn store_leaves(
        &mut self,
        canvas: &mut Canvas<'_>,
        groups: &mut Groups,
        ino: Ino,
        seed: Option<u32>,
    ) -> Result<Vec<ExtentIndex>> {
        let mut level = Vec::with_capacity(self.leaves.len());
        let mut leaves = std::mem::take(&mut self.leaves);
        for leaf in &mut leaves {
            let block = match leaf.block {
                Some(block) => block,
                None => self.take(canvas, groups, ino)?,
            };
            if leaf.changed || leaf.block.is_none() {
                let mut bytes = vec![0; canvas.block_size()];
                encode_extent_leaf(&mut bytes, 0, &leaf.extents).map_err(unencodable)?;
                put(canvas, block, bytes, seed)?;
            }
            (leaf.block, leaf.changed) = (Some(block), false);
            let first = leaf.extents.first().map_or(Lblk(0), |extent| extent.logical);
            level.push(ExtentIndex { logical: first, child: Pblk(block) });
        }
        self.leaves = leaves;
        Ok(level)
    }

    /// A block for a node.
    fn take(&mut self, canvas: &mut Canvas<'_>, groups: &mut Groups, ino: Ino) -> Result<u64> {
        match self.spare.pop() {
            Some(block) => Ok(block),
            None => groups.allocate(canvas, ino, u64::MAX),
        }
    }
}

/// Writes a node into its block, checksum included.
fn put(canvas: &mut Canvas<'_>, block: u64, mut bytes: Vec<u8>, seed: Option<u32>) -> Result<()> {
    if let Some(seed) = seed {
        update_extent_checksum(&mut bytes, seed).map_err(unencodable)?;
    }
    canvas.write(block, bytes)
}

/// What is left of an extent without the blocks `first` .. `end`.
fn outside(extent: &Extent, first: u32, end: u32) -> impl Iterator<Item = Extent> + use<> {
    let (start, stop) = (extent.logical.get(), extent.logical_end().get());
    let part = |from: u32, to: u32| {
        let physical = Pblk(extent.physical.get() + u64::from(from - start));
        Extent { logical: Lblk(from), length: to - from, physical, unwritten: extent.unwritten }
    };
    let before = (start < first).then(|| part(start, stop.min(first)));
    let after = (stop > end).then(|| part(start.max(end), stop));
    before.into_iter().chain(after)
}

/// Makes one of the extents at `place` and behind it, if they go on from each other.
fn merge(extents: &mut Vec<Extent>, place: usize) {
    let Some([one, other]) = extents.get(place..place + 2) else { return };
    let limit = if one.unwritten { MAX_UNWRITTEN_LENGTH } else { MAX_EXTENT_LENGTH };
    let length = one.length + other.length;
    let follows = one.logical_end() == other.logical
        && one.physical.get() + u64::from(one.length) == other.physical.get()
        && one.unwritten == other.unwritten;
    if follows && length <= limit {
        extents[place].length = length;
        extents.remove(place + 1);
    }
}

/// Reads the nodes of a tree.
struct Loader<'c, 'v> {
    canvas: &'c mut Canvas<'v>,
    ino: Ino,
    seed: Option<u32>,
}

impl Loader<'_, '_> {
    /// A node and what is below it. Each level is one less deep, so this ends.
    fn node(&mut self, node: &ExtentNode<'_>, block: Option<u64>, tree: &mut Tree) -> Result<()> {
        let state = self.canvas.ground;
        if node.is_leaf() {
            let blocks = node.extents().map(|extent| u64::from(extent.length)).sum();
            self.canvas.load_extents(self.ino, node.extents().count(), blocks)?;
            let extents: Vec<_> = node.extents().collect();
            let bad = |extent: &&Extent| !state.zones.allows(extent.physical.get(), extent.length.into());
            if let Some(extent) = extents.iter().find(bad) {
                let corrupt = Corrupt::from(CorruptKind::SystemZone).in_inode(self.ino);
                return Err(corrupt.at_lblk(extent.logical).into());
            }
            if extents.is_empty() {
                // Of no use, but a block of the file all the same.
                tree.index.extend(block);
            } else {
                tree.leaves.push(Leaf { block, extents, changed: false });
            }
            return Ok(());
        }
        tree.index.extend(block);
        for (position, index) in node.indexes().enumerate() {
            let child = index.child.get();
            let corrupt = |kind| Error::from(Corrupt::from(kind).in_inode(self.ino).at_block(index.child));
            if !state.zones.allows(child, 1) {
                return Err(corrupt(CorruptKind::SystemZone));
            }
            self.canvas.claim(child, self.ino)?;
            let limits = node.child_limits(position).ok_or_else(|| corrupt(CorruptKind::ExtentDepth))?;
            let bytes = self.canvas.read(child)?;
            let node = ExtentNode::block(&bytes, limits, self.seed)
                .map_err(|corrupt| corrupt.in_inode(self.ino).at_block(index.child))?;
            self.node(&node, Some(child), tree)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u32, length: u32, physical: u64, unwritten: bool) -> Extent {
        Extent { logical: Lblk(logical), length, physical: Pblk(physical), unwritten }
    }

    /// Random changes against a map of single blocks.
    #[test]
    fn changes_equal_those_of_a_map_of_blocks() {
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (leaves, spare, index) = (Vec::new(), Vec::new(), Vec::new());
        let mut tree = Tree { leaves, spare, index, capacity: 4, changed: false, pointers: None };
        let mut model = std::collections::BTreeMap::new();
        for _ in 0..4000 {
            let (first, length) = (next(300) as u32, 1 + next(20) as u32);
            if next(3) == 0 {
                tree.remove(first, first + length);
                model.retain(|block, _| !(first..first + length).contains(block));
            } else {
                let (physical, unwritten) = (1000 + u64::from(first) + 500 * next(2), next(2) == 0);
                tree.insert(extent(first, length, physical, unwritten));
                for block in 0..length {
                    model.insert(first + block, (physical + u64::from(block), unwritten));
                }
            }
            let flat: std::collections::BTreeMap<u32, (u64, bool)> = tree
                .extents()
                .flat_map(|extent| (0..extent.length).map(move |block| (extent, block)))
                .map(|(extent, block)| {
                    let place = extent.physical.get() + u64::from(block);
                    (extent.logical.get() + block, (place, extent.unwritten))
                })
                .collect();
            assert_eq!(flat, model);
            assert!(tree.leaves.iter().all(|leaf| (1..=tree.capacity).contains(&leaf.extents.len())));
            assert!(tree.extents().is_sorted_by_key(|extent| extent.logical));
            let found = tree.written(first);
            assert_eq!(found, model.get(&first).filter(|(_, unwritten)| !unwritten).map(|found| found.0));
        }
    }

    #[test]
    fn neighbours_become_one_as_far_as_an_extent_can_be_long() {
        let mut extents = vec![extent(0, 32767, 100, false), extent(32767, 1, 32867, false)];
        merge(&mut extents, 0);
        assert_eq!(extents, [extent(0, 32768, 100, false)]);
        let mut extents = vec![extent(0, 32767, 100, true), extent(32767, 1, 32867, true)];
        merge(&mut extents, 0);
        assert_eq!(extents.len(), 2);
    }
}
