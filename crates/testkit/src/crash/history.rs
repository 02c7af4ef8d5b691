//! What the medium may hold at a point of a log.
//!
//! The unit is what the medium writes whole or not at all. Every unit has contents that are *settled*: the newest that
//! must be there. Over them lie the *loose* ones, any of which a crash may find instead: of completed writes those that
//! completed later than the settled one, and every write in flight. No unit knows of another, so the legal states of a
//! cut are the product of these lists.

use super::image::Image;
use crate::device::{CrashEvent, CrashLog, CrashMark, CrashOutcome};
use crate::rng::mix;
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_blockdev::Op;

/// What a discarded unit may hold beside its old bytes and zeros.
const JUNK: u8 = 0xdb;

/// A log, prepared.
pub(super) struct History<'a> {
    pub(super) log: &'a CrashLog,
    pub(super) unit: usize,
    base: Image,
    base_hash: u64,
    changes: Vec<Event>,
}

/// One operation.
#[derive(Debug, Default)]
struct Event {
    units: Range<u64>,
    /// Of the contents of each unit: what is written, or zeros for a discard.
    hashes: Vec<u64>,
    /// What else a discard may leave.
    junk: Vec<u64>,
    /// Event of its submission.
    submitted: usize,
    /// It makes itself durable when it completes.
    hard: bool,
    /// No flush makes it durable: it failed, or it is a discard.
    soft: bool,
    /// Units of the part that a flush is about; empty: all.
    flushed: Range<u64>,
}

/// Contents that a unit may have instead of its settled ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) op: usize,
    pub(super) junk: bool,
    pub(super) hash: u64,
    /// Event of its completion.
    pub(super) completed: Option<usize>,
}

/// A unit that is not what it must be, or need not be.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) hash: u64,
    /// Event at which the settled contents completed, 0 for those of the base.
    pub(super) rank: usize,
    /// Completed ones in the order of completion, then those in flight in the order of submission.
    pub(super) loose: Vec<Candidate>,
}

/// A history at one of its points.
pub(super) struct Cursor<'a> {
    pub(super) history: &'a History<'a>,
    /// Events that have happened.
    pub(super) cut: usize,
    /// The settled contents of all units.
    pub(super) image: Image,
    pub(super) hash: u64,
    pub(super) open: BTreeMap<u64, Unit>,
    /// Marks that have been made.
    pub(super) marks: usize,
}

/// The hash of a unit's contents at its place. A state's hash is all of them added up by exclusive or.
fn hash(unit: u64, bytes: &[u8]) -> u64 {
    let mut sum = mix(unit.wrapping_add(0x9e37_79b9_7f4a_7c15));
    for word in bytes.chunks(8) {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        sum = (sum ^ u64::from_le_bytes(padded)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        sum ^= sum >> 32;
    }
    mix(sum)
}

impl<'a> History<'a> {
    pub(super) fn new(log: &'a CrashLog, unit: Option<u32>) -> Self {
        let unit = unit.unwrap_or(log.block) as usize;
        assert!(
            unit > 0 && (log.block as usize).is_multiple_of(unit),
            "a block of {} in units of {unit}",
            log.block
        );
        let base_hash = (0..).zip(log.base.chunks(unit)).fold(0, |sum, (at, bytes)| sum ^ hash(at, bytes));
        let mut history = History { log, unit, base: Image::new(&log.base), base_hash, changes: Vec::new() };
        history.changes = (0..log.operations.len()).map(|op| history.prepare(op)).collect();
        for (event, what) in log.events.iter().enumerate() {
            if let CrashEvent::Submitted(op) = what {
                history.changes[*op].submitted = event;
            }
        }
        history
    }

    fn prepare(&self, op: usize) -> Event {
        let operation = &self.log.operations[op];
        let done = operation.outcome == CrashOutcome::Done;
        let unit = self.unit as u64;
        let units = operation.pos / unit..(operation.pos + operation.length) / unit;
        match (operation.op, &operation.data) {
            (Op::Write, Some(data)) => Event {
                hashes: units
                    .clone()
                    .zip(data.chunks(self.unit))
                    .map(|(at, bytes)| hash(at, bytes))
                    .collect(),
                units,
                hard: done && (operation.fua || !self.log.volatile_cache),
                soft: operation.outcome == CrashOutcome::Failed,
                ..Event::default()
            },
            (Op::Discard, _) => {
                let filled = |byte| units.clone().map(|at| hash(at, &vec![byte; self.unit])).collect();
                Event { hashes: filled(0), junk: filled(JUNK), units, soft: true, ..Event::default() }
            }
            (Op::Flush, _) => Event { flushed: units, soft: !done, ..Event::default() },
            // A write without bytes was withdrawn before anybody sent it.
            _ => Event { soft: !done, ..Event::default() },
        }
    }

    /// Before the first event.
    pub(super) fn start(&'a self) -> Cursor<'a> {
        let (image, hash) = (self.base.clone(), self.base_hash);
        Cursor { history: self, cut: 0, image, hash, open: BTreeMap::new(), marks: 0 }
    }

    /// The cuts at which something is possible, or to be checked, that is not at a later one: just before something
    /// settles or a mark is made, and the end. Everything possible at another cut is possible at the next of these.
    pub(super) fn cuts(&self) -> Vec<usize> {
        let narrows = |event: &CrashEvent| match event {
            CrashEvent::Submitted(_) => false,
            CrashEvent::Completed(op) if self.log.operations[*op].op == Op::Flush => !self.changes[*op].soft,
            CrashEvent::Completed(op) => self.changes[*op].hard,
            CrashEvent::Marked(_) => true,
        };
        let events = &self.log.events;
        (0..=events.len()).filter(|&cut| events.get(cut).is_none_or(narrows)).collect()
    }

    /// The first `count` marks.
    pub(super) fn marks(&self, count: usize) -> impl Iterator<Item = &'a CrashMark> {
        let marks = self.log.events.iter().filter_map(|event| match event {
            CrashEvent::Marked(mark) => Some(mark),
            _ => None,
        });
        marks.take(count)
    }

    /// Units that an operation changes.
    pub(super) fn units(&self, op: usize) -> Range<u64> {
        self.changes[op].units.clone()
    }

    /// Event of an operation's submission.
    pub(super) fn submitted(&self, op: usize) -> usize {
        self.changes[op].submitted
    }

    /// Whether it may leave junk.
    pub(super) fn is_discard(&self, op: usize) -> bool {
        self.log.operations[op].op == Op::Discard
    }

    /// Puts a candidate's bytes into an image.
    pub(super) fn apply(&self, image: &mut Image, unit: u64, candidate: &Candidate) {
        let pos = unit * self.unit as u64;
        match &self.log.operations[candidate.op].data {
            Some(data) => {
                let start = (unit - self.changes[candidate.op].units.start) as usize * self.unit;
                image.write(pos, &data[start..start + self.unit]);
            }
            None => image.write(pos, &vec![if candidate.junk { JUNK } else { 0 }; self.unit]),
        }
    }
}

impl Cursor<'_> {
    /// Lets events happen until `cut` of them have.
    pub(super) fn advance(&mut self, cut: usize) {
        while self.cut < cut {
            match &self.history.log.events[self.cut] {
                CrashEvent::Submitted(op) => self.submit(*op),
                CrashEvent::Completed(op) if self.history.log.operations[*op].op == Op::Flush => {
                    self.flush(*op)
                }
                CrashEvent::Completed(op) => self.complete(*op),
                CrashEvent::Marked(_) => self.marks += 1,
            }
            self.cut += 1;
        }
    }

    fn submit(&mut self, op: usize) {
        let change = &self.history.changes[op];
        let mut bytes = vec![0; self.history.unit];
        for (index, unit) in change.units.clone().enumerate() {
            let (image, size) = (&self.image, self.history.unit as u64);
            let open = self.open.entry(unit).or_insert_with(|| {
                image.read(unit * size, &mut bytes);
                Unit { hash: hash(unit, &bytes), rank: 0, loose: Vec::new() }
            });
            let contents = change.hashes.get(index).map(|&hash| (hash, false));
            let junk = change.junk.get(index).map(|&hash| (hash, true));
            let new = contents.into_iter().chain(junk);
            open.loose.extend(new.map(|(hash, junk)| Candidate { op, junk, hash, completed: None }));
        }
    }

    fn complete(&mut self, op: usize) {
        let (now, hard) = (self.cut, self.history.changes[op].hard);
        for unit in self.history.changes[op].units.clone() {
            let Some(open) = self.open.get_mut(&unit) else { continue };
            // Behind those that have completed, before those in flight.
            let (mut mine, others): (Vec<_>, Vec<_>) = open.loose.drain(..).partition(|loose| loose.op == op);
            mine.iter_mut().for_each(|loose| loose.completed = Some(now));
            let completed = others.partition_point(|loose| loose.completed.is_some());
            open.loose = others;
            open.loose.splice(completed..completed, mine);
            if hard {
                self.settle(unit, completed);
            }
        }
    }

    /// Of every unit the newest write settles that had completed before the flush was submitted.
    fn flush(&mut self, op: usize) {
        let changes = &self.history.changes;
        let Event { submitted, soft, ref flushed, .. } = changes[op];
        let covered = |loose: &Candidate| {
            loose.completed.is_some_and(|completed| completed < submitted) && !changes[loose.op].soft
        };
        let newest = |unit: &Unit| unit.loose.iter().rposition(covered);
        let settled = self.open.iter().filter(|(unit, _)| flushed.is_empty() || flushed.contains(unit));
        let settled: Vec<_> = settled.filter_map(|(unit, open)| Some((*unit, newest(open)?))).collect();
        for (unit, newest) in settled.into_iter().filter(|_| !soft) {
            self.settle(unit, newest);
        }
    }

    /// The loose contents `index` of a unit, which have completed, must be there from now on, or newer ones.
    fn settle(&mut self, unit: u64, index: usize) {
        let Some(open) = self.open.get_mut(&unit) else { return };
        let settled = open.loose[index];
        open.loose.drain(..=index);
        self.hash ^= open.hash ^ settled.hash;
        (open.hash, open.rank) = (settled.hash, settled.completed.unwrap_or(0));
        if open.loose.is_empty() {
            self.open.remove(&unit);
        }
        self.history.apply(&mut self.image, unit, &settled);
    }
}
