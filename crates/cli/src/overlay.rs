//! `uext4 overlay`: what is in an overlay file, and what becomes of it.

use crate::args::{Globals, JsonArgs, choice};
use crate::error::CliError;
use crate::open::device;
use crate::out::Out;
use crate::progress::{self, Progress};
use crate::text;
use clap::{Args, ValueHint};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uext4::device::overlay;

/// `uext4 overlay`.
#[derive(Args)]
#[command(after_long_help = "\
An overlay file keeps the changes of a device that is only read: `--overlay FILE` of the other commands, or
DEVICE?overlay=FILE, makes and uses one.

A merge writes the changes into the device, makes them durable, and removes the overlay. If it is cut, the device has
some of the changes: run it again before anything else uses the device. It is refused if the device was changed after
the overlay was made, or is in use, by another overlay too.")]
pub struct OverlayArgs {
    /// What to do.
    #[arg(value_name = "ACTION", value_parser = choice(ACTIONS))]
    pub action: Action,
    /// The overlay file.
    #[arg(value_name = "OVERLAY", value_hint = ValueHint::FilePath)]
    pub overlay: PathBuf,
    /// The device to merge into, if it is not found where it was.
    #[arg(value_name = "BASE", value_hint = ValueHint::FilePath)]
    pub base: Option<OsString>,
    /// The output format.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `diff`
    Diff,
    /// `merge`
    Merge,
    /// `drop`
    Drop,
}

const ACTIONS: [(&str, Action, &str); 3] = [
    ("diff", Action::Diff, "print the ranges of the device that have other contents"),
    ("merge", Action::Merge, "write the changes into the device, and remove the overlay"),
    ("drop", Action::Drop, "remove the overlay, and with it the changes"),
];

/// What an overlay holds, in bytes.
#[derive(Serialize)]
struct JsonDiff<'a> {
    base: &'a str,
    base_size: u64,
    granule: u64,
    changed: u64,
    /// A merge was cut.
    merging: bool,
    ranges: Vec<JsonRange>,
}

#[derive(Serialize)]
struct JsonRange {
    offset: u64,
    length: u64,
}

/// What was merged, in bytes.
#[derive(Serialize)]
struct JsonMerged {
    merged: u64,
}

/// Runs it.
pub fn run(args: &OverlayArgs, globals: &Globals) -> Result<(), CliError> {
    if args.base.is_some() && args.action != Action::Merge {
        return Err(CliError::usage("only a merge takes a BASE"));
    }
    match args.action {
        Action::Diff => diff(&args.overlay, globals),
        Action::Merge => merge(args, globals),
        Action::Drop => {
            let dropped = overlay::discard(&args.overlay);
            dropped.map_err(|error| CliError::at(args.overlay.as_os_str(), error))
        }
    }
}

fn diff(file: &Path, globals: &Globals) -> Result<(), CliError> {
    let at = |error: uext4::device::Error| CliError::at(file.as_os_str(), error);
    let overlay = overlay::inspect(file).map_err(at)?;
    let base = String::from_utf8_lossy(overlay.base_name());
    let changed = overlay.changed_bytes();
    let mut pos = 0;
    let ranges = std::iter::from_fn(|| {
        let run = overlay.next_change(pos)?;
        pos = run.end;
        Some(JsonRange { offset: run.start, length: run.end - run.start })
    });
    let mut out = Out::new();
    if globals.json {
        let (base_size, granule) = (overlay.base().size, overlay.granule());
        let merging = overlay.is_merging();
        let ranges = ranges.collect();
        out.json(&JsonDiff { base: &base, base_size, granule, changed, merging, ranges })?;
        return out.finish();
    }
    writeln!(out, "{:>16} {:>12}", "offset", "bytes")?;
    let mut count = 0u64;
    for JsonRange { offset, length } in ranges {
        writeln!(out, "{offset:>16} {length:>12}")?;
        count += 1;
    }
    let cut = if overlay.is_merging() { "; a merge was cut, run it again" } else { "" };
    let (ranges, base) = (if count == 1 { "range" } else { "ranges" }, text::visible(base.as_bytes()));
    writeln!(out, "{} in {count} {ranges} of {base}{cut}", text::short(changed))?;
    out.finish()
}

fn merge(args: &OverlayArgs, globals: &Globals) -> Result<(), CliError> {
    let at = |error: uext4::device::Error| CliError::at(args.overlay.as_os_str(), error);
    let base = args.base.as_deref().map(device).transpose()?;
    let total = overlay::inspect(&args.overlay).map_err(at)?.changed_bytes();
    let name = text::visible(args.overlay.as_os_str().as_bytes());
    let mut bar = Progress::new(progress::BYTES, format!("merging {name}"), total, true);
    let merged = overlay::merge(&args.overlay, base.as_ref(), &mut |bytes| bar.advance(bytes));
    drop(bar);
    let merged = merged.map_err(at)?;
    let mut out = Out::new();
    match globals.json {
        true => out.json(&JsonMerged { merged })?,
        false => writeln!(out, "{name}: {} ({merged} bytes) merged", text::short(merged))?,
    }
    out.finish()
}
