//! Editing the map of a file: one interface for extent trees (`extents.rs`) and block pointers (`pointers.rs`).
//!
//! # Two phases
//! An edit first runs in memory (`plan.rs`): it reads and checks the nodes it needs, and builds new ones. Then it
//! allocates the blocks these need, and only then changes anything. So an edit on a damaged map, past a limit or on a
//! full volume leaves every block and the inode unchanged.
//!
//! # Work
//! An edit reads and changes the path to each leaf or pointer block in its range, and nothing else of the map. One that
//! stays within a [`Leaf::window`] changes a single path: to bound an edit, cut its range there.
//!
//! # Who counts what
//! The editor allocates and frees the blocks of the map itself and counts them in the inode, each as a whole cluster.
//! The caller does so for data blocks: it allocates them, frees those that an edit reports as unmapped, and counts both
//! ([`Draft::count`]), because only the caller knows which clusters the file had before. [`idle_clusters`] tells which
//! of them the file no longer uses.

mod extents;
pub(crate) mod in_place;
mod plan;
mod pointers;

use crate::alloc::Space;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use crate::map::indirect::check_zones;
use extents::Tree;
pub(crate) use in_place::Gap;
use pointers::Pointers;
use std::ops::Range;
use uext4_ondisk::ext4::{
    Extent, FileType, Geometry, I_BLOCK_SIZE, Inode as DiskInode, MAX_EXTENT_LENGTH, MAX_UNWRITTEN_LENGTH,
    encode_extent_leaf,
};
use uext4_ondisk::{Corrupt, CorruptKind, Lblk, Pblk};

/// The first number past all logical blocks of a map.
const END: u32 = u32::MAX;
/// The fault of a map that contains itself.
pub(crate) const CYCLE: CorruptKind = CorruptKind::Cycle("the map of the file");

/// How an inode finds its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A tree of extents.
    Extents,
    /// Block pointers, as in ext2 and ext3.
    Pointers,
}

impl Form {
    /// The form of an inode's map; `None` if its contents are inline, or it has none.
    pub(crate) fn of(disk: &DiskInode) -> Option<Form> {
        let pointers = match disk.file_type() {
            Some(FileType::Regular | FileType::Directory) => true,
            Some(FileType::Symlink) => disk.short_link_target().is_none(),
            _ => false,
        };
        match (disk.has_inline_data(), disk.uses_extents()) {
            (true, _) => None,
            (false, true) => Some(Form::Extents),
            (false, false) => pointers.then_some(Form::Pointers),
        }
    }

    /// The first block number that such a map cannot name.
    pub(crate) fn reach(self) -> u64 {
        match self {
            Form::Extents => extents::REACH,
            Form::Pointers => pointers::REACH,
        }
    }
}

/// The contents of one leaf of a map.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The logical blocks that the leaf covers: those outside of its extents are holes.
    pub(crate) window: Range<u32>,
    /// Sorted. None of them overlaps a system zone.
    pub(crate) extents: Vec<Extent>,
}

impl Leaf {
    /// The extent that maps a block.
    pub(crate) fn find(&self, block: Lblk) -> Option<Extent> {
        let behind = self.extents.partition_point(|extent| extent.logical <= block);
        let extent = self.extents.get(behind.checked_sub(1)?)?;
        extent.physical_of(block).map(|_| *extent)
    }
}

/// Blocks that a map uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A block of the map itself.
    Node(Pblk),
    /// Data.
    Data(Extent),
}

/// What to do with a range.
enum Change {
    /// Map it to `extent`; `only_hole` refuses a range that is already mapped.
    Map { extent: Extent, only_hole: bool },
    /// Unmap it.
    Unmap,
    /// Mark the mapped blocks unwritten or written. All of the range must be mapped.
    State { unwritten: bool },
}

/// Gives an inode an empty map of the form in its flags. Blocks of the old map are not freed.
pub(crate) fn start(draft: &mut Draft) -> Result<()> {
    let mut root = [0; I_BLOCK_SIZE];
    if form(draft)? == Form::Extents {
        encode_extent_leaf(&mut root, 0, &[])?;
    }
    draft.disk.i_block = root;
    Ok(())
}

/// Looks up a logical block below 2^32 - 1.
///
/// # Errors
/// [`Error::Corrupt`] naming the node and the fault; those of the body.
pub(crate) fn leaf(blocks: &impl Blocks, draft: &Draft, block: Lblk) -> Result<Leaf> {
    match form(draft)? {
        Form::Extents => Tree::new(blocks, draft).leaf(block),
        Form::Pointers => Pointers::new(blocks, draft).leaf(block),
    }
}

/// Calls `each` for everything that a map uses, a node before its children. No node is visited twice.
///
/// # Errors
/// As of [`leaf`]; those of `each`.
pub(crate) fn walk(
    blocks: &impl Blocks,
    draft: &Draft,
    each: &mut impl FnMut(Part) -> Result<()>,
) -> Result<()> {
    match form(draft)? {
        Form::Extents => Tree::new(blocks, draft).walk(each),
        Form::Pointers => Pointers::new(blocks, draft).walk(each),
    }
}

/// Maps a hole. An extent has 1 to 32768 blocks, an unwritten one 32767.
///
/// # Errors
/// [`Error::Exists`] if a part of it is mapped. [`Error::NoSpace`]; [`Error::Limit`] if the map cannot reach the
/// blocks; [`Error::Incompatible`] if it has no unwritten state; [`Error::Corrupt`]; those of the body. Nothing was
/// changed then.
pub(crate) fn insert(
    blocks: &mut impl Blocks,
    space: &mut impl Space,
    draft: &mut Draft,
    extent: Extent,
) -> Result<()> {
    let range = extent.logical.get()..extent.logical_end().get();
    edit(blocks, space, draft, range, &Change::Map { extent, only_hole: true }).map(drop)
}

/// Most blocks that the map itself needs to fill these consecutive holes, each with an extent of its own. A caller that
/// allocates them together with the data blocks cannot run out of space halfway.
///
/// # Errors
/// As of [`insert`], except [`Error::NoSpace`].
pub(crate) fn nodes(blocks: &impl Blocks, draft: &Draft, holes: &[Range<u32>]) -> Result<usize> {
    let change = |hole: &Range<u32>, physical| {
        let (logical, length) = (Lblk(hole.start), hole.end - hole.start);
        Change::Map { extent: Extent { logical, length, physical, unwritten: false }, only_hole: true }
    };
    let all = holes.first().map_or(0, |hole| hole.start)..holes.last().map_or(0, |hole| hole.end);
    match form(draft)? {
        Form::Extents => {
            if let [hole] = holes
                && in_place::has_room(blocks, draft, hole)?
            {
                return Ok(0);
            }
            let mut tree = Tree::new(blocks, draft);
            // Fake extents that touch neither one another nor any block of the volume.
            let places = (1_u64 << 62..).step_by(1 << 32).map(Pblk);
            holes.iter().zip(places).try_for_each(|(hole, place)| tree.edit(hole, &change(hole, place)))?;
            Ok(tree.into_plan().taken() * copies(blocks.ground()))
        }
        Form::Pointers => {
            let mut pointers = Pointers::new(blocks, draft);
            pointers.edit(&all, &change(&all, Pblk(1)))?;
            Ok(pointers.into_plan().taken() * copies(blocks.ground()))
        }
    }
}

/// Blocks that a split of a node takes: its new half, and without a journal a copy of itself ([`plan`]).
pub(crate) fn copies(ground: &Ground) -> usize {
    if ground.unlogged.is_some() { 2 } else { 1 }
}

/// Maps an extent in place of what was there, and returns the extents this unmapped.
///
/// # Errors
/// As of [`insert`].
pub(crate) fn replace(
    blocks: &mut impl Blocks,
    space: &mut impl Space,
    draft: &mut Draft,
    extent: Extent,
) -> Result<Vec<Extent>> {
    let range = extent.logical.get()..extent.logical_end().get();
    edit(blocks, space, draft, range, &Change::Map { extent, only_hole: false })
}

/// Unmaps a range, and returns the extents that were mapped there.
///
/// # Errors
/// As of [`insert`]: unmapping the middle of an extent splits it, which may need a block.
pub(crate) fn remove(
    blocks: &mut impl Blocks,
    space: &mut impl Space,
    draft: &mut Draft,
    range: Range<u32>,
) -> Result<Vec<Extent>> {
    edit(blocks, space, draft, range, &Change::Unmap)
}

/// Marks a range written or unwritten. Blocks already in that state stay so.
///
/// # Errors
/// As of [`insert`]; [`Error::Invalid`] if a part of the range is a hole.
pub(crate) fn convert(
    blocks: &mut impl Blocks,
    space: &mut impl Space,
    draft: &mut Draft,
    range: Range<u32>,
    unwritten: bool,
) -> Result<()> {
    edit(blocks, space, draft, range, &Change::State { unwritten }).map(drop)
}

/// Moves the extents that the leaf of a block maps from block `from` on, within the gap between the neighbouring
/// leaves. Takes a block only if an extent is split at `from`.
///
/// # Errors
/// As of [`insert`]; [`Error::Limit`] if `target` returns no place.
pub(crate) fn shift(
    blocks: &mut impl Blocks,
    space: &mut impl Space,
    draft: &mut Draft,
    near: Lblk,
    from: u32,
    target: impl Fn(Lblk) -> Option<Lblk>,
) -> Result<()> {
    if form(draft)? == Form::Pointers {
        return Err(no_unwritten(draft));
    }
    let mut tree = Tree::new(blocks, draft);
    tree.shift(near.get(), from, target)?;
    tree.into_plan().publish(blocks, space, draft, Form::Extents.reach()).map(drop)
}

/// The result of marking ranges written.
pub(crate) struct Converted {
    /// The ranges that are written now, from the first on.
    pub(crate) done: Vec<Range<u32>>,
    /// How many of them were not written before: each changed one leaf.
    pub(crate) changed: u32,
}

/// Marks ranges written in one edit, in order, until this many parts have changed. Blocks already written stay so.
///
/// # Errors
/// As of [`convert`], with nothing changed.
pub(crate) fn convert_some(
    blocks: &mut impl Blocks,
    space: &mut impl Space,
    draft: &mut Draft,
    ranges: &[Range<u32>],
    most: u32,
) -> Result<Converted> {
    let (mut done, mut changed) = (Vec::with_capacity(ranges.len()), 0);
    if form(draft)? == Form::Pointers {
        for range in ranges {
            convert(blocks, space, draft, range.clone(), false)?;
        }
        return Ok(Converted { done: ranges.to_vec(), changed });
    }
    let first = convert_in_place(blocks, draft, ranges, most)?;
    if !first.done.is_empty() {
        return Ok(first);
    }
    let mut tree = Tree::new(blocks, draft);
    'parts: for range in ranges {
        let mut at = range.start;
        if range.is_empty() {
            done.push(range.clone());
        }
        while at < range.end {
            if changed == most {
                break 'parts;
            }
            let (end, is_changed) = tree.convert(&(at..range.end))?;
            changed += u32::from(is_changed);
            done.push(at..end);
            at = end;
        }
    }
    if changed > 0 {
        tree.shrink()?;
        tree.into_plan().publish(blocks, space, draft, Form::Extents.reach())?;
    }
    Ok(Converted { done, changed })
}

/// The leaf that maps the last block of a range, which is not empty. Extents outside of the range may be missing.
///
/// # Errors
/// As of [`leaf`].
pub(crate) fn last_leaf(blocks: &impl Blocks, draft: &Draft, range: &Range<u32>) -> Result<Leaf> {
    match form(draft)? {
        Form::Extents => in_place::last_leaf(blocks, draft, range),
        Form::Pointers => leaf(blocks, draft, Lblk(range.end - 1)),
    }
}

/// The part of [`convert_some`] that is done in place: the ranges before the first one that is not, or that is damaged.
fn convert_in_place(
    blocks: &mut impl Blocks,
    draft: &mut Draft,
    ranges: &[Range<u32>],
    most: u32,
) -> Result<Converted> {
    let (mut done, mut changed) = (Vec::with_capacity(ranges.len()), 0);
    for range in ranges {
        let mut at = range.start;
        if range.is_empty() {
            done.push(range.clone());
        }
        while at < range.end {
            if changed == most {
                return Ok(Converted { done, changed });
            }
            let part = match in_place::convert(blocks, draft, &(at..range.end)) {
                Ok(Some(part)) => part,
                // After a change nothing is refused any more: the next edit meets the fault first.
                Ok(None) => return Ok(Converted { done, changed }),
                Err(_) if changed > 0 => return Ok(Converted { done, changed }),
                Err(fault) => return Err(fault),
            };
            changed += u32::from(part.is_changed);
            done.push(at..part.end);
            at = part.end;
        }
    }
    Ok(Converted { done, changed })
}

/// The first hole of a range, as far as one leaf covers it. `Err` inside: there is none before this block.
///
/// # Errors
/// As of [`leaf`].
pub(crate) fn gap(
    blocks: &impl Blocks,
    draft: &Draft,
    range: &Range<u32>,
) -> Result<std::result::Result<Gap, u32>> {
    if form(draft)? == Form::Extents {
        return in_place::gap(blocks, draft, range);
    }
    let leaf = leaf(blocks, draft, Lblk(range.start))?;
    let mut at = range.start;
    while let Some(extent) = leaf.find(Lblk(at)) {
        at = extent.logical_end().get();
    }
    if at >= leaf.window.end.min(range.end) {
        return Ok(Err(at.max(leaf.window.end)));
    }
    let behind = leaf.extents.partition_point(|extent| extent.logical.get() < at);
    let next = leaf.extents.get(behind).map_or(leaf.window.end, |extent| extent.logical.get());
    let before = behind.checked_sub(1).and_then(|last| leaf.extents.get(last)).copied();
    Ok(Ok(Gap { blocks: at..next.min(range.end), before }))
}

/// The clusters of `unmapped`, as an edit returned it, in which the file has no block left: first block and number of
/// blocks. They can be freed, and no longer count for the inode.
///
/// # Errors
/// As of [`leaf`]; [`Error::Corrupt`] if a block does not lie where its cluster requires.
pub(crate) fn idle_clusters(
    blocks: &impl Blocks,
    draft: &Draft,
    unmapped: &[Extent],
) -> Result<Vec<(Pblk, u64)>> {
    let geometry = &blocks.ground().superblock.geometry;
    let (size, base) = (u64::from(geometry.cluster_blocks()), u64::from(geometry.first_data_block()));
    let (mut idle, mut known) = (Vec::with_capacity(unmapped.len()), 0);
    for extent in unmapped {
        let (logical, physical) = (u64::from(extent.logical.get()), extent.physical.get());
        let (end, inside) = (logical + u64::from(extent.length), logical % size);
        if physical.checked_sub(base).is_none_or(|physical| physical % size != inside) {
            return Err(in_map(Corrupt::from(CorruptKind::ExtentPhysical).at_lblk(extent.logical), draft));
        }
        let (mut first, mut last) = ((logical - inside).max(known), end.next_multiple_of(size));
        known = last;
        if first < logical && is_used(blocks, draft, first..first + size)? {
            first += size;
        }
        if last > end.max(first) && is_used(blocks, draft, last - size..last)? {
            last -= size;
        }
        if first < last {
            let start = physical - inside + (first - (logical - inside));
            idle.push((Pblk(start), (last - first).min(geometry.blocks_count().saturating_sub(start))));
        }
    }
    Ok(idle)
}

/// The parts of `unmapped` in clusters that the file still uses, that is not in those of `idle`, as [`idle_clusters`]
/// returned them. First block and number of blocks of each part, which is shorter than a cluster and lies within one.
pub(crate) fn parts_of_kept_clusters(
    geometry: &Geometry,
    unmapped: &[Extent],
    idle: &[(Pblk, u64)],
) -> Vec<(Pblk, u64)> {
    let (size, base) = (u64::from(geometry.cluster_blocks()), u64::from(geometry.first_data_block()));
    if size == 1 {
        return Vec::new();
    }
    let mut idle = idle.to_vec();
    idle.sort_unstable();
    let is_idle = |block: u64| {
        let behind = idle.partition_point(|(first, _)| first.get() <= block);
        behind > 0 && block - idle[behind - 1].0.get() < idle[behind - 1].1
    };
    let mut parts = Vec::new();
    for extent in unmapped {
        let (first, end) = (extent.physical.get(), extent.physical.get() + u64::from(extent.length));
        let cluster_start = |block: u64| block - (block - base) % size;
        // All clusters between the two ends are unmapped entirely.
        let head = first..(cluster_start(first) + size).min(end);
        let tail = cluster_start(end - 1).max(head.end)..end;
        let kept = [head, tail].into_iter().filter(|part| !part.is_empty() && !is_idle(part.start));
        parts.extend(kept.map(|part| (Pblk(part.start), part.end - part.start)));
    }
    parts
}

/// Whether any block of a range is mapped.
fn is_used(blocks: &impl Blocks, draft: &Draft, range: Range<u64>) -> Result<bool> {
    let range = range.start as u32..range.end.min(u64::from(END)) as u32;
    let mut at = range.start;
    while at < range.end {
        let leaf = leaf(blocks, draft, Lblk(at))?;
        if leaf.extents.iter().any(|extent| within(extent, &range).is_some()) {
            return Ok(true);
        }
        at = leaf.window.end;
    }
    Ok(false)
}

fn edit(
    blocks: &mut impl Blocks,
    space: &mut impl Space,
    draft: &mut Draft,
    range: Range<u32>,
    change: &Change,
) -> Result<Vec<Extent>> {
    let form = form(draft)?;
    if let Change::Map { extent, .. } = change {
        check_new(blocks, draft, form, extent)?;
    }
    if range.is_empty() {
        return Ok(Vec::new());
    }
    match form {
        Form::Extents => {
            if let Some(unmapped) = in_place::edit(blocks, draft, &range, change)? {
                return Ok(unmapped);
            }
            let mut tree = Tree::new(blocks, draft);
            tree.edit(&range, change)?;
            tree.into_plan().publish(blocks, space, draft, form.reach())
        }
        Form::Pointers => {
            let mut pointers = Pointers::new(blocks, draft);
            pointers.edit(&range, change)?;
            pointers.into_plan().publish(blocks, space, draft, form.reach())
        }
    }
}

fn form(draft: &Draft) -> Result<Form> {
    let none = || format!("the map of inode {}, which has none", draft.ino);
    Form::of(&draft.disk).ok_or_else(|| Error::Incompatible { action: "change", feature: none() })
}

/// Checks that a map of this form can hold the extent.
fn check_new(blocks: &impl Blocks, draft: &Draft, form: Form, extent: &Extent) -> Result<()> {
    let most = if extent.unwritten { MAX_UNWRITTEN_LENGTH } else { MAX_EXTENT_LENGTH };
    if extent.length == 0 || extent.length > most {
        return Err(Error::Invalid(format!("an extent cannot have {} blocks", extent.length)));
    }
    let logical = u64::from(extent.logical.get()) + u64::from(extent.length);
    let end = match form {
        Form::Extents => u64::from(END),
        Form::Pointers => Pointers::new(blocks, draft).blocks(),
    };
    let physical = extent.physical.get().checked_add(u64::from(extent.length));
    if logical > end || physical.is_none_or(|physical| physical > form.reach()) {
        return Err(Error::Limit(Limit::Map));
    }
    if extent.unwritten && form == Form::Pointers {
        return Err(no_unwritten(draft));
    }
    let zones = check_zones(blocks.ground(), extent.physical, u64::from(extent.length), "a new extent");
    zones.map_err(|corrupt| in_map(corrupt.at_lblk(extent.logical), draft))
}

fn not_mapped() -> Error {
    Error::Invalid("the range to convert has holes".into())
}

fn no_unwritten(draft: &Draft) -> Error {
    let feature = format!("unwritten blocks in a map without extents (inode {})", draft.ino);
    Error::Incompatible { action: "write", feature }
}

fn in_map(corrupt: Corrupt, draft: &Draft) -> Error {
    corrupt.in_inode(draft.ino).into()
}

/// The part of an extent that lies in `range`, if any.
pub(crate) fn within(extent: &Extent, range: &Range<u32>) -> Option<Extent> {
    let from = extent.logical.get().max(range.start);
    let to = extent.logical_end().get().min(range.end);
    let skipped = u64::from(from.checked_sub(extent.logical.get())?);
    let physical = Pblk(extent.physical.get() + skipped);
    (from < to).then(|| Extent { logical: Lblk(from), length: to - from, physical, ..*extent })
}

/// The part of `old` that `new` unmaps: all of it, except blocks that `new` maps as well.
fn unmapped_by(old: &Extent, new: &Extent) -> impl Iterator<Item = Extent> + use<> {
    let offset = |block: u64| {
        let inside = block.clamp(old.physical.get(), old.physical.get() + u64::from(old.length));
        old.logical.get() + (inside - old.physical.get()) as u32
    };
    let (first, end) = (offset(new.physical.get()), offset(new.physical.get() + u64::from(new.length)));
    let parts = [old.logical.get()..first, end..old.logical_end().get()];
    let old = *old;
    parts.into_iter().filter_map(move |part| within(&old, &part))
}

/// Appends an extent, merged with the last one if they are contiguous and the sum is not too long.
fn add(extents: &mut Vec<Extent>, next: Extent) {
    if !add_to(extents.last_mut(), &next) {
        extents.push(next);
    }
}

/// Merges an extent with the last one. Returns whether it could.
fn add_to(last: Option<&mut Extent>, next: &Extent) -> bool {
    let Some(last) = last else { return false };
    let limit = if last.unwritten { MAX_UNWRITTEN_LENGTH } else { MAX_EXTENT_LENGTH };
    let goes_on = last.logical_end() == next.logical
        && last.physical.get() + u64::from(last.length) == next.physical.get()
        && last.unwritten == next.unwritten;
    let fits = goes_on && last.length + next.length <= limit;
    if fits {
        last.length += next.length;
    }
    fits
}
