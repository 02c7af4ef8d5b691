//! Editing extent trees.

use super::plan::{Encoded, MapEdit, Node as PlanNode, ROOT};
use super::{CYCLE, Change, END, Leaf, Part, add, in_map, not_mapped, unmapped_by, within};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit, Result};
use crate::inode::draft::Draft;
use crate::map::indirect::check_zones;
use std::ops::Range;
use uext4_ondisk::ext4::{
    Extent, ExtentIndex, ExtentNode, MAX_EXTENT_DEPTH, MAX_UNWRITTEN_LENGTH, NodeLimits, ROOT_CAPACITY,
    block_capacity, encode_extent_index, encode_extent_leaf, update_extent_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Lblk, Pblk};

/// First block number that an extent cannot name: numbers have 48 bits.
pub(super) const REACH: u64 = 1 << 48;

/// A node: extents if its depth is 0, else indexes. Sorted.
#[derive(Clone)]
pub(super) struct Node {
    depth: u16,
    generation: u32,
    extents: Vec<Extent>,
    indexes: Vec<ExtentIndex>,
}

impl Node {
    fn of(node: &ExtentNode<'_>) -> Node {
        let generation = node.header().generation;
        let (extents, indexes) = (node.extents().collect(), node.indexes().collect());
        Node { depth: node.depth(), generation, extents, indexes }
    }

    fn len(&self) -> usize {
        self.extents.len() + self.indexes.len()
    }

    /// The first logical block of its entries.
    fn key(&self) -> Option<Lblk> {
        let index = self.indexes.first().map(|index| index.logical);
        self.extents.first().map(|extent| extent.logical).or(index)
    }

    /// Moves the entries from `at` on to a new node.
    fn split_off(&mut self, at: usize) -> Node {
        let extents = self.extents.split_off(at.min(self.extents.len()));
        let indexes = self.indexes.split_off(at.min(self.indexes.len()));
        Node { extents, indexes, ..*self }
    }
}

impl PlanNode for Node {
    fn resolve(&mut self, home: impl Fn(Pblk) -> Pblk) {
        self.indexes.iter_mut().for_each(|index| index.child = home(index.child));
    }

    fn encode(&self, bytes: &mut [u8], seed: Option<u32>) -> Encoded {
        match self.depth {
            0 => encode_extent_leaf(bytes, self.generation, &self.extents)?,
            depth => encode_extent_index(bytes, depth, self.generation, &self.indexes)?,
        }
        seed.map_or(Ok(()), |seed| update_extent_checksum(bytes, seed))
    }
}

/// A node on the path to a leaf.
struct Step {
    block: Pblk,
    node: Node,
    /// The entry that leads on.
    position: usize,
}

/// The path from the root to a leaf.
struct Path {
    above: Vec<Step>,
    block: Pblk,
    leaf: Node,
    /// The logical blocks that entries of the leaf may cover.
    window: Range<u32>,
}

/// A tree being edited.
pub(super) struct Tree<'a, B> {
    blocks: &'a B,
    draft: &'a Draft,
    seed: Option<u32>,
    /// Entries that fit into a node outside the inode.
    capacity: usize,
    plan: MapEdit<Node>,
}

impl<'a, B: Blocks> Tree<'a, B> {
    pub(super) fn new(blocks: &'a B, draft: &'a Draft) -> Self {
        let ground = blocks.ground();
        let capacity = usize::from(block_capacity(ground.superblock.geometry.block_size()));
        Tree { blocks, draft, seed: draft.seed(ground), capacity, plan: MapEdit::new() }
    }

    pub(super) fn into_plan(self) -> MapEdit<Node> {
        self.plan
    }

    pub(super) fn leaf(&self, block: Lblk) -> Result<Leaf> {
        let Path { leaf, window, .. } = self.path(block.get())?;
        leaf.extents.iter().try_for_each(|extent| self.check_extent(extent))?;
        Ok(Leaf { window, extents: leaf.extents })
    }

    pub(super) fn walk(mut self, each: &mut impl FnMut(Part) -> Result<()>) -> Result<()> {
        self.walk_node(ROOT, self.root_limits(), each)
    }

    /// Recursive: each call is one level deeper.
    fn walk_node(
        &mut self,
        block: Pblk,
        limits: NodeLimits,
        each: &mut impl FnMut(Part) -> Result<()>,
    ) -> Result<()> {
        let node = self.node(block, limits)?;
        for extent in &node.extents {
            self.check_extent(extent)?;
            each(Part::Data(*extent))?;
        }
        if node.key().is_none() && block != ROOT {
            // An empty leaf fits anywhere in the tree. Mark it freed, so that reaching it twice is an error.
            self.plan.free(block);
        }
        for (position, index) in node.indexes.iter().enumerate() {
            let child = self.child_limits(&node, position, limits.end)?;
            each(Part::Node(index.child))?;
            self.walk_node(index.child, child, each)?;
        }
        Ok(())
    }

    /// Applies `change` to `range`, leaf by leaf.
    pub(super) fn edit(&mut self, range: &Range<u32>, change: &Change) -> Result<()> {
        let (mut at, mut mapped) = (range.start, 0);
        while at < range.end {
            let path = self.path(at)?;
            // The window ends past `at`, so the loop makes progress.
            let end = path.window.end;
            mapped += self.edit_leaf(path, range, change, at == range.start)?.0;
            at = end;
        }
        if matches!(change, Change::State { .. }) && mapped != u64::from(range.end - range.start) {
            return Err(not_mapped());
        }
        self.shrink()
    }

    /// Marks the beginning of a range written, as far as one leaf covers it. Returns where that ends, and whether
    /// anything changed.
    pub(super) fn convert(&mut self, range: &Range<u32>) -> Result<(u32, bool)> {
        let path = self.path(range.start)?;
        let part = range.start..range.end.min(path.window.end);
        let changes = Change::State { unwritten: false };
        let (mapped, changed) = self.edit_leaf(path, &part, &changes, true)?;
        if mapped != u64::from(part.end - part.start) {
            return Err(not_mapped());
        }
        Ok((part.end, changed))
    }

    /// Moves the extents that the leaf of `near` maps from block `from` on. They stay between the extents of the
    /// neighbouring leaves, so the leaf keeps its place in the tree; it gets one more extent if one was split.
    pub(super) fn shift(
        &mut self,
        near: u32,
        from: u32,
        target: impl Fn(Lblk) -> Option<Lblk>,
    ) -> Result<()> {
        let path = self.path(near)?;
        let mut extents = Vec::with_capacity(path.leaf.extents.len() + 1);
        for extent in &path.leaf.extents {
            if let Some(stays) = within(extent, &(0..from)) {
                add(&mut extents, stays);
            }
            if let Some(moved) = within(extent, &(from..END)) {
                self.check_mapped(extent, &path)?;
                let logical = target(moved.logical).ok_or(Error::Limit(Limit::Map))?;
                add(&mut extents, Extent { logical, ..moved });
            }
        }
        self.put(path, extents, false)?;
        self.shrink()
    }

    /// Changes one leaf; a new extent goes into the first leaf that overlaps it. Returns how many blocks of the range
    /// it maps, and whether it changed.
    fn edit_leaf(
        &mut self,
        path: Path,
        range: &Range<u32>,
        change: &Change,
        first: bool,
    ) -> Result<(u64, bool)> {
        let known = &path.leaf.extents;
        // Extents before and after the range stay as they are.
        let from = known.partition_point(|extent| extent.logical_end().get() <= range.start);
        let to = known.partition_point(|extent| extent.logical.get() < range.end).max(from);
        let (mut mapped, mut extents) = (0, Vec::with_capacity(known.len() + 2));
        extents.extend_from_slice(&known[..from]);
        if let Some(before) = known[from..to].first().and_then(|extent| within(extent, &(0..range.start))) {
            add(&mut extents, before);
        }
        if let Change::Map { extent, .. } = change
            && first
        {
            add(&mut extents, *extent);
        }
        for extent in &known[from..to] {
            if let Some(inside) = within(extent, range) {
                mapped += u64::from(inside.length);
                self.check_mapped(extent, &path)?;
                match change {
                    Change::Map { only_hole: true, .. } => return Err(Error::Exists),
                    Change::Map { extent, .. } => {
                        unmapped_by(&inside, extent).for_each(|part| self.plan.unmap(part));
                    }
                    Change::Unmap => self.plan.unmap(inside),
                    Change::State { unwritten } => {
                        converted(&inside, *unwritten).for_each(|part| add(&mut extents, part));
                    }
                }
            }
        }
        if let Some(behind) = known[from..to].last().and_then(|last| within(last, &(range.end..END))) {
            add(&mut extents, behind);
        }
        if let Some((next, rest)) = known[to..].split_first() {
            add(&mut extents, *next);
            extents.extend_from_slice(rest);
        }
        let changed = extents != *known;
        if changed || (extents.is_empty() && path.block != ROOT) {
            let is_last = known.last().is_none_or(|last| last.logical.get() < range.start);
            let appends = is_last && first && path.window.end == END;
            self.put(path, extents, appends)?;
        }
        Ok((mapped, changed))
    }

    /// Replaces the extents of a leaf and updates the nodes above it.
    fn put(&mut self, mut path: Path, extents: Vec<Extent>, appends: bool) -> Result<()> {
        let (mut block, mut node) = (path.block, Node { extents, ..path.leaf });
        let mut in_place = true;
        while let Some(Step { block: above, node: mut parent, position }) = path.above.pop() {
            let known = parent.indexes.get(position).map(|index| index.logical);
            let is_new = match node.key() {
                None => {
                    self.plan.free(block);
                    parent.indexes.remove(position);
                    true
                }
                Some(key) => {
                    in_place &= self.blocks.changes_in_place(block);
                    let added = self.split(&mut node, appends);
                    let is_new = !added.is_empty() || known != Some(key);
                    let all = [ExtentIndex { logical: key, child: block }].into_iter().chain(added);
                    parent.indexes.splice(position..=position, all);
                    self.plan.put(block, node);
                    is_new
                }
            };
            if !is_new {
                if !in_place {
                    self.plan.put_above(above, parent);
                    path.above.into_iter().for_each(|step| self.plan.put_above(step.block, step.node));
                }
                return Ok(());
            }
            (block, node) = (above, parent);
        }
        self.put_root(node)
    }

    /// Splits a node that has more entries than fit; returns the index entries of the new nodes. When appending, nodes
    /// stay full.
    fn split(&mut self, node: &mut Node, appends: bool) -> Vec<ExtentIndex> {
        let parts = node.len().div_ceil(self.capacity).max(1);
        let size = if appends { self.capacity } else { node.len().div_ceil(parts) };
        let (mut added, mut rest) = (Vec::new(), node.split_off(size));
        while let Some(logical) = rest.key() {
            let more = rest.split_off(size);
            let child = self.plan.make(std::mem::replace(&mut rest, more));
            added.push(ExtentIndex { logical, child });
        }
        added
    }

    fn put_root(&mut self, mut root: Node) -> Result<()> {
        if root.len() == 0 {
            root.depth = 0;
        }
        if root.len() > usize::from(ROOT_CAPACITY) {
            let (depth, generation) = (root.depth + 1, root.generation);
            if depth > MAX_EXTENT_DEPTH {
                return Err(Error::Limit(Limit::Map));
            }
            let logical = root.key().unwrap_or_default();
            let mut indexes = self.split(&mut root, false);
            indexes.insert(0, ExtentIndex { logical, child: self.plan.make(root) });
            root = Node { depth, generation, extents: Vec::new(), indexes };
        }
        self.plan.put(ROOT, root);
        Ok(())
    }

    /// Moves the contents of an only child into the root, if they fit and the tree has changed.
    pub(super) fn shrink(&mut self) -> Result<()> {
        let mut limits = self.root_limits();
        loop {
            let root = self.node(ROOT, limits)?;
            let [only] = root.indexes[..] else { return Ok(()) };
            if self.plan.get(ROOT).is_none() && self.plan.get(only.child).is_none() {
                return Ok(());
            }
            limits = self.child_limits(&root, 0, limits.end)?;
            if self.plan.get(only.child).is_some_and(|child| child.len() > usize::from(ROOT_CAPACITY)) {
                return Ok(());
            }
            let child = self.node(only.child, limits)?;
            if child.len() > usize::from(ROOT_CAPACITY) {
                return Ok(());
            }
            self.plan.free(only.child);
            self.plan.put(ROOT, child);
            limits = self.root_limits();
        }
    }

    fn root_limits(&self) -> NodeLimits {
        NodeLimits::root(&self.blocks.ground().superblock)
    }

    fn child_limits(&self, node: &Node, position: usize, end: Lblk) -> Result<NodeLimits> {
        let none = || in_map(CorruptKind::ExtentEntries.into(), self.draft);
        let first = node.indexes.get(position).ok_or_else(none)?.logical;
        let end = node.indexes.get(position + 1).map_or(end, |next| next.logical);
        Ok(NodeLimits { depth: node.depth.checked_sub(1), first, end, ..self.root_limits() })
    }

    /// The path to the leaf that maps `block`, or would. Each step is one level deeper.
    fn path(&self, block: u32) -> Result<Path> {
        let (mut at, mut limits, mut start) = (ROOT, self.root_limits(), 0);
        let mut above = Vec::new();
        loop {
            let node = self.node(at, limits)?;
            if node.depth == 0 {
                return Ok(Path { above, block: at, leaf: node, window: start..limits.end.get() });
            }
            // A block before all entries belongs to the first.
            let behind = node.indexes.partition_point(|index| index.logical.get() <= block);
            let position = behind.saturating_sub(1);
            limits = self.child_limits(&node, position, limits.end)?;
            if position > 0 {
                start = limits.first.get();
            }
            let child = node.indexes[position].child;
            above.push(Step { block: at, node, position });
            at = child;
        }
    }

    /// The current contents of a node, checked. A damaged tree may lead to a node that this edit created.
    fn node(&self, block: Pblk, limits: NodeLimits) -> Result<Node> {
        let place = |corrupt: Corrupt| if block == ROOT { corrupt } else { corrupt.at_block(block) };
        let fault = |corrupt: Corrupt| in_map(place(corrupt), self.draft);
        let node = match self.plan.get(block) {
            Some(node) => node.clone(),
            // An empty leaf has no key to check: reaching it twice is a cycle.
            None if self.plan.is_free(block) => return Err(fault(CYCLE.into())),
            None if block == ROOT => {
                let root = ExtentNode::root(&self.draft.disk.i_block, limits);
                Node::of(&root.map_err(fault)?)
            }
            None => {
                check_zones(self.blocks.ground(), block, 1, "an extent node").map_err(fault)?;
                let look = |bytes: &[u8]| Ok(Node::of(&ExtentNode::block(bytes, limits, self.seed)?));
                self.blocks.look(block, look)?.map_err(fault)?
            }
        };
        self.blocks.work(node.len() * size_of::<Extent>())?;
        if limits.depth.is_some_and(|depth| depth != node.depth) {
            return Err(fault(CorruptKind::ExtentDepth.into()));
        }
        // As the kernel and e2fsck require: a node begins where the entry above it says.
        match node.key() {
            Some(key) if block != ROOT && key != limits.first => {
                Err(fault(Corrupt::from(CorruptKind::ExtentRange).at_lblk(key)))
            }
            _ => Ok(node),
        }
    }

    /// Refuses an extent that cannot belong to the file: its blocks would be freed or written.
    fn check_mapped(&self, extent: &Extent, path: &Path) -> Result<()> {
        self.check_extent(extent)?;
        let end = Pblk(extent.physical.get() + u64::from(extent.length));
        let mut nodes = path.above.iter().map(|step| step.block).chain([path.block]);
        match nodes.any(|node| extent.physical <= node && node < end) {
            true => Err(in_map(Corrupt::from(CYCLE).at_lblk(extent.logical), self.draft)),
            false => Ok(()),
        }
    }

    fn check_extent(&self, extent: &Extent) -> Result<()> {
        let allowed = check_zones(self.blocks.ground(), extent.physical, extent.length.into(), "an extent");
        let place = |corrupt: Corrupt| corrupt.at_lblk(extent.logical).at_block(extent.physical);
        allowed.map_err(|corrupt| in_map(place(corrupt), self.draft))
    }
}

/// The extent in another state. Unwritten extents are limited to one block less, so there may be two.
pub(super) fn converted(extent: &Extent, unwritten: bool) -> impl Iterator<Item = Extent> + use<> {
    let extent = Extent { unwritten, ..*extent };
    let (start, end) = (extent.logical.get(), extent.logical_end().get());
    let most = if unwritten { MAX_UNWRITTEN_LENGTH } else { extent.length };
    let cut = start + extent.length.min(most);
    [start..cut, cut..end].into_iter().filter_map(move |part| within(&extent, &part))
}
