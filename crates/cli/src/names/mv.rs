//! `uext4 mv`.

use super::{Changes, Dest, SAME, are_one_name, destination, named};
use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::Operand;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use uext4::{Error, FileKind, RenameFlags, Volume};

/// `uext4 mv`.
#[derive(Args)]
#[command(override_usage = "uext4 mv [OPTIONS] DEVICE:/path... DEVICE:/path")]
pub struct MvArgs {
    /// Sources, then the new name, or the directory that they move into. All are on one volume. An existing file is
    /// replaced; a directory replaces only an empty one.
    #[arg(value_name = "DEVICE:/path", required = true, num_args = 2.., value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Skip a source silently if its new name exists.
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Replace existing files without asking, as always.
    #[arg(short = 'f', hide_short_help = true)]
    pub replace: bool,
    /// Treat the last operand as a name, even if it leads to a directory.
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Let the source and the new name, which must exist, change places.
    #[arg(long, conflicts_with = "no_clobber")]
    pub exchange: bool,
    /// Print a line for each source.
    #[arg(short, long)]
    pub verbose: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Runs it.
pub fn run(args: &MvArgs, globals: &Globals) -> Result<(), CliError> {
    let operands =
        args.operands.iter().map(|operand| Operand::parse(operand)).collect::<Result<Vec<_>, _>>()?;
    let Some((dest, sources)) = operands.split_last() else {
        return Err(CliError::usage("mv needs a source and a destination"));
    };
    let mut changes = Changes::new(globals, args.verbose, args.common.force);
    let mut all = || {
        let into = destination(&mut changes, dest, sources.len(), args.no_target_directory)?;
        for source in sources {
            let done = one(&mut changes, source, dest, into, args);
            changes.one_of(sources.len(), done)?;
        }
        Ok(())
    };
    let ended = all();
    changes.finish(ended)
}

fn one(
    changes: &mut Changes<'_>,
    source: &Operand,
    dest: &Operand,
    into: bool,
    args: &MvArgs,
) -> Result<(), CliError> {
    let ((one, volume), (other, _)) = (changes.numbered(source)?, changes.numbered(dest)?);
    if one != other {
        return Err(CliError::unsupported(&source.argument, "another volume than the destination: use cp"));
    }
    let new = named(dest, into, source.inner().file_name())?;
    if are_one_file(&volume, source, &new, args)? {
        return Ok(());
    }
    let flags = match (args.exchange, args.no_clobber) {
        (true, _) => RenameFlags::EXCHANGE,
        (false, true) => RenameFlags::NOREPLACE,
        (false, false) => RenameFlags::empty(),
    };
    match volume.rename_with(source.inner(), new.path(), flags) {
        Err(Error::Exists) if args.no_clobber => return Ok(()),
        // Of the two names only one can be the reason: the source exists, it was looked up.
        Err(error @ (Error::NotFound | Error::NotEmpty | Error::Exists)) => {
            return Err(CliError::at(&new.shown, error));
        }
        Err(error) => return Err(source.error(error)),
        Ok(()) => {}
    }
    let (before, between) = if args.exchange { ("exchanged ", " <-> ") } else { ("renamed ", " -> ") };
    changes.step(before, [("source", &source.argument), ("dest", &new.shown)], between);
    Ok(())
}

/// Whether the source is done already, because the new name leads to the same inode: a rename does nothing then. Of two
/// hard links, mv(1) removes the source; two spellings of one name are an error.
fn are_one_file(volume: &Volume, source: &Operand, new: &Dest, args: &MvArgs) -> Result<bool, CliError> {
    let old = volume.symlink_metadata(source.inner()).map_err(|error| source.error(error))?;
    match volume.symlink_metadata(new.path()) {
        Ok(found) if found.ino == old.ino => {}
        _ => return Ok(false),
    }
    if args.no_clobber {
        return Ok(true);
    }
    if are_one_name(volume, source.inner(), new.path()) || old.kind == FileKind::Directory || args.exchange {
        return Err(CliError::failed(&source.argument, SAME, libc::EINVAL));
    }
    volume.remove_file(source.inner()).map_err(|error| source.error(error))?;
    Ok(true)
}
