//! `uext4 cp`: copies files and trees out of a volume, and single files into one.

use crate::args::{CommonArgs, Globals, SwitchArgs};
use crate::cat::Volumes;
use crate::error::{CliError, Failures, told};
use crate::open::{OpenHow, Operand, new_mode, owner};
use crate::out::{Elements, Out};
use crate::progress::{BYTES, OPEN_ENDED, Progress};
use crate::text::{self, JsonBytes};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File as HostFile;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::{DeviceSpec, FileKind, Target};
use uext4_transfer::{Dest, Devices, Error, Export, Keep, Observer, Onto};

/// `uext4 cp`.
#[derive(Args)]
#[command(
    override_usage = "uext4 cp [OPTIONS] DEVICE:/path... HOSTPATH\n       uext4 cp [OPTIONS] HOSTPATH... DEVICE:/path"
)]
pub struct CpArgs {
    /// Sources, then the destination: DEVICE:/path … HOSTPATH. Holes and unwritten ranges become holes. Only regular
    /// files are copied into a volume (HOSTPATH … DEVICE:/path). A new file gets the permissions of its source and
    /// belongs to the user who runs this. An existing file is replaced once the last byte of the new one is written: if
    /// anything fails, the old one stays. The new one keeps its owner, permissions and attributes, but not its other
    /// hard links.
    /// Pipes and devices of the host are read to their end, and `-` is standard input.
    #[arg(value_name = "PATH", required = true, num_args = 2.., value_hint = ValueHint::FilePath)]
    pub paths: Vec<OsString>,
    /// Copy directories with everything in them: symbolic links as links, hard links, pipes, sockets and (as root)
    /// device nodes too. What cannot be copied is reported, and the copy goes on. A destination file with other hard
    /// links on the host is recreated; files copied from another source of the same command are kept, and so is the
    /// image of a source. A hard link that the host cannot create is reported, and becomes a separate file.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Same as -r, and keep what -p keeps and extended attributes.
    #[arg(short, long)]
    pub archive: bool,
    /// Keep times to the nanosecond, all mode bits, access control lists and, as root, the owner.
    #[arg(short)]
    pub preserve: bool,
    /// If a file of the host cannot be opened for writing, remove and recreate it.
    #[arg(short = 'f')]
    pub replace: bool,
    /// Print each source and its destination.
    #[arg(short, long)]
    pub verbose: bool,
    /// Into a volume: overwrite the existing file instead of replacing it, after checking that there is room. It keeps
    /// its inode, all its hard links and its attributes. If the copy then fails or the machine crashes, the file holds
    /// part of the new contents.
    #[arg(long)]
    pub in_place: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to read.
    #[command(flatten)]
    pub switches: SwitchArgs,
}

/// One copied file in JSON.
#[derive(Serialize)]
struct JsonCopy<'a> {
    #[serde(flatten)]
    source: JsonBytes<'a>,
    #[serde(flatten)]
    dest: JsonBytes<'a>,
}

/// What `-v` prints.
struct Verbose {
    wanted: bool,
    json: bool,
    out: Out,
    list: Elements,
    /// If standard output fails, the copy goes on.
    failed: Option<CliError>,
}

impl Verbose {
    fn new(args: &CpArgs, globals: &Globals) -> Self {
        let json = globals.json;
        let list = Elements::new(json && args.verbose);
        Verbose { wanted: args.verbose, json, out: Out::new(), list, failed: None }
    }

    fn copying(&mut self, source: &OsStr, dest: &OsStr) {
        if !self.wanted || self.failed.is_some() {
            return;
        }
        let (source, dest) = (source.as_bytes(), dest.as_bytes());
        let said = if self.json {
            let (source, dest) = (JsonBytes("source", Some(source)), JsonBytes("dest", Some(dest)));
            self.list.element(&mut self.out, &JsonCopy { source, dest })
        } else {
            self.line(source, dest)
        };
        self.failed = said.err();
    }

    /// As cp(1) prints it.
    fn line(&mut self, source: &[u8], dest: &[u8]) -> Result<(), CliError> {
        self.out.bytes(b"'")?;
        self.out.name(source)?;
        self.out.bytes(b"' -> '")?;
        self.out.name(dest)?;
        self.out.bytes(b"'")?;
        self.out.line_end()
    }

    fn finish(mut self) -> Result<(), CliError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        self.list.end(&mut self.out)?;
        self.out.finish()
    }
}

/// Shows the progress of a copy, and reports what could not be copied.
struct Watch<'a, 'g> {
    operand: &'a Operand,
    failures: &'a mut Failures<'g>,
    verbose: &'a mut Verbose,
    progress: Option<Progress>,
}

impl Observer for Watch<'_, '_> {
    fn begin(&mut self, total: Option<u64>) {
        let label = text::visible(&self.operand.path);
        let template = if total.is_some() { BYTES } else { OPEN_ENDED };
        self.progress = Some(Progress::new(template, label, total.unwrap_or(0), true));
    }

    fn advance(&mut self, bytes: u64) {
        self.progress.iter_mut().for_each(|progress| progress.advance(bytes));
    }

    fn trouble(&mut self, error: Error) {
        self.failures.tell(&told(error, |path| self.operand.below(path)));
    }

    fn copying(&mut self, source: &[u8], dest: &Path) {
        let source = match source {
            b"" => self.operand.argument.clone(),
            below => self.operand.below(below),
        };
        self.verbose.copying(&source, dest.as_os_str());
    }
}

/// Runs it.
pub fn run(args: &CpArgs, globals: &Globals) -> Result<(), CliError> {
    let Some((dest, sources)) = args.paths.split_last() else {
        return Err(CliError::usage("cp needs a source and a destination"));
    };
    if Target::has_inner_path(dest.as_bytes()) {
        return import(args, sources, &Operand::parse(dest)?, globals);
    }
    if args.in_place {
        return Err(CliError::usage(
            "--in-place is for copies into a volume: the last PATH must be DEVICE:/path",
        ));
    }
    refuse_host_sources(sources)?;
    // A source named twice is copied once.
    let mut named = HashSet::new();
    let once = sources.iter().filter(|source| named.insert(*source));
    let operands = once.map(|source| Operand::parse(source)).collect::<Result<Vec<_>, _>>()?;
    let keep = match (args.archive, args.preserve) {
        (true, _) => Keep::Everything,
        (false, true) => Keep::Attributes,
        (false, false) => Keep::Nothing,
    };
    let specs: Vec<&DeviceSpec> = operands.iter().map(|operand| &operand.spec).collect();
    let export = Export::new(Path::new(dest), &specs, keep);
    let mut export = export.map_err(|error| told(error, |_source| dest.clone()))?.force(args.replace);
    let trees = args.recursive || args.archive;
    let open = if trees { OpenHow::walking } else { OpenHow::reading };
    let how = open(globals, args.common.force, args.switches.switches);
    let mut volumes = Volumes::default();
    let (mut failures, mut verbose) = (globals.failures(), Verbose::new(args, globals));
    for operand in &operands {
        let mut one = || {
            let volume = volumes.get(operand, &how)?;
            let (failures, verbose) = (&mut failures, &mut verbose);
            let mut watch = Watch { operand, failures, verbose, progress: None };
            let copy = if trees { Export::tree } else { Export::file };
            let done = copy(&mut export, &volume, operand.inner(), &mut watch);
            done.map_err(|error| told(error, |path| operand.below(path)))
        };
        let done = one();
        failures.one_of(operands.len(), done)?;
    }
    verbose.finish()?;
    failures.finish()
}

/// Added to the error of a copy that found no room beside the old file.
const IN_PLACE: &str = "the old file is unchanged; --in-place needs no room for both";

/// Copies files of the host into a volume.
fn import(args: &CpArgs, sources: &[OsString], dest: &Operand, globals: &Globals) -> Result<(), CliError> {
    if args.recursive || args.archive || args.preserve {
        let reason = "only the contents of files are copied into a volume: no trees, times or attributes";
        return Err(CliError::unsupported(&dest.argument, reason));
    }
    if let Some(source) = sources.iter().find(|source| Target::has_inner_path(source.as_bytes())) {
        let reason = "files are not copied from volume to volume: copy them to the host first";
        return Err(CliError::unsupported(source, reason));
    }
    let devices = Devices::of(std::slice::from_ref(&dest.spec));
    let opened = |source: &OsString| if source == STDIN { "/dev/stdin".into() } else { source.clone() };
    if let Some(source) = sources.iter().find(|source| devices.are_at(Path::new(&opened(source)))) {
        let source = text::visible(source.as_bytes());
        return Err(CliError::usage(format!("{source} is the device itself")));
    }
    let how = OpenHow { write: true, ..OpenHow::reading(globals, args.common.force, args.switches.switches) };
    let mut volumes = Volumes::default();
    let volume = volumes.get(dest, &how)?;
    let into = volume.metadata(dest.inner()).is_ok_and(|found| found.kind == FileKind::Directory);
    if !into && sources.len() > 1 {
        return Err(CliError::failed(&dest.argument, "not a directory", libc::ENOTDIR));
    }
    if into && sources.iter().any(|source| source == STDIN) {
        return Err(CliError::usage("standard input has no name: name the destination file"));
    }
    let owner = owner();
    let onto = if args.in_place { Onto::InPlace } else { Onto::Replaced };
    let (mut failures, mut verbose) = (globals.failures(), Verbose::new(args, globals));
    for source in sources {
        let name = Path::new(source).file_name().filter(|_| into);
        let path = name.map_or_else(|| dest.path.clone(), |name| dest.inside(name.as_bytes()));
        let named = name.map_or_else(|| dest.argument.clone(), |name| dest.below(name.as_bytes()));
        verbose.copying(source, &named);
        let path = Path::new(OsStr::from_bytes(&path));
        let done = import_one(source, &Dest { volume: &volume, path, owner, onto })?;
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
    Ok(uext4_transfer::import_stream(name, &stdin, new_mode(), dest, advance).map(drop))
}

/// Refuses a copy from host to host.
fn refuse_host_sources(sources: &[OsString]) -> Result<(), CliError> {
    match sources.iter().find(|source| !Target::has_inner_path(source.as_bytes())) {
        None => Ok(()),
        Some(source) => Err(CliError::usage(format!(
            "`{}` names no file of a volume: a source must be DEVICE:/path",
            text::visible(source.as_bytes())
        ))),
    }
}
