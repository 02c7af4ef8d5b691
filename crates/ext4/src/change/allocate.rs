//! Allocating blocks for the holes of a file.
//!
//! New blocks are unwritten, whether inside the size or past it. So a crash never exposes their old contents, and
//! blocks past the size that it leaves are the same as preallocated ones.

use super::{Files, depth};
use crate::alloc::Space;
use crate::alloc::search::Wish;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::map::edit::{self, Form, Gap};
use std::ops::Range;
use uext4_iomap::{MapKind, Run, State};
use uext4_ondisk::ext4::{Extent, MAX_UNWRITTEN_LENGTH};
use uext4_ondisk::{Corrupt, CorruptKind, Group, Ino, Lblk, Pblk};

/// Groups in a flex group from which on its first group is left to directories (`EXT4_FLEX_SIZE_DIR_ALLOC_SCHEME`).
const FLEX_MIN: u32 = 4;

/// The result of a step.
enum Step {
    /// The block to continue from.
    Done(u32),
    /// The tree has grown: the edit may change more blocks than the handle has credits for.
    Again,
    /// The blocks were freed by a change that is not durable yet: they cannot be reused before it is.
    Held,
}

/// A hole to fill, and the preferred place of its first block.
struct Hole {
    blocks: Range<u32>,
    place: Place,
}

enum Place {
    /// Near this block.
    Near(Pblk),
    /// In a cluster that the file already uses: exactly here.
    Owned(Pblk),
}

impl Files<'_> {
    /// Maps unwritten blocks for all holes among `blocks`, and publishes them. Mapped blocks stay. A map of block
    /// pointers gets zeroed blocks instead ([`Files::allocate_zeroed`]).
    ///
    /// # Errors
    /// [`Error::NoSpace`] after waiting for commits that release freed blocks, [`Error::QuotaExceeded`],
    /// [`Limit::Map`], [`Error::Corrupt`].
    /// Blocks allocated so far stay, unwritten.
    pub(crate) fn allocate(&self, inode: &Inode, blocks: Range<u64>) -> Result<()> {
        if !inode.disk().uses_extents() {
            return self.allocate_zeroed(inode, blocks);
        }
        let limit = |block| u32::try_from(block).map_err(|_| Error::Limit(Limit::Map));
        let (mut at, end) = (limit(blocks.start)?, limit(blocks.end)?);
        while at < end {
            match self.with_room(|| self.fill(inode, at..end))? {
                Step::Done(next) => at = next,
                Step::Again => {}
                Step::Held => self.state.commit_all()?,
            }
        }
        Ok(())
    }

    /// Fills the first hole.
    fn fill(&self, inode: &Inode, range: Range<u32>) -> Result<Step> {
        let levels = self.depth(inode);
        Journaled::run(self.state, "allocate", self.credits(levels, 1, 1), |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(&edit.disk) > levels {
                return Ok(Ok(Step::Again));
            }
            if inode.is_limited() && !self.space.goes_home(inode.ino()) {
                edit.obey_limits(blocks)?;
            }
            let mut map = inode.state.map.lock();
            // Others fill the holes that they have claimed.
            let Some(range) = inode.claims.unclaimed(&range) else {
                return Ok(Ok(Step::Done(range.end)));
            };
            let Some(hole) = self.first_hole(blocks, &edit, range.clone())? else {
                return Ok(Ok(Step::Done(range.end)));
            };
            if let Place::Owned(first) = hole.place
                && self.space.holds_part(first, u64::from(hole.blocks.end - hole.blocks.start))
            {
                return Ok(Ok(Step::Held));
            }
            let extent = match self.place(blocks, &mut edit, &hole) {
                Ok(extent) => extent,
                Err(full) if full.is_full() => return Ok(Err(full)),
                Err(error) => return Err(error),
            };
            edit.store(blocks, Change::Data)?;
            blocks.declare(inode.ino(), extent.logical.get()..extent.logical_end().get());
            let (first, length) = (extent.logical.get(), u64::from(extent.length));
            let run = Run { first, length, state: State::Unwritten, physical: extent.physical.get() };
            if inode.state.kind() != MapKind::Journaled {
                map.allocated(u64::from(first), u64::from(first) + length, &[run])?;
            }
            Ok(Ok(Step::Done(extent.logical_end().get())))
        })?
    }

    /// Maps a hole, or the beginning of it.
    ///
    /// # Errors
    /// Those of a full volume ([`Error::is_full`]), with nothing changed. Others.
    fn place(&self, blocks: &mut impl Blocks, draft: &mut Draft, hole: &Hole) -> Result<Extent> {
        let ground = blocks.ground();
        let size = ground.superblock.geometry.cluster_blocks();
        let (logical, wanted) = (Lblk(hole.blocks.start), hole.blocks.end - hole.blocks.start);
        // Find damage in the map before anything is changed.
        let nodes = edit::nodes(blocks, draft, std::slice::from_ref(&hole.blocks))? as u64;
        let goal = match hole.place {
            Place::Owned(physical) => {
                let extent = Extent { logical, length: wanted, physical, unwritten: true };
                edit::insert(blocks, &mut self.space.open(), draft, extent)?;
                return Ok(extent);
            }
            Place::Near(goal) => goal,
        };
        let inside = hole.blocks.start % size;
        let reach = Form::of(&draft.disk).map_or(0, Form::reach);
        let most = u64::from(inside + wanted);
        let run = self.space.allocate(
            blocks,
            Some(draft.ino),
            &Wish { goal, least: 1, most, limit: reach },
            nodes,
        )?;
        let length = (run.count as u32 - inside).min(wanted);
        let extent =
            Extent { logical, length, physical: Pblk(run.first.get() + u64::from(inside)), unwritten: true };
        let clusters = i64::from((inside + length).div_ceil(size));
        let before = (draft.disk.blocks_raw, draft.disk.flags);
        let placed = draft
            .count(blocks.ground(), clusters)
            .and_then(|()| edit::insert(blocks, &mut self.space.open(), draft, extent));
        match placed {
            Ok(()) => Ok(extent),
            Err(full) if full.is_full() => {
                (draft.disk.blocks_raw, draft.disk.flags) = before;
                self.space.open().give_back(blocks, draft.ino, &[(run.first, run.count)])?;
                Err(full)
            }
            Err(error) => Err(error),
        }
    }

    /// The first hole of a range, cut to what one extent of one leaf can map.
    fn first_hole(&self, blocks: &impl Blocks, draft: &Draft, range: Range<u32>) -> Result<Option<Hole>> {
        let mut at = range.start;
        while at < range.end {
            match edit::gap(blocks, draft, &(at..range.end))? {
                Err(next) => at = next,
                Ok(mut gap) => {
                    let most = gap.blocks.start.saturating_add(MAX_UNWRITTEN_LENGTH);
                    gap.blocks.end = gap.blocks.end.min(most);
                    return self.in_clusters(blocks, draft, gap).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// The part of a hole to fill at once: on volumes with clusters, either within a cluster that the file already
    /// uses, or outside all of these.
    fn in_clusters(&self, blocks: &impl Blocks, draft: &Draft, gap: Gap) -> Result<Hole> {
        let Gap { blocks: hole, before } = gap;
        let size = blocks.ground().superblock.geometry.cluster_blocks();
        let near = match before {
            Some(extent) => {
                let inside = hole.start % size;
                let step = hole.start - inside - extent.logical.get().min(hole.start - inside);
                Pblk(extent.physical.get().saturating_add(u64::from(step)))
            }
            None => self.home(draft.ino),
        };
        if size == 1 {
            return Ok(Hole { blocks: hole, place: Place::Near(near) });
        }
        let cluster = |block: u32| block - block % size..(block - block % size).saturating_add(size);
        if let Some(physical) = owned(blocks, draft, cluster(hole.start))? {
            let end = cluster(hole.start).end.min(hole.end);
            let place = Place::Owned(Pblk(physical + u64::from(hole.start % size)));
            return Ok(Hole { blocks: hole.start..end, place });
        }
        let mut end = hole.end;
        let last = cluster(end - 1);
        if last.start > hole.start && owned(blocks, draft, last.clone())?.is_some() {
            end = last.start;
        }
        Ok(Hole { blocks: hole.start..end, place: Place::Near(near) })
    }

    /// Where to look for the first block of a file, as in Linux (`ext4_inode_to_goal_block`): in the group of its
    /// inode; in flex groups that are large enough, from the second group on, since directories begin in the first.
    pub(super) fn home(&self, ino: Ino) -> Pblk {
        let geometry = &self.state.superblock.geometry;
        let flex = self.state.superblock.groups_per_flex();
        let first = |group: Group| geometry.group_first_block(group);
        let own = geometry.group_of_inode(ino).map(|(group, _)| group);
        let second = own.filter(|_| flex >= FLEX_MIN).map(|group| Group((group.get() & !(flex - 1)) + 1));
        let second = second.filter(|second| second.get() < geometry.group_count()).and_then(first);
        let goal = second.or_else(|| own.and_then(first));
        goal.unwrap_or(Pblk(u64::from(geometry.first_data_block())))
    }
}

/// The device block where a cluster of the file begins, if any of its blocks is mapped.
fn owned(blocks: &impl Blocks, draft: &Draft, cluster: Range<u32>) -> Result<Option<u64>> {
    let geometry = &blocks.ground().superblock.geometry;
    let size = u64::from(geometry.cluster_blocks());
    let base = u64::from(geometry.first_data_block());
    let mut at = cluster.start;
    while at < cluster.end {
        let leaf = edit::leaf(blocks, draft, Lblk(at))?;
        let meets = |extent: &&Extent| {
            extent.logical.get() < cluster.end && extent.logical_end().get() > cluster.start
        };
        if let Some(extent) = leaf.extents.iter().find(meets) {
            let first = extent.logical.get().max(cluster.start);
            let physical = extent.physical.get() + u64::from(first - extent.logical.get());
            let inside = u64::from(first - cluster.start);
            let start = physical.checked_sub(inside).filter(|start| start.wrapping_sub(base) % size == 0);
            let wrong =
                Corrupt::from(CorruptKind::ExtentPhysical).at_lblk(extent.logical).in_inode(draft.ino);
            return start.map(Some).ok_or_else(|| wrong.into());
        }
        at = leaf.window.end;
    }
    Ok(None)
}
