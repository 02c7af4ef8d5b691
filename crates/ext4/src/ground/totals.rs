//! Running totals of the groups, for the policy of new inodes (`alloc/spread.rs`).
//!
//! They are filled when a volume is opened for writing and follow each change of a descriptor, which holds the lock of
//! all groups. They only guide a search: the descriptors decide.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use uext4_ondisk::Group;
use uext4_ondisk::ext4::GroupDescriptor;

/// Counts of some groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) free_inodes: u64,
    pub(crate) free_clusters: u64,
    pub(crate) directories: u64,
}

/// How the counts of a group change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) free_inodes: i64,
    pub(crate) free_clusters: i64,
    pub(crate) directories: i64,
}

#[derive(Debug, Default)]
struct Cell {
    free_inodes: AtomicU64,
    free_clusters: AtomicU64,
    directories: AtomicU64,
    /// No group of this flex group before this one has a free inode.
    first: AtomicU32,
}

impl Cell {
    fn change(&self, delta: Delta) {
        let add = |count: &AtomicU64, more: i64| {
            if more != 0 {
                // A count that damage made too small stays near zero.
                let now = count.load(Ordering::Relaxed).saturating_add_signed(more);
                count.store(now, Ordering::Relaxed);
            }
        };
        add(&self.free_inodes, delta.free_inodes);
        add(&self.free_clusters, delta.free_clusters);
        add(&self.directories, delta.directories);
    }

    fn counts(&self) -> Counts {
        Counts {
            free_inodes: self.free_inodes.load(Ordering::Relaxed),
            free_clusters: self.free_clusters.load(Ordering::Relaxed),
            directories: self.directories.load(Ordering::Relaxed),
        }
    }
}

/// Totals of each flex group and of the volume. Without flex groups each group is one.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// log2 of the groups in a flex group.
    log: u32,
    all: Cell,
    flex: Box<[Cell]>,
}

impl Totals {
    /// Totals of a volume without anything free. `per_flex`: groups in a flex group, a power of two.
    pub(crate) fn new(groups: u32, per_flex: u32) -> Totals {
        let log = per_flex.trailing_zeros();
        let cell = |number: u32| Cell { first: AtomicU32::new(number << log), ..Cell::default() };
        Totals { log, all: Cell::default(), flex: (0..groups.div_ceil(per_flex)).map(cell).collect() }
    }

    /// Adds a group.
    pub(crate) fn add(&self, group: Group, descriptor: &GroupDescriptor) {
        let delta = Delta {
            free_inodes: descriptor.free_inodes.into(),
            free_clusters: descriptor.free_clusters.into(),
            directories: descriptor.used_dirs.into(),
        };
        self.change(group, delta);
    }

    /// Follows a change of a group's descriptor.
    pub(crate) fn change(&self, group: Group, delta: Delta) {
        let Some(flex) = self.flex.get(self.flex_of(group) as usize) else { return };
        flex.change(delta);
        self.all.change(delta);
        if delta.free_inodes > 0 && group.get() < flex.first.load(Ordering::Relaxed) {
            flex.first.store(group.get(), Ordering::Relaxed);
        }
    }

    /// Flex groups.
    pub(crate) fn flex_count(&self) -> u32 {
        self.flex.len() as u32
    }

    /// Groups in a flex group.
    pub(crate) fn per_flex(&self) -> u32 {
        1 << self.log
    }

    /// The flex group of a group.
    pub(crate) fn flex_of(&self, group: Group) -> u32 {
        group.get() >> self.log
    }

    /// Counts of the volume.
    pub(crate) fn volume(&self) -> Counts {
        self.all.counts()
    }

    /// Counts of a flex group.
    pub(crate) fn of_flex(&self, number: u32) -> Counts {
        self.flex.get(number as usize).map_or(Counts::default(), Cell::counts)
    }

    /// Whether the flex group of a group may have a free inode. True if there are no totals.
    pub(crate) fn may_have_inodes(&self, group: Group) -> bool {
        let flex = self.flex.get(self.flex_of(group) as usize);
        flex.is_none_or(|flex| flex.free_inodes.load(Ordering::Relaxed) > 0)
    }

    /// The same of free clusters.
    pub(crate) fn may_have_clusters(&self, group: Group) -> bool {
        let flex = self.flex.get(self.flex_of(group) as usize);
        flex.is_none_or(|flex| flex.free_clusters.load(Ordering::Relaxed) > 0)
    }

    /// The first group of a flex group that may have a free inode.
    pub(crate) fn first_in(&self, number: u32) -> Group {
        Group(self.flex.get(number as usize).map_or(u32::MAX, |flex| flex.first.load(Ordering::Relaxed)))
    }

    /// Records that no group of the flex group before this one has a free inode.
    pub(crate) fn none_before(&self, number: u32, group: Group) {
        if let Some(flex) = self.flex.get(number as usize) {
            flex.first.store(group.get(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_follow_changes() {
        let totals = Totals::new(10, 4);
        assert_eq!((totals.flex_count(), totals.per_flex(), totals.first_in(2)), (3, 4, Group(8)));
        for group in 0..10 {
            totals.change(Group(group), Delta { free_inodes: 8, free_clusters: 100, directories: 1 });
        }
        assert_eq!(totals.of_flex(0), Counts { free_inodes: 32, free_clusters: 400, directories: 4 });
        assert_eq!(totals.of_flex(2), Counts { free_inodes: 16, free_clusters: 200, directories: 2 });
        totals.none_before(1, Group(6));
        totals.change(Group(5), Delta { free_inodes: -1, ..Delta::default() });
        assert_eq!((totals.first_in(1), totals.of_flex(1).free_inodes), (Group(6), 31));
        totals.change(Group(5), Delta { free_inodes: 1, directories: -9, ..Delta::default() });
        assert_eq!((totals.first_in(1), totals.of_flex(1).directories), (Group(5), 0));
        assert_eq!(totals.volume(), Counts { free_inodes: 80, free_clusters: 1000, directories: 1 });
        // Readers have none.
        Totals::default().change(Group(0), Delta::default());
        assert_eq!(Totals::default().of_flex(0), Counts::default());
    }
}
