//! `uext4 trace`: runs a command of this program and prints its device requests.

use crate::args::{Globals, JsonArgs, Watchers};
use crate::error::CliError;
use crate::tracer::Tracer;
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// `uext4 trace`.
#[derive(Args)]
#[command(after_help = "\
Each line: seconds since the device was opened, Q (made) or C (done), then R (read), W (write), F (flush) or D (discard)
with the first sector and, behind +, the number of sectors of 512 bytes. In an image, what the
request costs follows: where it is mapped, or that it allocates. In JSON positions and lengths are bytes.
An operation on names that has ended is printed with an indent: its paths and journal handles, and for each handle its
credits and the blocks it changed, as `explain -- COMMAND` prints them.
The last line has the totals, and what the volume did: allocations, conversions, handles, commits, checkpoints.")]
pub struct TraceArgs {
    /// Write the requests to this file instead of standard error.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// The uext4 command and its arguments, without `uext4`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub words: Vec<OsString>,
    /// The output format.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// Runs the command after `--` with `execute`. The status is that of the command, unless the trace itself could not
/// be written.
pub fn run(
    args: TraceArgs,
    globals: &Globals,
    execute: impl FnOnce(Vec<OsString>, Watchers) -> ExitCode,
) -> Result<ExitCode, CliError> {
    if globals.watchers.trace.is_some()
        || globals.watchers.rehearsal.is_some()
        || args.words.first().is_some_and(|name| name == "trace")
    {
        return Err(CliError::usage("a trace cannot be traced"));
    }
    let json = args.form.json.as_ref().filter(|file| *file != Path::new("-"));
    if json.is_some() && args.output.is_some() {
        return Err(CliError::usage("--json=FILE and --output FILE: the requests go into one file"));
    }
    let file = json.or(args.output.as_ref());
    let target = file.map_or(OsStr::new("standard error"), |path| path.as_os_str()).to_owned();
    let writer: Box<dyn Write + Send> = match file {
        None => Box::new(io::stderr()),
        Some(path) => {
            let file = File::create(path).map_err(|error| CliError::host(&target, "create", &error))?;
            Box::new(BufWriter::new(file))
        }
    };
    let tracer = Arc::new(Tracer::new(writer, globals.json));
    let mut arguments = vec![OsString::from("uext4")];
    arguments.extend(args.words);
    let exit = execute(arguments, Watchers { trace: Some(Arc::clone(&tracer)), ..Watchers::default() });
    match tracer.finish() {
        Ok(()) => Ok(exit),
        // The reader closed the trace. Keep the command's own status.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(exit),
        Err(error) => Err(CliError::host(&target, "write", &error)),
    }
}
