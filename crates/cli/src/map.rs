//! `uext4 map`.

use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::{OpenHow, Operand};
use crate::out::{Elements, Out};
use crate::svg;
use clap::{Args, ValueHint};
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use uext4::{File, Piece, State, Switches};

/// `uext4 map`.
#[derive(Args)]
pub struct MapArgs {
    /// The file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub operand: OsString,
    /// Print holes too, with the state `hole`.
    #[arg(long)]
    pub holes: bool,
    /// Draw the extents as SVG into this file instead of printing them.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "json")]
    pub svg: Option<PathBuf>,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A piece of a map in JSON, all numbers in bytes.
#[derive(Serialize)]
pub struct JsonPiece {
    logical: u64,
    /// Absent for a hole.
    physical: Option<u64>,
    length: u64,
    state: &'static str,
}

impl From<&Piece> for JsonPiece {
    fn from(piece: &Piece) -> Self {
        JsonPiece {
            logical: piece.logical,
            physical: (piece.state != State::Hole).then_some(piece.physical),
            length: piece.length,
            state: piece.state.name(),
        }
    }
}

/// Runs it.
pub fn run(args: &MapArgs, globals: &Globals) -> Result<(), CliError> {
    let operand = Operand::parse(&args.operand)?;
    let volume = operand.volume(&OpenHow::reading(globals, args.common.force, Switches::ON))?;
    let file = operand.file(&volume)?;
    let pieces = extents(&operand, &file, args.holes)?;
    if let Some(path) = &args.svg {
        let geometry = &volume.superblock().geometry;
        let volume_bytes = geometry.blocks_count().saturating_mul(u64::from(geometry.block_size()));
        let drawing = svg::draw(&crate::text::visible(&operand.path), file.size(), volume_bytes, &pieces);
        return std::fs::write(path, drawing)
            .map_err(|error| CliError::host(path.as_os_str(), "write", &error));
    }
    let mut out = Out::new();
    if globals.json {
        let mut list = Elements::new(true);
        pieces.iter().try_for_each(|piece| list.element(&mut out, &JsonPiece::from(piece)))?;
        list.end(&mut out)?;
    } else {
        table(&mut out, &operand, &file, volume.block_size(), &pieces)?;
    }
    out.finish()
}

/// The extents of a file in order. Neighbours contiguous in the file and on the device are merged, as in `filefrag`.
/// The last one may reach past the end of the file, to the end of its block.
pub fn extents(operand: &Operand, file: &File, holes: bool) -> Result<Vec<Piece>, CliError> {
    let mut extents: Vec<Piece> = Vec::new();
    for piece in file.map() {
        let piece = piece.map_err(|error| operand.error(error))?;
        if piece.state == State::Hole && !holes {
            continue;
        }
        match extents.last_mut() {
            Some(last) if continues(last, &piece) => last.length += piece.length,
            _ => extents.push(piece),
        }
    }
    Ok(extents)
}

fn continues(last: &Piece, next: &Piece) -> bool {
    let adjacent = next.state == State::Hole || last.physical + last.length == next.physical;
    last.state == next.state && last.end() == next.logical && adjacent
}

/// As `filefrag -v`: block numbers of the file system, first and last of each extent.
fn table(
    out: &mut Out,
    operand: &Operand,
    file: &File,
    block: u32,
    pieces: &[Piece],
) -> Result<(), CliError> {
    let block = u64::from(block);
    let blocks = file.size().div_ceil(block);
    write!(out, "File size of ")?;
    out.name(&operand.path)?;
    writeln!(out, " is {} ({blocks} block(s) of {block} bytes)", file.size())?;
    writeln!(out, " ext:     logical_offset:        physical_offset: length:   expected: flags:")?;
    let mut expected = None;
    let mut count = 0;
    for (index, piece) in pieces.iter().enumerate() {
        // Only data inside an inode is not a whole number of blocks.
        let (first, length) = (piece.logical / block, piece.length.div_ceil(block));
        let hole = piece.state == State::Hole;
        let physical = piece.physical / block;
        let moved = expected.filter(|&expected| !hole && expected != physical);
        if !hole && (moved.is_some() || expected.is_none()) {
            count += 1;
        }
        let range = if hole {
            format!("{:>23}", "-")
        } else {
            format!("{physical:>10}..{:>11}", physical + length - 1)
        };
        let moved = moved.map_or_else(String::new, |expected| format!("{expected}:"));
        let flags = flags(piece, index + 1 == pieces.len(), file.size());
        let line = format!(
            "{index:>4}: {first:>8}..{:>8}: {range}: {length:>6}: {moved:>11} {flags}",
            first + length - 1
        );
        writeln!(out, "{}", line.trim_end())?;
        if !hole {
            expected = Some(physical + length);
        }
    }
    out.name(&operand.path)?;
    writeln!(out, ": {count} extent{} found", if count == 1 { "" } else { "s" })
}

fn flags(piece: &Piece, last: bool, size: u64) -> String {
    let mut flags = Vec::new();
    if piece.state != State::Written {
        flags.push(piece.state.name());
    }
    if last {
        flags.push("last");
    }
    if piece.end() >= size {
        flags.push("eof");
    }
    flags.join(",")
}
