//! Which groups may have a run of free clusters that is long enough: found without a look at the others.
//!
//! Of each group a bound is known: no run of it is longer. At first that is its free count, and after a search that
//! found too little the longest run that it met. What becomes free in a group makes its bound unknown again. Groups
//! are kept by the logarithm of their bounds, so a search takes as many steps as there are logarithms, however many
//! groups there are and however fragmented they are; and each group is searched in vain once for each time that
//! something of it becomes free.

use std::collections::BTreeSet;

/// Groups of one logarithm that are asked for their bounds one by one, unless nothing may be missed.
const ASKED: usize = 32;

/// See the module.
#[derive(Debug)]
pub(super) struct Orders {
    bounds: Vec<u32>,
    /// Groups by logarithm.
    orders: Vec<BTreeSet<u32>>,
}

impl Orders {
    /// Groups with these bounds.
    pub(super) fn new(bounds: Vec<u32>) -> Orders {
        let mut orders = vec![BTreeSet::new(); u32::BITS as usize];
        for (group, bound) in (0..).zip(&bounds) {
            if let Some(order) = bound.checked_ilog2() {
                orders[order as usize].insert(group);
            }
        }
        Orders { bounds, orders }
    }

    /// No run of a group is longer than this.
    pub(super) fn set(&mut self, group: u32, bound: u32) {
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

    /// The first group from `near` on, and then from the first one on, that may have `wanted` clusters in a row.
    /// `all`: none is missed. Otherwise some may be whose bounds are not twice as long.
    pub(super) fn next(&self, wanted: u32, near: u32, skipped: &BTreeSet<u32>, all: bool) -> Option<u32> {
        let lowest = wanted.max(1).ilog2() as usize;
        let asked = if all { usize::MAX } else { ASKED };
        let fits = |group: &&u32| self.bounds[**group as usize] >= wanted && !skipped.contains(group);
        let of = |order: usize, from: u32, end: u32| {
            let asked = if order == lowest { asked } else { usize::MAX };
            self.orders[order].range(from..end).take(asked).find(fits).copied()
        };
        let nearest = |from, end| (lowest..self.orders.len()).filter_map(|order| of(order, from, end)).min();
        nearest(near, u32::MAX).or_else(|| nearest(0, near))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_group_that_may_do_is_found() {
        let mut orders = Orders::new(vec![5, 0, 100, 64, 7]);
        let none = BTreeSet::new();
        let next = |orders: &Orders, wanted, near| orders.next(wanted, near, &none, true);
        assert_eq!(next(&orders, 1, 1), Some(2));
        assert_eq!(next(&orders, 6, 3), Some(3));
        assert_eq!(next(&orders, 65, 3), Some(2), "from the first one on");
        assert_eq!(next(&orders, 6, 4), Some(4));
        assert_eq!(next(&orders, 8, 4), Some(2));
        assert_eq!(next(&orders, 101, 0), None);
        orders.set(2, 3);
        orders.set(1, u32::MAX);
        assert_eq!(next(&orders, 65, 3), Some(1));
        assert_eq!(next(&orders, 4, 2), Some(3));
        assert_eq!(orders.next(4, 2, &BTreeSet::from([3]), true), Some(4));
        orders.set(1, 0);
        orders.set(77, 1);
        assert_eq!(next(&orders, 65, 0), None);
    }

    #[test]
    fn a_search_may_give_up_and_a_whole_one_does_not() {
        let mut bounds = vec![33; 100];
        bounds[99] = 63;
        let orders = Orders::new(bounds);
        let none = BTreeSet::new();
        assert_eq!(orders.next(60, 0, &none, false), None);
        assert_eq!(orders.next(60, 0, &none, true), Some(99));
        assert_eq!(orders.next(33, 50, &none, false), Some(50));
    }
}
