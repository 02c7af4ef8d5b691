//! The changes of a map since its snapshot was made, and the current map: snapshot plus changes.
//!
//! A snapshot is immutable, and a small change must not cost a new one. Changes are recorded here and merged into the
//! next snapshot together (`merge.rs`).

use super::{Entry, Found, MapSnapshot};
use crate::mapping::{Piece, Pieces, Range, Run, State};
use std::collections::BTreeMap;

/// Maximum number of entries in a segment.
const SEGMENT: usize = if cfg!(loom) { 4 } else { 256 };
/// Fewer entries than this are inserted one by one.
const FEW: usize = 8;

/// Entries ordered by block, without overlaps. Blocks without an entry are as in the snapshot.
///
/// They are stored in segments, so that a load of some hundred entries is copied in, not inserted one by one. The key
/// of a segment is at most the first block of its first entry, and greater than the first block of every entry in the
/// segments before it. No segment is empty.
#[derive(Debug, Default)]
pub(super) struct Recent {
    segments: BTreeMap<u64, Vec<Entry>>,
    len: usize,
}

impl Recent {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.segments.values().flatten().copied()
    }

    /// Estimated memory per entry: a segment is half full after a split.
    pub(super) const ENTRY_BYTES: usize = 2 * size_of::<Entry>();

    /// The last entry that starts before `block`.
    fn before(&self, block: u64) -> Option<Entry> {
        let mut before = self.segments.range(..block).rev().map(|(_, segment)| segment);
        let last = before.next()?;
        match last.partition_point(|entry| entry.first < block).checked_sub(1) {
            Some(index) => Some(last[index]),
            None => before.next()?.last().copied(),
        }
    }

    /// The first entry that starts at or after `block`.
    fn from(&self, block: u64) -> Option<Entry> {
        let here = self.segments.range(..=block).next_back().and_then(|(_, segment)| {
            segment.get(segment.partition_point(|entry| entry.first < block)).copied()
        });
        here.or_else(|| self.segments.range(block..).find_map(|(_, segment)| segment.first().copied()))
    }

    /// The last entry that starts at or before `block`, and the first one behind it.
    fn around(&self, block: u64) -> (Option<Entry>, Option<Entry>) {
        let mut upto = self.segments.range(..=block).rev().map(|(_, segment)| segment);
        let next = || self.segments.range(block + 1..).find_map(|(_, segment)| segment.first().copied());
        let Some(last) = upto.next() else { return (None, next()) };
        let behind = last.partition_point(|entry| entry.first <= block);
        let left = match behind.checked_sub(1) {
            Some(index) => Some(last[index]),
            None => upto.next().and_then(|segment| segment.last().copied()),
        };
        (left, last.get(behind).copied().or_else(next))
    }

    /// Adds an entry for blocks that have none.
    fn put(&mut self, entry: Entry) {
        self.len += 1;
        let Some((_, segment)) = self.segments.range_mut(..=entry.first).next_back() else {
            // Before all others.
            let mut segment = match self.segments.first_entry() {
                Some(first) if first.get().len() < SEGMENT => first.remove(),
                _ => Vec::new(),
            };
            segment.insert(0, entry);
            self.segments.insert(entry.first, segment);
            return;
        };
        let index = segment.partition_point(|other| other.first < entry.first);
        segment.insert(index, entry);
        if segment.len() > SEGMENT {
            let rest = segment.split_off(SEGMENT / 2);
            self.segments.insert(rest[0].first, rest);
        }
    }

    /// Removes the entry that starts at `first`.
    fn remove(&mut self, first: u64) {
        let Some((&key, segment)) = self.segments.range_mut(..=first).next_back() else { return };
        if let Ok(index) = segment.binary_search_by_key(&first, |entry| entry.first) {
            segment.remove(index);
            self.len -= 1;
            if segment.is_empty() {
                self.segments.remove(&key);
            } else {
                shrink(segment);
            }
        }
    }

    /// Records `entries` (in order, without gaps), replacing earlier entries of their blocks.
    pub(super) fn set_all(&mut self, entries: &[Entry]) {
        match entries {
            [first, middle @ .., last] if entries.len() >= FEW => {
                self.insert_run(middle);
                // The first and the last may join the entry before or after them.
                self.set(*first);
                self.set(*last);
            }
            _ => entries.iter().for_each(|entry| self.set(*entry)),
        }
    }

    /// Replaces the entries of these blocks by `run` (without gaps), without joining neighbours.
    fn insert_run(&mut self, run: &[Entry]) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
        let (first, end) = (first.first, last.end);
        while let Some(met) = self.before(end).filter(|met| met.end > first) {
            self.remove(met.first);
            if met.end > end {
                self.put(met.cut_before(end));
            }
            if met.first < first {
                self.put(Entry { end: first, ..met });
            }
        }
        // A segment of entries after the run may have a key inside the run.
        if let Some((&key, _)) = self.segments.range(first..end).next()
            && let Some(segment) = self.segments.remove(&key)
        {
            self.segments.insert(segment[0].first, segment);
        }
        if let Some((&key, segment)) = self.segments.range_mut(..first).next_back() {
            let behind = segment.split_off(segment.partition_point(|entry| entry.first < first));
            if segment.is_empty() {
                self.segments.remove(&key);
            }
            if let Some(next) = behind.first() {
                self.segments.insert(next.first, behind);
            }
        }
        for part in run.chunks(SEGMENT) {
            self.segments.insert(part[0].first, part.to_vec());
        }
        self.len += run.len();
    }

    /// Records `entry`, replacing earlier entries of its blocks and joining neighbours that it continues.
    pub(super) fn set(&mut self, entry: Entry) {
        if !self.set_in_segment(entry) {
            self.set_anywhere(entry);
        }
    }

    /// The same if all that it touches is inside of one segment, which neither grows too long nor gets empty: most
    /// changes. `false`: nothing was changed.
    fn set_in_segment(&mut self, mut entry: Entry) -> bool {
        let mut segments = self.segments.range_mut(..=entry.first);
        let Some((_, segment)) = segments.next_back() else { return false };
        let from = segment.partition_point(|other| other.end < entry.first);
        let to = from + segment[from..].iter().take_while(|other| other.first <= entry.end).count();
        // What begins before, or ends behind, may go on in the next segment.
        if from == 0 || to == segment.len() || to > from + 3 {
            return false;
        }
        let (mut left, mut right) = (None, None);
        for other in &segment[from..to] {
            if other.first < entry.first {
                let before = Entry { end: entry.first, ..*other };
                match before.continues_with(&entry) {
                    true => entry = Entry { end: entry.end, ..before },
                    false => left = Some(before),
                }
            }
            if other.end > entry.end {
                let behind = other.cut_before(entry.end);
                match entry.continues_with(&behind) {
                    true => entry.end = behind.end,
                    false => right = Some(behind),
                }
            }
        }
        let made = [left, Some(entry), right];
        let count = made.iter().flatten().count();
        if segment.len() - (to - from) + count > SEGMENT {
            return false;
        }
        self.len = self.len - (to - from) + count;
        match (left, right, to - from) {
            (None, None, 0) => segment.insert(from, entry),
            (None, None, _) => {
                segment[from] = entry;
                segment.drain(from + 1..to);
                shrink(segment);
            }
            _ => drop(segment.splice(from..to, made.into_iter().flatten())),
        }
        true
    }

    fn set_anywhere(&mut self, mut entry: Entry) {
        if let Some(left) = self.before(entry.first)
            && left.end >= entry.first
        {
            self.remove(left.first);
            if left.end > entry.end {
                self.put(left.cut_before(entry.end));
            }
            let left = Entry { end: entry.first, ..left };
            if left.continues_with(&entry) {
                entry = Entry { end: entry.end, ..left };
            } else {
                self.put(left);
            }
        }
        while let Some(right) = self.from(entry.first)
            && right.first <= entry.end
        {
            let rest = (right.end > entry.end).then(|| right.cut_before(entry.end));
            if right.first == entry.end && !entry.continues_with(&right) {
                break;
            }
            self.remove(right.first);
            match rest {
                Some(rest) if entry.continues_with(&rest) => entry.end = rest.end,
                Some(rest) => self.put(rest),
                None => {}
            }
        }
        self.put(entry);
    }
}

fn shrink(segment: &mut Vec<Entry>) {
    if segment.len() < segment.capacity() / 4 {
        segment.shrink_to(2 * segment.len());
    }
}

/// The current map: recent changes over the snapshot.
pub(super) struct Now<'a> {
    pub(super) base: &'a MapSnapshot,
    pub(super) recent: Option<&'a Recent>,
}

impl Now<'_> {
    /// The entry that holds `block`, as far as it is known to extend.
    pub(super) fn entry_at(&self, block: u32) -> Entry {
        let of_base = || {
            let (line, spot) = self.base.spot(block);
            line.entry_at(&spot, block)
        };
        let Some(recent) = self.recent else { return of_base() };
        let (left, right) = recent.around(block.into());
        if let Some(found) = left
            && found.end > u64::from(block)
        {
            return found;
        }
        let mut entry = of_base();
        if let Some(left) = left
            && left.end > entry.first
        {
            entry = entry.cut_before(left.end);
        }
        if let Some(right) = right {
            entry.end = entry.end.min(right.first);
        }
        entry
    }

    /// The entry that holds `block`, joined with following entries that continue it, at least up to block `end`: a
    /// change beside the snapshot may split one run into several entries, and a request across that edge is still
    /// within one run.
    pub(super) fn run_at(&self, block: u32, end: u64) -> Entry {
        let mut run = self.entry_at(block);
        while run.end < end
            && let Ok(block) = u32::try_from(run.end)
        {
            let next = self.entry_at(block).cut_before(run.end);
            if !run.continues_with(&next) {
                break;
            }
            run.end = next.end;
        }
        run
    }

    pub(super) fn find(&self, block: u32) -> Found {
        match self.entry_at(block).cut_before(u64::from(block)).run() {
            Some(Run { length, state, physical, .. }) => Found::Known { state, physical, blocks: length },
            None => Found::Unknown,
        }
    }

    /// See [`MapSnapshot::pieces`].
    pub(super) fn pieces(&self, range: Range, block_bits: u32, pieces: &mut Pieces) -> Result<(), u64> {
        let mut pos = range.pos;
        while pos < range.end() && !pieces.is_full() {
            // There is nothing past the last addressable block.
            let Ok(block) = u32::try_from(pos >> block_bits) else {
                let length = range.end() - pos;
                pieces.push(Piece { logical: pos, physical: 0, length, state: State::Hole });
                return Ok(());
            };
            let Found::Known { state, physical, blocks } = self.find(block) else {
                return Err(pos);
            };
            let within = pos & ((1 << block_bits) - 1);
            let length = ((blocks << block_bits) - within).min(range.end() - pos);
            let physical = if state == State::Hole { 0 } else { (physical << block_bits) + within };
            match pieces.last_mut() {
                Some(last) if joins(last, physical, state) => last.length += length,
                _ => pieces.push(Piece { logical: pos, physical, length, state }),
            }
            pos += length;
        }
        Ok(())
    }

    /// The entries of the blocks `[first, end)`, clipped to that range.
    pub(super) fn entries(&self, first: u64, end: u64) -> impl Iterator<Item = Entry> + '_ {
        let mut next = first;
        std::iter::from_fn(move || {
            let block = u32::try_from(next).ok().filter(|_| next < end)?;
            let entry = self.entry_at(block).cut_before(next);
            next = entry.end;
            Some(Entry { end: entry.end.min(end), ..entry })
        })
    }
}

fn joins(last: &Piece, physical: u64, state: State) -> bool {
    last.state == state && (state == State::Hole || last.physical + last.length == physical)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Target, push_merged};
    use super::*;

    const BLOCKS: u64 = 3000;

    /// A random number below `end`.
    fn below(random: &mut u64, end: u64) -> u64 {
        *random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*random >> 33) % end
    }

    /// Each block has the entry recorded last, and the segments stay in order.
    #[test]
    fn runs_and_single_entries_are_noted_over_each_other() {
        for seed in 0..40 {
            let (mut random, mut recent) = (seed, Recent::default());
            let mut model: Vec<Option<Target>> = vec![None; BLOCKS as usize];
            for round in 0..60 {
                let most = if below(&mut random, 3) == 0 { 1 } else { 500 };
                let (mut entries, mut at) = (Vec::new(), below(&mut random, BLOCKS));
                for _ in 0..most {
                    let end = (at + 1 + below(&mut random, 3)).min(BLOCKS);
                    let target = Target::new(below(&mut random, 2), 10_000 * round + 2 * at);
                    if at < end {
                        push_merged(&mut entries, Entry { first: at, end, target });
                        (at..end).for_each(|block| model[block as usize] = Some(target.advanced(block - at)));
                    }
                    at = end;
                }
                recent.set_all(&entries);
                assert_eq!(recent.iter().count(), recent.len());
                let mut found = vec![None; BLOCKS as usize];
                let mut before = 0;
                for entry in recent.iter() {
                    assert!(before <= entry.first && entry.first < entry.end, "in order");
                    before = entry.end;
                    (entry.first..entry.end)
                        .for_each(|at| found[at as usize] = Some(entry.cut_before(at).target));
                }
                assert_eq!(found, model);
                for block in (0..BLOCKS).step_by(7) {
                    let last = recent.iter().filter(|entry| entry.first < block).last();
                    assert_eq!(recent.before(block), last);
                    assert_eq!(recent.from(block), recent.iter().find(|entry| entry.first >= block));
                    let around = (recent.before(block + 1), recent.from(block + 1));
                    assert_eq!(recent.around(block), around);
                }
            }
            assert!(recent.segments.values().all(|segment| (1..=SEGMENT).contains(&segment.len())));
        }
    }
}
