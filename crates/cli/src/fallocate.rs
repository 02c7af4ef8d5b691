//! `uext4 fallocate`: the modes of `fallocate(1)`.

use crate::args::{Globals, JsonArgs};
use crate::change::{Missing, change_all};
use crate::error::CliError;
use crate::open::Operand;
use crate::text::{self, parse_size};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use uext4::{BufferPool, Fallocate, File, Piece, State};

const USAGE: &str = "\
uext4 fallocate [OPTIONS] -l LENGTH [-o OFFSET] DEVICE:/path
       uext4 fallocate [OPTIONS] DEVICE:/path OFFSET LENGTH";

/// `uext4 fallocate`.
#[derive(Args)]
#[command(override_usage = USAGE)]
#[command(after_long_help = "\
Without a mode, blocks that read as zeros are allocated for holes, the file grows to the end of the range, and a
missing file is created.")]
pub struct FallocateArgs {
    /// The file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub operand: OsString,
    /// First byte.
    #[arg(value_name = "OFFSET", value_parser = parse_size)]
    #[arg(requires = "length", conflicts_with_all = ["from", "count"])]
    pub offset: Option<u64>,
    /// Bytes.
    #[arg(value_name = "LENGTH", value_parser = parse_size)]
    pub length: Option<u64>,
    /// First byte; 0 by default.
    #[arg(short = 'o', long = "offset", value_name = "OFFSET", value_parser = parse_size)]
    pub from: Option<u64>,
    /// Bytes.
    #[arg(short = 'l', long = "length", value_name = "LENGTH", value_parser = parse_size)]
    pub count: Option<u64>,
    /// Keep the size, also with --zero.
    #[arg(short = 'n', visible_short_alias = 'k', long, conflicts_with_all = ["collapse", "insert", "posix"])]
    pub keep_size: bool,
    /// Make the range read as zeros and free its whole blocks. The size stays.
    #[arg(short, long, visible_alias = "punch-hole", group = "mode")]
    pub punch: bool,
    /// Make the range read as zeros and keep or allocate its blocks.
    #[arg(short, long, visible_alias = "zero-range", group = "mode")]
    pub zero: bool,
    /// Remove the range and close the gap: whole blocks (clusters), ending before the end of the file.
    #[arg(short, long, visible_alias = "collapse-range", group = "mode")]
    pub collapse: bool,
    /// Insert a hole of whole blocks (clusters), before the end of the file.
    #[arg(short, long, visible_alias = "insert-range", group = "mode")]
    pub insert: bool,
    /// Free blocks that contain only zeros, in the range or in the whole file.
    #[arg(short, long, group = "mode")]
    pub dig_holes: bool,
    /// Same as without a mode: ext4 always allocates.
    #[arg(short = 'x', long, group = "mode")]
    pub posix: bool,
    /// Do not create the file.
    #[arg(long)]
    pub no_create: bool,
    /// Print what was done.
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    /// The output format: with JSON, the size and the bytes that its blocks take.
    #[command(flatten)]
    pub form: JsonArgs,
}

impl FallocateArgs {
    /// The mode, and what fallocate(1) prints for it.
    fn mode(&self) -> (Fallocate, &'static str) {
        match self {
            FallocateArgs { punch: true, .. } => (Fallocate::Punch, "hole created"),
            FallocateArgs { collapse: true, .. } => (Fallocate::Collapse, "removed"),
            FallocateArgs { insert: true, .. } => (Fallocate::Insert, "inserted"),
            FallocateArgs { zero: true, keep_size: true, .. } => (Fallocate::ZeroKeepSize, "zeroed"),
            FallocateArgs { zero: true, .. } => (Fallocate::Zero, "zeroed"),
            FallocateArgs { keep_size: true, .. } => (Fallocate::KeepSize, "allocated"),
            _ => (Fallocate::Allocate, "allocated"),
        }
    }

    /// The range: first byte and length. Only --dig-holes defaults to the whole file.
    fn range(&self) -> Result<(u64, u64), CliError> {
        let offset = self.offset.or(self.from).unwrap_or(0);
        match self.length.or(self.count) {
            Some(length) => Ok((offset, length)),
            None if self.dig_holes => Ok((offset, u64::MAX - offset)),
            None => Err(CliError::usage("no length given: -l LENGTH, or OFFSET LENGTH after the file")),
        }
    }
}

/// Runs it.
pub fn run(args: &FallocateArgs, globals: &Globals) -> Result<(), CliError> {
    let operand = Operand::parse(&args.operand)?;
    let (offset, length) = args.range()?;
    let (mode, what) = args.mode();
    let makes = mode == Fallocate::Allocate && !args.dig_holes && !args.no_create;
    let missing = if makes { Missing::Create } else { Missing::Fail };
    let mut done = (length, what);
    change_all(std::slice::from_ref(&operand), globals, missing, |_, file| {
        if args.dig_holes {
            done = (dig(file, offset, offset.saturating_add(length))?, "converted to sparse holes");
            return Ok(());
        }
        file.fallocate(mode, offset, length)
    })?;
    if !args.verbose {
        return Ok(());
    }
    let (bytes, what) = done;
    let mut out = crate::out::Out::new();
    out.name(std::os::unix::ffi::OsStrExt::as_bytes(args.operand.as_os_str()))?;
    writeln!(out, ": {} ({bytes} bytes) {what}.", text::human(bytes as f64))?;
    out.finish()
}

/// Bytes examined per step.
const STEP: u64 = 1 << 20;

/// Frees the whole blocks between two bytes of the file that contain only zeros; returns the bytes freed. The last
/// block of the file counts as whole.
fn dig(file: &File, start: u64, end: u64) -> uext4::Result<u64> {
    let block = u64::from(file.metadata().block_size);
    let end = end.min(file.size().next_multiple_of(block));
    let pieces = file.map().collect::<uext4::Result<Vec<Piece>>>()?;
    let mut buffer = BufferPool::new(STEP as usize)?.take(STEP as usize)?;
    let mut freed = 0;
    for piece in pieces.iter().filter(|piece| piece.state == State::Written) {
        let mut pos = piece.logical.max(start.next_multiple_of(block));
        let last = piece.end().min(end) / block * block;
        while pos < last {
            let part = &mut buffer[..STEP.min(last - pos) as usize];
            part.fill(0);
            file.read_any_at(part, pos)?;
            for (offset, length) in zero_runs(part, block) {
                file.fallocate(Fallocate::Punch, pos + offset, length)?;
                freed += length;
            }
            pos += part.len() as u64;
        }
    }
    Ok(freed)
}

/// The runs of blocks that are all zeros: first byte and length.
fn zero_runs(bytes: &[u8], block: u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (number, chunk) in bytes.chunks(block as usize).enumerate() {
        if chunk.iter().any(|&byte| byte != 0) {
            continue;
        }
        let pos = number as u64 * block;
        match runs.last_mut() {
            Some((start, length)) if *start + *length == pos => *length += block,
            _ => runs.push((pos, block)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_zeros() {
        let mut bytes = vec![0; 40];
        assert_eq!(zero_runs(&bytes, 4), [(0, 40)]);
        (bytes[5], bytes[39]) = (1, 1);
        assert_eq!(zero_runs(&bytes, 4), [(0, 4), (8, 28)]);
        assert_eq!(zero_runs(&[1; 8], 4), []);
    }
}
