//! `uext4 cp`: out of a volume, and single files into one.

use crate::args::{CommonArgs, Globals, SwitchArgs};
use crate::cat::Volumes;
use crate::error::{CliError, Troubles, told};
use crate::open::{How, Operand};
use crate::progress::{BYTES, OPEN_ENDED, Progress};
use crate::text;
use clap::{Args, ValueHint};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::{DeviceSpec, FileKind, Target};
use uext4_transfer::{Devices, Error, Export, Keep, Observer};

/// `uext4 cp`.
#[derive(Args)]
#[command(
    override_usage = "uext4 cp [OPTIONS] DEVICE:/path... HOSTPATH\n       uext4 cp HOSTPATH... DEVICE:/path"
)]
pub struct CpArgs {
    /// What to copy, then where: DEVICE:/path … HOSTPATH. Holes and unwritten ranges become holes. Into a volume
    /// (HOSTPATH … DEVICE:/path) go new regular files, with their permissions; they belong to who runs this.
    #[arg(value_name = "PATH", required = true, num_args = 2.., value_hint = ValueHint::FilePath)]
    pub paths: Vec<OsString>,
    /// Directories with everything in them, symbolic links as links, hard links, pipes, sockets and (as root)
    /// device nodes too. What cannot be copied is told, and the rest goes on. A file that has other names on the
    /// host is made anew; what came from another source of the same command is kept, and so is the image of a
    /// source. A name that the host makes no link of is told, and becomes a file of its own.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// The same, and keep what -p keeps and extended attributes.
    #[arg(short, long)]
    pub archive: bool,
    /// Keep times to the nanosecond, all mode bits, access control lists and, as root, the owner.
    #[arg(short)]
    pub preserve: bool,
    /// How to open, and in which form.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to read.
    #[command(flatten)]
    pub switches: SwitchArgs,
}

/// Shows how a copy goes on, and tells what it could not copy.
struct Watch<'a, 'g> {
    operand: &'a Operand,
    troubles: &'a mut Troubles<'g>,
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
        self.troubles.tell(&told(error, |path| self.operand.below(path)));
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
    refuse_host_sources(sources)?;
    // What is named twice is copied once.
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
    let mut export = export.map_err(|error| told(error, |_source| dest.clone()))?;
    let trees = args.recursive || args.archive;
    let open = if trees { How::walking } else { How::reading };
    let how = open(globals, args.common.force, args.switches.switches);
    let mut volumes = Volumes::default();
    let mut troubles = globals.troubles();
    for operand in &operands {
        let mut one = || {
            let volume = volumes.get(operand, &how)?;
            let mut watch = Watch { operand, troubles: &mut troubles, progress: None };
            let copy = if trees { Export::tree } else { Export::file };
            let done = copy(&mut export, &volume, operand.inner(), &mut watch);
            done.map_err(|error| told(error, |path| operand.below(path)))
        };
        let done = one();
        troubles.one_of(operands.len(), done)?;
    }
    troubles.finish()
}

/// Copies files of the host into a volume.
fn import(args: &CpArgs, sources: &[OsString], dest: &Operand, globals: &Globals) -> Result<(), CliError> {
    if args.recursive || args.archive || args.preserve {
        let reason = "trees, times and attributes cannot be copied into a volume: that is not supported yet";
        return Err(CliError::unsupported(&dest.argument, reason));
    }
    if let Some(source) = sources.iter().find(|source| Target::has_inner_path(source.as_bytes())) {
        return Err(CliError::unsupported(source, "copying from volume to volume is not supported yet"));
    }
    let devices = Devices::of(std::slice::from_ref(&dest.spec));
    if let Some(source) = sources.iter().find(|source| devices.are_at(Path::new(source))) {
        let source = text::visible(source.as_bytes());
        return Err(CliError::usage(format!("{source} is the device itself")));
    }
    let how = How { write: true, ..How::reading(globals, args.common.force, args.switches.switches) };
    let mut volumes = Volumes::default();
    let volume = volumes.get(dest, &how)?;
    let into = volume.metadata(dest.inner()).is_ok_and(|found| found.kind == FileKind::Directory);
    if !into && sources.len() > 1 {
        return Err(CliError::failed(&dest.argument, "not a directory", libc::ENOTDIR));
    }
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut troubles = globals.troubles();
    for source in sources {
        let name = Path::new(source).file_name().filter(|_| into);
        let path = name.map_or_else(|| dest.path.clone(), |name| dest.inside(name.as_bytes()));
        let named = name.map_or_else(|| dest.argument.clone(), |name| dest.below(name.as_bytes()));
        let total = std::fs::metadata(source).map_or(0, |found| found.len());
        let mut progress = Progress::new(BYTES, text::visible(source.as_bytes()), total, true);
        let path = Path::new(OsStr::from_bytes(&path));
        let advance = &mut |bytes| progress.advance(bytes);
        let done = uext4_transfer::import(Path::new(source), &volume, path, owner, advance);
        drop(progress);
        let done = done.map(drop).map_err(|error| told(error, |_dest| named.clone()));
        troubles.one_of(sources.len(), done)?;
    }
    drop(volume);
    volumes.close()?;
    troubles.finish()
}

/// From host to host is not for us.
fn refuse_host_sources(sources: &[OsString]) -> Result<(), CliError> {
    match sources.iter().find(|source| !Target::has_inner_path(source.as_bytes())) {
        None => Ok(()),
        Some(source) => Err(CliError::usage(format!(
            "`{}` names no file of a volume: a source is DEVICE:/path",
            text::visible(source.as_bytes())
        ))),
    }
}
