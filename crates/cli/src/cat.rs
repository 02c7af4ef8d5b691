//! `uext4 cat`.

use crate::args::{CommonArgs, Globals, SwitchArgs};
use crate::error::{CliError, told};
use crate::open::{OpenHow, Operand};
use crate::progress::{BYTES, Progress};
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::fs::File as HostFile;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use uext4::device::Locator;
use uext4::{DeviceSpec, Volume};

/// `uext4 cat`.
#[derive(Args)]
pub struct CatArgs {
    /// The files.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to read.
    #[command(flatten)]
    pub switches: SwitchArgs,
}

/// Runs it.
pub fn run(args: &CatArgs, globals: &Globals) -> Result<(), CliError> {
    let operands =
        args.operands.iter().map(|operand| Operand::parse(operand)).collect::<Result<Vec<_>, _>>()?;
    let how = OpenHow::reading(globals, args.common.force, args.switches.switches);
    let name = OsStr::new("standard output");
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let stdout = HostFile::from(stdout.map_err(|error| CliError::host(name, "duplicate", &error))?);
    let to_file = stdout.metadata().is_ok_and(|metadata| metadata.is_file());
    let mut volumes = Volumes::default();
    let mut failures = globals.failures();
    for operand in &operands {
        let mut one = || {
            let volume = volumes.get(operand, &how)?;
            let file = operand.file(&volume)?;
            let mut progress =
                Progress::new(BYTES, crate::text::visible(&operand.path), file.size(), to_file);
            let advance = &mut |bytes| progress.advance(bytes);
            let done = uext4_transfer::stream(&volume, &file, &stdout, Path::new(name), advance);
            done.map_err(|error| told(error, |path| operand.below(path)))
        };
        let done = one();
        // If standard output cannot be written for one source, it cannot be for the next.
        let sources = if done.as_ref().is_err_and(|error| error.is_about(name)) { 1 } else { operands.len() };
        failures.one_of(sources, done)?;
    }
    failures.finish()
}

/// Open volumes: files of the same device share one.
#[derive(Default)]
pub struct Volumes {
    open: Vec<(DeviceSpec, Volume)>,
    /// Which of them stays open: that of a shell.
    lent: Option<usize>,
}

impl Volumes {
    /// Opens the volume of an operand, or returns the one already open.
    pub fn get(&mut self, operand: &Operand, how: &OpenHow<'_>) -> Result<Volume, CliError> {
        self.numbered(operand, how).map(|(_, volume)| volume)
    }

    /// Closes them all: every change is then durable and checkpointed.
    pub fn close(self) -> Result<(), CliError> {
        let mut outcome = Ok(());
        for (number, (spec, volume)) in self.open.into_iter().enumerate() {
            if self.lent == Some(number) {
                continue;
            }
            let closed = volume.close();
            let name = OsString::from(spec.to_string());
            outcome = outcome.and(closed.map_err(|error| CliError::at(&name, error)));
        }
        outcome
    }

    /// Same, with the volume's index here.
    pub fn numbered(&mut self, operand: &Operand, how: &OpenHow<'_>) -> Result<(usize, Volume), CliError> {
        let mut spec = operand.spec.clone();
        // One device can be spelled in several ways. If the path is not found, opening it below reports that.
        if let Locator::Path(path) = &mut spec.locator
            && let Ok(found) = path.canonicalize()
        {
            *path = found;
        }
        if let Some(number) = self.open.iter().position(|(open, _)| *open == spec) {
            return Ok((number, self.open[number].1.clone()));
        }
        let volume = operand.volume(how)?;
        // As it was named: `spec` is the path that was found.
        if how.is_lent(&operand.spec) {
            self.lent = Some(self.open.len());
        }
        self.open.push((spec, volume.clone()));
        Ok((self.open.len() - 1, volume))
    }
}
