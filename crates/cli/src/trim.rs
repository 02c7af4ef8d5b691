//! `uext4 trim`.

use crate::args::{Globals, JsonArgs};
use crate::error::CliError;
use crate::open::{OpenHow, device};
use crate::out::Out;
use crate::text::{self, parse_size};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uext4::Switches;

/// `uext4 trim`.
#[derive(Args)]
#[command(after_long_help = "\
A block device that thinly provisions or wears gets the blocks back; an image file gets holes. Nothing that a file has
is touched.")]
pub struct TrimArgs {
    /// The device.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// First byte of the volume to trim.
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, default_value_t = 0)]
    pub offset: u64,
    /// Number of bytes to trim; to the end by default.
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    pub length: Option<u64>,
    /// Skip free runs shorter than this.
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, default_value_t = 0)]
    pub minimum: u64,
    /// The output format: with JSON, the bytes discarded.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// The result, in bytes.
#[derive(Serialize)]
struct JsonTrimmed {
    trimmed: u64,
}

/// Runs it.
pub fn run(args: &TrimArgs, globals: &Globals) -> Result<(), CliError> {
    let spec = device(&args.device)?;
    let at = |error| CliError::at(&args.device, error);
    let how = OpenHow { write: true, ..OpenHow::reading(globals, false, Switches::ON) };
    let volume = how.open_volume(&spec).map_err(at)?;
    let end = args.length.map_or(u64::MAX, |length| args.offset.saturating_add(length));
    let trimmed = volume.trim(args.offset..end, args.minimum);
    // The first failure is reported.
    let closed = how.close_volume(&spec, volume);
    let trimmed = trimmed.and_then(|trimmed| closed.map(|()| trimmed)).map_err(at)?;
    let mut out = Out::new();
    match globals.json {
        true => out.json(&JsonTrimmed { trimmed })?,
        false => writeln!(
            out,
            "{}: {} ({trimmed} bytes) trimmed",
            text::visible(args.device.as_bytes()),
            text::short(trimmed)
        )?,
    }
    out.finish()
}
