//! `uext4 rmdir`.

use super::Changes;
use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::Operand;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uext4::Error;

/// `uext4 rmdir`.
#[derive(Args)]
pub struct RmdirArgs {
    /// The directories, which must be empty.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Remove the parents too, as long as they become empty.
    #[arg(short, long)]
    pub parents: bool,
    /// Do not report directories that are not empty.
    #[arg(long)]
    pub ignore_fail_on_non_empty: bool,
    /// Print a line for each directory.
    #[arg(short, long)]
    pub verbose: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Runs it.
pub fn run(args: &RmdirArgs, globals: &Globals) -> Result<(), CliError> {
    let operands =
        args.operands.iter().map(|operand| Operand::parse(operand)).collect::<Result<Vec<_>, _>>()?;
    let mut changes = Changes::new(globals, args.verbose, args.common.force);
    let mut all = || {
        for operand in &operands {
            let done = one(&mut changes, operand, args);
            changes.one_of(operands.len(), done)?;
        }
        Ok(())
    };
    let ended = all();
    changes.finish(ended)
}

fn one(changes: &mut Changes<'_>, operand: &Operand, args: &RmdirArgs) -> Result<(), CliError> {
    let volume = changes.volume(operand)?;
    let parts = operand.inner().ancestors().filter(|part| part.file_name().is_some());
    for (depth, part) in parts.take(if args.parents { usize::MAX } else { 1 }).enumerate() {
        let shown = match depth {
            0 => operand.argument.clone(),
            _ => operand.beside(part.as_os_str().as_bytes()),
        };
        match volume.remove_dir(part) {
            Ok(()) => changes.done("removing directory, ", &shown),
            Err(Error::NotEmpty) if args.ignore_fail_on_non_empty => return Ok(()),
            Err(error) => return Err(CliError::at(&shown, error)),
        }
    }
    Ok(())
}
