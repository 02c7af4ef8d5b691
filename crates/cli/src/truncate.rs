//! `uext4 truncate`.

use crate::args::{Globals, JsonArgs};
use crate::error::CliError;
use crate::open::Operand;
use crate::text::parse_size;
use clap::{Args, ValueHint};
use std::ffi::OsString;

/// `uext4 truncate`.
#[derive(Args)]
pub struct TruncateArgs {
    /// The file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub operand: OsString,
    /// Its size in bytes, with k, m, g or t. What is cut off is freed; what is added is a hole.
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    pub size: u64,
    /// In which form: with JSON, the size and the bytes that its blocks take.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// Runs it.
pub fn run(args: &TruncateArgs, globals: &Globals) -> Result<(), CliError> {
    Operand::parse(&args.operand)?.change(globals, |file| file.set_len(args.size))
}
