//! The legal states of one cut: by number where there are few, drawn by seed where there are many.

use super::history::{Candidate, Cursor};
use super::image::Image;
use crate::rng::Rng;
use std::collections::HashMap;
use std::ops::Range;

/// Most writes in flight at once, and over the same units as others, whose orders are all tried.
const MOST_ORDERED: usize = 4;

/// What can be chosen at a cut.
pub(super) struct Choices<'a> {
    cursor: &'a Cursor<'a>,
    units: Vec<Open>,
    candidates: Vec<Loose>,
    /// Operations that have candidates.
    operations: Vec<Operation>,
    /// Indices of those in flight that meet others.
    contested: Vec<usize>,
}

struct Open {
    unit: u64,
    hash: u64,
    rank: usize,
    candidates: Range<usize>,
}

struct Loose {
    /// Index in [`Choices::operations`].
    operation: usize,
    candidate: Candidate,
    /// Equal to the settled contents, or to an earlier candidate.
    duplicate: bool,
}

struct Operation {
    op: usize,
    first: u64,
    units: u64,
    /// `None`: in flight.
    completed: Option<usize>,
}

/// Names a state of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pick {
    /// By number, every unit by itself.
    Exact(u64),
    /// By number, operations as a whole.
    Whole(u64),
    /// By draw.
    Drawn(u64),
}

/// What becomes of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Absent,
    There,
    /// These of its units only, by their number in it.
    First(u64),
    From(u64),
    Some(u64),
}

impl Fate {
    fn has(self, index: u64) -> bool {
        match self {
            Fate::Absent => false,
            Fate::There => true,
            Fate::First(count) => index < count,
            Fate::From(start) => index >= start,
            Fate::Some(seed) => Rng::new(seed ^ index).chance(50),
        }
    }
}

/// One decision about all operations. A unit gets what is there and has the highest rank.
struct Decision {
    fates: Vec<Fate>,
    /// Which of a discard's contents.
    junk: Vec<bool>,
    /// Twice the event at which it takes its place among the others; odd if that was drawn.
    ranks: Vec<usize>,
}

/// A state of a cut: what differs from the settled contents.
pub(super) struct Chosen {
    pub(super) hash: u64,
    changed: Vec<(u64, usize)>,
}

impl<'a> Choices<'a> {
    pub(super) fn new(cursor: &'a Cursor<'a>) -> Self {
        let mut choices = Choices {
            cursor,
            units: Vec::with_capacity(cursor.open.len()),
            candidates: Vec::new(),
            operations: Vec::new(),
            contested: Vec::new(),
        };
        let mut known = HashMap::new();
        for (&unit, open) in &cursor.open {
            let start = choices.candidates.len();
            for (index, &candidate) in open.loose.iter().enumerate() {
                let duplicate = candidate.hash == open.hash
                    || open.loose[..index].iter().any(|earlier| earlier.hash == candidate.hash);
                let operation = *known.entry(candidate.op).or_insert_with(|| choices.add(&candidate));
                choices.candidates.push(Loose { operation, candidate, duplicate });
            }
            let candidates = start..choices.candidates.len();
            choices.units.push(Open { unit, hash: open.hash, rank: open.rank, candidates });
        }
        choices.contested = choices.find_contested();
        choices
    }

    fn add(&mut self, candidate: &Candidate) -> usize {
        let units = self.cursor.history.units(candidate.op);
        self.operations.push(Operation {
            op: candidate.op,
            first: units.start,
            units: units.end - units.start,
            completed: candidate.completed,
        });
        self.operations.len() - 1
    }

    fn find_contested(&self) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for open in &self.units {
            let here = &self.candidates[open.candidates.clone()];
            if here.iter().any(|loose| loose.operation != here[0].operation) {
                found.extend(here.iter().map(|loose| loose.operation));
            }
        }
        found.retain(|&operation| self.operations[operation].completed.is_none());
        found.sort_unstable();
        found.dedup();
        found
    }

    /// How many states there are, every unit by itself; `None` above `limit`.
    pub(super) fn exact(&self, limit: u64) -> Option<u64> {
        let of = |open: &Open| self.distinct(open).count() as u64 + 1;
        self.units.iter().try_fold(1_u64, |all, open| all.checked_mul(of(open)).filter(|&all| all <= limit))
    }

    /// How many decisions there are about operations as a whole; `None` above `limit`.
    pub(super) fn whole(&self, limit: u64) -> Option<u64> {
        if self.contested.len() > MOST_ORDERED {
            return None;
        }
        let orders: u64 = (1..=self.contested.len() as u64).product();
        let of = |operation: &Operation| self.fates_of(operation);
        let all = self.operations.iter().try_fold(orders, |all, operation| all.checked_mul(of(operation)));
        all.filter(|&all| all <= limit)
    }

    /// Whether anything can be torn.
    pub(super) fn can_tear(&self) -> bool {
        self.operations.iter().any(|operation| operation.units > 1)
    }

    /// Whether writes in flight meet others, so that not every order is numbered.
    pub(super) fn is_contested(&self) -> bool {
        !self.contested.is_empty()
    }

    fn fates_of(&self, operation: &Operation) -> u64 {
        if self.cursor.history.is_discard(operation.op) { 3 } else { 2 }
    }

    fn distinct(&self, open: &Open) -> impl Iterator<Item = usize> {
        open.candidates.clone().filter(|&index| !self.candidates[index].duplicate)
    }

    /// The state of a name. Numbers wrap around, so that any name means something.
    pub(super) fn choose(&self, pick: Pick, seed: u64, torn: bool) -> Chosen {
        match pick {
            Pick::Exact(number) => self.choose_exact(number),
            Pick::Whole(number) => self.decide(&self.decision(number)),
            Pick::Drawn(number) => {
                let mut rng = Rng::new(seed).fork(self.cursor.cut as u64).fork(number);
                self.decide(&self.draw(&mut rng, number, torn))
            }
        }
    }

    fn choose_exact(&self, mut number: u64) -> Chosen {
        let mut chosen = Chosen { hash: self.cursor.hash, changed: Vec::new() };
        for open in &self.units {
            let count = self.distinct(open).count() as u64 + 1;
            let digit = number % count;
            number /= count;
            if let Some(index) =
                digit.checked_sub(1).and_then(|digit| self.distinct(open).nth(digit as usize))
            {
                chosen.set(open, index, &self.candidates[index].candidate);
            }
        }
        chosen
    }

    /// Decision `number` of [`Choices::whole`]: those in flight come after those that have completed.
    fn decision(&self, mut number: u64) -> Decision {
        let mut decision = self.natural();
        for (index, operation) in self.operations.iter().enumerate() {
            let count = self.fates_of(operation);
            let digit = number % count;
            number /= count;
            decision.fates[index] = if digit == 0 { Fate::Absent } else { Fate::There };
            decision.junk[index] = digit == 2;
        }
        let mut left = self.contested.clone();
        for place in 0..self.contested.len() {
            let digit = number % left.len() as u64;
            number /= left.len() as u64;
            decision.ranks[left.remove(digit as usize)] = 2 * (self.cursor.cut + place) + 1;
        }
        decision
    }

    /// Everything is there, in the order in which it completed or was submitted.
    fn natural(&self) -> Decision {
        let rank = |operation: &Operation| match operation.completed {
            Some(completed) => 2 * completed,
            None => 2 * (self.cursor.cut + operation.op) + 1,
        };
        let count = self.operations.len();
        let ranks = self.operations.iter().map(rank).collect();
        Decision { fates: vec![Fate::There; count], junk: vec![false; count], ranks }
    }

    fn draw(&self, rng: &mut Rng, number: u64, torn: bool) -> Decision {
        let mut decision = self.natural();
        let count = self.operations.len() as u64;
        if number == 0 || count == 0 {
            return decision;
        }
        for (index, operation) in self.operations.iter().enumerate() {
            if operation.completed.is_none() {
                let submitted = self.cursor.history.submitted(operation.op) as u64;
                decision.ranks[index] = 2 * rng.range(submitted..self.cursor.cut as u64 + 1) as usize + 1;
            }
            decision.junk[index] = self.cursor.history.is_discard(operation.op) && rng.chance(50);
        }
        // Few, many or half of them; those before a moment; all but one; only one.
        let bias = *rng.pick(&[6, 25, 50, 75, 94]);
        let one = rng.below(count) as usize;
        let kind = rng.below(10);
        let moment = decision.ranks[one];
        for index in 0..self.operations.len() {
            let there = match kind {
                0..=4 => rng.chance(bias),
                5..=7 => (decision.ranks[index] <= moment) != rng.chance(3),
                8 => index != one,
                _ => index == one,
            };
            decision.fates[index] = if there { Fate::There } else { Fate::Absent };
        }
        let tear = if torn { *rng.pick(&[0, 10, 50, 100]) } else { 0 };
        for (index, operation) in
            self.operations.iter().enumerate().filter(|(_, operation)| operation.units > 1)
        {
            if decision.fates[index] == Fate::There && rng.chance(tear) {
                let at = rng.range(1..operation.units);
                let scattered = Fate::Some(rng.next_u64());
                decision.fates[index] = *rng.pick(&[Fate::First(at), Fate::From(at), scattered]);
            }
        }
        decision
    }

    fn decide(&self, decision: &Decision) -> Chosen {
        let mut chosen = Chosen { hash: self.cursor.hash, changed: Vec::new() };
        for open in &self.units {
            let there = |index: &usize| {
                let Loose { operation, candidate, .. } = &self.candidates[*index];
                let place = open.unit - self.operations[*operation].first;
                decision.junk[*operation] == candidate.junk
                    && decision.fates[*operation].has(place)
                    && decision.ranks[*operation] > 2 * open.rank
            };
            let winner = open.candidates.clone().filter(there);
            if let Some(index) = winner.max_by_key(|&index| decision.ranks[self.candidates[index].operation])
            {
                chosen.set(open, index, &self.candidates[index].candidate);
            }
        }
        chosen
    }

    /// The bytes of a state.
    pub(super) fn image(&self, chosen: &Chosen) -> Image {
        let mut image = self.cursor.image.clone();
        for &(unit, index) in &chosen.changed {
            self.cursor.history.apply(&mut image, unit, &self.candidates[index].candidate);
        }
        image
    }

    /// One line for each operation that is not settled: how much of it the state holds.
    pub(super) fn describe(&self, chosen: &Chosen) -> String {
        let picked: HashMap<u64, usize> = chosen.changed.iter().copied().collect();
        let mut held = vec![String::new(); self.operations.len()];
        for open in &self.units {
            let hash =
                picked.get(&open.unit).map_or(open.hash, |&index| self.candidates[index].candidate.hash);
            for loose in &self.candidates[open.candidates.clone()] {
                if !loose.candidate.junk {
                    held[loose.operation].push(if loose.candidate.hash == hash { '1' } else { '0' });
                }
            }
        }
        let line = |(operation, held): (&Operation, String)| {
            let text = match (held.contains('1'), held.contains('0')) {
                (true, false) => "there".into(),
                (false, _) => "absent".into(),
                _ if held.len() > 64 => format!("torn: {}…", &held[..64]),
                _ => format!("torn: {held}"),
            };
            let flying = if operation.completed.is_none() { " (in flight)" } else { "" };
            format!("    {}{flying}: {text}\n", super::name(self.cursor.history.log, operation.op))
        };
        self.operations.iter().zip(held).map(line).collect()
    }
}

impl Chosen {
    fn set(&mut self, open: &Open, index: usize, candidate: &Candidate) {
        if candidate.hash != open.hash {
            self.hash ^= open.hash ^ candidate.hash;
            self.changed.push((open.unit, index));
        }
    }
}
