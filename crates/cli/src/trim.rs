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
    /// First byte of the volume that is looked at.
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, default_value_t = 0)]
    pub offset: u64,
    /// Bytes that are looked at; all to the end by default.
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    pub length: Option<u64>,
    /// Leave free runs alone that are shorter.
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, default_value_t = 0)]
    pub minimum: u64,
    /// In which form: with JSON, the bytes that were told.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// What was done, in bytes.
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
    // The first failure is told.
    let closed = volume.close();
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
