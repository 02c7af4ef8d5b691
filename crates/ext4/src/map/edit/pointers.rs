//! Editing maps of block pointers (ext2, ext3).

use super::plan::{Encoded, MapEdit, Node as PlanNode, ROOT};
use super::{CYCLE, Change, END, Leaf, Part, add, in_map, no_unwritten, not_mapped, unmapped_by};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::inode::draft::Draft;
use crate::map::indirect::check_zones;
use std::collections::HashSet;
use std::ops::Range;
use uext4_ondisk::ext4::{DIRECT_POINTERS, Extent, IndirectLayout, MAX_INDIRECT_DEPTH, PointerBlock};
use uext4_ondisk::{Corrupt, EncodeError, Lblk, Pblk};

/// The first block number that a pointer cannot name.
pub(super) const REACH: u64 = 1 << u32::BITS;
/// Bytes of a pointer.
const POINTER_SIZE: usize = 4;
/// The pointer of a hole.
const HOLE: Pblk = Pblk(0);

/// The pointers of a block, or of the inode.
#[derive(Clone)]
pub(super) struct Node(Vec<Pblk>);

impl Node {
    fn of(pointers: &PointerBlock<'_>) -> Node {
        Node((0..pointers.count()).map(|at| pointers.get(at).unwrap_or(HOLE)).collect())
    }
}

impl PlanNode for Node {
    fn resolve(&mut self, home: impl Fn(Pblk) -> Pblk) {
        self.0.iter_mut().for_each(|pointer| *pointer = home(*pointer));
    }

    fn encode(&self, bytes: &mut [u8], _seed: Option<u32>) -> Encoded {
        let wide = EncodeError { structure: "pointer block", field: "block" };
        for (place, pointer) in bytes.chunks_exact_mut(POINTER_SIZE).zip(&self.0) {
            place.copy_from_slice(&u32::try_from(pointer.get()).map_err(|_| wide)?.to_le_bytes());
        }
        Ok(())
    }
}

/// A pointer block, or a place for one: its level (1: it points to data), the first logical block under it, and whether
/// the inode points to it.
#[derive(Clone, Copy)]
struct Spot {
    block: Pblk,
    level: u32,
    first: u64,
    is_top: bool,
}

/// What a pointer names after an edit.
struct Named {
    /// Nothing, if there is nothing left to name.
    block: Pblk,
    /// Whether all that changed from there on can change in place.
    in_place: bool,
}

/// A map being edited.
pub(super) struct Pointers<'a, B> {
    blocks: &'a B,
    draft: &'a Draft,
    layout: IndirectLayout,
    /// The three pointer blocks that the inode points to, or 0.
    tops: [Spot; MAX_INDIRECT_DEPTH as usize],
    /// Pointer blocks read so far. None of them may be reached twice or hold data.
    met: HashSet<Pblk>,
    plan: MapEdit<Node>,
}

impl<'a, B: Blocks> Pointers<'a, B> {
    pub(super) fn new(blocks: &'a B, draft: &'a Draft) -> Self {
        let layout = IndirectLayout::new(blocks.ground().superblock.geometry.block_size());
        let (root, mut first) = (PointerBlock::root(&draft.disk.i_block), u64::from(DIRECT_POINTERS));
        let tops = [1, 2, 3].map(|level| {
            let block = root.get(DIRECT_POINTERS + level - 1).unwrap_or_default();
            let place = Spot { block, level, first, is_top: true };
            first += span(layout, level);
            place
        });
        Pointers { blocks, draft, layout, tops, met: HashSet::new(), plan: MapEdit::new() }
    }

    pub(super) fn into_plan(self) -> MapEdit<Node> {
        self.plan
    }

    /// Logical blocks that can be mapped.
    pub(super) fn blocks(&self) -> u64 {
        self.layout.blocks()
    }

    pub(super) fn leaf(mut self, block: Lblk) -> Result<Leaf> {
        let leaf = |(first, end): (u64, u64), extents| Leaf { window: first as u32..end as u32, extents };
        let Some(path) = self.layout.path(block) else {
            return Ok(leaf((self.blocks(), END.into()), Vec::new()));
        };
        let direct = PointerBlock::direct(&self.draft.disk.i_block);
        let mut node = Node::of(&direct);
        let mut top = path.depth().checked_sub(1).map(|at| self.tops[at as usize]);
        while let Some(place) = top {
            if place.block == HOLE {
                return Ok(leaf(path.window(place.level), Vec::new()));
            }
            node = self.load(place)?;
            let (level, block) = (place.level - 1, node.0[path.index(place.level) as usize]);
            let first = path.window(level).0;
            top = (level > 0).then_some(Spot { block, level, first, is_top: false });
        }
        let window = path.window(path.depth().min(1));
        Ok(leaf(window, self.extents(&node, window.0)?))
    }

    /// The extents mapped by a node of level 1, or by the direct pointers.
    fn extents(&self, node: &Node, first: u64) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        for (logical, pointer) in (first..self.blocks()).zip(&node.0).filter(|(_, at)| **at != HOLE) {
            add(&mut extents, self.data(*pointer, logical)?);
        }
        Ok(extents)
    }

    pub(super) fn walk(mut self, each: &mut impl FnMut(Part) -> Result<()>) -> Result<()> {
        let direct = Node::of(&PointerBlock::direct(&self.draft.disk.i_block));
        self.extents(&direct, 0)?.into_iter().try_for_each(|extent| each(Part::Data(extent)))?;
        let tops = self.tops;
        tops.into_iter().filter(|top| top.block != HOLE).try_for_each(|top| self.walk_node(top, each))
    }

    /// Recursive: each call is one level deeper.
    fn walk_node(&mut self, place: Spot, each: &mut impl FnMut(Part) -> Result<()>) -> Result<()> {
        let node = self.load(place)?;
        each(Part::Node(place.block))?;
        if place.level == 1 {
            let extents = self.extents(&node, place.first)?;
            return extents.into_iter().try_for_each(|extent| each(Part::Data(extent)));
        }
        for (at, block) in (0..).zip(node.0).filter(|(_, block)| *block != HOLE) {
            self.walk_node(self.child(place, at, block), each)?;
        }
        Ok(())
    }

    /// The place that pointer `at` of a block leads to.
    fn child(&self, above: Spot, at: u64, block: Pblk) -> Spot {
        let level = above.level - 1;
        Spot { block, level, first: above.first + at * span(self.layout, level), is_top: false }
    }

    /// Applies `change` to `range`.
    pub(super) fn edit(&mut self, range: &Range<u32>, change: &Change) -> Result<()> {
        if matches!(change, Change::State { unwritten: true }) {
            return Err(no_unwritten(self.draft));
        }
        let whole = u64::from(range.start)..u64::from(range.end);
        let range = whole.start..whole.end.min(self.blocks());
        if range.end < whole.end && matches!(change, Change::State { .. }) {
            return Err(not_mapped());
        }
        let before = Node::of(&PointerBlock::root(&self.draft.disk.i_block));
        let (mut root, mut in_place) = (before.clone(), true);
        for (logical, pointer) in (0..range.end).zip(&mut root.0[..DIRECT_POINTERS as usize]) {
            if range.contains(&logical) {
                *pointer = self.pointer(*pointer, logical, change)?;
            }
        }
        for (top, pointer) in self.tops.into_iter().zip(&mut root.0[DIRECT_POINTERS as usize..]) {
            if range.start < top.first + span(self.layout, top.level) && top.first < range.end {
                let named = self.edit_node(top, &range, change)?;
                (*pointer, in_place) = (named.block, in_place && named.in_place);
            }
        }
        if root.0 != before.0 {
            self.plan.put(ROOT, root);
        } else if !in_place {
            self.plan.put_above(ROOT, root);
        }
        Ok(())
    }

    /// Applies `change` to the part of `range` under a pointer block. Returns the block to point to in its place: 0, if
    /// it has no pointers left. Recursive: each call is one level deeper.
    fn edit_node(&mut self, place: Spot, range: &Range<u64>, change: &Change) -> Result<Named> {
        let before = match (place.block, change) {
            (HOLE, Change::Map { .. }) => Node(vec![HOLE; self.layout.pointers_per_block() as usize]),
            (HOLE, Change::Unmap) => return Ok(Named { block: HOLE, in_place: true }),
            (HOLE, Change::State { .. }) => return Err(not_mapped()),
            _ => self.load(place)?,
        };
        let (mut node, under) = (before.clone(), span(self.layout, place.level - 1));
        let from = range.start.saturating_sub(place.first) / under;
        let to = (range.end - place.first).div_ceil(under);
        let mut in_place = true;
        for (at, pointer) in (0..to).zip(&mut node.0).skip(from as usize) {
            if place.level == 1 {
                *pointer = self.pointer(*pointer, place.first + at, change)?;
            } else {
                let child = self.edit_node(self.child(place, at, *pointer), range, change)?;
                (*pointer, in_place) = (child.block, in_place && child.in_place);
            }
        }
        if node.0.iter().all(|pointer| *pointer == HOLE) {
            self.plan.free(place.block);
            return Ok(Named { block: HOLE, in_place: true });
        }
        match place.block {
            HOLE => return Ok(Named { block: self.plan.make(node), in_place: true }),
            block if node.0 != before.0 => {
                in_place &= self.blocks.changes_in_place(block);
                self.plan.put(block, node);
            }
            block if !in_place => self.plan.put_above(block, node),
            _ => {}
        }
        Ok(Named { block: place.block, in_place })
    }

    /// The new value of a pointer to data.
    fn pointer(&mut self, before: Pblk, logical: u64, change: &Change) -> Result<Pblk> {
        let mapped = (before != HOLE).then(|| self.data(before, logical)).transpose()?;
        match change {
            Change::Map { only_hole: true, .. } if mapped.is_some() => Err(Error::Exists),
            Change::Map { extent, .. } => {
                let gone = mapped.iter().flat_map(|mapped| unmapped_by(mapped, extent));
                gone.for_each(|part| self.plan.unmap(part));
                Ok(extent.physical_of(Lblk(logical as u32)).unwrap_or(before))
            }
            Change::Unmap => {
                mapped.into_iter().for_each(|mapped| self.plan.unmap(mapped));
                Ok(HOLE)
            }
            Change::State { .. } => mapped.map(|_| before).ok_or_else(not_mapped),
        }
    }

    /// The block that a pointer to data names, as an extent.
    fn data(&self, physical: Pblk, logical: u64) -> Result<Extent> {
        let extent = Extent { logical: Lblk(logical as u32), length: 1, physical, unwritten: false };
        let allowed = check_zones(self.blocks.ground(), physical, 1, "the indirect map");
        let is_node = self.met.contains(&physical) || self.tops.iter().any(|top| top.block == physical);
        let checked = if is_node { Err(Corrupt::from(CYCLE)) } else { allowed };
        let place = |corrupt: Corrupt| corrupt.at_lblk(extent.logical).at_block(physical);
        checked.map(|()| extent).map_err(|corrupt| in_map(place(corrupt), self.draft))
    }

    /// Reads a pointer block from the volume.
    fn load(&mut self, place: Spot) -> Result<Node> {
        let block = place.block;
        let fault = |corrupt: Corrupt| in_map(corrupt.at_block(block), self.draft);
        check_zones(self.blocks.ground(), block, 1, "a block of the indirect map").map_err(fault)?;
        let is_top = self.tops.iter().any(|top| top.block == block);
        if is_top != place.is_top || !self.met.insert(block) {
            return Err(fault(CYCLE.into()));
        }
        self.blocks.work(self.layout.pointers_per_block() as usize * size_of::<Pblk>())?;
        let node = self.blocks.look(block, |bytes| Ok(Node::of(&PointerBlock::new(bytes, self.layout)?)))?;
        node.map_err(fault)
    }
}

/// Logical blocks under a pointer block of this level; 1 for level 0, a pointer. At most 14 × 3 bits.
fn span(layout: IndirectLayout, level: u32) -> u64 {
    u64::from(layout.pointers_per_block()).pow(level)
}
