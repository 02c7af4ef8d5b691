//! The tracer that watches a command's devices under `uext4 trace`.

use crate::text;
use crate::told;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uext4::device::Device;
use uext4::device::{Counters, CountingDevice, Counts, TraceEvent, TracePhase, TraceSink};
use uext4::trace::Listener;
use uext4::{Counter, LastStats};

/// What the totals include about the volumes.
const WORK: [Counter; 8] = [
    Counter::Allocations,
    Counter::Conversions,
    Counter::Extensions,
    Counter::HandlesStarted,
    Counter::Commits,
    Counter::BlocksLogged,
    Counter::Checkpoints,
    Counter::HomeWrites,
];

/// Watches devices: prints every request and counts them.
pub struct Tracer {
    shared: Arc<Mutex<Log>>,
    counters: Mutex<Vec<Arc<Counters>>>,
    volumes: Mutex<Vec<LastStats>>,
    json: bool,
}

struct Log {
    writer: Box<dyn Write + Send>,
    /// The first write that failed; nothing is written after it.
    failed: Option<io::Error>,
}

impl Log {
    fn line(&mut self, line: &str) {
        if self.failed.is_none() {
            self.failed = self.writer.write_all(line.as_bytes()).err();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves neither a log nor a list of counters half changed, so poison is ignored.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tracer {
    /// Writes to `writer`, text or JSON.
    pub fn new(writer: Box<dyn Write + Send>, json: bool) -> Self {
        let log = Log { writer, failed: None };
        Tracer {
            shared: Arc::new(Mutex::new(log)),
            counters: Mutex::default(),
            volumes: Mutex::default(),
            json,
        }
    }

    /// Wraps `device` in this tracer. Times count from here.
    pub fn wrap(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        let (log, json) = (Arc::clone(&self.shared), self.json);
        let sink: TraceSink = Arc::new(move |event: &TraceEvent| {
            let line = if json { json_line(event) } else { text_line(event) };
            lock(&log).line(&line);
        });
        let device = CountingDevice::with_trace(device, sink);
        lock(&self.counters).push(device.counters());
        Arc::new(device)
    }

    /// Prints the operations of the volume on `device`.
    pub fn listener(&self, device: String) -> Listener {
        let (log, json) = (Arc::clone(&self.shared), self.json);
        told::listener(device, move |told| {
            let text = if json { text::json_line(&told.json()) + "\n" } else { told.text("    ") };
            lock(&log).line(&text);
        })
    }

    /// Includes a volume's counters in the totals.
    pub fn watch(&self, volume: LastStats) {
        lock(&self.volumes).push(volume);
    }

    /// Sum over the volumes closed so far of the counters that requests do not show.
    fn work(&self) -> Vec<(&'static str, u64)> {
        let volumes = lock(&self.volumes);
        let sum = |counter| volumes.iter().filter_map(LastStats::get).map(|stats| stats.get(counter)).sum();
        WORK.iter().map(|&counter: &Counter| (counter.name(), sum(counter))).collect()
    }

    fn totals(&self) -> Counts {
        let mut sum = Counts::default();
        for counters in lock(&self.counters).iter() {
            let counts = counters.get();
            sum.reads += counts.reads;
            sum.writes += counts.writes;
            sum.fua_writes += counts.fua_writes;
            sum.flushes += counts.flushes;
            sum.discards += counts.discards;
            sum.read_bytes += counts.read_bytes;
            sum.written_bytes += counts.written_bytes;
            sum.discarded_bytes += counts.discarded_bytes;
            sum.queued += counts.queued;
            sum.errors += counts.errors;
        }
        sum
    }

    /// Prints the totals, if a device was opened. Returns the first failed write of the whole trace as the error.
    pub fn finish(&self) -> Result<(), io::Error> {
        let opened = !lock(&self.counters).is_empty();
        let total = self.totals();
        let work = self.work();
        let line = match self.json {
            true => text::json_line(&JsonTotals { total, volume: work.into_iter().collect() }) + "\n",
            false => text_totals(&total, &work),
        };
        let mut log = lock(&self.shared);
        if opened {
            log.line(&line);
        }
        match log.failed.take() {
            Some(error) => Err(error),
            None => log.writer.flush(),
        }
    }
}

/// `  0.000123 Q W 2048+8 FUA`: seconds, Q for queued or C for completed, then the request in sectors of 512 bytes.
fn text_line(event: &TraceEvent) -> String {
    let seconds = event.time_ns / 1_000_000_000;
    let micros = event.time_ns / 1000 % 1_000_000;
    let phase = if event.phase == TracePhase::Submit { 'Q' } else { 'C' };
    format!("{seconds:>3}.{micros:06} {phase} {event}\n")
}

#[derive(Serialize)]
struct JsonEvent {
    time_ns: u64,
    thread: u32,
    phase: &'static str,
    op: &'static str,
    pos: u64,
    length: u64,
    fua: bool,
    queued: bool,
    nowait: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    buffers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
}

fn json_line(event: &TraceEvent) -> String {
    let (phase, errno) = match event.phase {
        TracePhase::Submit => ("submit", None),
        TracePhase::Complete(Ok(_)) => ("complete", None),
        TracePhase::Complete(Err(errno)) => ("complete", Some(errno)),
    };
    text::json_line(&JsonEvent {
        time_ns: event.time_ns,
        thread: event.thread,
        phase,
        op: event.op.name(),
        pos: event.pos,
        length: event.length,
        fua: event.fua,
        queued: event.queued,
        nowait: event.nowait,
        buffers: (event.pieces > 1).then_some(event.pieces),
        priority: (!event.priority.is_of_thread()).then(|| event.priority.to_string()),
        errno,
        cost: event.cost.map(|cost| cost.to_string()),
    }) + "\n"
}

#[derive(Serialize)]
struct JsonTotals {
    #[serde(with = "JsonCounts")]
    total: Counts,
    volume: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
#[serde(remote = "Counts")]
struct JsonCounts {
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written_bytes: u64,
    fua_writes: u64,
    flushes: u64,
    discards: u64,
    discarded_bytes: u64,
    queued: u64,
    errors: u64,
}

fn text_totals(counts: &Counts, work: &[(&'static str, u64)]) -> String {
    let done = work.iter().filter(|(_, count)| *count > 0);
    let done: Vec<String> = done.map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
    let done = if done.is_empty() { String::new() } else { format!("; {}", done.join(", ")) };
    format!(
        "total: {} reads ({} bytes), {} writes ({} bytes, {} FUA), {} flushes, {} discards; \
         {} queued, {} errors{done} (above: seconds, Q made or C done, first sector + sectors of 512 bytes)\n",
        counts.reads,
        counts.read_bytes,
        counts.writes,
        counts.written_bytes,
        counts.fua_writes,
        counts.flushes,
        counts.discards,
        counts.queued,
        counts.errors
    )
}
