//! `uext4 trace`: a command of this program with its devices watched.

use crate::args::{Globals, JsonArgs};
use crate::command;
use crate::error::CliError;
use clap::{Args, ValueHint};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uext4::blockdev::Device;
use uext4::blockdev::layer::{Counters, CountingDevice, Counts, TraceEvent, TracePhase, TraceSink};

/// `uext4 trace`.
#[derive(Args)]
#[command(after_help = "\
Each line: seconds since the device was opened, Q (made) or C (done), then R (read), W (write), F (flush) or D (discard)
with the first sector and, behind +, the number of sectors of 512 bytes. In JSON positions and lengths are bytes.")]
pub struct TraceArgs {
    /// Write the requests to this file instead of standard error.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// The uext4 command and its arguments, without `uext4`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// Watches devices: prints every request and counts them.
pub struct Tracer {
    shared: Arc<Mutex<Log>>,
    counters: Mutex<Vec<Arc<Counters>>>,
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
    // Neither a log nor a list of counters is left half changed by a panic elsewhere.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tracer {
    fn new(writer: Box<dyn Write + Send>, json: bool) -> Self {
        let log = Log { writer, failed: None };
        Tracer { shared: Arc::new(Mutex::new(log)), counters: Mutex::default(), json }
    }

    /// `device` with this tracer around it. Times count from here.
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

    /// Prints the totals, if a device was opened. The first failed write of the whole trace is the error.
    fn finish(&self) -> Result<(), io::Error> {
        let opened = !lock(&self.counters).is_empty();
        let counts = self.totals();
        let line = if self.json { json_totals(&counts) } else { text_totals(&counts) };
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

/// Runs the command behind `--`. The status is that of the command, unless the trace itself could not be
/// written.
pub fn run(args: TraceArgs, globals: &Globals) -> Result<ExitCode, CliError> {
    if globals.trace.is_some() || args.command.first().is_some_and(|name| name == "trace") {
        return Err(CliError::usage("a trace cannot be traced"));
    }
    let json = args.form.json.as_ref().filter(|file| *file != Path::new("-"));
    if json.is_some() && args.output.is_some() {
        return Err(CliError::usage("--json=FILE and --output FILE: the requests go into one file"));
    }
    let file = json.or(args.output.as_ref());
    let target = file.map_or(OsStr::new("standard error"), |path| path.as_os_str()).to_owned();
    let writer: Box<dyn Write + Send> = match file {
        None => Box::new(io::stderr()),
        Some(path) => {
            let file = File::create(path).map_err(|error| CliError::host(&target, "create", &error))?;
            Box::new(BufWriter::new(file))
        }
    };
    let tracer = Arc::new(Tracer::new(writer, globals.json));
    let mut arguments = vec![OsString::from("uext4")];
    arguments.extend(args.command);
    let exit = command::execute(arguments, Some(Arc::clone(&tracer)));
    match tracer.finish() {
        Ok(()) => Ok(exit),
        // Whoever read the trace has left; that does not change how the command ended.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(exit),
        Err(error) => Err(CliError::host(&target, "write", &error)),
    }
}

/// `  0.000123 Q W 2048+8 FUA`: seconds, Q for made or C for done, then the request in sectors of 512 bytes.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
}

fn json_line(event: &TraceEvent) -> String {
    let (phase, errno) = match event.phase {
        TracePhase::Submit => ("submit", None),
        TracePhase::Complete(Ok(_)) => ("complete", None),
        TracePhase::Complete(Err(errno)) => ("complete", Some(errno)),
    };
    to_line(&JsonEvent {
        time_ns: event.time_ns,
        thread: event.thread,
        phase,
        op: event.op.name(),
        pos: event.pos,
        length: event.length,
        fua: event.fua,
        queued: event.queued,
        errno,
    })
}

#[derive(Serialize)]
struct JsonTotals {
    total: JsonCounts,
}

#[derive(Serialize)]
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

fn json_totals(counts: &Counts) -> String {
    to_line(&JsonTotals {
        total: JsonCounts {
            reads: counts.reads,
            read_bytes: counts.read_bytes,
            writes: counts.writes,
            written_bytes: counts.written_bytes,
            fua_writes: counts.fua_writes,
            flushes: counts.flushes,
            discards: counts.discards,
            discarded_bytes: counts.discarded_bytes,
            queued: counts.queued,
            errors: counts.errors,
        },
    })
}

fn text_totals(counts: &Counts) -> String {
    format!(
        "total: {} reads ({} bytes), {} writes ({} bytes, {} FUA), {} flushes, {} discards; \
         {} queued, {} errors (above: seconds, Q made or C done, first sector + sectors of 512 bytes)\n",
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

/// Serializing plain numbers and constant names cannot fail; if it did, the line would say so.
fn to_line<T: Serialize>(value: &T) -> String {
    let mut line = serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    line.push('\n');
    line
}
