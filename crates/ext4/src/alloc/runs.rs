//! A set of disjoint runs of blocks.

use std::collections::BTreeMap;

/// A set of blocks, stored as disjoint runs.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// First block, and the first block after the run.
    runs: BTreeMap<u64, u64>,
    /// Blocks of all runs.
    blocks: u64,
}

impl Runs {
    /// Blocks of all runs.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds blocks that are in none of the runs.
    pub(super) fn add(&mut self, first: u64, end: u64) {
        self.blocks += end - first;
        self.runs.insert(first, end);
    }

    /// Removes the blocks of a range, and calls `each` for every removed run.
    pub(super) fn remove(&mut self, first: u64, end: u64, mut each: impl FnMut(u64, u64)) {
        let met = self.runs.range(..end).rev().take_while(|run| *run.1 > first);
        for (from, to) in met.map(|(from, to)| (*from, *to)).collect::<Vec<_>>() {
            self.runs.remove(&from);
            let gone = (first.max(from), end.min(to));
            self.blocks -= gone.1 - gone.0;
            let rest = [(from, gone.0), (gone.1, to)];
            self.runs.extend(rest.into_iter().filter(|(from, to)| from < to));
            each(gone.0, gone.1);
        }
    }

    /// The runs that overlap a range, not clipped to it.
    pub(super) fn within(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self.runs.range(..end).rev().map(|(from, to)| (*from, *to));
        before.take_while(move |run| run.1 > first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_out_of_the_middle_leaves_both_ends() {
        let mut runs = Runs::default();
        runs.add(10, 20);
        runs.add(20, 30);
        runs.add(40, 50);
        let mut gone = Vec::new();
        runs.remove(15, 45, |first, end| gone.push((first, end)));
        assert_eq!(gone, [(40, 45), (20, 30), (15, 20)]);
        assert_eq!(runs.blocks(), 10);
        assert_eq!(runs.within(0, 100).collect::<Vec<_>>(), [(45, 50), (10, 15)]);
        assert_eq!(runs.within(15, 45).count(), 0);
        runs.remove(0, u64::MAX, |_, _| ());
        assert_eq!((runs.blocks(), runs.within(0, u64::MAX).count()), (0, 0));
    }
}
