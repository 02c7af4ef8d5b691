//! `uext4 stat`.

mod format;

use crate::args::{CommonArgs, Globals};
use crate::cat::Volumes;
use crate::error::CliError;
use crate::open::{OpenHow, Operand};
use crate::out::{Elements, Out};
use crate::text::{self, JsonBytes, JsonTime};
use clap::{Args, ValueHint};
use format::Format;
use serde::Serialize;
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uext4::{FileKind, Metadata, Switches};

/// `uext4 stat`.
#[derive(Args)]
pub struct StatArgs {
    /// The files; the root directory without a path.
    #[arg(value_name = "DEVICE[:/path]", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Follow a symbolic link instead of showing the link itself.
    #[arg(short = 'L', long = "dereference")]
    pub follow: bool,
    /// Print this for each file, and a line end. As in stat(1): %a %A %b %B %f %F %g %h %i %n %N %o %s %t %T %u %w %W
    /// %x %X %y %Y %z %Z %%, with a width and flags (%-10n, %#a, %.9Y).
    #[arg(short = 'c', long, value_name = "FORMAT", conflicts_with = "json")]
    pub format: Option<Format>,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// The fields of `struct statx`, and those that only ext4 has.
#[derive(Serialize)]
pub struct JsonStat<'a> {
    stx_ino: u32,
    stx_mode: u32,
    stx_nlink: u32,
    stx_uid: u32,
    stx_gid: u32,
    stx_size: u64,
    stx_blocks: u64,
    stx_blksize: u32,
    stx_atime: JsonTime,
    stx_btime: Option<JsonTime>,
    stx_ctime: JsonTime,
    stx_mtime: JsonTime,
    stx_rdev_major: u32,
    stx_rdev_minor: u32,
    r#type: &'static str,
    flags: Vec<Cow<'static, str>>,
    generation: u32,
    project: u32,
    #[serde(flatten)]
    target: JsonBytes<'a>,
}

/// One of several.
#[derive(Serialize)]
struct JsonNamed<'a> {
    #[serde(flatten)]
    argument: JsonBytes<'a>,
    #[serde(flatten)]
    stat: JsonStat<'a>,
}

/// Runs it.
pub fn run(args: &StatArgs, globals: &Globals) -> Result<(), CliError> {
    let operands = Operand::all(&args.operands)?;
    let how = OpenHow::reading(globals, args.common.force, Switches::ON);
    let (mut volumes, mut failures) = (Volumes::default(), globals.failures());
    let mut out = Out::new();
    let mut list = Elements::new(globals.json && operands.len() > 1);
    for operand in &operands {
        let found = find(operand, args.follow, &mut volumes, &how);
        let Some((metadata, target)) = failures.one_of(operands.len(), found)? else { continue };
        if let Some(format) = &args.format {
            format.print(&mut out, operand.argument.as_bytes(), &metadata, target.as_deref())?;
        } else if globals.json {
            let argument = JsonBytes::argument(&operand.argument, operands.len());
            let stat = JsonStat::new(&metadata, target.as_deref());
            list.element(&mut out, &JsonNamed { argument, stat })?;
        } else {
            print_text(&mut out, operand.argument.as_bytes(), &metadata, target.as_deref())?;
        }
    }
    list.end(&mut out)?;
    out.finish()?;
    failures.finish()
}

/// The attributes of an operand, and its target if it is a symbolic link.
fn find(
    operand: &Operand,
    follow: bool,
    volumes: &mut Volumes,
    how: &OpenHow<'_>,
) -> Result<(Metadata, Option<Vec<u8>>), CliError> {
    let volume = volumes.get(operand, how)?;
    let ino = volume.resolve(operand.inner(), follow).map_err(|error| operand.error(error))?;
    let metadata = volume.metadata_of(ino).map_err(|error| operand.error(error))?;
    let target = match metadata.kind {
        FileKind::Symlink => Some(volume.read_link_of(ino).map_err(|error| operand.error(error))?),
        _ => None,
    };
    Ok((metadata, target))
}

impl<'a> JsonStat<'a> {
    /// The attributes of an inode, and its target if it is a symbolic link.
    pub fn new(metadata: &Metadata, target: Option<&'a [u8]>) -> Self {
        JsonStat {
            stx_ino: metadata.ino.get(),
            stx_mode: u32::from(metadata.kind.mode_bits()) | metadata.mode,
            stx_nlink: metadata.links,
            stx_uid: metadata.uid,
            stx_gid: metadata.gid,
            stx_size: metadata.size,
            stx_blocks: metadata.blocks,
            stx_blksize: metadata.block_size,
            stx_atime: metadata.accessed.into(),
            stx_btime: metadata.created.map(JsonTime::from),
            stx_ctime: metadata.changed.into(),
            stx_mtime: metadata.modified.into(),
            stx_rdev_major: metadata.rdev.0,
            stx_rdev_minor: metadata.rdev.1,
            r#type: text::kind(metadata.kind),
            flags: metadata.flags.names(),
            generation: metadata.generation,
            project: metadata.project,
            target: JsonBytes("target", target),
        }
    }
}

fn print_text(
    out: &mut Out,
    name: &[u8],
    metadata: &Metadata,
    target: Option<&[u8]>,
) -> Result<(), CliError> {
    out.bytes(b"  File: ")?;
    out.name(name)?;
    if let Some(target) = target {
        out.bytes(b" -> ")?;
        out.name(target)?;
    }
    writeln!(
        out,
        "\n  Size: {:<15} Blocks: {:<10} IO Block: {:<6} {}",
        metadata.size,
        metadata.blocks,
        metadata.block_size,
        text::kind_words(metadata.kind)
    )?;
    write!(out, " Inode: {:<15} Links: {}", metadata.ino, metadata.links)?;
    if matches!(metadata.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        write!(out, "     Device type: {},{}", metadata.rdev.0, metadata.rdev.1)?;
    }
    writeln!(
        out,
        "\nAccess: ({:04o}/{})  Uid: {}   Gid: {}   Project: {}",
        metadata.mode,
        text::mode_string(metadata.kind, metadata.mode),
        metadata.uid,
        metadata.gid,
        metadata.project
    )?;
    writeln!(out, "Access: {}", text::time_ns(metadata.accessed))?;
    writeln!(out, "Modify: {}", text::time_ns(metadata.modified))?;
    writeln!(out, "Change: {}", text::time_ns(metadata.changed))?;
    writeln!(out, " Birth: {}", metadata.created.map_or_else(|| "-".into(), text::time_ns))?;
    writeln!(out, " Flags: {}", metadata.flags)
}
