//! Extent trees under change.

use super::plan::{Encoded, Node as PlanNode, Plan, ROOT};
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

/// Blocks from here on cannot be named: their numbers have 48 bits.
pub(super) const REACH: u64 = 1 << 48;

/// A node: it has extents if its depth is 0, else indexes. In order.
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

    /// The first logical block that it says something of.
    fn key(&self) -> Option<Lblk> {
        let index = self.indexes.first().map(|index| index.logical);
        self.extents.first().map(|extent| extent.logical).or(index)
    }

    /// The entries from `at` on become another node.
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

/// A node on the way to a leaf.
struct Step {
    block: Pblk,
    node: Node,
    /// Which entry leads on.
    position: usize,
}

/// The way to a leaf, from the root.
struct Path {
    above: Vec<Step>,
    block: Pblk,
    leaf: Node,
    /// What an entry of the leaf may be about.
    window: Range<u32>,
}

/// A tree, and what is made of it.
pub(super) struct Tree<'a, B> {
    blocks: &'a B,
    draft: &'a Draft,
    seed: Option<u32>,
    /// Entries that fit a node outside the inode.
    capacity: usize,
    plan: Plan<Node>,
}

impl<'a, B: Blocks> Tree<'a, B> {
    pub(super) fn new(blocks: &'a B, draft: &'a Draft) -> Self {
        let ground = blocks.ground();
        let capacity = usize::from(block_capacity(ground.superblock.geometry.block_size()));
        Tree { blocks, draft, seed: draft.seed(ground), capacity, plan: Plan::new() }
    }

    pub(super) fn into_plan(self) -> Plan<Node> {
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

    /// Goes one level deeper with each call.
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
            // It fits everywhere, and is not to be met again.
            self.plan.free(block);
        }
        for (position, index) in node.indexes.iter().enumerate() {
            let child = self.child_limits(&node, position, limits.end)?;
            each(Part::Node(index.child))?;
            self.walk_node(index.child, child, each)?;
        }
        Ok(())
    }

    /// Changes what lies at `range`, leaf by leaf.
    pub(super) fn edit(&mut self, range: &Range<u32>, change: &Change) -> Result<()> {
        let (mut at, mut mapped) = (range.start, 0);
        while at < range.end {
            let path = self.path(at)?;
            // What a leaf may say ends behind the block that was looked for.
            let end = path.window.end;
            mapped += self.edit_leaf(path, range, change, at == range.start)?.0;
            at = end;
        }
        if matches!(change, Change::State { .. }) && mapped != u64::from(range.end - range.start) {
            return Err(not_mapped());
        }
        self.shrink()
    }

    /// Makes the beginning of a range written, as much of it as one leaf tells about. Returns where that ends, and
    /// whether something changed.
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

    /// Gives what the leaf of `near` maps from block `from` on other places. They stay between what the leaves beside
    /// it map, so the leaf keeps its place in the tree; it has one extent more if one was divided.
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

    /// Changes one leaf; a new extent goes into the first that is met. Returns how many blocks of the range it maps,
    /// and whether it changed.
    fn edit_leaf(
        &mut self,
        path: Path,
        range: &Range<u32>,
        change: &Change,
        first: bool,
    ) -> Result<(u64, bool)> {
        let known = &path.leaf.extents;
        // What lies in front of the range stays as it is, and what lies behind it.
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

    /// Gives a leaf other extents and brings the nodes above it up to date.
    fn put(&mut self, mut path: Path, extents: Vec<Extent>, appends: bool) -> Result<()> {
        let (mut block, mut node) = (path.block, Node { extents, ..path.leaf });
        while let Some(Step { block: above, node: mut parent, position }) = path.above.pop() {
            let known = parent.indexes.get(position).map(|index| index.logical);
            let is_new = match node.key() {
                None => {
                    self.plan.free(block);
                    parent.indexes.remove(position);
                    true
                }
                Some(key) => {
                    let added = self.split(&mut node, appends);
                    let is_new = !added.is_empty() || known != Some(key);
                    let all = [ExtentIndex { logical: key, child: block }].into_iter().chain(added);
                    parent.indexes.splice(position..=position, all);
                    self.plan.put(block, node);
                    is_new
                }
            };
            if !is_new {
                return Ok(());
            }
            (block, node) = (above, parent);
        }
        self.put_root(node)
    }

    /// Makes several of a node that has more entries than fit; returns the entries of those behind it. Who appends
    /// leaves full nodes behind.
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

    /// Takes back into the root what is alone under it, if it fits and was changed.
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

    /// The way to the leaf that maps `block`, or would. Each step is one level deeper.
    fn path(&self, block: u32) -> Result<Path> {
        let (mut at, mut limits, mut start) = (ROOT, self.root_limits(), 0);
        let mut above = Vec::new();
        loop {
            let node = self.node(at, limits)?;
            if node.depth == 0 {
                return Ok(Path { above, block: at, leaf: node, window: start..limits.end.get() });
            }
            // What lies before all entries belongs to the first.
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

    /// A node as it is by now, checked. One that this edit made may be met again in a damaged tree.
    fn node(&self, block: Pblk, limits: NodeLimits) -> Result<Node> {
        let place = |corrupt: Corrupt| if block == ROOT { corrupt } else { corrupt.at_block(block) };
        let fault = |corrupt: Corrupt| in_map(place(corrupt), self.draft);
        let node = match self.plan.get(block) {
            Some(node) => node.clone(),
            // An empty leaf does not say where it belongs.
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
        // As the kernel wants it, and e2fsck: the entry above says where a node begins.
        match node.key() {
            Some(key) if block != ROOT && key != limits.first => {
                Err(fault(Corrupt::from(CorruptKind::ExtentRange).at_lblk(key)))
            }
            _ => Ok(node),
        }
    }

    /// Refuses an extent that cannot be the file's alone: it goes back to the free ones, or is written to.
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

/// An extent in another state. An unwritten one is a block shorter at most, so there may be two.
fn converted(extent: &Extent, unwritten: bool) -> impl Iterator<Item = Extent> + use<> {
    let extent = Extent { unwritten, ..*extent };
    let (start, end) = (extent.logical.get(), extent.logical_end().get());
    let most = if unwritten { MAX_UNWRITTEN_LENGTH } else { extent.length };
    let cut = start + extent.length.min(most);
    [start..cut, cut..end].into_iter().filter_map(move |part| within(&extent, &part))
}
