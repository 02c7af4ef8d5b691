//! `uext4 prepare`.

use crate::args::{Globals, JsonArgs};
use crate::change::{Missing, change_all};
use crate::error::CliError;
use crate::open::Operand;
use crate::text::parse_size;
use clap::{Args, ValueHint};
use std::ffi::OsString;

/// `uext4 prepare`.
#[derive(Args)]
#[command(after_long_help = "\
Holes get blocks, in as few runs as there is room for, and what is not written yet is zeroed on the device. What is
written stays. `uext4 explain` tells whether a write only overwrites.")]
pub struct PrepareArgs {
    /// The file. With SIZE, a missing file is created.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub operand: OsString,
    /// Prepare this many bytes from the start; the whole file by default. A shorter file grows.
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Do not create the file.
    #[arg(short = 'c', long)]
    pub no_create: bool,
    /// The output format: with JSON, the size and the bytes that its blocks take.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// Runs it.
pub fn run(args: &PrepareArgs, globals: &Globals) -> Result<(), CliError> {
    let operand = Operand::parse(&args.operand)?;
    let missing = if args.size.is_some() && !args.no_create { Missing::Create } else { Missing::Fail };
    let prepare = |_: &Operand, file: &uext4::File| file.prepare(args.size.unwrap_or(file.size()));
    change_all(std::slice::from_ref(&operand), globals, missing, prepare)
}
