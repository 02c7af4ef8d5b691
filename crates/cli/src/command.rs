//! The commands: what can be said, and parse, run, report: the same for the program and for a command below `trace`.

use crate::args::Globals;
use crate::error::CliError;
use crate::examples::cli;
use crate::tracer::Tracer;
use crate::{
    bench, cat, check, cp, df, documents, du, explain, find, info, io, ls, map, out, stat, text, trace, xattr,
};
use clap::error::ErrorKind;
use clap::{FromArgMatches, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use uext4::{DeviceSpec, Target};
use uext4_transfer::Devices;

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
    Info(info::InfoArgs),
    /// List a directory.
    Ls(ls::LsArgs),
    /// Show the attributes of a file.
    Stat(stat::StatArgs),
    /// Find files by name, type, size, age …: the tests of find(1), with two dashes.
    Find(Box<find::FindArgs>),
    /// Show the space that trees take.
    Du(du::DuArgs),
    /// Show how full the volume is.
    Df(df::DfArgs),
    /// Write files to standard output.
    Cat(cat::CatArgs),
    /// Show extended attributes and access control lists.
    Xattr(xattr::XattrArgs),
    /// Show where a file lies on the device.
    Map(map::MapArgs),
    /// Tell how a request would be done, and why.
    Explain(explain::ExplainArgs),
    /// Do single reads, overwrites and syncs, in the command language of xfs_io.
    Io(io::IoArgs),
    /// Run a uext4 command and print each device request.
    Trace(trace::TraceArgs),
    /// Copy files and trees out of a volume.
    Cp(cp::CpArgs),
    /// Look for damage, without changing anything.
    Check(check::CheckArgs),
    /// Measure.
    Bench(bench::BenchArgs),
    /// Print a completion script.
    Completions(documents::CompletionsArgs),
    /// Print the manual page, or write all of them.
    Man(documents::ManArgs),
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

/// Runs one command line (`arguments[0]` is the program) and returns its exit status.
pub fn execute(arguments: Vec<OsString>, trace: Option<Arc<Tracer>>) -> ExitCode {
    let arguments = alone_it_is_help(arguments);
    let json = asks_for_json(&arguments);
    let command = named_command(&arguments);
    let parsed = cli::<Cli>().try_get_matches_from(arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, command.as_deref(), json),
    };
    let name = cli.command.name();
    let file = cli.command.json().filter(|file| *file != Path::new("-")).map(Path::to_owned);
    let globals = Globals { command: name, json: cli.command.json().is_some(), trace };
    // `bench` has a table beside the file, `trace` the output of its command.
    let file = file.filter(|_| !matches!(cli.command, Command::Bench(_) | Command::Trace(_)));
    let spared = spare_devices(&cli.command);
    let done = spared.and_then(|()| file.map_or(Ok(()), |file| out::redirect(&file)));
    let done = done.and_then(|()| run(cli.command, &globals));
    match done {
        Ok(exit) => exit,
        Err(error) => {
            error.report(Some(name), globals.json);
            error.exit()
        }
    }
}

fn run(command: Command, globals: &Globals) -> Result<ExitCode, CliError> {
    match command {
        Command::Info(args) => info::run(&args, globals),
        Command::Ls(args) => ls::run(&args, globals),
        Command::Stat(args) => stat::run(&args, globals),
        Command::Find(args) => find::run(&args, globals),
        Command::Du(args) => du::run(&args, globals),
        Command::Df(args) => df::run(&args, globals),
        Command::Cat(args) => cat::run(&args, globals),
        Command::Xattr(args) => xattr::run(&args, globals),
        Command::Map(args) => map::run(&args, globals),
        Command::Explain(args) => explain::run(&args, globals),
        Command::Io(args) => io::run(&args, globals),
        Command::Trace(args) => return trace::run(args, globals, execute),
        Command::Cp(args) => cp::run(&args, globals),
        Command::Check(args) => return check::run(&args, globals),
        Command::Bench(args) => return bench::run(&args, globals),
        Command::Completions(args) => documents::completions::<Cli>(&args),
        Command::Man(args) => documents::man::<Cli>(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Results must not go over what they are about: a file is emptied before anything is read.
fn spare_devices(command: &Command) -> Result<(), CliError> {
    let outputs = command.outputs();
    if outputs.is_empty() {
        return Ok(());
    }
    // Words that name no device are passed over.
    let targets = command.devices().into_iter().filter_map(|word| Target::parse_bytes(word.as_bytes()).ok());
    let specs: Vec<DeviceSpec> = targets.map(|target| target.spec).collect();
    let devices = Devices::of(&specs);
    match outputs.into_iter().find(|file| devices.are_at(file)) {
        None => Ok(()),
        Some(file) => {
            let file = text::visible(file.as_os_str().as_bytes());
            Err(CliError::usage(format!("results into {file}: the device itself would be overwritten")))
        }
    }
}

/// `-h` alone asks for help, also of the commands in which it means something else.
fn alone_it_is_help(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if let [_, name, last] = &mut arguments[..]
        && (last == "-h" || last == "--help")
    {
        if name == "help" {
            arguments.pop();
        } else {
            *last = "--help".into();
        }
    }
    arguments
}

/// Whether the arguments ask for JSON, as far as that can be told of arguments that do not parse.
fn asks_for_json(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .any(|argument| argument == "--json" || argument.as_bytes().starts_with(b"--json="))
}

/// The command that is meant, also of arguments that do not parse.
fn named_command(arguments: &[OsString]) -> Option<String> {
    let name = arguments.get(1)?.to_str()?;
    cli::<Cli>().get_subcommands().find(|command| command.get_name() == name)?;
    Some(name.to_owned())
}

/// Help and version go to standard output and are no error; anything else is bad usage, told on one line.
fn refuse(error: &clap::Error, command: Option<&str>, json: bool) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let mut out = crate::out::Out::new();
        let told = write!(out, "{}", error.render()).and_then(|()| out.finish());
        return match told {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                error.report(None, json);
                error.exit()
            }
        };
    }
    let error = CliError::usage(reason(error));
    error.report(command, json);
    error.exit()
}

/// The reason without clap's usage lines and tips.
fn reason(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command is given (try --help)".into();
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\n\nUsage:", "\n\nFor more information", "\n\n  tip:", "\n\ntip:"];
    let end = end.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
    format!("{} (try --help)", text::one_line(&text[..end]))
}
