//! What a map learned since its snapshot was made, and both together: the map as it is now.
//!
//! A snapshot is never changed, so a small change must not cost a new one. It is noted here, and everything that was
//! noted goes into the next snapshot at once (`merge.rs`).

use super::{Entry, Found, MapSnapshot, Target};
use crate::mapping::{Piece, Pieces, Range, Run, State};
use std::collections::BTreeMap;

/// Entries by their first block, with their end and target. They do not overlap, and where there is none the snapshot
/// counts.
#[derive(Debug, Default)]
pub(super) struct Recent {
    entries: BTreeMap<u64, (u64, Target)>,
}

impl Recent {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().map(|(&first, &(end, target))| Entry { first, end, target })
    }

    /// Memory of an entry, with what a tree's nodes leave free.
    pub(super) const ENTRY_BYTES: usize = 40;

    /// The last entry that begins before `block`.
    fn before(&self, block: u64) -> Option<Entry> {
        self.entries.range(..block).next_back().map(|(&first, &(end, target))| Entry { first, end, target })
    }

    /// The first entry that begins at `block` or behind it.
    fn from(&self, block: u64) -> Option<Entry> {
        self.entries.range(block..).next().map(|(&first, &(end, target))| Entry { first, end, target })
    }

    fn put(&mut self, entry: Entry) {
        self.entries.insert(entry.first, (entry.end, entry.target));
    }

    /// Notes `entry` over whatever was noted of its blocks, joined with the neighbours that it continues.
    pub(super) fn set(&mut self, mut entry: Entry) {
        if let Some(left) = self.before(entry.first)
            && left.end >= entry.first
        {
            self.entries.remove(&left.first);
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
            self.entries.remove(&right.first);
            match rest {
                Some(rest) if entry.continues_with(&rest) => entry.end = rest.end,
                Some(rest) => self.put(rest),
                None => {}
            }
        }
        self.put(entry);
    }
}

/// The map as it is now: what is recent, over the snapshot.
pub(super) struct Now<'a> {
    pub(super) base: &'a MapSnapshot,
    pub(super) recent: Option<&'a Recent>,
}

impl Now<'_> {
    /// The entry with `block`, as far as it is known to reach.
    pub(super) fn entry_at(&self, block: u32) -> Entry {
        let (line, spot) = self.base.spot(block);
        let of_base = || line.entry_at(&spot, block);
        let Some(recent) = self.recent else { return of_base() };
        let block = u64::from(block);
        let left = recent.before(block + 1);
        if let Some(found) = left
            && found.end > block
        {
            return found;
        }
        let mut entry = of_base();
        if let Some(left) = left
            && left.end > entry.first
        {
            entry = entry.cut_before(left.end);
        }
        if let Some(right) = recent.from(block) {
            entry.end = entry.end.min(right.first);
        }
        entry
    }

    /// The entry with `block`, with those behind it that continue it, up to block `end` at least: a change beside the
    /// snapshot ends what is one run, and a request over its edge is a request of one run.
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
            // Behind the last addressable block there is nothing.
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

    /// The entries of the blocks `[first, end)`, cut to them.
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
