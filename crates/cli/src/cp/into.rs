//! Copies into a volume: single files by their contents, trees with everything in them.

use super::{CpArgs, Verbose};
use crate::args::Globals;
use crate::attributes::chown;
use crate::cat::Volumes;
use crate::error::{CliError, Failures, told, told_of};
use crate::open::{OpenHow, Operand, owner, umask};
use crate::progress::{BYTES, OPEN_ENDED, Progress};
use crate::text;
use std::ffi::{OsStr, OsString};
use std::fs::File as HostFile;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::{Caller, FileKind, Target};
use uext4_transfer::{Dest, Devices, Error, Follow, From, Import, ImportOptions, Keep, Observer, Onto};

/// Copies files and trees of the host or of volumes into a volume.
pub fn run(args: &CpArgs, sources: &[OsString], dest: &Operand, globals: &Globals) -> Result<(), CliError> {
    let devices = Devices::of(std::slice::from_ref(&dest.spec));
    let opened = |source: &OsString| if source == STDIN { "/dev/stdin".into() } else { source.clone() };
    let on_host = |source: &&OsString| !Target::has_inner_path(source.as_bytes());
    if let Some(source) =
        sources.iter().filter(on_host).find(|source| devices.are_at(Path::new(&opened(source))))
    {
        let source = text::visible(source.as_bytes());
        return Err(CliError::usage(format!("{source} is the device itself")));
    }
    let contents = !args.trees()
        && args.kept.keep == Keep::NOTHING
        && args.follow() != Follow::Never
        && args.owner.is_none()
        && !args.no_clobber;
    if contents && sources.iter().all(|source| on_host(&source)) {
        return files(args, sources, dest, globals);
    }
    if sources.iter().any(|source| source == STDIN) {
        return Err(CliError::usage("standard input has no attributes and no tree: copy it by itself"));
    }
    trees(args, sources, dest, devices, globals)
}

/// Copies what has attributes, or more than contents.
fn trees(
    args: &CpArgs,
    sources: &[OsString],
    dest: &Operand,
    devices: Devices,
    globals: &Globals,
) -> Result<(), CliError> {
    let reading = OpenHow::reading(globals, args.common.force, args.switches.switches);
    let writing =
        OpenHow { write: true, ..OpenHow::reading(globals, args.common.force, args.switches.switches) };
    let (uid, gid) = owner(globals);
    let options = ImportOptions {
        recursive: args.trees(),
        follow: args.follow(),
        holes: args.sparse,
        plain: args.no_target_directory,
        keep: args.kept.keep,
        caller: Caller::new(uid, gid).umask(umask(globals)),
        owner: args.owner.as_deref().map(chown::both).transpose()?,
        onto: onto(args),
        no_clobber: args.no_clobber,
    };
    let mut volumes = Volumes::default();
    let volume = volumes.get(dest, &writing)?;
    let (mut failures, mut verbose) = (globals.failures(), Verbose::new(args, globals));
    let several = sources.len() > 1 || args.target_directory.is_some();
    let mut import = Import::new(&volume, dest.inner(), several, devices, options)
        .map_err(|error| told(error, |path| dest.below(path)))?;
    for source in sources {
        let mut one = || {
            let operand = match Target::has_inner_path(source.as_bytes()) {
                true => Some(Operand::parse(source)?),
                false => None,
            };
            let from = operand.as_ref().map(|operand| volumes.get(operand, &reading)).transpose()?;
            let from = match (&operand, &from) {
                (Some(operand), Some(volume)) => From::Volume(volume, operand.inner()),
                _ => From::Host(Path::new(source)),
            };
            let (failures, verbose) = (&mut failures, &mut verbose);
            let names = Names { source, operand: operand.as_ref(), dest };
            let mut watch = Watch { names: &names, failures, verbose, progress: None };
            import.copy(from, &mut watch).map_err(|error| names.told(error))
        };
        let done = one();
        failures.one_of(sources.len(), done)?;
    }
    drop(import);
    drop(volume);
    volumes.close()?;
    verbose.finish()?;
    failures.finish()
}

/// How messages call sources and copies.
struct Names<'a> {
    source: &'a OsStr,
    /// The source, if it is in a volume.
    operand: Option<&'a Operand>,
    dest: &'a Operand,
}

impl Names<'_> {
    fn source(&self, below: &[u8]) -> OsString {
        match (self.operand, below) {
            (Some(operand), b"") => operand.argument.clone(),
            (Some(operand), below) => operand.below(below),
            (None, b"") => self.source.to_owned(),
            (None, below) => Path::new(self.source).join(OsStr::from_bytes(below)).into(),
        }
    }

    fn copy(&self, below: &[u8]) -> OsString {
        if below.is_empty() { self.dest.argument.clone() } else { self.dest.below(below) }
    }

    fn told(&self, error: Error) -> CliError {
        told_of(error, |path| self.source(path), |path| self.copy(path))
    }
}

/// Shows the progress of a copy, and reports what could not be copied.
struct Watch<'a, 'g> {
    names: &'a Names<'a>,
    failures: &'a mut Failures<'g>,
    verbose: &'a mut Verbose,
    progress: Option<Progress>,
}

impl Observer for Watch<'_, '_> {
    fn begin(&mut self, total: Option<u64>) {
        let label = text::visible(self.names.source.as_bytes());
        let template = if total.is_some() { BYTES } else { OPEN_ENDED };
        self.progress = Some(Progress::new(template, label, total.unwrap_or(0), true));
    }

    fn advance(&mut self, bytes: u64) {
        self.progress.iter_mut().for_each(|progress| progress.advance(bytes));
    }

    fn trouble(&mut self, error: Error) {
        self.failures.tell(&self.names.told(error));
    }

    fn copying(&mut self, source: &[u8], dest: &Path) {
        self.verbose.copying(&self.names.source(source), &self.names.copy(dest.as_os_str().as_bytes()));
    }
}

fn onto(args: &CpArgs) -> Onto {
    if args.in_place { Onto::InPlace } else { Onto::Replaced }
}

/// Added to the error of a copy that found no room beside the old file.
const IN_PLACE: &str = "the old file is unchanged; --in-place needs no room for both";

/// Copies the contents of files of the host.
fn files(args: &CpArgs, sources: &[OsString], dest: &Operand, globals: &Globals) -> Result<(), CliError> {
    let how = OpenHow { write: true, ..OpenHow::reading(globals, args.common.force, args.switches.switches) };
    let mut volumes = Volumes::default();
    let volume = volumes.get(dest, &how)?;
    let into = volume.metadata(dest.inner()).is_ok_and(|found| found.kind == FileKind::Directory);
    if !into && (sources.len() > 1 || args.target_directory.is_some()) {
        return Err(CliError::failed(&dest.argument, "not a directory", libc::ENOTDIR));
    }
    let into = into && !args.no_target_directory;
    if into && sources.iter().any(|source| source == STDIN) {
        return Err(CliError::usage("standard input has no name: name the destination file"));
    }
    let (owner, umask, onto) = (owner(globals), umask(globals), onto(args));
    let (mut failures, mut verbose) = (globals.failures(), Verbose::new(args, globals));
    for source in sources {
        let name = Path::new(source).file_name().filter(|_| into);
        let path = name.map_or_else(|| dest.path.clone(), |name| dest.inside(name.as_bytes()));
        let named = name.map_or_else(|| dest.argument.clone(), |name| dest.below(name.as_bytes()));
        verbose.copying(source, &named);
        let path = Path::new(OsStr::from_bytes(&path));
        let done =
            import_one(source, &Dest { volume: &volume, path, owner, umask, onto, holes: args.sparse })?;
        let replaces = onto == Onto::Replaced && volume.metadata(path).is_ok();
        let done = done.map_err(|error| match error.errno() {
            libc::ENOSPC if replaces => told(error, |_dest| named.clone()).with(IN_PLACE),
            _ => told(error, |_dest| named.clone()),
        });
        failures.one_of(sources.len(), done)?;
    }
    drop(volume);
    volumes.close()?;
    verbose.finish()?;
    failures.finish()
}

/// Whether the argument means standard input.
const STDIN: &str = "-";

/// Copies one file of the host, or standard input; the inner result is that of the copy.
fn import_one(source: &OsStr, dest: &Dest<'_>) -> Result<uext4_transfer::Result<()>, CliError> {
    if source != STDIN {
        let regular = std::fs::metadata(source).ok().filter(|found| found.is_file());
        let template = if regular.is_some() { BYTES } else { OPEN_ENDED };
        let total = regular.map_or(0, |found| found.len());
        let mut progress = Progress::new(template, text::visible(source.as_bytes()), total, true);
        let advance = &mut |bytes| progress.advance(bytes);
        return Ok(uext4_transfer::import(Path::new(source), dest, advance).map(drop));
    }
    let name = "standard input";
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let stdin = HostFile::from(stdin.map_err(|error| CliError::host(name.as_ref(), "duplicate", &error))?);
    let mut progress = Progress::new(OPEN_ENDED, name.into(), 0, true);
    let advance = &mut |bytes| progress.advance(bytes);
    let name = Path::new(name);
    Ok(uext4_transfer::import_stream(name, &stdin, 0o666 & !dest.umask, dest, advance).map(drop))
}
