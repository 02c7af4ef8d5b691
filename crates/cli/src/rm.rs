//! `uext4 rm`.

use crate::args::{CommonArgs, Globals};
use crate::cat::Volumes;
use crate::error::CliError;
use crate::open::{OpenHow, Operand};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use uext4::Switches;

/// `uext4 rm`.
#[derive(Args)]
pub struct RmArgs {
    /// The files. A symbolic link is removed, not its target.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Ignore missing files silently.
    #[arg(short = 'f', long = "ignore-missing")]
    pub ignore_missing: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Runs it.
pub fn run(args: &RmArgs, globals: &Globals) -> Result<(), CliError> {
    let operands =
        args.operands.iter().map(|operand| Operand::parse(operand)).collect::<Result<Vec<_>, _>>()?;
    let how = OpenHow { write: true, ..OpenHow::reading(globals, args.common.force, Switches::ON) };
    let mut volumes = Volumes::default();
    let mut failures = globals.failures();
    for operand in &operands {
        let mut one = || match volumes.get(operand, &how)?.remove_file(operand.inner()) {
            Err(uext4::Error::NotFound) if args.ignore_missing => Ok(()),
            done => done.map_err(|error| operand.error(error)),
        };
        let done = one();
        failures.one_of(operands.len(), done)?;
    }
    volumes.close()?;
    failures.finish()
}
