//! `uext4 cp`: copies files and trees out of volumes, into them, and within them.

mod into;
mod keep;

use crate::args::{CommonArgs, Globals, SwitchArgs, choice};
use crate::cat::Volumes;
use crate::error::{CliError, Failures, told};
use crate::open::{OpenHow, Operand, process_umask};
use crate::out::{Elements, Out};
use crate::progress::{BYTES, OPEN_ENDED, Progress};
use crate::text::{self, JsonBytes};
use clap::{Args, ValueHint};
use keep::Kept;
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::{DeviceSpec, Target};
use uext4_transfer::{Error, Export, Follow, Holes, Observer};

/// `uext4 cp`.
#[derive(Args)]
#[command(
    args_override_self = true,
    override_usage = "uext4 cp [OPTIONS] DEVICE:/path... HOSTPATH
       uext4 cp [OPTIONS] PATH... DEVICE:/path
       uext4 cp [OPTIONS] -t DIRECTORY PATH..."
)]
pub struct CpArgs {
    /// Sources, then the destination: DEVICE:/path … HOSTPATH, or HOSTPATH|DEVICE:/path … DEVICE:/path. Without
    /// -p or -a, what is created in a volume gets the permissions of its source, less the umask, and belongs to
    /// the user who runs this. An existing file of a volume is replaced once the last byte of the new one is
    /// written: if anything fails, the old one stays. The new one keeps its owner, permissions and attributes,
    /// but not its other hard links. Without -r, pipes and devices of the host are read to their end, and `-`
    /// is standard input.
    #[arg(value_name = "PATH", required = true, num_args = 1.., value_hint = ValueHint::FilePath)]
    pub paths: Vec<OsString>,
    /// Copy directories with everything in them: pipes, sockets and device nodes too (to the host, nodes only
    /// as root), and, without -L, symbolic links as links. What cannot be copied is reported, and the copy goes
    /// on. On the host, a destination file with other hard links is recreated, and a hard link that cannot be
    /// created becomes a separate file. Files copied from another source of the same command are kept, and so
    /// is the image of a volume.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// What is kept, and which links are followed.
    #[command(flatten)]
    pub kept: Kept,
    /// Which zeros become holes.
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    #[arg(value_parser = choice([
        ("auto", Holes::Source, "Holes and unwritten ranges of the source"),
        ("always", Holes::Zeros, "Blocks of zeros too"),
        ("never", Holes::None, "None: all zeros are written"),
    ]))]
    pub sparse: Holes,
    /// Copy all PATHs into this directory of the host or of a volume.
    #[arg(short, long, value_name = "DIRECTORY", value_hint = ValueHint::AnyPath)]
    pub target_directory: Option<OsString>,
    /// The destination is a name, even that of a directory: a directory is copied onto it, not into it.
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
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
    /// Into a volume: everything that is copied belongs to this user and group, with -p and -a too.
    #[arg(long, value_name = "UID:GID")]
    pub owner: Option<String>,
    /// Into a volume: leave existing files as they are.
    #[arg(short = 'n', long)]
    pub no_clobber: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to read.
    #[command(flatten)]
    pub switches: SwitchArgs,
}

impl CpArgs {
    fn trees(&self) -> bool {
        self.recursive || self.kept.archive
    }

    /// As in cp(1): without an option, links are followed unless the copy is recursive.
    fn follow(&self) -> Follow {
        self.kept.follow.unwrap_or(if self.trees() { Follow::Never } else { Follow::All })
    }

    /// The destination, and the sources.
    fn destination(&self) -> Result<(&OsString, &[OsString]), CliError> {
        match (&self.target_directory, self.paths.split_last()) {
            (Some(_), _) if self.no_target_directory => Err(CliError::usage("-t and -T exclude each other")),
            (Some(directory), _) => Ok((directory, &self.paths)),
            (None, None | Some((_, []))) => Err(CliError::usage("cp needs a source and a destination")),
            (None, Some((_, [_, _, ..]))) if self.no_target_directory => {
                Err(CliError::usage("with -T there is one source and one destination"))
            }
            (None, Some(both)) => Ok(both),
        }
    }
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
    let (dest, sources) = args.destination()?;
    if Target::has_inner_path(dest.as_bytes()) {
        return into::run(args, sources, &Operand::parse(dest)?, globals);
    }
    if globals.watchers.rehearsal.is_some() {
        return Err(CliError::usage(
            "explain rehearses copies into volumes only: the destination must be DEVICE:/path",
        ));
    }
    let only_into =
        [("--in-place", args.in_place), ("--owner", args.owner.is_some()), ("-n", args.no_clobber)];
    if let Some((option, _)) = only_into.into_iter().find(|(_, given)| *given) {
        return Err(CliError::usage(format!(
            "{option} is for copies into a volume: the destination must be DEVICE:/path"
        )));
    }
    refuse_host_sources(sources)?;
    // A source named twice is copied once.
    let mut named = HashSet::new();
    let once = sources.iter().filter(|source| named.insert(*source));
    let operands = once.map(|source| Operand::parse(source)).collect::<Result<Vec<_>, _>>()?;
    let specs: Vec<&DeviceSpec> = operands.iter().map(|operand| &operand.spec).collect();
    let mut export = export(args, dest, &specs).map_err(|error| told(error, |_source| dest.clone()))?;
    let trees = args.trees();
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

fn export(args: &CpArgs, dest: &OsStr, sources: &[&DeviceSpec]) -> uext4_transfer::Result<Export> {
    let export = Export::new(Path::new(dest), sources, args.kept.keep)?.force(args.replace);
    let export = export.holes(args.sparse).follow(args.follow()).umask(process_umask());
    match (&args.target_directory, args.no_target_directory) {
        (Some(_), _) => export.into_directory(),
        (None, true) => Ok(export.plain()),
        (None, false) => Ok(export),
    }
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
