//! Builds snapshots: merges an old one with the changes since, in one pass from the first block to the last.
//!
//! Lines that no change touches or borders on are copied in bulk; the others are unpacked, changed and packed again
//! (about 200 ns). A pass over 10⁶ extents costs milliseconds and is made once for thousands of changes.

use super::chunk::{Chunk, LINES, Line};
use super::recent::Recent;
use super::{BLOCKS_END, Entry, MapSnapshot, Target};
use uext4_blockdev::Table;

/// Capacity for entries waiting to be packed: several times what a line holds.
const WAITING: usize = 512;
/// Entries kept back when it is full, so that every line can be filled.
const STAYING: usize = 64;

/// A snapshot under construction. Each push continues the one before.
struct Builder {
    lines: Vec<Line>,
    /// Number of leading lines copied from the base at the same indices.
    same: usize,
    waiting: Vec<Entry>,
}

impl Builder {
    fn push(&mut self, entry: Entry) {
        super::push_merged(&mut self.waiting, entry);
        if self.waiting.len() >= WAITING {
            self.lay_out(STAYING);
        }
    }

    fn lay_out(&mut self, staying: usize) {
        let mut done = 0;
        while self.waiting.len() - done > staying {
            let (line, held) = Line::take(&self.waiting[done..]);
            self.lines.push(line);
            done += held;
        }
        self.waiting.drain(..done);
    }

    /// Copies lines of the base, the first of which has index `index` there.
    fn push_lines(&mut self, lines: &[Line], index: usize) {
        self.lay_out(0);
        if self.same == index && self.lines.len() == index {
            self.same += lines.len();
        }
        self.lines.extend_from_slice(lines);
    }

    /// `base`: the chunks of the base; chunks whose lines are all unchanged are kept.
    fn finish(mut self, base: &[Chunk]) -> MapSnapshot {
        self.lay_out(0);
        if let [only] = self.lines[..] {
            return MapSnapshot::from_line(only);
        }
        let table = Table::with_capacity(self.lines.len());
        table.append(&self.lines).expect("the table was made for all of them");
        let kept = (self.same / LINES).min(base.len());
        let rest = self.lines[kept * LINES..].chunks(LINES).zip(kept..);
        let rest = rest.map(|(lines, index)| Chunk::build(lines, index * LINES));
        MapSnapshot::from_chunks(base[..kept].iter().copied().chain(rest).collect(), table)
    }
}

/// A snapshot of the blocks `[first, end)`, which `entries` cover; all others are unknown.
pub(super) fn of(first: u64, end: u64, entries: Vec<Entry>) -> MapSnapshot {
    let mut built =
        Builder { lines: Vec::with_capacity(entries.len() / 4 + 2), same: 0, waiting: Vec::new() };
    let unknown = |first, end| Entry { first, end, target: Target::UNKNOWN };
    built.push(unknown(0, first));
    entries.into_iter().for_each(|entry| built.push(entry));
    built.push(unknown(end, BLOCKS_END));
    built.finish(&[])
}

/// Merges `base` with all of `recent`.
pub(super) fn merged(base: &MapSnapshot, recent: &Recent) -> MapSnapshot {
    let lines = base.lines();
    let waiting = Vec::with_capacity(WAITING);
    let mut built =
        Builder { lines: Vec::with_capacity(lines.len() + recent.len() / 4 + 2), same: 0, waiting };
    let mut changes = recent.iter().peekable();
    // The next block to add.
    let mut next = 0;
    // Whether the entry before it is a change, which may continue in the next line.
    let mut changed = false;
    let mut index = 0;
    while let Some(line) = lines.get(index) {
        let first = u64::from(line.first());
        let change = changes.peek().map_or(u64::MAX, |change| change.first);
        let is_untouched = |line: &Line| u64::from(line.last()) + 1 < change;
        // A line left sparse by two changes is packed together with its neighbour, or sparse lines would accumulate.
        let alone = built.waiting.is_empty() || !line.is_sparse();
        if next == first && !changed && alone && is_untouched(line) {
            let count = lines[index..].partition_point(is_untouched);
            built.push_lines(&lines[index..index + count], index);
            index += count;
            next = u64::from(lines[index - 1].last()) + 1;
            continue;
        }
        for entry in line.entries() {
            while next < entry.end {
                let change = changes.next_if(|change| change.first <= next);
                changed = change.is_some();
                let part = change.unwrap_or_else(|| {
                    let end = changes.peek().map_or(entry.end, |change| change.first.min(entry.end));
                    Entry { end, ..entry.cut_before(next) }
                });
                next = part.end;
                built.push(part);
            }
        }
        index += 1;
    }
    built.finish(&base.chunks)
}
