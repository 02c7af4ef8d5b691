//! Watches `uext4 explain -- COMMAND`: keeps the writes of the command in memory, and prints what its operations do.

use crate::text;
use crate::told::{self, Told};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};
use uext4::device::{Device, OverlayDevice};
use uext4::trace::Listener;
use uext4::{Counter, LastStats};

/// Unit of what is kept in memory, bytes, unless the device's logical block is larger.
const UNIT: u32 = 4096;

/// A command that runs without writing to a device.
pub struct Rehearsal {
    /// Most bytes of writes kept for each device.
    memory: u64,
    json: bool,
    shared: Arc<Mutex<Log>>,
    volumes: Mutex<Vec<(String, LastStats)>>,
}

/// Where the explanation goes.
struct Log {
    writer: BufWriter<File>,
    /// Whether an element of the JSON array was written.
    any: bool,
    /// The first write that failed; nothing is written after it.
    failed: Option<io::Error>,
    sums: Vec<(String, Sums)>,
}

/// Sums over the operations on a device.
#[derive(Default, Clone, Copy)]
struct Sums {
    operations: u64,
    handles: u64,
    credits_asked: u64,
    credits_used: u64,
}

#[derive(Serialize)]
struct JsonTotal<'t> {
    device: &'t str,
    operations: u64,
    handles: u64,
    credits_asked: u64,
    credits_used: u64,
    commits: u64,
    log_blocks: u64,
    checkpoints: u64,
    home_blocks: u64,
    flushes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rehearsal {
    /// Keeps up to `memory` bytes of writes for each device, and explains to `writer`, as text or JSON.
    pub fn new(memory: u64, json: bool, writer: File) -> Self {
        let log = Log { writer: BufWriter::new(writer), any: false, failed: None, sums: Vec::new() };
        Rehearsal { memory, json, shared: Arc::new(Mutex::new(log)), volumes: Mutex::default() }
    }

    /// Wraps a device: what is written stays in memory.
    pub fn wrap(&self, device: Arc<dyn Device>) -> Result<Arc<dyn Device>, uext4::Error> {
        let unit = device.geometry().logical_block.max(UNIT);
        Ok(Arc::new(OverlayDevice::keeping_writes(device, unit, self.memory)?))
    }

    /// Listens to the volume on `device`.
    pub fn listener(&self, device: String) -> Listener {
        let (log, json) = (Arc::clone(&self.shared), self.json);
        lock(&log).sums.push((device.clone(), Sums::default()));
        told::listener(device, move |told| {
            let mut log = lock(&log);
            log.add(told);
            let text = if json { text::json_line(&told.json()) } else { told.text("") };
            if json { log.element(&text) } else { log.write(&text) }
        })
    }

    /// Includes the counters of that volume in the totals.
    pub fn watch(&self, device: String, stats: LastStats) {
        lock(&self.volumes).push((device, stats));
    }

    /// Prints the totals. Returns the first failed write as the error.
    pub fn finish(&self) -> io::Result<()> {
        let mut log = lock(&self.shared);
        for (device, stats) in lock(&self.volumes).iter() {
            let Some(stats) = stats.get() else { continue };
            let sums = log.sums.iter().find(|(name, _)| name == device).map(|(_, sums)| *sums);
            let sums = sums.unwrap_or_default();
            let total = JsonTotal {
                device,
                operations: sums.operations,
                handles: stats.get(Counter::HandlesStarted),
                credits_asked: sums.credits_asked,
                credits_used: sums.credits_used,
                commits: stats.get(Counter::Commits),
                log_blocks: stats.get(Counter::BlocksLogged),
                checkpoints: stats.get(Counter::Checkpoints),
                home_blocks: stats.get(Counter::HomeWrites),
                flushes: stats.get(Counter::Flushes),
            };
            match self.json {
                true => log.element(&text::json_line(&Total { total: &total })),
                false => log.write(&total.line()),
            }
        }
        if self.json {
            let end = if log.any { "\n]\n" } else { "[]\n" };
            log.write(end);
        }
        match log.failed.take() {
            Some(error) => Err(error),
            None => log.writer.flush(),
        }
    }
}

#[derive(Serialize)]
struct Total<'t> {
    total: &'t JsonTotal<'t>,
}

impl JsonTotal<'_> {
    fn line(&self) -> String {
        format!(
            "total of {}: {}, {}, {} of {} credits; {} of {}; {} in {}; {}. Nothing was written.\n",
            self.device,
            told::count(self.operations, "operation"),
            told::count(self.handles, "handle"),
            self.credits_used,
            self.credits_asked,
            told::count(self.commits, "commit"),
            told::count(self.log_blocks, "log block"),
            told::count(self.home_blocks, "home block"),
            told::count(self.checkpoints, "checkpoint"),
            told::count(self.flushes, "flush")
        )
    }
}

impl Log {
    fn add(&mut self, told: &Told<'_>) {
        let Some((_, sums)) = self.sums.iter_mut().find(|(device, _)| device == told.device) else { return };
        sums.operations += 1;
        sums.handles += told.count;
        sums.credits_asked += told.credits_asked;
        sums.credits_used += told.credits_used;
    }

    fn write(&mut self, text: &str) {
        if self.failed.is_none() {
            self.failed = self.writer.write_all(text.as_bytes()).err();
        }
    }

    fn element(&mut self, json: &str) {
        let before = if self.any { ",\n" } else { "[\n" };
        self.any = true;
        self.write(before);
        self.write(json);
    }
}
