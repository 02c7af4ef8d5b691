//! `uext4 mkdir`.

use super::{Changes, caller};
use crate::args::{CommonArgs, Globals};
use crate::attributes::symbolic::ModeChange;
use crate::error::CliError;
use crate::open::{Operand, umask};
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::{Caller, Error, FileKind, Volume};

/// `uext4 mkdir`.
#[derive(Args)]
pub struct MkdirArgs {
    /// The directories.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Create missing parents too; a directory that exists is no error.
    #[arg(short, long)]
    pub parents: bool,
    /// Give the directories this mode, as for chmod. Parents get the usual one.
    #[arg(short, long, value_name = "MODE")]
    pub mode: Option<String>,
    /// Print a line for each directory.
    #[arg(short, long)]
    pub verbose: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Permissions of a directory before the mask.
const MODE: u32 = 0o777;

/// Runs it.
pub fn run(args: &MkdirArgs, globals: &Globals) -> Result<(), CliError> {
    let mode = args.mode.as_deref().map(ModeChange::parse).transpose().map_err(CliError::usage)?;
    let mode = mode.map(|mode| mode.of(MODE, true, umask(globals)));
    let operands =
        args.operands.iter().map(|operand| Operand::parse(operand)).collect::<Result<Vec<_>, _>>()?;
    let mut changes = Changes::new(globals, args.verbose, args.common.force);
    let caller = caller(globals);
    let mut all = || {
        for operand in &operands {
            let done = one(&mut changes, operand, args.parents, mode, &caller);
            changes.one_of(operands.len(), done)?;
        }
        Ok(())
    };
    let ended = all();
    changes.finish(ended)
}

fn one(
    changes: &mut Changes<'_>,
    operand: &Operand,
    parents: bool,
    mode: Option<u32>,
    caller: &Caller,
) -> Result<(), CliError> {
    let volume = changes.volume(operand)?;
    let path = operand.inner();
    if parents {
        make_parents(changes, operand, &volume, caller)?;
    }
    // With a mode, the mask was applied to what the mode leaves open.
    let made = match mode {
        None => volume.create_dir(path, MODE, caller),
        Some(mode) => volume.create_dir(path, mode & MODE, &caller.clone().umask(0)),
    };
    match made {
        Err(Error::Exists) if parents && is_directory(&volume, path) => return Ok(()),
        made => made.map_err(|error| operand.error(error))?,
    }
    // Creation gives no other bits than permissions, but for an inherited set-group-id.
    if let Some(mode) = mode.filter(|mode| mode & !MODE != 0) {
        volume.set_permissions(path, mode, true).map_err(|error| operand.error(error))?;
    }
    changes.done("created directory ", &operand.argument);
    Ok(())
}

/// Creates the missing parents of the operand, from the top.
fn make_parents(
    changes: &mut Changes<'_>,
    operand: &Operand,
    volume: &Volume,
    caller: &Caller,
) -> Result<(), CliError> {
    // The owner may always add names to a parent that is made here.
    let caller = &caller.clone().umask(caller.umask & !0o300);
    let parts: Vec<&Path> = operand.inner().ancestors().skip(1).collect();
    for part in parts.into_iter().rev().filter(|part| part.file_name().is_some()) {
        let shown = OsStr::from_bytes(part.as_os_str().as_bytes());
        match volume.create_dir(part, MODE, caller) {
            Ok(()) => changes.done("created directory ", &operand.beside(shown.as_bytes())),
            Err(Error::Exists) if is_directory(volume, part) => {}
            Err(error) => return Err(CliError::at(&operand.beside(shown.as_bytes()), error)),
        }
    }
    Ok(())
}

fn is_directory(volume: &Volume, path: &Path) -> bool {
    volume.metadata(path).is_ok_and(|found| found.kind == FileKind::Directory)
}
