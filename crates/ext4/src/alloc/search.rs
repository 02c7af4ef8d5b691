//! Searching for free blocks and inodes.
//!
//! The policy is simple: first the goal's group, then those after it, then from the first group on. Groups that cannot
//! have a long enough run are skipped (`orders.rs`); the bitmaps of the others are searched.

use super::Space;
use super::bits::{first_free, free_runs, put_bits};
use super::group::{
    self, Changed, SEARCH_WORK, check_used, descriptor, look_at_blocks, look_at_inodes, mark, mark_used,
    sound_block_bitmap,
};
use super::masks::Masks;
use super::orders::Orders;
use super::runs::Runs;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use uext4_ondisk::ext4::Geometry;
use uext4_ondisk::{Corrupt, CorruptKind, Group, Ino, Pblk};

/// Free clusters at the beginning of a group that are looked at before the whole group is searched.
const FEW: usize = 64;

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: Pblk,
    pub(crate) count: u64,
}

/// A request for a run. With clusters, whole ones are allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// Preferred first block.
    pub(crate) goal: Pblk,
    /// Fewest blocks to accept.
    pub(crate) least: u64,
    /// Most blocks to take.
    pub(crate) most: u64,
    /// Block numbers must be below this: the limit of what a map can name.
    pub(crate) limit: u64,
}

/// The allocator of a volume's free space.
pub(crate) struct Allocator {
    geometry: Geometry,
    /// Whether freed blocks wait for [`Allocator::release`]: they are not reused before the change that freed them is
    /// durable. True on every volume open for writing.
    holds: bool,
    /// Freed blocks that wait.
    held: Runs,
    /// Freed blocks that wait in clusters that a file still uses. They are used on the volume, and only that file can
    /// reuse them.
    held_parts: Runs,
    /// Blocks that are free on the volume, but claimed.
    claimed: Runs,
    /// Bitmaps of `held` and `claimed` in groups where they are many runs.
    masks: Masks,
    /// Created by the first search.
    orders: Option<Orders>,
}

/// A run of clusters found by a search.
struct Candidate {
    group: Group,
    clusters: Range<u32>,
}

impl Allocator {
    /// An allocator without waiting blocks.
    pub(crate) fn new(ground: &Ground) -> Allocator {
        Allocator {
            geometry: ground.superblock.geometry,
            holds: ground.journal.is_some() || ground.unlogged.is_some(),
            held: Runs::default(),
            held_parts: Runs::default(),
            claimed: Runs::default(),
            masks: Masks::default(),
            orders: None,
        }
    }

    /// Makes freed blocks of this range available: the transaction that freed them is durable.
    pub(crate) fn release(&mut self, first: u64, count: u64) {
        let Allocator { geometry, held, held_parts, masks, orders, .. } = self;
        let end = first.saturating_add(count);
        if count < u64::from(geometry.cluster_blocks()) {
            // The whole cluster may wait for a later commit by now.
            held_parts.remove(first, end, |_, _| ());
        } else {
            held.remove(first, end, |first, end| {
                masks.put(geometry, first, end, false);
                raise(geometry, orders, first, end);
            });
        }
    }

    /// See [`FreeSpace::hold_parts`](super::shared::FreeSpace::hold_parts).
    pub(super) fn hold_parts(&mut self, blocks: &mut impl Blocks, parts: &[(Pblk, u64)]) -> Result<()> {
        if self.holds {
            parts.iter().try_for_each(|(first, count)| blocks.free_later(*first, *count))?;
            parts.iter().for_each(|(first, count)| self.held_parts.add(first.get(), first.get() + count));
        }
        Ok(())
    }

    /// Whether some of these blocks wait in a cluster that a file still uses.
    pub(super) fn holds_part(&self, first: Pblk, count: u64) -> bool {
        self.held_parts.within(first.get(), first.get() + count).next().is_some()
    }

    /// Freed blocks that wait.
    pub(crate) fn held_blocks(&self) -> u64 {
        self.held.blocks()
    }

    /// Blocks that are claimed.
    pub(crate) fn claimed_blocks(&self) -> u64 {
        self.claimed.blocks()
    }

    /// Allocates a run of free blocks, marked used: the first one from the goal on that has the full length. If the
    /// volume has none, one of half the length, and so on.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Corrupt`] if an examined bitmap or descriptor is damaged. Nothing was changed then.
    /// Those of the body.
    pub(crate) fn allocate(&mut self, blocks: &mut impl Blocks, wish: &Wish) -> Result<Run> {
        let Candidate { group, clusters } = self.search(blocks, wish)?;
        let run = run_of(blocks.ground(), group, &clusters);
        mark_used(blocks, group, clusters)?;
        Ok(run)
    }

    /// The same, but reserves the run in memory instead of marking it.
    ///
    /// # Errors
    /// As of [`Allocator::allocate`].
    pub(crate) fn claim(&mut self, blocks: &impl Blocks, wish: &Wish) -> Result<Run> {
        let Candidate { group, clusters } = self.search(blocks, wish)?;
        let run = run_of(blocks.ground(), group, &clusters);
        let (first, end) = (run.first.get(), run.first.get() + run.count);
        self.claimed.add(first, end);
        self.masks.put(&self.geometry, first, end, true);
        Ok(run)
    }

    /// Releases claimed blocks.
    pub(crate) fn unclaim(&mut self, run: Run) {
        let Allocator { geometry, claimed, masks, orders, .. } = self;
        claimed.remove(run.first.get(), run.first.get() + run.count, |first, end| {
            masks.put(geometry, first, end, false);
            raise(geometry, orders, first, end);
        });
    }

    /// Removes claimed blocks that are marked used now ([`mark_claimed`]).
    pub(crate) fn took_claimed(&mut self, run: Run) {
        let Allocator { geometry, claimed, masks, .. } = self;
        claimed.remove(run.first.get(), run.first.get() + run.count, |first, end| {
            masks.put(geometry, first, end, false);
        });
    }

    /// Finds an available run, as described at [`Allocator::allocate`].
    fn search(&mut self, blocks: &impl Blocks, wish: &Wish) -> Result<Candidate> {
        let geometry = &blocks.ground().superblock.geometry;
        let log = geometry.cluster_log();
        let near = geometry.group_of_block(wish.goal).map_or(Group(0), |(group, _)| group);
        let clusters = |blocks: u64| blocks.div_ceil(1 << log).clamp(1, u32::MAX.into()) as u32;
        let (least, most) = (clusters(wish.least), clusters(wish.most.max(wish.least)));
        let free = |group| Ok(descriptor(blocks, Group(group))?.free_clusters);
        let (mut wanted, mut skipped) = (most, BTreeSet::new());
        loop {
            let orders = self.orders.get_or_insert_with(|| Orders::new(geometry.group_count()));
            // No group has a longer run, so none needs to be searched.
            let next = match wanted <= geometry.clusters_per_group() {
                true => orders.next(wanted, near.get(), &skipped, wanted == least, free)?,
                false => None,
            };
            let Some(group) = next.map(Group) else {
                if wanted == least {
                    return Err(Error::NoSpace);
                }
                wanted = (wanted / 2).max(least);
                skipped.clear();
                continue;
            };
            match self.find(blocks, group, wish, wanted..most)? {
                Ok(clusters) => return Ok(Candidate { group, clusters }),
                Err(longest) if is_below(geometry, group, wish.limit) => {
                    self.orders.iter_mut().for_each(|orders| orders.set(group.get(), longest));
                }
                // Keep its bound: a longer run may lie past the limit.
                Err(_) => drop(skipped.insert(group.get())),
            }
        }
    }

    /// Available clusters of a group: the first run from the goal on with at least `wanted.start` of them, cut to
    /// `wanted.end`. Otherwise the length of the longest run.
    fn find(
        &mut self,
        blocks: &impl Blocks,
        group: Group,
        wish: &Wish,
        wanted: Range<u32>,
    ) -> Result<std::result::Result<Range<u32>, u32>> {
        if let Some(found) = self.find_free(blocks, group, wish, &wanted)? {
            return Ok(Ok(found));
        }
        let (_, mut bitmap) = sound_block_bitmap(blocks, group)?;
        blocks.work(bitmap.len() * SEARCH_WORK)?;
        let geometry = &blocks.ground().superblock.geometry;
        let count = geometry.group_clusters(group).unwrap_or(0);
        self.mask(blocks.ground(), group, wish.limit, &mut bitmap);
        let goal = goal_in(geometry, group, wish.goal);
        let mut longest = 0;
        for run in free_runs(&bitmap, goal.min(count)..count).chain(free_runs(&bitmap, 0..count)) {
            let length = run.end - run.start;
            if length >= wanted.start {
                return Ok(Ok(run.start..run.start + length.min(wanted.end)));
            }
            longest = longest.max(length);
        }
        Ok(Err(longest))
    }

    /// What [`Allocator::find`] finds, if it is among the first free runs from the goal on and all of it is available.
    /// Searches the bitmap in memory.
    fn find_free(
        &self,
        blocks: &impl Blocks,
        group: Group,
        wish: &Wish,
        wanted: &Range<u32>,
    ) -> Result<Option<Range<u32>>> {
        let descriptor = descriptor(blocks, group)?;
        let ground = blocks.ground();
        if descriptor.blocks_uninitialised(&ground.superblock) {
            return Ok(None);
        }
        let geometry = &ground.superblock.geometry;
        let count = geometry.group_clusters(group).unwrap_or(0);
        let goal = goal_in(geometry, group, wish.goal).min(count);
        // A shorter run has no longer part that is available.
        let is_long = |run: &Range<u32>| run.end - run.start >= wanted.start;
        let first = |bitmap: &[u8]| free_runs(bitmap, goal..count).take(FEW).find(is_long);
        blocks.work(geometry.block_size() as usize)?;
        let Some(run) = look_at_blocks(blocks, group, &descriptor, first)? else { return Ok(None) };
        let found = run.start..run.start + (run.end - run.start).min(wanted.end);
        Ok(Some(found).filter(|found| self.is_available(ground, group, found, wish.limit)))
    }

    /// Whether free clusters of a group can be taken, all of them.
    fn is_available(&self, ground: &Ground, group: Group, clusters: &Range<u32>, limit: u64) -> bool {
        let Run { first, count } = run_of(ground, group, clusters);
        let (first, end) = (first.get(), first.get() + count);
        end <= limit.min(ground.superblock.geometry.blocks_count())
            && ground.zones.allows(first, count)
            && self.held.within(first, end).next().is_none()
            && self.claimed.within(first, end).next().is_none()
    }

    /// Sets bits in a copy of a group's bitmap for free clusters that are unavailable: system zones, those that wait or
    /// are claimed, those past the limit, and a last cluster that reaches past the end of the volume.
    pub(super) fn mask(&mut self, ground: &Ground, group: Group, limit: u64, bitmap: &mut [u8]) {
        let geometry = &ground.superblock.geometry;
        let start = geometry.group_first_block(group).map_or(0, Pblk::get);
        let blocks = u64::from(geometry.group_blocks(group).unwrap_or(0));
        let (end, log) = (start + blocks, geometry.cluster_log());
        let whole = ((limit.min(end).saturating_sub(start)) >> log) as u32;
        put_bits(bitmap, whole..geometry.group_clusters(group).unwrap_or(0).max(whole), true);
        let index = |block: u64| ((block.clamp(start, end) - start) >> log) as u32;
        let put = |bitmap: &mut [u8], (from, to): (u64, u64)| {
            put_bits(bitmap, index(from)..index(to.min(end) - 1) + 1, true);
        };
        ground.zones.within(start, end).iter().for_each(|zone| put(bitmap, *zone));
        if let Some(mask) = self.masks.get(group) {
            bitmap.iter_mut().zip(mask).for_each(|(byte, kept)| *byte |= kept);
            return;
        }
        let taken = || self.held.within(start, end).chain(self.claimed.within(start, end));
        let runs = taken().inspect(|run| put(bitmap, *run)).count();
        if Masks::are_worth_it(runs, bitmap.len()) {
            let mut mask = vec![0; bitmap.len()].into_boxed_slice();
            taken().for_each(|run| put(&mut mask, run));
            self.masks.keep(group, mask);
        }
    }

    /// Takes a cluster of a group from its bitmap in memory. `None` if the group has none, or it takes a longer search.
    fn take_one(&self, blocks: &mut impl Blocks, group: Group, limit: u64) -> Result<Option<Pblk>> {
        let descriptor = descriptor(blocks, group)?;
        let ground = blocks.ground();
        if descriptor.free_clusters == 0 || descriptor.blocks_uninitialised(&ground.superblock) {
            return Ok(None);
        }
        let geometry = &ground.superblock.geometry;
        let all = geometry.group_clusters(group).unwrap_or(0);
        let is_available = |cluster: &u32| self.is_available(ground, group, &(*cluster..*cluster + 1), limit);
        let find = |bitmap: &[u8]| free_runs(bitmap, 0..all).flatten().take(FEW).find(is_available);
        blocks.work(geometry.block_size() as usize)?;
        let Some(cluster) = look_at_blocks(blocks, group, &descriptor, find)? else { return Ok(None) };
        let block = cluster_start(ground, group, cluster);
        mark_used(blocks, group, cluster..cluster + 1)?;
        Ok(Some(block))
    }

    /// A free inode in the group `near`, or a later one. Marks nothing.
    ///
    /// # Errors
    /// As of [`Allocator::allocate`].
    pub(crate) fn find_inode(&self, blocks: &impl Blocks, near: Group) -> Result<Ino> {
        let geometry = &blocks.ground().superblock.geometry;
        let inodes = geometry.inodes_per_group();
        for group in around(blocks.ground(), near) {
            if !blocks.ground().totals.may_have_inodes(group) {
                continue;
            }
            let descriptor = descriptor(blocks, group)?;
            if descriptor.free_inodes == 0 {
                continue;
            }
            blocks.work(geometry.block_size() as usize)?;
            let before = group.get() * inodes;
            let reserved = geometry.first_inode().get().saturating_sub(1 + before);
            let first = |bitmap: &[u8]| first_free(bitmap, reserved..inodes);
            if let Some(index) = look_at_inodes(blocks, group, &descriptor, first)? {
                return Ok(Ino(before + index + 1));
            }
        }
        Err(Error::NoSpace)
    }
}

/// Marks claimed blocks used. They lie in one group, and are claimed until [`Allocator::took_claimed`].
///
/// # Errors
/// [`Error::Corrupt`] if bitmap or descriptor are damaged, or mark them used. Those of the body.
pub(super) fn mark_claimed(blocks: &mut impl Blocks, run: Run) -> Result<()> {
    if let Some((group, clusters)) = only_part(blocks.ground(), run.first, run.count) {
        return mark_used(blocks, group, clusters);
    }
    for (group, clusters) in parts(blocks.ground(), run.first, run.count)? {
        mark_used(blocks, group, clusters)?;
    }
    Ok(())
}

/// Blocks of these groups were freed: raises their bounds to the size of a group.
fn raise(geometry: &Geometry, orders: &mut Option<Orders>, first: u64, end: u64) {
    let Some(orders) = orders else { return };
    let group = |block| geometry.group_of_block(Pblk(block)).map(|(group, _)| group.get());
    let (Some(first), Some(last)) = (group(first), group(end - 1)) else { return };
    for number in first..=last {
        orders.set(number, geometry.group_clusters(Group(number)).unwrap_or(0));
    }
}

/// Whether a whole group lies below a limit.
fn is_below(geometry: &Geometry, group: Group, limit: u64) -> bool {
    let end = geometry
        .group_first_block(group)
        .map(|first| first.get().saturating_add(u64::from(geometry.group_blocks(group).unwrap_or(0))));
    end.is_some_and(|end| end <= limit)
}

/// The blocks of a group's clusters.
fn run_of(ground: &Ground, group: Group, clusters: &Range<u32>) -> Run {
    let size = u64::from(ground.superblock.geometry.cluster_blocks());
    let first = cluster_start(ground, group, clusters.start);
    Run { first, count: u64::from(clusters.end - clusters.start) * size }
}

/// All groups: the nearest one, those after it, then those before it.
fn around(ground: &Ground, near: Group) -> impl Iterator<Item = Group> + use<> {
    let count = ground.superblock.geometry.group_count();
    let near = near.get().min(count);
    (near..count).chain(0..near).map(Group)
}

/// The first block of a cluster of a group.
fn cluster_start(ground: &Ground, group: Group, cluster: u32) -> Pblk {
    let geometry = &ground.superblock.geometry;
    let start = geometry.group_first_block(group).map_or(0, Pblk::get);
    Pblk(start + u64::from(cluster) * u64::from(geometry.cluster_blocks()))
}

/// The clusters that a run touches, if they lie in one group.
fn only_part(ground: &Ground, first: Pblk, count: u64) -> Option<(Group, Range<u32>)> {
    let geometry = &ground.superblock.geometry;
    let (group, index) = geometry.group_of_block(first)?;
    let last = u64::from(index) + count.checked_sub(1)?;
    let log = geometry.cluster_log();
    (last < u64::from(geometry.group_blocks(group)?)).then(|| (group, index >> log..(last >> log) as u32 + 1))
}

/// The clusters that a run touches, by group.
fn parts(ground: &Ground, first: Pblk, count: u64) -> Result<Vec<(Group, Range<u32>)>> {
    let geometry = &ground.superblock.geometry;
    let outside =
        || Error::from(Corrupt::from(CorruptKind::BlockOutsideVolume("a run of blocks")).at_block(first));
    let end = first.get().checked_add(count).filter(|_| count > 0).ok_or_else(outside)?;
    let log = geometry.cluster_log();
    let (mut parts, mut at) = (Vec::new(), first.get());
    while at < end {
        let (group, index) = geometry.group_of_block(Pblk(at)).ok_or_else(outside)?;
        let rest = u64::from(geometry.group_blocks(group).unwrap_or(0).saturating_sub(index));
        let taken = rest.min(end - at).max(1);
        parts.push((group, index >> log..((u64::from(index) + taken - 1) >> log) as u32 + 1));
        at += taken;
    }
    Ok(parts)
}

impl Space for Allocator {
    fn take(&mut self, blocks: &mut impl Blocks, ino: Ino, count: usize, limit: u64) -> Result<Vec<Pblk>> {
        let (near, _) = group::place_of_inode(blocks, ino)?;
        if count == 1
            && let Some(block) = self.take_one(blocks, near, limit)?
        {
            return Ok(vec![block]);
        }
        let (mut taken, mut changed) = (Vec::new(), Vec::new());
        for group in around(blocks.ground(), near) {
            if taken.len() == count {
                break;
            }
            if !blocks.ground().totals.may_have_clusters(group)
                || descriptor(blocks, group)?.free_clusters == 0
            {
                continue;
            }
            let mut found = Changed::of(blocks, group)?;
            let mut bitmap = found.blocks.clone().unwrap_or_default();
            blocks.work(bitmap.len() * SEARCH_WORK)?;
            let ground = blocks.ground();
            let geometry = &ground.superblock.geometry;
            self.mask(ground, group, limit, &mut bitmap);
            let all = 0..geometry.group_clusters(group).unwrap_or(0);
            for cluster in free_runs(&bitmap, all).flatten().take(count - taken.len()) {
                found.mark(ground, cluster..cluster + 1, true)?;
                taken.push(cluster_start(ground, group, cluster));
            }
            changed.push(found);
        }
        if taken.len() < count {
            return Err(Error::NoSpace);
        }
        changed.into_iter().try_for_each(|group| group.store(blocks))?;
        Ok(taken)
    }

    fn give_back(&mut self, blocks: &mut impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
        let held = match single(blocks, ino, runs)? {
            Some((group, clusters)) => {
                let Run { first, count } = run_of(blocks.ground(), group, &clusters);
                mark(blocks, group, clusters, false).map_err(|error| in_inode(error, ino))?;
                vec![(first.get(), first.get() + count)]
            }
            None => {
                let Returned { changed, held } = returned(blocks, ino, runs)?;
                changed.into_values().try_for_each(|group| group.store(blocks))?;
                held
            }
        };
        if self.holds {
            held.iter().try_for_each(|(first, end)| blocks.free_later(Pblk(*first), end - first))?;
            for (first, end) in held {
                self.held.add(first, end);
                self.masks.put(&self.geometry, first, end, true);
            }
        } else {
            let Allocator { geometry, orders, .. } = self;
            held.iter().for_each(|(first, end)| raise(geometry, orders, *first, *end));
        }
        Ok(())
    }
}

/// Groups after runs were freed, and the freed blocks: first and end.
struct Returned {
    changed: BTreeMap<Group, Changed>,
    held: Vec<(u64, u64)>,
}

fn in_inode(error: Error, ino: Ino) -> Error {
    match error {
        Error::Corrupt(corrupt) => corrupt.in_inode(ino).into(),
        error => error,
    }
}

/// The only run, if it lies in one group.
fn single(blocks: &impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<Option<(Group, Range<u32>)>> {
    let [(first, count)] = runs else { return Ok(None) };
    if let Some(only) = only_part(blocks.ground(), *first, *count) {
        return Ok(Some(only));
    }
    parts(blocks.ground(), *first, *count).map(|_several| None).map_err(|error| in_inode(error, ino))
}

/// The cluster of a group to search from.
fn goal_in(geometry: &Geometry, group: Group, goal: Pblk) -> u32 {
    match geometry.group_of_block(goal) {
        Some((near, index)) if near == group => index >> geometry.cluster_log(),
        _ => 0,
    }
}

/// The groups after freeing these runs. If one run is wrong, none is freed.
fn returned(blocks: &impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<Returned> {
    let of = |error| in_inode(error, ino);
    let (mut changed, mut held) = (BTreeMap::<Group, Changed>::new(), Vec::new());
    for (first, count) in runs {
        for (group, clusters) in parts(blocks.ground(), *first, *count).map_err(of)? {
            let place = match changed.entry(group) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(Changed::of(blocks, group).map_err(of)?),
            };
            let block = |cluster| cluster_start(blocks.ground(), group, cluster).get();
            held.push((block(clusters.start), block(clusters.end)));
            place.mark(blocks.ground(), clusters, false).map_err(of)?;
        }
    }
    Ok(Returned { changed, held })
}

/// Checks that runs of blocks of an inode could be freed. Changes nothing.
///
/// # Errors
/// As of [`Space::give_back`].
pub(super) fn check_give_back(blocks: &impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
    match single(blocks, ino, runs)? {
        Some((group, clusters)) => check_used(blocks, group, clusters).map_err(|error| in_inode(error, ino)),
        None => returned(blocks, ino, runs).map(drop),
    }
}
