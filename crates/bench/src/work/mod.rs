//! The measured loops. They are written once, generic over the calls, so that every arm runs
//! the same code around its calls.

pub mod queued;
pub mod synchronous;

use super::error::{BenchError, Result};
use super::ops::Op;
use hdrhistogram::Histogram;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use uext4::{Buffer, QueueFacts};

/// One request of this many is timed: reading the clock twice costs some 50 ns, which spread over 64 requests
/// is below a nanosecond each, and the same for all arms.
pub const SAMPLE: u64 = 64;

/// Longest latency resolved.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// What one thread did in one slice.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Writes of unmeasured threads.
    pub beside: u64,
}

impl Tally {
    #[inline]
    fn count(&mut self, op: &Op) {
        self.writes += u64::from(op.write);
        self.reads += u64::from(!op.write);
    }

    /// Measured requests.
    pub fn ops(self) -> u64 {
        self.reads + self.writes
    }

    /// All requests.
    pub fn all(self) -> u64 {
        self.ops() + self.beside
    }

    /// The same, done by a thread beside those that are measured.
    pub fn as_beside(self) -> Tally {
        Tally { beside: self.all(), ..Tally::default() }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.beside += other.beside;
    }
}

/// Latencies in nanoseconds, to two digits.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Empty.
    pub fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 2);
        histogram.map(Latencies).map_err(|error| BenchError::failed(error.to_string()))
    }

    fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Latencies) -> Result<()> {
        self.0.add(&other.0).map_err(|error| BenchError::failed(error.to_string()))
    }

    /// Microseconds at a quantile; `None` without samples.
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile) as f64 / 1000.0)
    }
}

/// The part of a slice that is one thread's.
pub struct Work<'a> {
    /// Requests, done from the first on.
    pub ops: &'a [Op],
    /// They are done once, not over and over.
    pub once: bool,
    /// Set at the end of the slice.
    pub stop: &'a AtomicBool,
    /// What was done.
    pub tally: &'a mut Tally,
    /// Of one request in [`SAMPLE`].
    pub latencies: &'a mut Latencies,
}

/// The state of one thread for slices of any arm of its session.
pub trait Lane {
    /// Does `work` until stopped. All started requests are complete when this returns.
    fn run(&mut self, arm: usize, work: Work<'_>) -> Result<()>;

    /// What its queue was granted, if it has one.
    fn facts(&self) -> Option<QueueFacts>;
}

/// Fills a buffer like the files: no zeros.
pub fn fill(buffer: &mut Buffer, seed: u64) {
    let word = (super::ops::mix(seed) | 1).to_le_bytes();
    for chunk in buffer.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word);
    }
}
