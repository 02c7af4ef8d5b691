//! What can be said on the command line.

use crate::bench::BenchArgs;
use crate::df::DfArgs;
use crate::du::DuArgs;
use crate::find::FindArgs;
use crate::text;
use crate::trace::Tracer;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueHint};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::Switches;

/// What holds for every command.
#[derive(Clone, Default)]
pub struct Globals {
    /// The command's name.
    pub command: &'static str,
    /// Data and errors as JSON.
    pub json: bool,
    /// Who watches the devices, below `uext4 trace`.
    pub trace: Option<Arc<Tracer>>,
}

const DEVICE_HELP: &str = "\
DEVICE is [scheme:]locator[?key=value&…], and DEVICE:/path names a file of the volume on it:
  disk.img, /dev/nvme0n1p3    image file or block device, direct I/O through io_uring
  sync:disk.img               the same without any ring
  dax:/mnt/pmem/disk.img      mapped memory
  mem:64M, null:disk.img      memory; data requests that move nothing (for measuring)
  ?ro ?partition=N ?offset=B ?latency=740us ?flush_latency=2ms ?fua_latency=2ms
  ?flush_rate=64M (mem: bytes of cached writes that a flush writes out in a second)
  ?cache=volatile|none ?fua=on|off
`:/`, `?`, `&`, `%` inside a locator are percent-encoded.

Times in JSON are {\"tv_sec\", \"tv_nsec\"}: seconds since 1970 and the nanoseconds after them; `mtime_ns`
is the same as one number. Of several arguments, JSON is an array whose elements say theirs in `argument`.

Exit status: 0 done, 1 failed (one line on standard error), 2 bad usage.";

/// Look at and overwrite files of ext4 volumes on images and devices, without mounting them.
#[derive(Parser)]
#[command(name = "uext4", version, after_long_help = DEVICE_HELP)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Show the volume, its device, and whether it needs recovery.
    Info(InfoArgs),
    /// List a directory.
    Ls(LsArgs),
    /// Show the attributes of a file.
    Stat(StatArgs),
    /// Find files by name, type, size, age …: the tests of find(1), with two dashes.
    Find(Box<FindArgs>),
    /// Show the space that trees take.
    Du(DuArgs),
    /// Show how full the volume is.
    Df(DfArgs),
    /// Write files to standard output.
    Cat(CatArgs),
    /// Show extended attributes and access control lists.
    Xattr(XattrArgs),
    /// Show where a file lies on the device.
    Map(MapArgs),
    /// Tell how a request would be done, and why.
    Explain(ExplainArgs),
    /// Do single reads, overwrites and syncs, in the command language of xfs_io.
    Io(IoArgs),
    /// Run a uext4 command and print each device request.
    Trace(TraceArgs),
    /// Copy files and trees out of a volume.
    Cp(CpArgs),
    /// Look for damage, without changing anything.
    Check(CheckArgs),
    /// Measure.
    Bench(BenchArgs),
    /// Print a completion script.
    Completions(CompletionsArgs),
    /// Print the manual page, or write all of them.
    Man(ManArgs),
}

impl Command {
    /// The name as typed.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Info(_) => "info",
            Command::Ls(_) => "ls",
            Command::Stat(_) => "stat",
            Command::Find(_) => "find",
            Command::Du(_) => "du",
            Command::Df(_) => "df",
            Command::Cat(_) => "cat",
            Command::Xattr(_) => "xattr",
            Command::Map(_) => "map",
            Command::Explain(_) => "explain",
            Command::Io(_) => "io",
            Command::Trace(_) => "trace",
            Command::Cp(_) => "cp",
            Command::Check(_) => "check",
            Command::Bench(_) => "bench",
            Command::Completions(_) => "completions",
            Command::Man(_) => "man",
        }
    }

    /// Where JSON is wanted, and errors as JSON: `-` is standard output.
    pub fn json(&self) -> Option<&Path> {
        match self {
            Command::Info(args) => args.form.json.as_deref(),
            Command::Ls(args) => args.form.json.as_deref(),
            Command::Stat(args) => args.form.json.as_deref(),
            Command::Find(args) => args.form.json.as_deref(),
            Command::Du(args) => args.form.json.as_deref(),
            Command::Df(args) => args.form.json.as_deref(),
            Command::Cat(args) => args.form.json.as_deref(),
            Command::Xattr(args) => args.form.json.as_deref(),
            Command::Map(args) => args.form.json.as_deref(),
            Command::Explain(args) => args.form.json.as_deref(),
            Command::Io(args) => args.form.json.as_deref(),
            Command::Trace(args) => args.form.json.as_deref(),
            Command::Cp(args) => args.form.json.as_deref(),
            Command::Check(args) => args.form.json.as_deref(),
            Command::Bench(args) => args.json.as_deref(),
            Command::Completions(_) | Command::Man(_) => None,
        }
    }

    /// Files that results go into.
    pub fn outputs(&self) -> Vec<&Path> {
        let own = match self {
            Command::Map(args) => args.svg.as_deref(),
            Command::Trace(args) => args.output.as_deref(),
            Command::Bench(args) => args.html.as_deref(),
            _ => None,
        };
        own.into_iter().chain(self.json().filter(|file| *file != Path::new("-"))).collect()
    }

    /// What names devices, as typed; of `trace` and `cp` other words too.
    pub fn devices(&self) -> Vec<&OsStr> {
        match self {
            Command::Info(args) => vec![&args.device],
            Command::Ls(args) => words(&args.places),
            Command::Stat(args) => words(&args.places),
            Command::Find(args) => words(&args.places),
            Command::Du(args) => words(&args.places),
            Command::Df(args) => words(&args.devices),
            Command::Cat(args) => words(&args.places),
            Command::Xattr(args) => vec![&args.place],
            Command::Map(args) => vec![&args.place],
            Command::Explain(args) => vec![&args.place],
            Command::Io(args) => vec![&args.place],
            Command::Trace(args) => words(&args.command),
            Command::Cp(args) => words(&args.paths),
            Command::Check(args) => vec![&args.device],
            Command::Bench(args) => args.device.iter().map(OsString::as_os_str).collect(),
            Command::Completions(_) | Command::Man(_) => Vec::new(),
        }
    }
}

fn words(arguments: &[OsString]) -> Vec<&OsStr> {
    arguments.iter().map(OsString::as_os_str).collect()
}

/// In which form.
#[derive(Args, Debug, Clone, Default)]
pub struct JsonArgs {
    /// Data, and errors on standard error, as JSON; the data in FILE instead of on standard output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// How a volume is opened for looking.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct ForceArgs {
    /// Read although somebody else uses the device: what is read may change meanwhile.
    #[arg(long)]
    pub force: bool,
}

/// Which optimisations are on.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct SwitchArgs {
    /// Turn optimisations off or on: NAME=on|off,…; `all` names every one. The names:
    /// overwrite-no-transaction, dax-no-dio-count, fua-dsync-overwrite, simple-read,
    /// shared-subblock-overwrite.
    #[arg(long, value_name = "NAME=off,…", default_value_t = Switches::ON, hide_default_value = true)]
    pub switches: Switches,
}

/// `uext4 info`.
#[derive(Args)]
pub struct InfoArgs {
    /// The device.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 ls`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct LsArgs {
    /// The directories (or files); the root directory without a path. Of several, each directory has a heading.
    #[arg(value_name = "DEVICE[:/path]", required = true, value_hint = ValueHint::FilePath)]
    pub places: Vec<OsString>,
    /// Mode, links, owner, size and time of change too.
    #[arg(short)]
    pub long: bool,
    /// Sizes in powers of 1024 with a letter, with -l.
    #[arg(short, long)]
    pub human_readable: bool,
    /// Names that begin with a dot too.
    #[arg(short)]
    pub all: bool,
    /// Directories inside too. In JSON each entry then has the path of its directory in `dir`.
    #[arg(short = 'R')]
    pub recursive: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 stat`.
#[derive(Args)]
pub struct StatArgs {
    /// The files; the root directory without a path.
    #[arg(value_name = "DEVICE[:/path]", required = true, value_hint = ValueHint::FilePath)]
    pub places: Vec<OsString>,
    /// Follow a symbolic link instead of showing the link itself.
    #[arg(short = 'L', long = "dereference")]
    pub follow: bool,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 cat`.
#[derive(Args)]
pub struct CatArgs {
    /// The files.
    #[arg(value_name = "DEVICE:/path", required = true, value_hint = ValueHint::FilePath)]
    pub places: Vec<OsString>,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// How to read.
    #[command(flatten)]
    pub switches: SwitchArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 xattr`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct XattrArgs {
    /// The file; the root directory without a path.
    #[arg(value_name = "DEVICE[:/path]", value_hint = ValueHint::FilePath)]
    pub place: OsString,
    /// One attribute by its full name, such as user.comment; all of them otherwise.
    pub name: Option<OsString>,
    /// Show the attributes of a symbolic link itself instead of following it.
    #[arg(short = 'h', long)]
    pub no_dereference: bool,
    /// The bytes of the values only, as they are, one after another.
    #[arg(long, conflicts_with = "json")]
    pub only_values: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 map`.
#[derive(Args)]
pub struct MapArgs {
    /// The file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub place: OsString,
    /// Holes too, with the state `hole`; they are left out otherwise.
    #[arg(long)]
    pub holes: bool,
    /// Draw the extents into this file instead of printing them.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "json")]
    pub svg: Option<PathBuf>,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 explain`.
#[derive(Args)]
#[command(group(ArgGroup::new("direction").required(true).args(["read", "write"])))]
pub struct ExplainArgs {
    /// The file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub place: OsString,
    /// A read.
    #[arg(long)]
    pub read: bool,
    /// A write.
    #[arg(long)]
    pub write: bool,
    /// First byte; suffixes k, m, g, t count in powers of 1024.
    #[arg(value_parser = text::parse_size)]
    pub offset: u64,
    /// Bytes.
    #[arg(value_parser = text::parse_size)]
    pub length: u64,
    /// The write is durable when it completes, as with O_DSYNC.
    #[arg(long, conflicts_with = "read")]
    pub dsync: bool,
    /// All metadata too, as with O_SYNC.
    #[arg(long, conflicts_with_all = ["read", "dsync"])]
    pub sync: bool,
    /// Through a queue rather than a synchronous call.
    #[arg(long = "async")]
    pub queued: bool,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// What the decision may use.
    #[command(flatten)]
    pub switches: SwitchArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 io`.
#[derive(Args)]
#[command(after_long_help = crate::io::LANGUAGE)]
pub struct IoArgs {
    /// The file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath)]
    pub place: OsString,
    /// A command; may be given several times. All are checked before the first runs; the first that fails
    /// is the last.
    #[arg(short, value_name = "COMMAND", allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Open read-only. Implied when no `-c` command writes.
    #[arg(short)]
    pub read_only: bool,
    /// At the end, print what the library counted meanwhile: requests by route, journal handles, flushes. With
    /// `--json` an object `counters`.
    #[arg(long)]
    pub stats: bool,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// How to read and write.
    #[command(flatten)]
    pub switches: SwitchArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 trace`.
#[derive(Args)]
#[command(after_help = "\
Each line: seconds since the device was opened, Q (made) or C (done), then R (read), W (write), F (flush) or D (discard)
with the first sector and, behind +, the number of sectors of 512 bytes. In JSON positions and lengths are bytes.")]
pub struct TraceArgs {
    /// Write the requests to this file instead of standard error.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// The uext4 command and its arguments, without `uext4`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 cp`.
#[derive(Args)]
#[command(override_usage = "uext4 cp [OPTIONS] DEVICE:/path... HOSTPATH")]
pub struct CpArgs {
    /// What to copy, then where: DEVICE:/path … HOSTPATH. Holes and unwritten ranges become holes.
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
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// How to read.
    #[command(flatten)]
    pub switches: SwitchArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 check`.
#[derive(Args)]
#[command(after_long_help = "\
Exit status: 0 the volume is clean (warnings and notes may be printed), 1 it is damaged or could not be checked,
2 bad usage. `e2fsck -fn` judges alike, but it does not look at the log, which is replayed here (in memory) before the
check, and it does count the usage of quotas.")]
pub struct CheckArgs {
    /// The device.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// Threads that work at the same time; by default two, one on a machine of one processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Option<u32>,
    /// Findings printed of each kind; the others are counted.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub per_kind: u32,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
}

/// `uext4 completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// For which shell.
    pub shell: clap_complete::Shell,
}

/// `uext4 man`.
#[derive(Args)]
pub struct ManArgs {
    /// Write uext4.1 and a page for every command into this directory instead.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}
