//! What the server counts: requests by kind, their errors and how long they took. Each thread has a part of its own.

use crate::wire::kind_name;
use std::cell::Cell;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use uext4::{CacheUse, Volume};

/// Kinds of requests that are told apart: opcodes below this.
const KINDS: usize = 64;
/// Bounds of latencies: from one microsecond to 8 seconds, two per octave, and what is longer.
const BOUNDS: usize = 47;

/// One kind of requests.
struct Kind {
    errors: AtomicU64,
    nanoseconds: AtomicU64,
    latencies: [AtomicU64; BOUNDS + 1],
}

/// Counters of requests. Reading them does not stop the threads that count: sums may be a request apart.
pub(crate) struct Counters {
    parts: Vec<Box<[Kind]>>,
}

/// The upper bound of a bucket in nanoseconds, or `None` for the last.
fn bound(bucket: usize) -> Option<u64> {
    let octave = 1000u64 << (bucket / 2);
    (bucket < BOUNDS).then(|| if bucket.is_multiple_of(2) { octave } else { octave * 1414 / 1000 })
}

/// The bucket of a latency.
fn bucket(nanoseconds: u64) -> usize {
    let octaves = (nanoseconds.saturating_sub(1) / 1000).checked_ilog2().map_or(0, |log| log as usize);
    let first = (2 * octaves).min(BOUNDS);
    // At most two bounds are in an octave.
    (first..BOUNDS).find(|&bucket| bound(bucket).is_some_and(|bound| nanoseconds <= bound)).unwrap_or(BOUNDS)
}

impl Counters {
    /// With a part for each of so many threads; more share them.
    pub(crate) fn new(threads: usize) -> Counters {
        let kind = || Kind {
            errors: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            latencies: [const { AtomicU64::new(0) }; BOUNDS + 1],
        };
        Counters { parts: (0..threads.max(1)).map(|_| (0..KINDS).map(|_| kind()).collect()).collect() }
    }

    /// Counts a request.
    pub(crate) fn count(&self, opcode: u32, failed: bool, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let kind = &self.parts[own_part() % self.parts.len()][(opcode as usize).min(KINDS - 1)];
        kind.latencies[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        kind.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        if failed {
            kind.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Appends them as Prometheus text: kinds that have come.
    pub(crate) fn write(&self, out: &mut String) {
        let sum = |read: &dyn Fn(&Kind) -> u64, kind: usize| -> u64 {
            self.parts.iter().map(|part| read(&part[kind])).fold(0, u64::wrapping_add)
        };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut errors = String::new();
        head(out, "uext4_request_seconds", "histogram", "How long requests took, from read to answer.");
        for kind in 0..KINDS {
            let latencies: Vec<u64> =
                (0..=BOUNDS).map(|bucket| sum(&|kind| load(&kind.latencies[bucket]), kind)).collect();
            let count: u64 = latencies.iter().sum();
            if count == 0 {
                continue;
            }
            let name = kind_name(kind as u32);
            let mut so_far = 0;
            for (bucket, found) in latencies.iter().enumerate() {
                so_far += found;
                let bound = bound(bucket).map_or("+Inf".into(), |bound| seconds(bound).to_string());
                let line =
                    format!("uext4_request_seconds_bucket{{kind=\"{name}\",le=\"{bound}\"}} {so_far}\n");
                out.push_str(&line);
            }
            let nanoseconds = sum(&|kind| load(&kind.nanoseconds), kind);
            let _written =
                writeln!(out, "uext4_request_seconds_sum{{kind=\"{name}\"}} {}", seconds(nanoseconds));
            let _written = writeln!(out, "uext4_request_seconds_count{{kind=\"{name}\"}} {count}");
            let failed = sum(&|kind| load(&kind.errors), kind);
            let _written = writeln!(errors, "uext4_request_errors_total{{kind=\"{name}\"}} {failed}");
        }
        head(out, "uext4_request_errors_total", "counter", "Requests that were answered with an error.");
        out.push_str(&errors);
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// What a metric is.
pub(crate) fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _written = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A metric with one value.
pub(crate) fn single(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    head(out, name, kind, help);
    let _written = writeln!(out, "{name} {value}");
}

/// What the caches hold and did, how commits went, and what is free, as Prometheus text.
pub(crate) fn write_volume(volume: &Volume, out: &mut String) {
    type Read = fn(&CacheUse) -> u64;
    let caches = volume.caches();
    let metrics: [(&str, &str, &str, Read); 6] = [
        ("entries", "gauge", "Entries of a cache.", |cache| cache.entries),
        ("bytes", "gauge", "Bytes that count against its budget.", |cache| cache.bytes),
        ("budget_bytes", "gauge", "The most of these bytes.", |cache| cache.budget),
        ("hits_total", "counter", "Look-ups that found an entry.", |cache| cache.hits),
        ("misses_total", "counter", "Look-ups that had to read the volume.", |cache| cache.misses),
        ("evictions_total", "counter", "Entries dropped to stay within the budget.", |cache| cache.evictions),
    ];
    for (name, kind, help, read) in metrics {
        let name = format!("uext4_cache_{name}");
        head(out, &name, kind, help);
        for (label, cache) in
            [("metadata", &caches.metadata), ("names", &caches.names), ("inodes", &caches.inodes)]
        {
            let _written = writeln!(out, "{name}{{cache=\"{label}\"}} {}", read(cache));
        }
    }
    let waiting = caches.metadata_waiting;
    single(out, "uext4_metadata_waiting_bytes", "gauge", "Metadata that waits for its place.", waiting);
    let commits = volume.commits();
    single(out, "uext4_commits_total", "counter", "Commits.", commits.count);
    single(out, "uext4_commit_blocks_total", "counter", "Blocks that they wrote.", commits.blocks);
    single(out, "uext4_fast_commits_total", "counter", "Fast commits.", commits.fast);
    let blocks = commits.fast_blocks;
    single(out, "uext4_fast_commit_blocks_total", "counter", "Blocks that fast commits wrote.", blocks);
    head(out, "uext4_full_commits_total", "counter", "Syncs that fast commits could not serve, by reason.");
    for (reason, count) in [
        ("area", commits.full_for_area),
        ("undeclared", commits.full_for_undeclared),
        ("file", commits.full_for_file),
        ("unused", commits.full_for_unused),
    ] {
        let _written = writeln!(out, "uext4_full_commits_total{{reason=\"{reason}\"}} {count}");
    }
    for (name, kind, help, took) in [
        ("uext4_commit_seconds_total", "counter", "How long commits took together.", commits.total),
        ("uext4_commit_last_seconds", "gauge", "How long the latest one took.", commits.last),
    ] {
        head(out, name, kind, help);
        let _written = writeln!(out, "{name} {}", took.as_secs_f64());
    }
    // A volume whose descriptors are damaged has no free space that is known.
    let Ok(space) = volume.statfs() else { return };
    let bytes = |blocks: u64| blocks.saturating_mul(space.block_size.into());
    single(out, "uext4_size_bytes", "gauge", "Room for data, used or free.", bytes(space.blocks));
    single(out, "uext4_free_bytes", "gauge", "Free space.", bytes(space.free));
    let available = bytes(space.available);
    single(out, "uext4_available_bytes", "gauge", "Free space for users other than root.", available);
    single(out, "uext4_inodes", "gauge", "Inodes, used or free.", space.inodes);
    single(out, "uext4_free_inodes", "gauge", "Free inodes.", space.free_inodes);
}

/// The part of the thread that asks.
fn own_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.with(|own| {
        let part = own.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        own.set(Some(part));
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::op;

    #[test]
    fn latencies_go_to_the_first_bound_that_is_not_below_them() {
        for nanoseconds in [0, 1, 999, 1000, 1001, 1414, 1415, 2000, 2001, 77_777, 8_000_000_000, u64::MAX] {
            let found = bucket(nanoseconds);
            assert!(bound(found).is_none_or(|bound| nanoseconds <= bound), "{nanoseconds}");
            assert!(found == 0 || bound(found - 1).unwrap() < nanoseconds, "{nanoseconds}");
        }
        let bounds: Vec<_> = (0..BOUNDS).map(|bucket| bound(bucket).unwrap()).collect();
        assert!(bounds.is_sorted() && bounds[BOUNDS - 1] > 8_000_000_000);
        assert_eq!(bound(BOUNDS), None);
    }

    #[test]
    fn what_threads_count_is_summed() {
        let counters = Counters::new(2);
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    counters.count(op::LOOKUP, true, Duration::from_micros(3));
                    counters.count(op::READ, false, Duration::from_secs(100));
                    counters.count(4096, false, Duration::ZERO);
                });
            }
        });
        let mut text = String::new();
        counters.write(&mut text);
        for line in [
            "uext4_request_seconds_count{kind=\"LOOKUP\"} 5",
            "uext4_request_errors_total{kind=\"LOOKUP\"} 5",
            "uext4_request_errors_total{kind=\"READ\"} 0",
            "uext4_request_seconds_bucket{kind=\"READ\",le=\"+Inf\"} 5",
            "uext4_request_seconds_bucket{kind=\"LOOKUP\",le=\"0.000002828\"} 0",
            "uext4_request_seconds_bucket{kind=\"LOOKUP\",le=\"0.000004\"} 5",
            "uext4_request_seconds_count{kind=\"other\"} 5",
            "uext4_request_seconds_sum{kind=\"READ\"} 500",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("WRITE"));
    }
}
