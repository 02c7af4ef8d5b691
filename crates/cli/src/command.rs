//! Parse, run, report: the same for the program and for a command below `trace`.

use crate::args::{Cli, Command, Globals};
use crate::error::CliError;
use crate::examples::cli;
use crate::trace::Tracer;
use crate::{
    bench, cat, check, cp, df, documents, du, explain, find, info, io, ls, map, out, stat, text, trace, xattr,
};
use clap::FromArgMatches;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use uext4::{DeviceSpec, Target};
use uext4_transfer::Devices;

/// Runs one command line (`arguments[0]` is the program) and returns its exit status.
pub fn execute(arguments: Vec<OsString>, trace: Option<Arc<Tracer>>) -> ExitCode {
    let arguments = alone_it_is_help(arguments);
    let json = asks_for_json(&arguments);
    let command = named_command(&arguments);
    let parsed = cli().try_get_matches_from(arguments);
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
        Command::Trace(args) => return trace::run(args, globals),
        Command::Cp(args) => cp::run(&args, globals),
        Command::Check(args) => return check::run(&args, globals),
        Command::Bench(args) => return bench::run(&args, globals),
        Command::Completions(args) => documents::completions(&args),
        Command::Man(args) => documents::man(&args),
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
    cli().get_subcommands().find(|command| command.get_name() == name)?;
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
