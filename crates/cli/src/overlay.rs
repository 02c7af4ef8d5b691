//! `uext4 overlay`: what is in an overlay file, and what becomes of it.

mod diff;

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
use std::path::PathBuf;
use uext4::device::overlay;

/// `uext4 overlay`.
#[derive(Args)]
#[command(after_long_help = "\
An overlay file keeps the changes of a device that is only read: `--overlay FILE` of the other commands, or
DEVICE?overlay=FILE, makes and uses one.

A diff prints the changed ranges of the device, how much of them is metadata of which kind, and the names that were
added, removed or changed, and what about them: contents, names, attributes, xattrs, times, or the place of the
contents on the device. A name that leads to another inode is removed and added. A changed
directory comes after what is in it.

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
    ("diff", Action::Diff, "print which ranges of the device, and which files, are different"),
    ("merge", Action::Merge, "write the changes into the device, and remove the overlay"),
    ("drop", Action::Drop, "remove the overlay, and with it the changes"),
];

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
        Action::Diff => diff::diff(&args.overlay, globals),
        Action::Merge => merge(args, globals),
        Action::Drop => {
            let dropped = overlay::discard(&args.overlay);
            dropped.map_err(|error| CliError::at(args.overlay.as_os_str(), error))
        }
    }
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
