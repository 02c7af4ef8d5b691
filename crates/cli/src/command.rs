//! The commands, and how one is parsed, run and reported: the same for the program and for a command under `trace`.

use crate::args::{Globals, Watchers};
use crate::attributes::{self, chattr, chmod, chown, touch};
use crate::error::CliError;
use crate::examples::cli;
use crate::names::{ln, mkdir, mv, rm, rmdir};
use crate::open::{self, journals};
use crate::{
    bench, cat, check, cp, df, documents, du, explain, export, fallocate, find, help, info, io, ls, map,
    mkfs, mount, out, overlay, prepare, quota, serve, shell, stat, stats, text, trace, trim, truncate,
    umount, verity, xattr,
};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use uext4::device::closest;
use uext4::{DeviceSpec, Target};
use uext4_transfer::Devices;

const DEVICE_HELP: &str = "\
DEVICE is [scheme:]locator[?key=value&…], and DEVICE:/path names a file of the volume on it:
  disk.img, /dev/nvme0n1p3    image file or block device, direct I/O through io_uring
  sync:disk.img               the same without io_uring
  dax:/mnt/pmem/disk.img      mapped memory
  nvme:/dev/nvme0n1           NVMe commands through io_uring, below the block layer
  nbd://host[:port]/export, nbd+unix:///export?socket=PATH, nbds… with TLS
                              an export of a server of network block devices
  rbd:pool/image[@snapshot]   an image of a Ceph cluster (?conf=FILE ?id=USER)
  mem:64M, null:disk.img      memory; data requests that transfer no data (for measuring)
  ?ro ?partition=N ?offset=B ?latency=740us ?flush_latency=2ms ?fua_latency=2ms
  ?flush_rate=64M (mem: bytes of cached writes that a flush writes out per second)
  ?cache=volatile|none ?fua=on|off
  ?format=raw|qcow2|vmdk (by content if absent) ?backing=no|beside|any (files that an image names)
  ?connections=N (to a server) ?tls-certificates=DIR ?tls-psk-file=FILE ?tls-username=NAME
  ?tls-hostname=NAME ?tls-verify-peer=0
  ?overlay=FILE (changes are kept in FILE, the device is only read)
`:/`, `?`, `&`, `%` inside a locator are percent-encoded.

Sizes are in bytes: 4096, 64k, 1.5G, 0x1000. k, m, g, t, p and e are powers of 1024, kB, MB, … powers of 1000.

Times in JSON are {\"tv_sec\", \"tv_nsec\"}: seconds since 1970 and the nanoseconds after them; `mtime_ns`
is the same as one number. For several arguments, JSON is an array whose elements name theirs in `argument`.

Exit status: 0 done, 1 failed (one line on standard error), 2 bad usage.";

/// Inspect, copy, change and check ext4 volumes on images and devices, without root and without a mount.
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
    /// Find files by name, type, size, age …: the tests of find(1), spelled with two dashes.
    Find(Box<find::FindArgs>),
    /// Show the space used by directory trees.
    Du(du::DuArgs),
    /// Show how full the volume is.
    Df(df::DfArgs),
    /// Write files to standard output.
    Cat(cat::CatArgs),
    /// Show, set and remove extended attributes and access control lists.
    Xattr(xattr::XattrArgs),
    /// Show where a file's data is on the device.
    Map(map::MapArgs),
    /// Show the digests of files that fs-verity seals, and compare their contents with them.
    Verity(verity::VerityArgs),
    /// Show how a request would be carried out, and why; or what a command would change.
    Explain(explain::ExplainArgs),
    /// Read, write and change a file with single requests, in the command language of xfs_io.
    Io(io::IoArgs),
    /// Set the size of a file.
    Truncate(truncate::TruncateArgs),
    /// Allocate, free, zero, collapse or insert a range of a file.
    Fallocate(fallocate::FallocateArgs),
    /// Allocate a file's blocks and write them, so that later writes only overwrite.
    Prepare(prepare::PrepareArgs),
    /// Run a uext4 command and print each device request.
    Trace(trace::TraceArgs),
    /// Copy files and trees out of volumes, into them, and within them.
    Cp(cp::CpArgs),
    /// Write a tree as an archive of tar, or what changed between two trees as a layer.
    Export(export::ExportArgs),
    /// Run commands on a volume that stays open, from a prompt or a script.
    Shell(shell::ShellArgs),
    /// Make directories.
    Mkdir(mkdir::MkdirArgs),
    /// Rename and move files and directories within a volume.
    Mv(mv::MvArgs),
    /// Make hard and symbolic links.
    Ln(ln::LnArgs),
    /// Remove files and trees.
    Rm(rm::RmArgs),
    /// Remove empty directories.
    Rmdir(rmdir::RmdirArgs),
    /// Change the permissions of files.
    Chmod(chmod::ChmodArgs),
    /// Change the owner and group of files.
    Chown(chown::ChownArgs),
    /// Change the times of files, or create empty ones.
    Touch(touch::TouchArgs),
    /// Change the flags, project and generation number of files.
    Chattr(chattr::ChattrArgs),
    /// Show and set what users, groups and projects use and may use.
    Quota(quota::QuotaArgs),
    /// Tell the device which blocks are free.
    Trim(trim::TrimArgs),
    /// Create a volume, as mke2fs does.
    Mkfs(Box<mkfs::MkfsArgs>),
    /// Look for damage, without changing anything.
    Check(check::CheckArgs),
    /// Mount a volume by FUSE, so that every program can use it.
    Mount(mount::MountArgs),
    /// Serve a file inside a volume, or a whole device, as a block device: by NBD, for QEMU and the kernel.
    Serve(serve::ServeArgs),
    /// Look at the changes in an overlay file, merge them into its device, or throw them away.
    Overlay(overlay::OverlayArgs),
    /// Unmount, and wait until the volume is clean and its device free.
    Umount(umount::UmountArgs),
    /// Show what the server of a mount does: requests, latencies, commits, memory.
    Stats(stats::StatsArgs),
    /// Measure performance.
    Bench(bench::BenchArgs),
    /// Print a completion script.
    Completions(documents::CompletionsArgs),
    /// Print the manual page, or write all of them.
    Man(documents::ManArgs),
}

/// Arguments that name devices, in any command: results must not overwrite those.
const DEVICES: [&str; 10] = [
    "base",
    "device",
    "devices",
    "diff",
    "dm_verity_file",
    "journal",
    "operand",
    "operands",
    "paths",
    "words",
];
/// Those that may also name a file of the host: they name a device only if a path inside follows.
const MIXED: [&str; 2] = ["paths", "words"];
/// Commands of which the first word is no device, but what is to be set.
const SETTERS: [&str; 3] = ["chattr", "chmod", "chown"];
/// Arguments that name result files. [`json_file`] is another.
const OUTPUTS: [&str; 3] = ["svg", "output", "html"];

/// The value of an argument that is a path; `None` if the command has no such argument.
fn path<'m>(matches: &'m ArgMatches, argument: &str) -> Option<&'m Path> {
    matches.try_get_one::<PathBuf>(argument).ok().flatten().map(PathBuf::as_path)
}

/// The file for JSON; `None` if JSON goes to standard output or was not requested.
fn json_file(matches: &ArgMatches) -> Option<&Path> {
    path(matches, "json").filter(|file| *file != Path::new("-"))
}

/// Runs one command line (`arguments[0]` is the program) and returns its exit status.
pub fn execute(arguments: Vec<OsString>, watchers: Watchers) -> ExitCode {
    let arguments = match mount::helper::arguments(arguments) {
        Ok(arguments) => attributes::mark_modes(alone_it_is_help(arguments)),
        Err(error) => return error.end(Some("mount"), false),
    };
    let json = asks_for_json(&arguments);
    let command = named_command(&arguments);
    let columns = help::columns();
    let parsed = help::laid_out(cli::<Cli>(), columns).try_get_matches_from(arguments);
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error, command.as_deref(), json, columns),
    };
    let Some((name, matches)) = matches.subcommand() else { return ExitCode::FAILURE };
    let json = path(matches, "json").is_some();
    let globals = journals(matches).and_then(|journals| {
        let overlay = open::overlay(matches, &volumes(name, matches))?;
        let fixed = open::fixed_time(matches, watchers.session.as_deref())?;
        Ok(Globals { command: name.to_owned(), json, journals, overlay, fixed, watchers })
    });
    globals
        .and_then(|globals| run(cli.command, matches, &globals))
        .unwrap_or_else(|error| error.end(Some(name), json))
}

fn run(command: Command, matches: &ArgMatches, globals: &Globals) -> Result<ExitCode, CliError> {
    spare_devices(matches)?;
    match json_file(matches) {
        // Beside the file, `bench` prints a table and `trace` the output of its command.
        Some(_) if globals.watchers.rehearsal.is_some() => {
            return Err(CliError::usage("--json=FILE of a rehearsed command: a rehearsal writes nothing"));
        }
        Some(file) if !matches!(command, Command::Bench(_) | Command::Trace(_)) => out::redirect(file)?,
        _ => {}
    }
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
        Command::Verity(args) => verity::run(&args, globals),
        Command::Explain(args) => return explain::run(args, globals, execute),
        Command::Io(args) => io::run(&args, globals),
        Command::Truncate(args) => truncate::run(&args, globals),
        Command::Fallocate(args) => fallocate::run(&args, globals),
        Command::Prepare(args) => prepare::run(&args, globals),
        Command::Trace(args) => return trace::run(args, globals, execute),
        Command::Cp(args) => cp::run(&args, globals),
        Command::Export(args) => export::run(&args, globals),
        Command::Shell(args) => shell::run(&args, globals, cli::<Cli>(), execute),
        Command::Mkdir(args) => mkdir::run(&args, globals),
        Command::Mv(args) => mv::run(&args, globals),
        Command::Ln(args) => ln::run(&args, globals),
        Command::Rm(args) => rm::run(&args, globals),
        Command::Rmdir(args) => rmdir::run(&args, globals),
        Command::Chmod(args) => chmod::run(&args, globals),
        Command::Chown(args) => chown::run(&args, globals),
        Command::Touch(args) => touch::run(&args, globals),
        Command::Chattr(args) => chattr::run(&args, globals),
        Command::Quota(args) => quota::run(&args, globals),
        Command::Trim(args) => trim::run(&args, globals),
        Command::Mkfs(args) => mkfs::run(&args, globals),
        Command::Check(args) => return check::run(&args, globals),
        Command::Mount(args) => mount::run(&args, globals),
        Command::Serve(args) => serve::run(&args, globals),
        Command::Overlay(args) => overlay::run(&args, globals),
        Command::Umount(args) => umount::run(&args, globals),
        Command::Stats(args) => stats::run(&args, globals),
        Command::Bench(args) => return bench::run(&args, globals),
        Command::Completions(args) => documents::completions::<Cli>(&args),
        Command::Man(args) => documents::man::<Cli>(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The devices of the volumes that a command is about.
fn volumes(command: &str, matches: &ArgMatches) -> Vec<DeviceSpec> {
    let named = DEVICES.iter().filter(|argument| **argument != "journal").flat_map(|argument| {
        let words = matches.try_get_raw(argument).ok().flatten().into_iter().flatten();
        let targets = words.filter_map(|word| Target::parse_bytes(word.as_bytes()).ok());
        let mixed = MIXED.contains(argument) || SETTERS.contains(&command);
        targets.filter(move |target| target.path.is_some() || !mixed)
    });
    named.map(|target| target.spec).collect()
}

/// Refuses results that would overwrite their own source: a result file is emptied before anything is read.
fn spare_devices(matches: &ArgMatches) -> Result<(), CliError> {
    let outputs = OUTPUTS.iter().filter_map(|argument| path(matches, argument)).chain(json_file(matches));
    let outputs: Vec<&Path> = outputs.collect();
    if outputs.is_empty() {
        return Ok(());
    }
    let words = DEVICES.iter().filter_map(|argument| matches.try_get_raw(argument).ok().flatten()).flatten();
    // Skip words that name no device.
    let targets = words.filter_map(|word| Target::parse_bytes(word.as_bytes()).ok());
    let overlay = path(matches, "overlay").map(DeviceSpec::file);
    let specs: Vec<DeviceSpec> = targets.map(|target| target.spec).chain(overlay).collect();
    let devices = Devices::of(&specs);
    match outputs.into_iter().find(|file| devices.are_at(file)) {
        None => Ok(()),
        Some(file) => {
            let file = text::visible(file.as_os_str().as_bytes());
            Err(CliError::usage(format!("results into {file}: the device itself would be overwritten")))
        }
    }
}

/// `-h` alone requests help, even for commands in which it has another meaning.
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

/// Whether the arguments ask for JSON; a guess if they do not parse.
fn asks_for_json(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .any(|argument| argument == "--json" || argument.as_bytes().starts_with(b"--json="))
}

/// The intended command, even if the arguments do not parse.
fn named_command(arguments: &[OsString]) -> Option<String> {
    let name = arguments.get(1)?.to_str()?;
    cli::<Cli>().get_subcommands().find(|command| command.get_name() == name)?;
    Some(name.to_owned())
}

/// Help and version go to standard output and are not errors; anything else is bad usage, reported on one line.
fn refuse(error: &clap::Error, command: Option<&str>, json: bool, columns: usize) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match out::print(help::fit(&error.render().to_string(), columns).as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => error.end(None, json),
        };
    }
    CliError::usage(reason(error)).end(command, json)
}

/// The reason without clap's usage lines and tips, with a suggestion if there is one.
fn reason(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command is given (try --help)".into();
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\n\nUsage:", "\n\nFor more information", "\n\n  tip:", "\n\ntip:"];
    let end = end.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
    let reason = text::one_line(&text[..end]);
    match meant(error) {
        Some(meant) => format!("{reason} (did you mean {meant}?)"),
        None => format!("{reason} (try --help)"),
    }
}

/// The known command, option or value that resembles an unknown word.
fn meant(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let suggested = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        // The best match is last.
        ContextValue::Strings(words) => words.last().cloned(),
        _ => None,
    });
    // clap suggests nothing after `help`.
    suggested.or_else(|| match error.get(ContextKind::InvalidSubcommand)? {
        ContextValue::String(word) => {
            let command = cli::<Cli>();
            let names = command.get_subcommands().map(clap::Command::get_name);
            closest(word, names).map(str::to_owned)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn every_argument_that_names_devices_or_results_is_known() {
        for command in cli::<Cli>().get_subcommands() {
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let (id, names) =
                    (argument.get_id().as_str(), argument.get_value_names().unwrap_or_default());
                let first = names.first().map_or("", |name| name.as_str());
                assert!(!first.starts_with("DEVICE") || DEVICES.contains(&id), "{id}");
                let spared = id == "json" || id == "overlay";
                assert!(first != "FILE" || spared || OUTPUTS.contains(&id), "{id}");
            }
        }
    }
}
