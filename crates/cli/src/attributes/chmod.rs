//! `uext4 chmod`: the modes of chmod(1).

use super::symbolic::ModeChange;
use super::{Changer, Found, Missing, Reach, Reference, ReportArgs, first, operands, typed};
use crate::args::{Globals, JsonArgs};
use crate::error::CliError;
use crate::open::umask;
use crate::text::mode_string;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use uext4::{FileKind, SetAttributes};

const USAGE: &str = "\
uext4 chmod [OPTIONS] MODE DEVICE:/path...
       uext4 chmod [OPTIONS] --reference OTHER DEVICE:/path...";

/// `uext4 chmod`.
#[derive(Args)]
#[command(override_usage = USAGE)]
#[command(after_long_help = "\
MODE is octal (644), or symbolic as for chmod(1): [ugoa…][+-=][rwxXst…] or [ugoa…][+-=][ugo], several separated by
commas. A directory keeps its set-user-id and set-group-id bits unless they are named. An access control list follows.
Symbolic links below a directory are skipped.")]
pub struct ChmodArgs {
    /// The mode, then the files.
    #[arg(value_name = "MODE DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Change everything below directories too.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Give the mode of this file instead: DEVICE:/path, or a file of the host.
    #[arg(long, value_name = "OTHER")]
    pub reference: Option<OsString>,
    /// What is printed.
    #[command(flatten)]
    pub report: ReportArgs,
    /// The output format: with JSON, the attributes afterwards.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// Runs it.
pub fn run(args: &ChmodArgs, globals: &Globals) -> Result<(), CliError> {
    let (mode, paths) = match &args.reference {
        Some(_) => (None, &args.operands[..]),
        None => {
            let (mode, paths) = first(&args.operands, "MODE")?;
            (Some(ModeChange::parse(typed(&mode.to_string_lossy())).map_err(CliError::usage)?), paths)
        }
    };
    let operands = operands(paths)?;
    let reach = Reach { recursive: args.recursive, follow: true, silent: args.report.silent };
    let mut changer = Changer::new(globals, reach, operands.len());
    let fixed = match &args.reference {
        None => 0,
        Some(reference) => match changer.reference(reference)? {
            Reference::Volume(found) => found.mode,
            Reference::Host(found) => found.mode() & 0o7777,
        },
    };
    let umask = umask(globals);
    changer.run(
        &operands,
        |_, _| Ok(Missing::Change),
        |changer, found| {
            let before = found.before.mode;
            if found.before.kind == FileKind::Symlink {
                return Ok(());
            }
            let is_directory = found.before.kind == FileKind::Directory;
            let mode = mode.as_ref().map_or(fixed, |mode| mode.of(before, is_directory, umask));
            changer.set(found, &SetAttributes::new().mode(mode))?;
            tell(changer, found, args.report, mode)
        },
    )
}

fn tell(changer: &mut Changer<'_>, found: &Found<'_>, report: ReportArgs, mode: u32) -> Result<(), CliError> {
    let before = found.before.mode;
    if !report.tells(mode != before) {
        return Ok(());
    }
    let shown = |mode| format!("{mode:04o} ({})", &mode_string(found.before.kind, mode)[1..]);
    let after = match mode == before {
        true => format!("retained as {}", shown(mode)),
        false => format!("changed from {} to {}", shown(before), shown(mode)),
    };
    changer.line("mode of", found, &after)
}
