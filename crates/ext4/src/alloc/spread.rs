//! In which group a new inode goes: directories are spread over the volume, files stay near their directory.
//!
//! The rules are those of Linux (`fs/ext4/ialloc.c`: `find_group_orlov`, `find_group_other`), so that a tree written
//! here lies as one written by the kernel. They choose a group with a free inode; the search for the inode starts there
//! ([`Allocator::find_inode`](super::search::Allocator::find_inode)).

use super::group::descriptor;
use crate::ground::blocks::Blocks;
use crate::ground::error::Result;
use crate::ground::totals::{Counts, Totals};
use uext4_ondisk::ext4::Geometry;
use uext4_ondisk::{Group, Ino};

/// Where a new inode is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Near {
    /// Its directory.
    pub(crate) parent: Ino,
    /// The group of the last inode that was made in the directory.
    pub(crate) last: Option<Group>,
    /// The hash of the name, if the inode is a directory that is to be spread: its parent is the root, or has the flag
    /// `TOPDIR`.
    pub(crate) spread: Option<u32>,
}

/// The group to begin with. `parent`: that of the directory.
///
/// # Errors
/// [`Error::Corrupt`](crate::ground::error::Error::Corrupt) if an examined descriptor is damaged; those of the body.
pub(super) fn choose(blocks: &impl Blocks, near: &Near, parent: Group, directory: bool) -> Result<Group> {
    let search = Search { blocks, totals: &blocks.ground().totals, near, parent };
    let chosen = match (directory, search.totals.per_flex()) {
        (true, _) => search.orlov()?,
        (false, 1) => search.by_group()?,
        (false, _) => search.in_flex()?,
    };
    Ok(chosen.unwrap_or(parent))
}

struct Search<'s, B: Blocks> {
    blocks: &'s B,
    totals: &'s Totals,
    near: &'s Near,
    parent: Group,
}

impl<B: Blocks> Search<'_, B> {
    fn geometry(&self) -> &Geometry {
        &self.blocks.ground().superblock.geometry
    }

    /// The first group of a flex group that has a free inode.
    fn first_free(&self, flex: u32) -> Result<Option<Group>> {
        if self.totals.of_flex(flex).free_inodes == 0 {
            return Ok(None);
        }
        let end = u64::from(flex + 1) * u64::from(self.totals.per_flex());
        let end = end.min(self.geometry().group_count().into()) as u32;
        for group in (self.totals.first_in(flex).get()..end).map(Group) {
            if descriptor(self.blocks, group)?.free_inodes > 0 {
                self.totals.none_before(flex, group);
                return Ok(Some(group));
            }
        }
        Ok(None)
    }

    /// Calls `fits` with the counts of the flex groups in turn, from `start` on.
    fn flex_groups(&self, start: u32) -> impl Iterator<Item = (u32, Counts)> {
        let count = self.totals.flex_count().max(1);
        (start % count..count).chain(0..start % count).map(|flex| (flex, self.totals.of_flex(flex)))
    }

    /// The rule for directories.
    fn orlov(&self) -> Result<Option<Group>> {
        let (all, count) = (self.totals.volume(), u64::from(self.totals.flex_count().max(1)));
        let (inodes, clusters) = (all.free_inodes / count, all.free_clusters / count);
        let geometry = self.geometry();
        let per_group = u64::from(geometry.inodes_per_group());
        let found = if let Some(hash) = self.near.spread {
            let mut best = (None, per_group);
            for (flex, counts) in self.flex_groups(hash) {
                let better = counts.free_inodes > 0
                    && counts.directories < best.1
                    && counts.free_inodes >= inodes
                    && counts.free_clusters >= clusters;
                if better {
                    best = (Some(flex), counts.directories);
                }
            }
            best.0
        } else {
            let size = u64::from(self.totals.per_flex());
            let most = all.directories / count + per_group.saturating_mul(size) / 16;
            let least_inodes = inodes.saturating_sub(per_group.saturating_mul(size) / 4).max(1);
            let quarter = u64::from(geometry.clusters_per_group()).saturating_mul(size) / 4;
            let least_clusters = clusters.saturating_sub(quarter);
            let start = self.totals.flex_of(self.near.last.unwrap_or(self.parent));
            let fits = |counts: &Counts| {
                counts.directories < most
                    && counts.free_inodes >= least_inodes
                    && counts.free_clusters >= least_clusters
            };
            self.flex_groups(start).find(|(_, counts)| fits(counts)).map(|(flex, _)| flex)
        };
        match found.map(|flex| self.first_free(flex)).transpose()?.flatten() {
            Some(group) => Ok(Some(group)),
            None => self.above_average(),
        }
    }

    /// A group with at least as many free inodes as the others on average, else with any.
    fn above_average(&self) -> Result<Option<Group>> {
        let count = self.geometry().group_count();
        let average = self.totals.volume().free_inodes / u64::from(count.max(1));
        for least in [average.max(1), 1] {
            for group in (self.parent.get()..count).chain(0..self.parent.get()).map(Group) {
                if self.totals.of_flex(self.totals.flex_of(group)).free_inodes >= least
                    && u64::from(descriptor(self.blocks, group)?.free_inodes) >= least
                {
                    return Ok(Some(group));
                }
            }
        }
        Ok(None)
    }

    /// The rule for all others: in the flex group of the directory, or where the last of its files went, or where a
    /// directory would go.
    fn in_flex(&self) -> Result<Option<Group>> {
        if let Some(group) = self.first_free(self.totals.flex_of(self.parent))? {
            return Ok(Some(group));
        }
        if let Some(last) = self.near.last
            && let Some(group) = self.first_free(self.totals.flex_of(last))?
        {
            return Ok(Some(group));
        }
        self.orlov()
    }

    /// The same without flex groups: the group of the directory; else groups at growing distances from a place that
    /// depends on the directory, so that files of one directory stay together; else any with a free inode.
    fn by_group(&self) -> Result<Option<Group>> {
        let count = self.totals.flex_count().max(1);
        let fits = |counts: Counts| counts.free_inodes > 0 && counts.free_clusters > 0;
        if fits(self.totals.of_flex(self.parent.get())) {
            return Ok(Some(self.parent));
        }
        let mut at = (u64::from(self.parent.get()) + u64::from(self.near.parent.get())) % u64::from(count);
        let steps = std::iter::successors(Some(1_u64), |step| Some(step << 1));
        for step in steps.take_while(|step| *step < u64::from(count)) {
            at = (at + step) % u64::from(count);
            if fits(self.totals.of_flex(at as u32)) {
                return Ok(Some(Group(at as u32)));
            }
        }
        let mut others = self.flex_groups(self.parent.get() + 1);
        Ok(others.find(|(_, counts)| counts.free_inodes > 0).map(|(group, _)| Group(group)))
    }
}
