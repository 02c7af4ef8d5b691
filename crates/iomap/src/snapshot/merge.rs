//! The making of snapshots: an old one and what changed since, in one pass from the first block to the last.
//!
//! Lines that no change touches or borders on are copied as they are (5 ns each); the others are taken apart, changed
//! and laid out anew (some 200 ns). A pass over 10⁶ extents costs milliseconds, and is made for thousands of changes.

use super::chunk::{Chunk, LINES, Line};
use super::recent::Recent;
use super::{Entry, MapSnapshot};
use uext4_blockdev::Table;

/// Entries that wait to be laid out: some more than a line takes.
const WAITING: usize = 512;
/// Entries that stay when it is full, so that a line never lacks those that fit into it.
const STAYING: usize = 64;

/// Lines in the making. What is pushed continues what was pushed before.
struct Builder {
    lines: Vec<Line>,
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

    fn push_line(&mut self, line: &Line) {
        self.lay_out(0);
        self.lines.push(*line);
    }

    fn finish(mut self) -> MapSnapshot {
        self.lay_out(0);
        if let [only] = self.lines[..] {
            return MapSnapshot::from_line(only);
        }
        let table = Table::with_capacity(self.lines.len());
        table.append(&self.lines).expect("the table was made for all of them");
        let chunks = self.lines.chunks(LINES).enumerate();
        let chunks = chunks.map(|(index, lines)| Chunk::build(lines, index * LINES)).collect();
        MapSnapshot::from_chunks(chunks, table)
    }
}

/// `base` with all of `recent`.
pub(super) fn merged(base: &MapSnapshot, recent: &Recent) -> MapSnapshot {
    let lines = base.lines();
    let waiting = Vec::with_capacity(WAITING);
    let mut built = Builder { lines: Vec::with_capacity(lines.len() + recent.len() / 4 + 2), waiting };
    let mut changes = recent.iter().peekable();
    // The next block that is missing.
    let mut next = 0;
    // Whether the entry in front of it is a change, which may go on in the next line.
    let mut changed = false;
    for line in lines {
        let (first, end) = (u64::from(line.first()), u64::from(line.last()) + 1);
        let untouched = next == first && !changed && changes.peek().is_none_or(|change| change.first > end);
        // What two changes left of a line is laid out with its neighbour, or there would be more and more such lines.
        if untouched && (built.waiting.is_empty() || !line.is_sparse()) {
            built.push_line(line);
            next = end;
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
    }
    built.finish()
}
