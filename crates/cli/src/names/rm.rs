//! `uext4 rm`.

use super::{Changes, tree};
use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::Operand;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::{Error, FileKind};

/// `uext4 rm`.
#[derive(Args)]
pub struct RmArgs {
    /// The files. A symbolic link is removed, not its target.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Remove directories with everything in them. The root directory is never removed.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Remove empty directories too.
    #[arg(short, long)]
    pub dir: bool,
    /// Ignore missing files silently.
    #[arg(short = 'f', long = "ignore-missing")]
    pub ignore_missing: bool,
    /// Print a line for each file.
    #[arg(short, long)]
    pub verbose: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Runs it.
pub fn run(args: &RmArgs, globals: &Globals) -> Result<(), CliError> {
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

fn one(changes: &mut Changes<'_>, operand: &Operand, args: &RmArgs) -> Result<(), CliError> {
    let volume = changes.volume(operand)?;
    let path = operand.inner();
    let directory = match volume.symlink_metadata(path) {
        Err(Error::NotFound) if args.ignore_missing => return Ok(()),
        // A damaged inode is reported by the removal.
        found => found.is_ok_and(|found| found.kind == FileKind::Directory),
    };
    if !directory || !(args.recursive || args.dir) {
        volume.remove_file(path).map_err(|error| operand.error(error))?;
        changes.done("removed ", &operand.argument);
        return Ok(());
    }
    if !args.recursive {
        volume.remove_dir(path).map_err(|error| operand.error(error))?;
        changes.done("removed directory ", &operand.argument);
        return Ok(());
    }
    // Of the path as it was typed: `Path` leaves `.` out.
    let last = operand.path.split(|&byte| byte == b'/').rfind(|name| !name.is_empty());
    if matches!(last, None | Some(b"." | b"..")) {
        let reason = "the root directory, `.` and `..` are not removed";
        return Err(CliError::failed(&operand.argument, reason, libc::EINVAL));
    }
    let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    let parent = volume.node_at(path.parent().unwrap_or(Path::new("/")), true);
    let parent = parent.map_err(|error| operand.error(error))?;
    tree::remove(changes, operand, &parent, name)
}
