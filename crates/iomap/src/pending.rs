//! Writes whose data may not be read yet: in flight over unwritten blocks, or complete but not converted.
//!
//! Code that zeroes a block on the device instead of converting it (a conversion that must not split an extent) checks
//! here first: zeros over the data of such a write would lose it.
//!
//! **Lock.** The map lock protects the set, which is accessed only through [`MapWriter::pending`]. So "is this block
//! still unwritten", "my write covers it" and "does any write cover it" are checked and recorded in one step, and no
//! protocol beyond the lock is needed: zeroing a block holds the lock from the check until the block is published as
//! written, and submitting a write looks the block up and adds the range under the same lock.
//!
//! **Cost.** An inode without such writes has a null pointer. Adding and removing are a push and a pop; memory is 24
//! bytes per write at the peak, and is freed with the last write if the peak exceeded a usual queue depth. A check
//! walks all ranges: 20 ns for a queue of 32, 15 µs for one of 32768, which is small against the device write that
//! follows.
//!
//! [`MapWriter::pending`]: crate::snapshot::MapWriter::pending

use std::ops::Range;

/// Capacity in ranges that is kept when the last range is removed.
const KEPT: usize = 256;

/// The ranges of one inode, in blocks. They may overlap: two writes may cover the same blocks.
#[derive(Debug, Default)]
pub struct Pending(Option<Box<Ranges>>);

#[derive(Debug, Default)]
struct Ranges {
    /// Indexed by ticket number. An empty range is a free slot.
    ranges: Vec<Range<u64>>,
    free: Vec<u32>,
    /// Complete and waiting for conversion.
    due: Vec<u32>,
}

/// One range of the set. Return it with [`Pending::complete`] or [`Pending::withdraw`]: a leaked range keeps its blocks
/// from being zeroed as long as the inode is in memory.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct PendingRange(u32);

/// Ranges being converted. They stay in the set until [`Pending::finish`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Batch {
    tickets: Vec<u32>,
    ranges: Vec<Range<u64>>,
}

impl Batch {
    /// The ranges to convert, in order, neither overlapping nor adjacent.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }
}

impl Pending {
    /// Adds a write of `blocks` (not empty, some unwritten) that is about to be submitted. Call before its first device
    /// request, under the same hold of the map lock as the look-up that found them unwritten.
    pub fn add(&mut self, blocks: Range<u64>) -> PendingRange {
        debug_assert!(blocks.start < blocks.end);
        let set = self.0.get_or_insert_default();
        match set.free.pop() {
            Some(ticket) => {
                set.ranges[ticket as usize] = blocks;
                PendingRange(ticket)
            }
            None => {
                set.ranges.push(blocks);
                PendingRange((set.ranges.len() - 1) as u32)
            }
        }
    }

    /// The data of a write is complete: its range joins the next batch.
    pub fn complete(&mut self, ticket: PendingRange) {
        if let Some(set) = &mut self.0 {
            set.due.push(ticket.0);
        }
    }

    /// A write failed, or was not sent: nothing of it is to be converted.
    pub fn withdraw(&mut self, ticket: PendingRange) {
        self.free([ticket.0]);
    }

    /// All complete ranges that are not being converted yet. `None` if there are none.
    pub fn take_batch(&mut self) -> Option<Batch> {
        let set = self.0.as_mut().filter(|set| !set.due.is_empty())?;
        let tickets = std::mem::take(&mut set.due);
        let mut ranges: Vec<_> = tickets.iter().map(|&ticket| set.ranges[ticket as usize].clone()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|range, last| {
            let joins = range.start <= last.end;
            if joins {
                last.end = last.end.max(range.end);
            }
            joins
        });
        Some(Batch { tickets, ranges })
    }

    /// Removes a batch that was converted and published, or has failed for good. Call under the same hold of the map
    /// lock as the publication. Returns its ranges.
    pub fn finish(&mut self, batch: Batch) -> Vec<Range<u64>> {
        let Batch { mut tickets, ranges } = batch;
        self.free(tickets.iter().copied());
        if let Some(set) = self.0.as_mut().filter(|set| set.due.capacity() == 0 && tickets.capacity() <= KEPT)
        {
            tickets.clear();
            set.due = tickets;
        }
        ranges
    }

    /// Whether `blocks` overlaps any range: then its blocks must not be zeroed. The answer holds while the map lock is
    /// held.
    pub fn meets(&self, blocks: &Range<u64>) -> bool {
        let set = self.0.as_deref().map_or(&[][..], |set| &set.ranges);
        set.iter().any(|range| range.start < blocks.end && blocks.start < range.end)
    }

    fn free(&mut self, tickets: impl IntoIterator<Item = u32>) {
        let Some(set) = &mut self.0 else { return };
        for ticket in tickets {
            set.ranges[ticket as usize] = 0..0;
            set.free.push(ticket);
        }
        if set.free.len() == set.ranges.len() && set.ranges.capacity() > KEPT {
            self.0 = None;
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::single_range_in_vec_init, reason = "a batch may have one")]
mod tests {
    use super::*;
    use std::slice;

    #[test]
    fn a_range_counts_until_it_is_taken_out() {
        let mut pending = Pending::default();
        assert!(!pending.meets(&(0..u64::MAX)));
        let (failed, done) = (pending.add(10..12), pending.add(20..21));
        let asked = [9..10, 9..11, 11..12, 12..20, 20..21, 0..100, 21..22];
        let met = |pending: &Pending| asked.each_ref().map(|blocks| pending.meets(blocks));
        assert_eq!(met(&pending), [false, true, true, false, true, true, false]);
        assert_eq!(pending.take_batch(), None, "nothing is complete");
        pending.withdraw(failed);
        assert_eq!(met(&pending), [false, false, false, false, true, true, false]);
        pending.complete(done);
        assert!(pending.meets(&(20..21)), "complete is not converted");
        let batch = pending.take_batch().unwrap();
        assert_eq!(batch.ranges(), slice::from_ref(&(20..21)));
        assert!(pending.meets(&(20..21)), "while it is converted");
        assert_eq!(pending.take_batch(), None, "the batch is taken already");
        pending.finish(batch);
        assert!(!pending.meets(&(0..u64::MAX)));
    }

    /// Two writes over the same blocks: the first conversion must not free the blocks of the second.
    #[test]
    fn ranges_over_the_same_blocks_count_each() {
        let mut pending = Pending::default();
        let (one, other) = (pending.add(0..8), pending.add(4..12));
        pending.complete(one);
        let batch = pending.take_batch().unwrap();
        pending.finish(batch);
        assert!(!pending.meets(&(0..4)) && pending.meets(&(7..8)));
        pending.withdraw(other);
        assert!(!pending.meets(&(7..8)));
    }

    #[test]
    fn a_batch_is_in_order_without_overlaps() {
        let mut pending = Pending::default();
        for blocks in [30..31, 0..4, 4..8, 2..6, 40..50, 41..42, 9..10] {
            let ticket = pending.add(blocks);
            pending.complete(ticket);
        }
        let in_flight = pending.add(60..61);
        let batch = pending.take_batch().unwrap();
        assert_eq!(batch.ranges(), [0..8, 9..10, 30..31, 40..50]);
        pending.finish(batch);
        assert!(pending.meets(&(60..61)));
        pending.withdraw(in_flight);
    }

    #[test]
    fn memory_is_that_of_the_highest_water_and_goes() {
        assert_eq!(size_of::<Pending>(), size_of::<usize>());
        let mut pending = Pending::default();
        let kept = |pending: &Pending| pending.0.as_ref().map_or(0, |set| set.ranges.len());
        for round in 0..10_000u64 {
            let tickets: Vec<PendingRange> = (0..32).map(|n| pending.add(round + n..round + n + 1)).collect();
            tickets.into_iter().for_each(|ticket| pending.complete(ticket));
            let batch = pending.take_batch().unwrap();
            assert_eq!(batch.ranges(), slice::from_ref(&(round..round + 32)));
            pending.finish(batch);
        }
        assert_eq!(kept(&pending), 32);
        let tickets: Vec<PendingRange> = (0..1000).map(|n| pending.add(n..n + 1)).collect();
        tickets.into_iter().for_each(|ticket| pending.withdraw(ticket));
        assert!(pending.0.is_none(), "more than a queue's worth is not kept");
    }
}
