//! `uext4 check`: looks for damage and reports where it is.

use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::{OpenHow, device};
use crate::out::Out;
use crate::progress::{self, Progress};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use uext4::{Switches, VolumeOptions};
use uext4_check::{CheckOptions, Counts, Finding, KINDS, Kind, NotExamined, Pass, Report, check_device};

/// `uext4 check`.
#[derive(Args)]
#[command(after_long_help = "\
Exit status: 0 the volume is clean (warnings and notes may be printed), 1 it is damaged or could not be checked,
2 bad usage. `e2fsck -fn` judges alike, but it does not look at the log, which is replayed here (in memory) before the
check, and it does count the usage of quotas. What fs-verity stores behind the contents of sealed files is looked at
here alone; the contents are compared with it on request.")]
pub struct CheckArgs {
    /// The device.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// Number of threads; by default two, or one on a machine with one processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Option<u32>,
    /// Read the contents of files that fs-verity seals, and compare them with their hashes.
    #[arg(long)]
    pub contents: bool,
    /// Print at most this many findings of each kind; the others are counted.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub per_kind: u32,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

#[derive(Serialize)]
struct JsonReport<'r> {
    clean: bool,
    findings: Vec<JsonFinding<'r>>,
    /// Number of each kind, including those not listed.
    totals: &'r std::collections::BTreeMap<&'static str, u64>,
    notes: &'r [String],
    not_examined: &'r [NotExamined],
    counts: &'r Counts,
}

#[derive(Serialize)]
struct JsonFinding<'r> {
    code: &'static str,
    structure: &'static str,
    severity: &'static str,
    text: &'r str,
    group: Option<u32>,
    inode: Option<u32>,
    logical_block: Option<u32>,
    block: Option<u64>,
}

/// Runs it. Damage is not a failure of the command, but sets its exit status.
pub fn run(args: &CheckArgs, globals: &Globals) -> Result<ExitCode, CliError> {
    let spec = device(&args.device)?;
    let mut options = CheckOptions::new().per_kind(args.per_kind as usize).contents(args.contents);
    if let Some(threads) = args.threads {
        options = options.threads(threads);
    }
    let failed = |error| CliError::at(&args.device, error);
    let how = OpenHow::reading(globals, args.common.force, Switches::ON);
    let device = how.open_device(&spec).map_err(failed)?;
    let mut bar = Bar::default();
    let volume = globals.with_journals(VolumeOptions::read_only()).force(args.common.force);
    let report =
        check_device(device, volume, &options, &mut |progress| bar.show(progress)).map_err(failed)?;
    drop(bar);
    let mut out = Out::new();
    if globals.json {
        out.json(&json(&report))?;
    } else {
        text(&mut out, &crate::text::visible(args.device.as_bytes()), &report)?;
    }
    out.finish()?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One bar for all passes: reading the inodes takes most of the time.
#[derive(Default)]
struct Bar {
    progress: Option<Progress>,
    shown: u64,
}

/// Share of each pass in the total, and the total.
const PARTS: u64 = 1000;

impl Bar {
    fn show(&mut self, progress: uext4_check::Progress) {
        let (start, length) = match progress.pass {
            Pass::Inodes => (0, 600),
            Pass::Directories => (600, 350),
            Pass::Bitmaps => (950, 50),
        };
        let done = start + length * progress.done.min(progress.total) / progress.total.max(1);
        let bar =
            self.progress.get_or_insert_with(|| Progress::new(progress::PARTS, "check".into(), PARTS, true));
        bar.advance(done.saturating_sub(self.shown));
        self.shown = self.shown.max(done);
    }
}

fn json(report: &Report) -> JsonReport<'_> {
    JsonReport {
        clean: report.is_clean(),
        findings: report.findings.iter().map(json_finding).collect(),
        totals: &report.totals,
        notes: &report.notes,
        not_examined: &report.not_examined,
        counts: &report.counts,
    }
}

fn json_finding(finding: &Finding) -> JsonFinding<'_> {
    let place = &finding.place;
    JsonFinding {
        code: finding.kind.code,
        structure: finding.kind.structure(),
        severity: finding.kind.severity.name(),
        text: &finding.text,
        group: place.group.map(|group| group.get()),
        inode: place.inode.map(|inode| inode.get()),
        logical_block: place.lblk.map(|lblk| lblk.get()),
        block: place.block.map(|block| block.get()),
    }
}

fn text(out: &mut Out, name: &str, report: &Report) -> Result<(), CliError> {
    for finding in &report.findings {
        writeln!(out, "{} {finding}", finding.kind.severity.name())?;
    }
    let kinds: Vec<&&Kind> = KINDS.iter().filter(|kind| report.totals.contains_key(kind.code)).collect();
    for kind in &kinds {
        let more = report.more(kind);
        if more > 0 {
            writeln!(out, "{} {}: and {more} more", kind.severity.name(), kind.code)?;
        }
    }
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    for missed in &report.not_examined {
        writeln!(out, "not examined: {} ({} times): {}", missed.what, missed.count, missed.reason)?;
    }
    let counts = &report.counts;
    let verdict = if report.is_clean() { "clean" } else { "damaged" };
    writeln!(
        out,
        "{name}: {verdict}: {} inodes, {} directories, {} entries, {} blocks in use",
        counts.inodes, counts.directories, counts.entries, counts.blocks
    )
}
