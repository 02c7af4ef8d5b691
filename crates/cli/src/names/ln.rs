//! `uext4 ln`.

use super::{Changes, Dest, SAME, are_one_name, caller, destination, named};
use crate::args::{CommonArgs, Globals};
use crate::error::CliError;
use crate::open::Operand;
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use uext4::{Caller, Error, FileKind, Volume};

const USAGE: &str = "\
uext4 ln [OPTIONS] DEVICE:/path... DEVICE:/path
       uext4 ln -s [OPTIONS] TARGET... DEVICE:/path";

/// `uext4 ln`.
#[derive(Args)]
#[command(override_usage = USAGE)]
pub struct LnArgs {
    /// The files that get another name, or with -s the targets as the links will hold them (they need not exist, and
    /// name no device); then the new name, or the directory for the new names.
    #[arg(value_name = "PATH", required = true, num_args = 2.., value_hint = ValueHint::FilePath)]
    pub words: Vec<OsString>,
    /// Make symbolic links.
    #[arg(short, long)]
    pub symbolic: bool,
    /// Replace an existing file. At any moment its name leads to the old file or to the new one.
    #[arg(short = 'f')]
    pub replace: bool,
    /// Treat the last operand as a name, even if it leads to a directory.
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// The same if it is a symbolic link to a directory.
    #[arg(short = 'n', long)]
    pub no_dereference: bool,
    /// Print a line for each link.
    #[arg(short, long)]
    pub verbose: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What a new name leads to.
enum Source<'a> {
    File(Box<Operand>),
    Target(&'a OsStr),
}

impl Source<'_> {
    fn shown(&self) -> &OsStr {
        match self {
            Source::File(operand) => &operand.argument,
            Source::Target(target) => target,
        }
    }

    fn name(&self) -> Option<&OsStr> {
        match self {
            Source::File(operand) => operand.inner().file_name(),
            Source::Target(target) => Path::new(target).file_name(),
        }
    }
}

/// Runs it.
pub fn run(args: &LnArgs, globals: &Globals) -> Result<(), CliError> {
    let Some((dest, words)) = args.words.split_last() else {
        return Err(CliError::usage("ln needs a file and a new name"));
    };
    let dest = Operand::parse(dest)?;
    let source = |word| match args.symbolic {
        true => Ok(Source::Target(word)),
        false => Operand::parse(word).map(|file| Source::File(Box::new(file))),
    };
    let sources = words.iter().map(|word| source(word)).collect::<Result<Vec<_>, _>>()?;
    let mut changes = Changes::new(globals, args.verbose, args.common.force);
    let caller = caller(globals);
    let mut all = || {
        let plain = args.no_target_directory || args.no_dereference && is_link(&mut changes, &dest)?;
        let into = destination(&mut changes, &dest, sources.len(), plain)?;
        for source in &sources {
            let done = one(&mut changes, source, &dest, into, args, &caller);
            changes.one_of(sources.len(), done)?;
        }
        Ok(())
    };
    let ended = all();
    changes.finish(ended)
}

fn is_link(changes: &mut Changes<'_>, dest: &Operand) -> Result<bool, CliError> {
    let found = changes.volume(dest)?.symlink_metadata(dest.inner());
    Ok(found.is_ok_and(|found| found.kind == FileKind::Symlink))
}

fn one(
    changes: &mut Changes<'_>,
    source: &Source<'_>,
    dest: &Operand,
    into: bool,
    args: &LnArgs,
    caller: &Caller,
) -> Result<(), CliError> {
    let (number, volume) = changes.numbered(dest)?;
    if let Source::File(file) = source {
        if changes.numbered(file)?.0 != number {
            return Err(CliError::unsupported(&file.argument, "another volume than the new name"));
        }
        let found = volume.symlink_metadata(file.inner()).map_err(|error| file.error(error))?;
        if found.kind == FileKind::Directory {
            let reason = "a directory has one name only: link it with -s";
            return Err(CliError::failed(&file.argument, reason, libc::EPERM));
        }
    }
    let new = named(dest, into, source.name())?;
    if let Source::File(file) = source
        && args.replace
        && are_one_name(&volume, file.inner(), new.path())
    {
        return Err(CliError::failed(&file.argument, SAME, libc::EINVAL));
    }
    match make(&volume, source, new.path(), caller) {
        Err(Error::Exists) if args.replace => replace(&volume, source, &new, caller),
        made => made,
    }
    .map_err(|error| CliError::at(&new.shown, error))?;
    let between = if args.symbolic { " -> " } else { " => " };
    changes.step("", [("link", &new.shown), ("target", source.shown())], between);
    Ok(())
}

fn make(volume: &Volume, source: &Source<'_>, path: &Path, caller: &Caller) -> uext4::Result<()> {
    match source {
        Source::File(operand) => volume.hard_link(operand.inner(), path),
        Source::Target(target) => volume.symlink(target, path, caller),
    }
}

/// Makes the link under a name of its own beside the existing one, which it then replaces.
fn replace(volume: &Volume, source: &Source<'_>, new: &Dest, caller: &Caller) -> uext4::Result<()> {
    let existing = volume.symlink_metadata(new.path())?;
    if existing.kind == FileKind::Directory {
        return Err(Error::IsDirectory);
    }
    let directory = new.path().parent().unwrap_or(Path::new("/"));
    for attempt in 0_u32.. {
        let name = format!(".uext4-ln-{attempt}");
        let beside = directory.join(OsString::from_vec(name.into_bytes()));
        match make(volume, source, &beside, caller) {
            Err(Error::Exists) => {}
            made => {
                made?;
                let renamed = volume.rename(&beside, new.path());
                // A rename onto another name of the same file does nothing.
                match volume.symlink_metadata(&beside) {
                    Ok(_) => renamed.and(volume.remove_file(&beside))?,
                    Err(_) => renamed?,
                }
                return Ok(());
            }
        }
    }
    Err(Error::Exists)
}
