//! `uext4 io`: single requests, in the command language of `xfs_io(8)` with its flag meanings.
//!
//! [`language`] parses a line into a command, `run` executes it.

mod json;
pub mod language;
mod run;
mod vectors;

use crate::args::{CommonArgs, Globals, SwitchArgs};
use crate::error::CliError;
use crate::open::{OpenHow, Operand, creating};
use clap::{Args, ValueHint};
use language::{Command, parse};
use run::Session;
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use uext4::{File, OpenOptions, Volume};

/// `uext4 io`.
#[derive(Args)]
#[command(after_long_help = LANGUAGE)]
pub struct IoArgs {
    /// The file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub operand: OsString,
    /// Run a command; may be given several times. All are checked before the first runs; the
    /// first failure ends the run.
    #[arg(short, value_name = "COMMAND", allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Open read-only. Implied when no `-c` command writes.
    #[arg(short)]
    pub read_only: bool,
    /// Create the file if it does not exist.
    #[arg(short = 'f')]
    pub create: bool,
    /// Use direct I/O only: a call not aligned to the device's logical block is an error, as with O_DIRECT.
    #[arg(short)]
    pub direct: bool,
    /// Buffered: reads and writes of any bytes go over pages in memory, which `fsync` and the end write home. Without
    /// it every request goes to the device at once.
    #[arg(short = 'b', conflicts_with = "direct")]
    pub buffered: bool,
    /// Truncate the file to 0 bytes first.
    #[arg(short = 't', conflicts_with = "read_only")]
    pub truncate: bool,
    /// At the end, print the library's counters for the run: requests by route, journal handles, flushes. With `--json`
    /// an object `counters`.
    #[arg(long)]
    pub stats: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to read and write.
    #[command(flatten)]
    pub switches: SwitchArgs,
}

pub use language::LANGUAGE;

/// Runs it.
pub fn run(args: &IoArgs, globals: &Globals) -> Result<(), CliError> {
    let operand = Operand::parse(&args.operand)?;
    let commands = args
        .command
        .iter()
        .map(|line| parse(line).map_err(CliError::Usage))
        .collect::<Result<Vec<_>, _>>()?;
    let interactive = args.command.is_empty();
    let asked = args.create || args.truncate || commands.iter().any(writes);
    let write = !args.read_only && (interactive && !operand.spec.options.read_only || asked);
    // Writing needs the device to itself: `--force` applies to reading only.
    let how = OpenHow::reading(globals, args.common.force && !write, args.switches.switches);
    let volume =
        operand.volume(&OpenHow { write: write || args.create, background: args.buffered, ..how })?;
    let options = OpenOptions::new().read(true).write(write).direct(!args.buffered).truncate(args.truncate);
    let file = open((args, globals), &operand, &volume, options)?;
    let mut session = Session::new(&operand, &volume, file, write, globals.json);
    session.tells_stats = args.stats;
    session.only_direct = args.direct;
    session.buffered = args.buffered;
    let ended = if interactive { prompt(session) } else { carry_out(session, commands) };
    ended.and(volume.close().map_err(|error| operand.error(error)))
}

/// Opens the file. A file to be only read is created first, since the library creates none for reading.
fn open(
    (args, globals): (&IoArgs, &Globals),
    operand: &Operand,
    volume: &Volume,
    options: OpenOptions,
) -> Result<File, CliError> {
    let told = |error| operand.error(error);
    let creating = |options| creating(globals, options);
    if args.create && args.read_only {
        volume.open_file(operand.inner(), creating(OpenOptions::new().write(true))).map_err(told)?;
    }
    let options = if args.create && !args.read_only { creating(options) } else { options };
    volume.open_file(operand.inner(), options).map_err(told)
}

/// Runs the commands in order, up to the first failure.
fn carry_out(mut session: Session<'_>, commands: Vec<Option<Command>>) -> Result<(), CliError> {
    for command in commands.into_iter().flatten() {
        if command == Command::Quit {
            break;
        }
        if let Err(error) = session.run(&command) {
            session.finish()?;
            return Err(error);
        }
    }
    session.finish()
}

fn writes(command: &Option<Command>) -> bool {
    matches!(command, Some(Command::Write(_) | Command::Fallocate { .. } | Command::Truncate { .. }))
}

/// Reads commands from standard input. A person gets a prompt and may retry after an error; the final status tells a
/// script whether one failed.
fn prompt(mut session: Session<'_>) -> Result<(), CliError> {
    let person = io::stdin().is_terminal();
    let mut lines = io::stdin().lock().split(b'\n');
    let mut failed = 0u32;
    loop {
        if person {
            session.show_prompt()?;
        }
        let Some(line) = lines.next() else { break };
        let line = line.map_err(|error| CliError::host("standard input".as_ref(), "read", &error))?;
        let outcome = match parse(&String::from_utf8_lossy(&line)) {
            Ok(None) => continue,
            Ok(Some(Command::Quit)) => break,
            Ok(Some(command)) => session.run(&command),
            Err(reason) => Err(CliError::Usage(reason)),
        };
        match outcome {
            Ok(()) => {}
            Err(CliError::ClosedPipe) => return Err(CliError::ClosedPipe),
            Err(error) => {
                failed += 1;
                session.report(&error)?;
            }
        }
    }
    let argument = session.argument();
    session.finish()?;
    match failed {
        0 => Ok(()),
        _ => Err(CliError::failed(
            std::ffi::OsStr::from_bytes(&argument),
            format!("{failed} command(s) failed"),
            libc::EINVAL,
        )),
    }
}
