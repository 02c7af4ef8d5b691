//! Finds groups that may have a long enough run of free clusters, without examining the others.
//!
//! Each group has an upper bound of its runs: at first its free count, and after an unsuccessful search the longest run
//! found. When clusters of a group are freed, its bound becomes the size of the group. Groups are indexed by the
//! logarithm of their bounds, so a search takes as many steps as there are logarithms, whatever the number of groups
//! and their fragmentation; and each group is searched in vain at most once for each time that clusters of it are
//! freed.
//!
//! The free count of a group is read when a search first reaches it. A large volume has a hundred thousand groups, and
//! most programs that write to it need a few of them.

use crate::ground::error::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Most groups of one logarithm whose exact bounds are compared, unless the search is exhaustive.
const ASKED: usize = 32;
/// Most free counts that one search reads, unless it is exhaustive.
const COUNTED: usize = 256;

/// Index of groups by bound.
#[derive(Debug)]
pub(super) struct Orders {
    bounds: Vec<u32>,
    /// Groups by logarithm of their bound.
    orders: Vec<BTreeSet<u32>>,
    /// Groups whose free counts were not read yet, not in `orders`. Ranges: first group to the first one after.
    new: BTreeMap<u32, u32>,
}

impl Orders {
    /// An index of this many groups; no free count was read.
    pub(super) fn new(groups: u32) -> Orders {
        let new = BTreeMap::from_iter((groups > 0).then_some((0, groups)));
        Orders { bounds: vec![0; groups as usize], orders: vec![BTreeSet::new(); u32::BITS as usize], new }
    }

    /// The first group in `[from, end)` whose free count was not read.
    fn new_from(&self, from: u32, end: u32) -> Option<u32> {
        let around = self.new.range(..=from).next_back().filter(|(_, behind)| **behind > from).map(|_| from);
        around
            .filter(|from| *from < end)
            .or_else(|| self.new.range(from..end.max(from)).next().map(|(first, _)| *first))
    }

    /// Marks the group's bound as known.
    fn note(&mut self, group: u32) {
        let Some((&first, &behind)) = self.new.range(..=group).next_back() else { return };
        if behind > group {
            self.new.remove(&first);
            self.new.extend([(first, group), (group + 1, behind)].into_iter().filter(|(from, to)| from < to));
        }
    }

    /// Sets the upper bound of a group's runs.
    pub(super) fn set(&mut self, group: u32, bound: u32) {
        self.note(group);
        let Some(known) = self.bounds.get_mut(group as usize) else { return };
        let before = std::mem::replace(known, bound);
        if before.checked_ilog2() == bound.checked_ilog2() {
            return;
        }
        if let Some(order) = before.checked_ilog2() {
            self.orders[order as usize].remove(&group);
        }
        if let Some(order) = bound.checked_ilog2() {
            self.orders[order as usize].insert(group);
        }
    }

    /// The first group that may have `wanted` consecutive clusters, from `near` on, then from the first group on.
    /// `free` reads the free count of a group. `all`: exhaustive. Otherwise a group whose bound is below twice `wanted`
    /// may be skipped, and one whose free count was not read.
    ///
    /// # Errors
    /// Those of `free`.
    pub(super) fn next(
        &mut self,
        wanted: u32,
        near: u32,
        skipped: &BTreeSet<u32>,
        all: bool,
        free: impl Fn(u32) -> Result<u32>,
    ) -> Result<Option<u32>> {
        let fits = |bound: &&u32| **bound >= wanted.max(1) && !skipped.contains(&near);
        if self.bounds.get(near as usize).filter(fits).is_some() {
            // None is nearer, whatever the order of the others.
            return Ok(Some(near));
        }
        let mut left = if all { usize::MAX } else { COUNTED };
        for (from, end) in [(near, u32::MAX), (0, near)] {
            let known = self.nearest(wanted, from, end, skipped, all);
            while left > 0
                && let Some(group) = self.new_from(from, known.unwrap_or(end))
            {
                left -= 1;
                let bound = free(group)?;
                self.set(group, bound);
                if bound >= wanted && !skipped.contains(&group) {
                    return Ok(Some(group));
                }
            }
            if known.is_some() {
                return Ok(known);
            }
        }
        Ok(None)
    }

    /// The first group of a range whose bound is known and long enough.
    fn nearest(&self, wanted: u32, from: u32, end: u32, skipped: &BTreeSet<u32>, all: bool) -> Option<u32> {
        let lowest = wanted.max(1).ilog2() as usize;
        let asked = |order| if order == lowest && !all { ASKED } else { usize::MAX };
        let fits = |group: &&u32| self.bounds[**group as usize] >= wanted && !skipped.contains(group);
        let of = |order: usize| self.orders[order].range(from..end).take(asked(order)).find(fits).copied();
        (lowest..self.orders.len()).filter_map(of).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Orders, and how often a free count was asked for.
    struct Trial {
        orders: Orders,
        free: Vec<u32>,
        asked: Cell<usize>,
    }

    impl Trial {
        fn new(free: Vec<u32>) -> Trial {
            Trial { orders: Orders::new(free.len() as u32), free, asked: Cell::new(0) }
        }

        fn next(&mut self, wanted: u32, near: u32, skipped: &[u32], all: bool) -> Option<u32> {
            let free = |group: u32| {
                self.asked.set(self.asked.get() + 1);
                Ok(self.free[group as usize])
            };
            self.orders.next(wanted, near, &skipped.iter().copied().collect(), all, free).unwrap()
        }
    }

    #[test]
    fn the_nearest_group_that_may_do_is_found() {
        let mut trial = Trial::new(vec![5, 0, 100, 64, 7]);
        assert_eq!(trial.next(1, 1, &[], true), Some(2));
        assert_eq!(trial.next(6, 3, &[], true), Some(3));
        assert_eq!(trial.next(65, 3, &[], true), Some(2), "from the first one on");
        assert_eq!(trial.next(6, 4, &[], true), Some(4));
        assert_eq!(trial.next(8, 4, &[], true), Some(2));
        assert_eq!(trial.next(101, 0, &[], true), None);
        trial.orders.set(2, 3);
        trial.orders.set(1, u32::MAX);
        assert_eq!(trial.next(65, 3, &[], true), Some(1));
        assert_eq!(trial.next(4, 2, &[], true), Some(3));
        assert_eq!(trial.next(4, 2, &[3], true), Some(4));
        trial.orders.set(1, 0);
        trial.orders.set(77, 1);
        assert_eq!(trial.next(65, 0, &[], true), None);
        assert_eq!(trial.asked.get(), 5, "each group is asked for its free count once");
    }

    #[test]
    fn a_search_may_give_up_and_a_whole_one_does_not() {
        let mut free = vec![33; 100];
        free[99] = 63;
        let mut trial = Trial::new(free);
        assert_eq!(trial.next(64, 0, &[], true), None);
        assert_eq!(trial.next(60, 0, &[], false), None);
        assert_eq!(trial.next(60, 0, &[], true), Some(99));
        assert_eq!(trial.next(33, 50, &[], false), Some(50));
    }

    /// Against the bounds of all groups: an exhaustive search finds the nearest one that fits, any other one that fits.
    #[test]
    fn free_counts_that_are_read_late_are_as_good_as_those_read_first() {
        let mut random = uext4_testkit::Rng::new(14);
        for _ in 0..20 {
            let mut bounds: Vec<u32> = (0..1000).map(|_| random.below(40) as u32).collect();
            let mut trial = Trial::new(bounds.clone());
            for _ in 0..200 {
                if random.chance(50) {
                    let (group, bound) = (random.below(1000) as u32, random.below(40) as u32);
                    trial.orders.set(group, bound);
                    bounds[group as usize] = bound;
                }
                let (wanted, near) = (random.range(1..45) as u32, random.below(1000) as u32);
                let skipped: Vec<u32> = (0..random.below(4)).map(|_| random.below(1000) as u32).collect();
                let fits = |group: &u32| bounds[*group as usize] >= wanted && !skipped.contains(group);
                let found = trial.next(wanted, near, &skipped, false);
                assert!(found.is_none_or(|group| fits(&group)));
                let nearest = (near..1000).chain(0..near).find(fits);
                assert_eq!(trial.next(wanted, near, &skipped, true), nearest);
            }
        }
    }

    #[test]
    fn a_search_asks_for_as_many_free_counts_as_it_needs() {
        let mut trial = Trial::new(vec![9; 100_000]);
        assert_eq!(trial.next(9, 70_000, &[], false), Some(70_000));
        assert_eq!(trial.asked.get(), 1);
        assert_eq!(trial.next(9, 70_000, &[70_000], false), Some(70_001));
        assert_eq!(trial.next(10, 70_000, &[], false), None);
        assert_eq!(trial.asked.get(), 2 + COUNTED);
        // Blocks freed in a group give it a bound.
        trial.orders.set(99_999, 10);
        assert_eq!(trial.next(10, 99_990, &[], false), Some(99_999));
        assert_eq!(trial.next(10, 0, &[99_999], true), None);
        assert_eq!(trial.asked.get(), 99_999);
        assert!(trial.orders.new.is_empty());
    }
}
