//! Edits of a single leaf of an extent tree, made in the bytes of its cached block.
//!
//! Most edits change a few entries of one leaf and nothing above it. Such an edit walks once, with a binary search in
//! each node, and moves the entries behind those that it replaces. A node is checked when it is first met by this
//! inode: the cache notes for whom it was found sound ([`Blocks::look_for`]).
//!
//! Everything else is left to the general editor (`extents.rs`): a leaf that is full, gets empty or gets another first
//! block, a tree that shrinks, a range of several leaves or of many entries, and blocks that cannot change in place.
//! Both make the same map of the same input.

use super::plan::ROOT;
use super::{Change, END, Leaf, add_to, in_map, not_mapped, within};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use crate::ground::trace::Role;
use crate::inode::draft::Draft;
use crate::map::indirect::check_zones;
use std::ops::Range;
use uext4_ondisk::ext4::{
    Extent, ExtentNode, MAX_EXTENT_DEPTH, NodeLimits, splice_extent_leaf, splice_sealed_leaf,
};
use uext4_ondisk::{Corrupt, CorruptKind, Lblk, Pblk};

/// Most entries that one edit here replaces.
const MOST: usize = 8;
/// Most entries that it makes of them: with both neighbours, and a cut at each end.
const MADE: usize = MOST + 5;

/// Bytes of a node's head, and of an entry.
const HEAD: usize = 12;
const ENTRY: usize = 12;

/// The place of a leaf.
struct Spot {
    /// The blocks on the way, without the root; the leaf is the last one.
    way: [Pblk; MAX_EXTENT_DEPTH as usize],
    depth: usize,
    limits: NodeLimits,
    /// The logical blocks that entries of the leaf may cover.
    window: Range<u32>,
    /// Whether it is the only child of the root, which takes its entries over when there are few.
    is_only: bool,
}

impl Spot {
    /// Where a walk begins.
    fn root(ground: &Ground) -> Spot {
        let limits = NodeLimits::root(&ground.superblock);
        Spot { way: [ROOT; MAX_EXTENT_DEPTH as usize], depth: 0, limits, window: 0..END, is_only: false }
    }

    /// The leaf's block; `None`: it is the root.
    fn leaf(&self) -> Option<Pblk> {
        self.depth.checked_sub(1).and_then(|last| self.way.get(last)).copied()
    }

    /// Goes on from a node to the child that maps `block`, or would.
    fn descend(&mut self, node: &ExtentNode<'_>, block: u32) -> std::result::Result<(), Corrupt> {
        // A block before all entries belongs to the first.
        let position = node.find_index(Lblk(block)).unwrap_or_default();
        let child =
            node.index(position).zip(node.child_limits(position)).ok_or(CorruptKind::ExtentEntries)?;
        self.is_only = self.depth == 0 && node.depth() == 1 && node.len() == 1;
        *self.way.get_mut(self.depth).ok_or(CorruptKind::ExtentDepth)? = child.0.child;
        self.depth += 1;
        self.limits = child.1;
        if position > 0 {
            self.window.start = self.limits.first.get();
        }
        self.window.end = self.limits.end.get();
        Ok(())
    }
}

/// Names all that the soundness of a node depends on besides its contents: the inode, and what is above the node.
fn whom(draft: &Draft, limits: &NodeLimits) -> u128 {
    let depth = u32::from(limits.depth.unwrap_or_default()) + 1;
    let inode = u128::from(draft.ino.get()) << 32 | u128::from(draft.disk.generation << 3 | depth);
    inode << 64 | u128::from(limits.first.get()) << 32 | u128::from(limits.end.get())
}

/// As the kernel and e2fsck require: a node begins where the entry above it says.
fn check_key(node: &ExtentNode<'_>, limits: &NodeLimits) -> std::result::Result<(), Corrupt> {
    let first = node.index(0).map(|index| index.logical);
    match node.extent(0).map(|extent| extent.logical).or(first) {
        Some(key) if key != limits.first => Err(Corrupt::from(CorruptKind::ExtentRange).at_lblk(key)),
        _ => Ok(()),
    }
}

/// Walks from the root to the leaf that maps `block`, or would, and looks at it. `spot` is the root's, and then the
/// leaf's.
fn at_leaf<T>(
    blocks: &impl Blocks,
    draft: &Draft,
    block: u32,
    spot: &mut Spot,
    look: impl FnOnce(&Spot, &ExtentNode<'_>) -> Result<T>,
) -> Result<T> {
    let ground = blocks.ground();
    let root = ExtentNode::root(&draft.disk.i_block, spot.limits).map_err(|fault| in_map(fault, draft))?;
    if root.is_leaf() {
        return look(spot, &root);
    }
    spot.descend(&root, block).map_err(|fault| in_map(fault, draft))?;
    let (seed, mut look) = (draft.seed(ground), Some(look));
    loop {
        let at = spot.leaf().unwrap_or(ROOT);
        let fault = |corrupt: Corrupt| in_map(corrupt.at_block(at), draft);
        check_zones(ground, at, 1, "an extent node").map_err(fault)?;
        blocks.work(ground.superblock.geometry.block_size() as usize)?;
        let limits = spot.limits;
        let verify = |bytes: &[u8]| ExtentNode::block(bytes, limits, seed).map(drop).map_err(fault);
        let seen = blocks.look_for(at, whom(draft, &limits), verify, |bytes| {
            let node = ExtentNode::known_block(bytes, limits).map_err(fault)?;
            check_key(&node, &limits).map_err(fault)?;
            if !node.is_leaf() {
                return spot.descend(&node, block).map(|()| None).map_err(fault);
            }
            let look = look.take().ok_or_else(|| fault(CorruptKind::ExtentDepth.into()))?;
            look(spot, &node).map(Some)
        })??;
        if let Some(seen) = seen {
            return Ok(seen);
        }
    }
}

/// A hole, or the part of it in one leaf.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) blocks: Range<u32>,
    /// The last extent before it in its leaf.
    pub(crate) before: Option<Extent>,
}

/// The first hole of a range, as far as the leaf with its beginning covers it. `Err` inside: there is none before this
/// block, where the next leaf begins.
pub(super) fn gap(
    blocks: &impl Blocks,
    draft: &Draft,
    range: &Range<u32>,
) -> Result<std::result::Result<Gap, u32>> {
    at_leaf(blocks, draft, range.start, &mut Spot::root(blocks.ground()), |spot, node| {
        let mut at = range.start;
        let mut behind = node.find_extent(Lblk(at)).unwrap_or_default();
        let mut before = None;
        while let Some(extent) = node.extent(behind).filter(|extent| extent.logical.get() <= at) {
            at = at.max(extent.logical_end().get());
            before = Some(extent);
            behind += 1;
        }
        if let Some(before) = &before {
            check_extent(blocks, draft, before)?;
        }
        if at >= spot.window.end.min(range.end) {
            return Ok(Err(at.max(spot.window.end)));
        }
        let next = node.extent(behind).map_or(spot.window.end, |extent| extent.logical.get());
        Ok(Ok(Gap { blocks: at..next.min(range.end), before }))
    })
}

/// The leaf that maps the last block of a range, which is not empty: its extents that lie in the range.
pub(super) fn last_leaf(blocks: &impl Blocks, draft: &Draft, range: &Range<u32>) -> Result<Leaf> {
    at_leaf(blocks, draft, range.end - 1, &mut Spot::root(blocks.ground()), |spot, node| {
        let behind = |block: u32| node.find_extent(Lblk(block)).map_or(0, |last| last + 1);
        let meets = |extent: &Extent| extent.logical_end().get() > range.start;
        let inside = behind(range.start).saturating_sub(1)..behind(range.end - 1);
        let extents: Vec<_> = inside.filter_map(|at| node.extent(at)).filter(meets).collect();
        extents.iter().try_for_each(|extent| check_extent(blocks, draft, extent))?;
        Ok(Leaf { window: spot.window.clone(), extents })
    })
}

/// Whether this hole can be mapped here whatever its place will be: then the map needs no block for it.
pub(super) fn has_room(blocks: &impl Blocks, draft: &Draft, hole: &Range<u32>) -> Result<bool> {
    if hole.is_empty() || is_off() {
        return Ok(false);
    }
    let mut spot = Spot::root(blocks.ground());
    let fits = at_leaf(blocks, draft, hole.start, &mut spot, |spot, node| {
        let behind = node.find_extent(Lblk(hole.end - 1)).map_or(0, |last| last + 1);
        let before = behind.checked_sub(1).and_then(|before| node.extent(before));
        let is_hole = before.is_none_or(|before| before.logical_end().get() <= hole.start);
        let keeps_key = spot.depth == 0 || behind > 0;
        Ok(hole.end <= spot.window.end && is_hole && keeps_key && node.len() < capacity(node))
    })?;
    Ok(fits && spot.leaf().is_none_or(|leaf| blocks.changes_in_place(leaf)))
}

/// Entries that fit into a leaf.
fn capacity(leaf: &ExtentNode<'_>) -> usize {
    usize::from(leaf.header().capacity)
}

/// A few extents in order.
struct Few {
    extents: [Extent; MADE],
    count: usize,
}

impl Few {
    fn new() -> Few {
        let none = Extent { logical: Lblk(0), length: 0, physical: Pblk(0), unwritten: false };
        Few { extents: [none; MADE], count: 0 }
    }

    fn all(&self) -> &[Extent] {
        &self.extents[..self.count]
    }

    /// Appends an extent, merged with the last one if possible.
    fn add(&mut self, next: Extent) {
        if add_to(self.extents[..self.count].last_mut(), &next) {
            return;
        }
        if let Some(place) = self.extents.get_mut(self.count) {
            (*place, self.count) = (next, self.count + 1);
        }
    }
}

/// What an edit makes of a leaf.
struct Splice {
    /// The entries to replace, and what comes in their place.
    at: Range<usize>,
    made: Few,
    /// Blocks of the range that are mapped.
    mapped: u64,
    is_changed: bool,
    /// Entries of the leaf afterwards.
    count: usize,
    unmapped: Vec<Extent>,
}

/// What an edit has done.
pub(super) struct Done {
    /// Where the part of the range ends that the leaf covers.
    pub(super) end: u32,
    pub(super) is_changed: bool,
    pub(super) unmapped: Vec<Extent>,
}

/// Applies `change` to a range, which is not empty and lies in one leaf. `None`: this is for the general editor, and
/// nothing was changed.
///
/// # Errors
/// Those of the general editor, with nothing changed.
pub(super) fn edit(
    blocks: &mut impl Blocks,
    draft: &mut Draft,
    range: &Range<u32>,
    change: &Change,
) -> Result<Option<Vec<Extent>>> {
    Ok(edit_part(blocks, draft, range, change, false)?.map(|done| done.unmapped))
}

/// The same for the beginning of a range, as far as one leaf covers it: marks it written.
///
/// # Errors
/// As of [`edit`].
pub(super) fn convert(
    blocks: &mut impl Blocks,
    draft: &mut Draft,
    range: &Range<u32>,
) -> Result<Option<Done>> {
    edit_part(blocks, draft, range, &Change::State { unwritten: false }, true)
}

fn edit_part(
    blocks: &mut impl Blocks,
    draft: &mut Draft,
    range: &Range<u32>,
    change: &Change,
    is_cut: bool,
) -> Result<Option<Done>> {
    if matches!(change, Change::Map { only_hole: false, .. }) || is_off() {
        return Ok(None);
    }
    let (mut spot, mut splice) = (Spot::root(blocks.ground()), Splice::new());
    let end = at_leaf(blocks, draft, range.start, &mut spot, |spot, node| {
        let end = if is_cut { range.end.min(spot.window.end) } else { range.end };
        // The general editor takes out an empty leaf that it meets.
        if end > spot.window.end || (node.is_empty() && spot.depth > 0) {
            return Ok(None);
        }
        let part = range.start..end;
        if !plan(blocks, draft, spot, node, &part, change, &mut splice)? {
            return Ok(None);
        }
        if matches!(change, Change::State { .. }) && splice.mapped != u64::from(part.end - part.start) {
            return Err(not_mapped());
        }
        Ok((!splice.is_changed || splice.stays(spot, node)).then_some(end))
    })?;
    let Some(end) = end else { return Ok(None) };
    if splice.is_changed {
        if !spot.leaf().is_none_or(|leaf| blocks.changes_in_place(leaf)) {
            return Ok(None);
        }
        store(blocks, draft, &spot, &splice)?;
    }
    Ok(Some(Done { end, is_changed: splice.is_changed, unmapped: splice.unmapped }))
}

impl Splice {
    fn new() -> Splice {
        Splice { at: 0..0, made: Few::new(), mapped: 0, is_changed: false, count: 0, unmapped: Vec::new() }
    }

    /// Whether the leaf changes and nothing above it.
    fn stays(&self, spot: &Spot, node: &ExtentNode<'_>) -> bool {
        let count = self.count;
        if spot.depth == 0 {
            return count <= capacity(node);
        }
        let key = |extent: Option<Extent>| extent.map(|extent| extent.logical);
        let keeps_key = self.at.start > 0 || key(self.made.all().first().copied()) == key(node.extent(0));
        let shrinks = spot.is_only && count <= usize::from(uext4_ondisk::ext4::ROOT_CAPACITY);
        count > 0 && count <= capacity(node) && keeps_key && !shrinks
    }
}

/// Finds the entries of a leaf after an edit, as the general editor makes them. `splice` is a new one. `false` if there
/// are many.
fn plan(
    blocks: &impl Blocks,
    draft: &Draft,
    spot: &Spot,
    node: &ExtentNode<'_>,
    range: &Range<u32>,
    change: &Change,
    splice: &mut Splice,
) -> Result<bool> {
    let behind = |block: u32| node.find_extent(Lblk(block)).map_or(0, |last| last + 1);
    let from = behind(range.start);
    let meets = |at: usize| node.extent(at).is_some_and(|extent| extent.logical_end().get() > range.start);
    let from = from.checked_sub(1).filter(|before| meets(*before)).unwrap_or(from);
    let to = behind(range.end - 1).max(from);
    if to - from > MOST {
        return Ok(false);
    }
    splice.at = from.saturating_sub(1)..(to + 1).min(node.len());
    let Splice { at, made, mapped, is_changed, count, unmapped } = splice;
    if let Some(before) = from.checked_sub(1).and_then(|before| node.extent(before)) {
        made.add(before);
    }
    let inside = || (from..to).filter_map(|at| node.extent(at));
    if let Some(before) = inside().next().and_then(|extent| within(&extent, &(0..range.start))) {
        made.add(before);
    }
    if let Change::Map { extent, .. } = change {
        made.add(*extent);
    }
    for extent in inside() {
        check_extent(blocks, draft, &extent)?;
        check_way(draft, spot, &extent)?;
        let Some(part) = within(&extent, range) else { continue };
        *mapped += u64::from(part.length);
        match change {
            Change::Map { .. } => return Err(Error::Exists),
            Change::Unmap => super::add(unmapped, part),
            Change::State { unwritten } => {
                super::extents::converted(&part, *unwritten).for_each(|part| made.add(part));
            }
        }
    }
    if let Some(behind) = inside().next_back().and_then(|extent| within(&extent, &(range.end..END))) {
        made.add(behind);
    }
    if let Some(next) = node.extent(to) {
        made.add(next);
    }
    *is_changed = !at.clone().filter_map(|at| node.extent(at)).eq(made.all().iter().copied());
    *count = node.len() - at.len() + made.count;
    Ok(true)
}

/// Refuses an extent that cannot belong to the file.
fn check_extent(blocks: &impl Blocks, draft: &Draft, extent: &Extent) -> Result<()> {
    let allowed = check_zones(blocks.ground(), extent.physical, extent.length.into(), "an extent");
    let place = |corrupt: Corrupt| corrupt.at_lblk(extent.logical).at_block(extent.physical);
    allowed.map_err(|corrupt| in_map(place(corrupt), draft))
}

/// Refuses an extent with a node that leads to it.
fn check_way(draft: &Draft, spot: &Spot, extent: &Extent) -> Result<()> {
    let end = Pblk(extent.physical.get() + u64::from(extent.length));
    match spot.way[..spot.depth].iter().any(|node| extent.physical <= *node && *node < end) {
        true => Err(in_map(Corrupt::from(super::CYCLE).at_lblk(extent.logical), draft)),
        false => Ok(()),
    }
}

fn store(blocks: &mut impl Blocks, draft: &mut Draft, spot: &Spot, splice: &Splice) -> Result<()> {
    let (at, made) = (splice.at.clone(), splice.made.all());
    let Some(leaf) = spot.leaf() else {
        splice_extent_leaf(&mut draft.disk.i_block, at, made)?;
        // Nothing is left of entries that are gone.
        draft.disk.i_block[HEAD + ENTRY * splice.count..].fill(0);
        return Ok(());
    };
    blocks.describe(leaf, Role::Map(draft.ino));
    let seed = draft.seed(blocks.ground());
    let stored = blocks.change_for(leaf, whom(draft, &spot.limits), |bytes| match seed {
        Some(seed) => splice_sealed_leaf(bytes, at, made, seed),
        None => splice_extent_leaf(bytes, at, made),
    })?;
    // It fits, since its input was checked.
    Ok(stored?)
}

fn is_off() -> bool {
    #[cfg(test)]
    return off::OFF.get();
    #[cfg(not(test))]
    return false;
}

/// Tests compare with the general editor alone.
#[cfg(test)]
pub(crate) mod off {
    thread_local! {
        pub(crate) static OFF: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
}
