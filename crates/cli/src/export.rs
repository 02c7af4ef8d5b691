//! `uext4 export`: a tree as an archive of tar, or what changed between two trees as a layer.

use crate::args::{CommonArgs, Globals, SwitchArgs};
use crate::attributes::chown;
use crate::cat::Volumes;
use crate::error::{self, CliError, told};
use crate::moment;
use crate::open::{OpenHow, Operand};
use crate::progress::{OPEN_ENDED, Progress};
use crate::text;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::fs::File as HostFile;
use std::io::{self, BufWriter, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uext4_transfer::{Error, Observer, PackOptions, Subject, pack, pack_changes};

/// Bytes of small writes that are joined.
const BUFFER: usize = 256 << 10;
/// Standard output as FILE.
const STDOUT: &str = "-";

/// `uext4 export`.
#[derive(Args)]
#[command(after_long_help = "\
The archive is in the POSIX format (pax), sorted by name, with owners by number, nanoseconds, hard links, holes (as GNU
tar's sparse format 1.0), device nodes, extended attributes and access control lists: GNU tar and bsdtar restore all
of that. The same tree makes the same bytes. A directory's paths begin below it. Sockets are left out.

With --diff the archive is a layer for an image of a container (OCI): what is in DEVICE:/path and not the same in the
other directory, and an empty file .wh.NAME for each NAME that only the other one has. Contents are compared byte by
byte where everything else is the same.")]
pub struct ExportArgs {
    /// The directory, or a single file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub operand: OsString,
    /// The archive, which is replaced; standard output by default.
    #[arg(value_name = "FILE", default_value = STDOUT, hide_default_value = true, value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Only what changed since this directory, of the same volume or of another one.
    #[arg(long, value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub diff: Option<OsString>,
    /// Owner and group of everything in the archive.
    #[arg(long, value_name = "UID:GID")]
    pub owner: Option<String>,
    /// Times of the last change that are later become this one. The default is SOURCE_DATE_EPOCH in the environment,
    /// seconds since 1970.
    #[arg(long, value_name = "TIME", value_parser = moment::parse_date)]
    pub time: Option<uext4::Time>,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to read.
    #[command(flatten)]
    pub switches: SwitchArgs,
}

/// The second since 1970 that times are not to be later than: that of the option, or `SOURCE_DATE_EPOCH`.
pub fn latest(time: Option<uext4::Time>) -> Result<Option<i64>, CliError> {
    match time {
        Some(uext4::Time::At(time)) => return Ok(Some(time.seconds)),
        Some(_) => return Err(CliError::usage("--time now makes no archive twice: name a time")),
        None => {}
    }
    let epoch = moment::source_date_epoch().map_err(CliError::usage)?;
    Ok(epoch.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX)))
}

/// Runs it.
pub fn run(args: &ExportArgs, globals: &Globals) -> Result<(), CliError> {
    let options = PackOptions {
        owner: args.owner.as_deref().map(chown::both).transpose()?,
        latest: latest(args.time)?,
    };
    let new = Operand::parse_or_root(&args.operand)?;
    let old = args.diff.as_deref().map(Operand::parse_or_root).transpose()?;
    let how = OpenHow::reading(globals, args.common.force, args.switches.switches);
    let mut volumes = Volumes::default();
    let volume = volumes.get(&new, &how)?;
    let other = old.as_ref().map(|old| volumes.get(old, &how)).transpose()?;
    let (output, created) = open(&args.output)?;
    let name = if created { args.output.as_path() } else { Path::new("standard output") };
    let mut to = BufWriter::with_capacity(BUFFER, &output);
    let mut watch = Watch { globals, operand: &new, created, progress: None };
    let target = (&mut to as &mut dyn io::Write, name);
    let done = match (&old, &other) {
        (Some(old), Some(other)) => {
            let (before, now) = ((other, old.inner()), (&volume, new.inner()));
            pack_changes(before, now, target, options, &mut watch)
        }
        _ => pack(&volume, new.inner(), target, options, &mut watch),
    };
    // What is left of an archive that failed is not written.
    let _rest = to.into_parts();
    let done = done.map_err(|error| {
        let operand = old.as_ref().filter(|_| matches!(error.subject, Subject::Before(_))).unwrap_or(&new);
        told(error, |path| operand.below(path))
    });
    if done.is_err() && created && output.metadata().is_ok_and(|found| found.is_file()) {
        // A part of an archive would pass for a whole one. The first error is reported.
        let _already_failing = std::fs::remove_file(&args.output);
    }
    done
}

/// The archive, and whether it is a file that was opened here.
fn open(path: &Path) -> Result<(HostFile, bool), CliError> {
    if path != Path::new(STDOUT) {
        let file = HostFile::create(path);
        let file = file.map_err(|error| CliError::host(path.as_os_str(), "create", &error))?;
        return Ok((file, true));
    }
    if io::stdout().is_terminal() {
        return Err(CliError::usage("an archive is not for a terminal: name a file, or use a pipe"));
    }
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let stdout = stdout.map_err(|error| CliError::host("standard output".as_ref(), "duplicate", &error))?;
    Ok((HostFile::from(stdout), false))
}

struct Watch<'a> {
    globals: &'a Globals,
    operand: &'a Operand,
    /// Whether the output is a file.
    created: bool,
    progress: Option<Progress>,
}

impl Observer for Watch<'_> {
    fn begin(&mut self, _total: Option<u64>) {
        let label = text::visible(self.operand.argument.as_bytes());
        self.progress = Some(Progress::new(OPEN_ENDED, label, 0, self.created));
    }

    fn advance(&mut self, bytes: u64) {
        self.progress.iter_mut().for_each(|progress| progress.advance(bytes));
    }

    fn trouble(&mut self, error: Error) {
        let name = match &error.subject {
            Subject::Source(path) | Subject::Before(path) | Subject::Destination(path) => {
                self.operand.below(path)
            }
            Subject::Host(path) => path.clone().into(),
        };
        let (command, json) = (&self.globals.command, self.globals.json);
        error::warn(command, json, &name.to_string_lossy(), &error.cause.to_string());
    }
}
