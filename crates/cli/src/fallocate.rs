//! `uext4 fallocate`: the modes of `fallocate(1)`.

use crate::args::{Globals, JsonArgs};
use crate::error::CliError;
use crate::open::Operand;
use crate::text::parse_size;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use uext4::Fallocate;

/// `uext4 fallocate`.
#[derive(Args)]
#[command(after_long_help = "\
Without an option holes get blocks that read as zeros, and the file grows to the end of the range.")]
pub struct FallocateArgs {
    /// The file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub operand: OsString,
    /// First byte, with k, m, g or t.
    #[arg(value_name = "OFFSET", value_parser = parse_size)]
    pub offset: u64,
    /// Bytes, with k, m, g or t.
    #[arg(value_name = "LENGTH", value_parser = parse_size)]
    pub length: u64,
    /// The size stays, also with --zero.
    #[arg(short, long)]
    pub keep_size: bool,
    /// The range reads as zeros, and its whole blocks are freed. The size stays.
    #[arg(short, long, conflicts_with = "keep_size", group = "mode")]
    pub punch: bool,
    /// The range reads as zeros and keeps or gets blocks.
    #[arg(short, long, group = "mode")]
    pub zero: bool,
    /// The range is taken out, in whole blocks (clusters), from in front of the last byte.
    #[arg(short, long, conflicts_with = "keep_size", group = "mode")]
    pub collapse: bool,
    /// A hole is put in, of whole blocks (clusters), in front of the last byte.
    #[arg(short, long, conflicts_with = "keep_size", group = "mode")]
    pub insert: bool,
    /// In which form: with JSON, the size and the bytes that its blocks take.
    #[command(flatten)]
    pub form: JsonArgs,
}

impl FallocateArgs {
    fn mode(&self) -> Fallocate {
        match self {
            FallocateArgs { punch: true, .. } => Fallocate::Punch,
            FallocateArgs { collapse: true, .. } => Fallocate::Collapse,
            FallocateArgs { insert: true, .. } => Fallocate::Insert,
            FallocateArgs { zero: true, keep_size: true, .. } => Fallocate::ZeroKeepSize,
            FallocateArgs { zero: true, .. } => Fallocate::Zero,
            FallocateArgs { keep_size: true, .. } => Fallocate::KeepSize,
            _ => Fallocate::Allocate,
        }
    }
}

/// Runs it.
pub fn run(args: &FallocateArgs, globals: &Globals) -> Result<(), CliError> {
    let operand = Operand::parse(&args.operand)?;
    operand.change(globals, |file| file.fallocate(args.mode(), args.offset, args.length))
}
