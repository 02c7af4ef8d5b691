//! Blocks that writes have claimed for holes of a file: in memory only, and not in its map on the volume
//! (`change/holes.rs`).

use parking_lot::{Mutex, MutexGuard};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_iomap::snapshot::MapWriter;
use uext4_iomap::{Run, State};

/// Blocks that a hole will have.
pub(crate) struct Claimed {
    pub(crate) blocks: Range<u32>,
    /// Where they are.
    pub(crate) physical: u64,
    /// What reserves them, and gives them back when it is dropped. The allocator is above this module.
    pub(crate) held: Box<dyn Any + Send>,
}

impl Claimed {
    /// As it is published.
    pub(crate) fn run(&self) -> Run {
        let (first, length) = (self.blocks.start, u64::from(self.blocks.end - self.blocks.start));
        Run { first, length, state: State::Unwritten, physical: self.physical }
    }
}

/// The claims of a file, by their first blocks. Changed under its map lock.
#[derive(Default)]
pub(crate) struct Claims(Mutex<BTreeMap<u32, Claimed>>);

/// What the handle of a conversion does with claims.
pub(crate) enum Due {
    /// Nothing: none is in its ranges before this block.
    NothingBefore(u64),
    /// The data of all their blocks is complete: these ranges, the first of the conversion, have no others.
    Filled { ranges: Vec<Range<u32>>, firsts: Vec<u32> },
    /// A range has other blocks too, or only a part of a claim: first they become unwritten blocks of the file.
    Meeting { firsts: Vec<u32>, end: u32 },
}

impl Claims {
    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// The first part of a range without claims, as far as it goes; `None` if there is none.
    pub(crate) fn unclaimed(&self, range: &Range<u32>) -> Option<Range<u32>> {
        let claims = self.0.lock();
        let mut at = range.start;
        for claimed in meeting(&claims, range) {
            if claimed.blocks.start > at {
                return Some(at..claimed.blocks.start);
            }
            at = claimed.blocks.end;
        }
        (at < range.end).then_some(at..range.end)
    }

    /// Adds the claims in the blocks `[first, end)` to what the tree maps there.
    pub(crate) fn add_to(&self, runs: &mut Vec<Run>, first: u64, end: u64) {
        let claims = self.0.lock();
        if claims.is_empty() {
            return;
        }
        let limit = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
        let all = meeting(&claims, &(limit(first)..limit(end)));
        runs.extend(all.map(Claimed::run).filter_map(|run| run.within(first..end)));
        runs.sort_unstable_by_key(|run| run.first);
    }

    /// A pending write of these blocks is gone: releases the claims that no other one meets.
    pub(crate) fn release(&self, map: &mut MapWriter<'_>, blocks: &Range<u64>) {
        let mut claims = self.0.lock();
        if claims.is_empty() {
            return;
        }
        let limit = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
        let met = meeting(&claims, &(limit(blocks.start)..limit(blocks.end)));
        let met: Vec<Range<u32>> = met.map(|claimed| claimed.blocks.clone()).collect();
        for blocks in met {
            let (first, end) = (u64::from(blocks.start), u64::from(blocks.end));
            if map.pending().meets(&(first..end)) {
                continue;
            }
            // Unpublish the blocks before anybody else may get them. They are not written, so this is allowed.
            let hole = Run { first: blocks.start, length: end - first, state: State::Hole, physical: 0 };
            match map.allocated(first, end, &[hole]) {
                Ok(()) => drop(claims.remove(&blocks.start)),
                Err(error) => debug_assert!(false, "claimed blocks were published as written: {error}"),
            }
        }
    }

    /// What a conversion of these ranges does first, with at most `most` claims.
    pub(crate) fn due(&self, ranges: impl Iterator<Item = Range<u64>>, most: usize) -> Due {
        let claims = self.0.lock();
        if claims.is_empty() {
            return Due::NothingBefore(u64::MAX);
        }
        let (mut filled, mut firsts, mut passed) = (Vec::new(), Vec::new(), false);
        for range in ranges {
            let (Ok(start), Ok(end)) = (u32::try_from(range.start), u32::try_from(range.end)) else { break };
            let before = firsts.len();
            let covered = cover(&claims, &(start..end), most, &mut firsts);
            if covered > start && (covered == end || firsts.len() == most) {
                if passed {
                    return Due::NothingBefore(range.start);
                }
                filled.push(start..covered);
                if firsts.len() == most {
                    break;
                }
                continue;
            }
            firsts.truncate(before);
            if !filled.is_empty() {
                break;
            }
            let met: Vec<&Claimed> = meeting(&claims, &(start..end)).take(most).collect();
            match (met.last(), passed) {
                (None, _) => passed = true,
                (Some(_), true) => return Due::NothingBefore(range.start),
                (Some(last), false) => {
                    let firsts = met.iter().map(|claimed| claimed.blocks.start).collect();
                    return Due::Meeting { firsts, end: last.blocks.end };
                }
            }
        }
        if filled.is_empty() { Due::NothingBefore(u64::MAX) } else { Due::Filled { ranges: filled, firsts } }
    }

    /// Holds them for a change.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Claimed>> {
        self.0.lock()
    }
}

/// How far claims that lie in a range cover it from its start on. Their first blocks are added to `firsts`, which gets
/// `most` of them at the most.
fn cover(claims: &BTreeMap<u32, Claimed>, range: &Range<u32>, most: usize, firsts: &mut Vec<u32>) -> u32 {
    let mut at = range.start;
    while at < range.end
        && firsts.len() < most
        && let Some(claimed) = claims.get(&at).filter(|claimed| claimed.blocks.end <= range.end)
    {
        firsts.push(at);
        at = claimed.blocks.end;
    }
    at
}

/// Those that have blocks in a range, in order.
fn meeting<'c>(
    claims: &'c BTreeMap<u32, Claimed>,
    range: &Range<u32>,
) -> impl Iterator<Item = &'c Claimed> + use<'c> {
    let before = claims.range(..range.start).next_back();
    let from = before.filter(|(_, claimed)| claimed.blocks.end > range.start);
    let from = from.map_or(range.start, |(first, _)| *first);
    claims.range(from..range.end.max(from)).map(|(_, claimed)| claimed)
}
