//! Blocks for the files of a new volume: each file in one piece if one is long enough, from the volume's start on.

use super::super::error::{Error, Result};
use super::super::layout::Layout;

/// A free run of blocks, used from its start on.
struct Gap {
    start: u64,
    next: u64,
    end: u64,
}

/// The free blocks of a volume that is being laid out.
pub(super) struct Room {
    gaps: Vec<Gap>,
    /// Gaps before this one are full.
    first: usize,
    /// Blocks of an allocation unit.
    grain: u64,
}

impl Room {
    /// The blocks that nothing was placed in so far.
    pub(super) fn of(layout: &Layout) -> Room {
        let grain = u64::from(layout.superblock.geometry.cluster_blocks());
        let mut gaps: Vec<Gap> = Vec::new();
        let mut at = 0;
        while let Some((start, length)) = layout.space.next_free(at) {
            at = start + length;
            gaps.push(Gap { start, next: start, end: start + length / grain * grain });
        }
        Room { gaps, first: 0, grain }
    }

    /// Takes `count` blocks, in whole clusters: as few runs (first block, number of blocks) as there can be without a
    /// search for the best combination.
    ///
    /// # Errors
    /// [`Error::TooSmall`].
    pub(super) fn take(&mut self, count: u64) -> Result<Vec<(u64, u64)>> {
        let (mut runs, mut left) = (Vec::new(), count);
        while left > 0 {
            while self.gaps.get(self.first).is_some_and(|gap| gap.next == gap.end) {
                self.first += 1;
            }
            let wanted = left.next_multiple_of(self.grain);
            let open = self.gaps.get_mut(self.first..).unwrap_or_default();
            let fits = open.iter().position(|gap| gap.end - gap.next >= wanted);
            // In order, so that a large file lies from front to back.
            let largest = || open.iter().map(|gap| gap.end - gap.next).max().unwrap_or(0);
            let choice = fits.or_else(|| {
                let largest = largest();
                open.iter().position(|gap| gap.end - gap.next == largest && largest > 0)
            });
            let gap = choice.and_then(|choice| open.get_mut(choice)).ok_or_else(full)?;
            let taken = wanted.min(gap.end - gap.next);
            runs.push((gap.next, taken.min(left)));
            gap.next += taken;
            left = left.saturating_sub(taken);
        }
        Ok(runs)
    }

    /// Takes one block, in a cluster of its own.
    ///
    /// # Errors
    /// [`Error::TooSmall`].
    pub(super) fn take_one(&mut self) -> Result<u64> {
        self.take(1)?.first().map(|&(start, _)| start).ok_or_else(full)
    }

    /// Marks what was taken as used.
    pub(super) fn settle(self, layout: &mut Layout) {
        for gap in self.gaps.iter().filter(|gap| gap.next > gap.start) {
            layout.space.place(gap.start, gap.next - gap.start);
        }
    }
}

fn full() -> Error {
    Error::TooSmall { have: "the volume's blocks".into(), reason: "the files do not fit".into() }
}
