//! Runs slices: the sides take turns, and the threads of a side do its share together.

use super::FILE_BYTES;
use super::names::Tree;
use super::sides::Side;
use crate::arm::Arm;
use crate::error::{BenchError, Result};
use crate::runner::{Slice, cpu_time};
use crate::session::one_buffer;
use crate::work::Tally;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// What is done with each file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Create, write 4 KiB, close.
    Create,
    /// Look up the attributes.
    Stat,
    /// Remove.
    Unlink,
}

impl Operation {
    /// Name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Create => "create",
            Operation::Stat => "stat",
            Operation::Unlink => "unlink",
        }
    }

    /// Bytes that it transfers for the caller.
    pub fn bytes(self) -> u32 {
        if self == Operation::Create { FILE_BYTES } else { 0 }
    }

    fn changes(self) -> bool {
        self != Operation::Stat
    }
}

/// Sides that take turns.
pub struct Turns<'t> {
    pub tree: &'t Tree,
    /// Arm, threads, and who does it.
    pub sides: Vec<(Arm, usize, &'t dyn Side)>,
    pub durable: bool,
}

impl Turns<'_> {
    /// Does `operation` with every file, on every side. Each side is first equally often.
    pub fn run(&self, operation: Operation, step: &mut dyn FnMut()) -> Result<Vec<Slice>> {
        let mut slices = Vec::new();
        for number in 0..self.tree.slices {
            let count = self.sides.len();
            for turn in 0..count {
                let (arm, threads, side) = self.sides[(turn + number as usize) % count];
                slices.push(self.slice(operation, number, (arm, threads, side))?);
                step();
            }
        }
        Ok(slices)
    }

    fn slice(
        &self,
        operation: Operation,
        number: u64,
        (arm, threads, side): (Arm, usize, &dyn Side),
    ) -> Result<Slice> {
        let names = self.tree.slice(number, threads);
        let files = names.iter().map(|names| names.len() as u64).sum();
        let (ready, go) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
        let counters = side.counters();
        let (cpu, wall) = thread::scope(|scope| {
            let work = |names| scope.spawn(|| self.work(operation, side, names, (&ready, &go)));
            let workers: Vec<_> = names.into_iter().map(work).collect();
            ready.wait();
            let cpu = cpu_time();
            go.wait();
            let reports = workers.into_iter().map(|worker| {
                worker.join().unwrap_or_else(|_| Err(BenchError::failed("a measuring thread panicked")))
            });
            let times = reports.collect::<Result<Vec<_>>>()?;
            let sync = Instant::now();
            if operation.changes() {
                side.sync()?;
            }
            let sync = sync.elapsed();
            Ok::<_, BenchError>((cpu_time().saturating_sub(cpu), together(&times) + sync))
        })?;
        let counters = side.counters().zip(counters).map(|(after, before)| after.since(&before));
        let (reads, writes) = if operation.changes() { (0, files) } else { (files, 0) };
        let tally = Tally { reads, writes, beside: 0 };
        Ok(Slice { arm, round: number as u32, tally, wall, cpu, counters })
    }

    /// One thread's share, and when it began and ended.
    fn work(
        &self,
        operation: Operation,
        side: &dyn Side,
        names: Vec<String>,
        (ready, go): (&Barrier, &Barrier),
    ) -> Result<(Instant, Instant)> {
        // The others wait at the barriers whatever happens here.
        let buffer = one_buffer(FILE_BYTES as usize);
        ready.wait();
        go.wait();
        let buffer = buffer?;
        let start = Instant::now();
        for name in &names {
            match operation {
                Operation::Create => side.create(name, &buffer, self.durable),
                Operation::Stat => side.stat(name),
                Operation::Unlink => side.unlink(name),
            }?;
        }
        Ok((start, Instant::now()))
    }
}

/// From the first start to the last end.
fn together(times: &[(Instant, Instant)]) -> Duration {
    let start = times.iter().map(|times| times.0).min();
    let end = times.iter().map(|times| times.1).max();
    start.zip(end).map_or(Duration::ZERO, |(start, end)| end.saturating_duration_since(start))
}
