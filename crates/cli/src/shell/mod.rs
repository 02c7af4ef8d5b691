//! `uext4 shell`: all commands on one open volume, from a prompt or a script.
//!
//! Reading path: here (lines) → `words` → `places` (which words are paths of the volume) → the commands themselves,
//! which take the volume of the [`Session`] instead of opening it. `own`: commands that only the shell has. `prompt`:
//! history and completion.

mod own;
mod places;
mod prompt;
mod words;

use crate::args::{Globals, JsonArgs, SwitchArgs, Watchers};
use crate::error::CliError;
use crate::find::glob::Glob;
use crate::open::{OpenHow, device};
use crate::session::Session;
use crate::text;
use clap::{Args, ValueHint};
use places::{Lacks, Place, places};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, IsTerminal};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use uext4::FileKind;
use words::Word;

/// Commands that need the device to themselves, or have nothing to do with a volume.
const OUTSIDE: [&str; 14] = [
    "bench",
    "check",
    "completions",
    "man",
    "mkfs",
    "mount",
    "overlay",
    "serve",
    "shell",
    "stats",
    "trace",
    "umount",
    "io",
    "explain",
];
/// What is matched by a pattern, at most.
const MATCHES_MAX: usize = 1 << 20;

/// `uext4 shell`.
#[derive(Args)]
#[command(after_long_help = "\
Each line is a command of uext4 without the program's name and without DEVICE: `ls -l /etc`, `rm -r cache`,
`export / root.tar`. Paths are those of the volume, relative ones begin at the present directory, and * ? [a-z] match
names there. Words are quoted as in sh. In `cp`, host:PATH is a path of the host. The shell's own commands:
  cd [DIRECTORY], pwd            the present directory of the volume
  lcd DIRECTORY                  that of the host
  put HOSTPATH... [DIRECTORY]    copy into the volume, with trees and attributes
  get PATH... [HOSTDIRECTORY]    copy out of it
  edit PATH                      edit a file with $VISUAL or $EDITOR
  sync                           make everything durable now
  help [COMMAND], exit

The volume stays open: what a script does is one transaction, or few if it is long, and durable at the end. After a
crash in the middle the volume is sound, with what was committed before. A script ends at the first line that fails,
unless the line begins with a hyphen.")]
pub struct ShellArgs {
    /// The volume.
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub device: OsString,
    /// Run this line; several run one after the other.
    #[arg(short = 'c', long = "command", value_name = "LINE", allow_hyphen_values = true)]
    pub lines: Vec<String>,
    /// Run the lines of this file; - is standard input.
    #[arg(short = 'f', long, value_name = "SCRIPT", value_hint = ValueHint::FilePath, conflicts_with = "lines")]
    pub file: Option<PathBuf>,
    /// Change nothing.
    #[arg(short, long)]
    pub read_only: bool,
    /// The output format of all commands.
    #[command(flatten)]
    pub form: JsonArgs,
    /// How to read and write.
    #[command(flatten)]
    pub switches: SwitchArgs,
}

/// The state between lines.
struct Shell<'a> {
    args: &'a ShellArgs,
    session: Arc<Session>,
    globals: &'a Globals,
    /// Runs a command line.
    execute: fn(Vec<OsString>, Watchers) -> ExitCode,
    /// The present directory of the volume: absolute, without a slash at the end, empty for the root.
    here: Vec<u8>,
    commands: clap::Command,
}

/// How a line ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Done,
    Failed,
    Exit,
}

/// Runs it. `commands`: all of the program; `execute` runs one.
pub fn run(
    args: &ShellArgs,
    globals: &Globals,
    commands: clap::Command,
    execute: fn(Vec<OsString>, Watchers) -> ExitCode,
) -> Result<(), CliError> {
    let spec = device(&args.device)?;
    let write = !args.read_only && !spec.options.read_only;
    let how = OpenHow { write, background: true, ..OpenHow::reading(globals, false, args.switches.switches) };
    let at = |error| CliError::at(&args.device, error);
    let volume = how.open_volume(&spec).map_err(at)?;
    let session = Arc::new(Session::new(spec, volume.clone(), write));
    let mut shell = Shell { args, session, globals, execute, here: Vec::new(), commands };
    let done = shell.lines();
    drop(shell);
    // The first failure is reported.
    let closed = volume.close().map_err(at);
    done.and(closed)
}

impl Shell<'_> {
    fn lines(&mut self) -> Result<(), CliError> {
        if !self.args.lines.is_empty() {
            let lines = self.args.lines.clone();
            return self.script(lines.into_iter().map(|line| Ok(line.into_bytes())), "-c");
        }
        match &self.args.file {
            None if io::stdin().is_terminal() => prompt::run(self),
            None => self.script(io::stdin().lock().split(b'\n'), "standard input"),
            Some(file) if file == Path::new("-") => {
                self.script(io::stdin().lock().split(b'\n'), "standard input")
            }
            Some(file) => {
                let open = std::fs::File::open(file);
                let open = open.map_err(|error| CliError::host(file.as_os_str(), "open", &error))?;
                self.script(io::BufReader::new(open).split(b'\n'), &file.to_string_lossy())
            }
        }
    }

    /// Runs lines until one fails.
    fn script(
        &mut self,
        lines: impl Iterator<Item = io::Result<Vec<u8>>>,
        name: &str,
    ) -> Result<(), CliError> {
        for (number, line) in (1..).zip(lines) {
            let line = line.map_err(|error| CliError::host(OsStr::new(name), "read", &error))?;
            let (line, may_fail) = match line.strip_prefix(b"-") {
                Some(line) => (line, true),
                None => (&line[..], false),
            };
            match self.line(line) {
                Ended::Exit => break,
                Ended::Failed if !may_fail => {
                    let place = format!("{name}: line {number}");
                    return Err(CliError::failed(
                        OsStr::new(&place),
                        "the script ends here",
                        libc::ECANCELED,
                    ));
                }
                Ended::Done | Ended::Failed => {}
            }
        }
        Ok(())
    }

    /// Runs one line, and reports why it failed.
    fn line(&mut self, line: &[u8]) -> Ended {
        let done = words::split(line).map_err(CliError::usage).and_then(|words| self.words(words));
        done.unwrap_or_else(|error| {
            error.end(Some("shell"), self.globals.json);
            Ended::Failed
        })
    }

    fn words(&mut self, words: Vec<Word>) -> Result<Ended, CliError> {
        let Some((name, words)) = words.split_first() else { return Ok(Ended::Done) };
        let name = String::from_utf8_lossy(&name.text).into_owned();
        if let Some(ended) = self.own(&name, words)? {
            return Ok(ended);
        }
        if OUTSIDE.contains(&name.as_str()) {
            return Err(CliError::usage(format!(
                "`{name}` is not for a volume that is open: leave the shell first"
            )));
        }
        let Some(command) = self.commands.find_subcommand(&name) else {
            return Err(CliError::usage(format!("`{name}` is no command: `help` lists them")));
        };
        let (places, lacks) = places(command, words);
        let mut arguments: Vec<OsString> = vec!["uext4".into(), name.into()];
        if lacks == Lacks::Device {
            arguments.push(self.args.device.clone());
        }
        for (word, place) in words.iter().zip(places) {
            match place {
                Place::Other => arguments.push(OsString::from_vec(word.text.clone())),
                Place::Path => arguments.extend(self.operands(word)?),
            }
        }
        if lacks == Lacks::Here {
            arguments.push(self.operand(b""));
        }
        if self.globals.json {
            arguments.push("--json".into());
        }
        Ok(self.run(arguments))
    }

    fn run(&self, arguments: Vec<OsString>) -> Ended {
        let watchers = Watchers { session: Some(self.session.clone()), ..self.globals.watchers.clone() };
        if (self.execute)(arguments, watchers) == ExitCode::SUCCESS { Ended::Done } else { Ended::Failed }
    }

    /// A path from the root on, without names that are `.`, and with `..` taken back.
    fn absolute(&self, path: &[u8]) -> Vec<u8> {
        let from = if path.starts_with(b"/") { &b""[..] } else { &self.here };
        let mut names: Vec<&[u8]> = Vec::new();
        for name in from.split(|&byte| byte == b'/').chain(path.split(|&byte| byte == b'/')) {
            match name {
                b"" | b"." => {}
                b".." => drop(names.pop()),
                name => names.push(name),
            }
        }
        let slash = path.len() > 1 && path.ends_with(b"/") && !names.is_empty();
        let mut path: Vec<u8> = names.iter().flat_map(|name| [&b"/"[..], name]).flatten().copied().collect();
        path.extend(slash.then_some(b'/'));
        path
    }

    /// A path of the volume as commands take it.
    fn operand(&self, path: &[u8]) -> OsString {
        let absolute = self.absolute(path);
        let absolute = if absolute.is_empty() { b"/" } else { &absolute[..] };
        OsString::from_vec([self.args.device.as_bytes(), b":", absolute].concat())
    }

    /// The paths that a word stands for.
    fn operands(&self, word: &Word) -> Result<Vec<OsString>, CliError> {
        if let Some(host) = word.text.strip_prefix(b"host:") {
            // A path that looks like one inside a volume is not taken for one.
            let plain = if host.starts_with(b"/") { host.to_vec() } else { [b"./", host].concat() };
            return Ok(vec![OsString::from_vec(plain)]);
        }
        let Some(pattern) = &word.pattern else { return Ok(vec![self.operand(&word.text)]) };
        let found = self.matches(pattern)?;
        if found.is_empty() {
            return Err(CliError::usage(format!("nothing matches `{}`", text::visible(&word.text))));
        }
        Ok(found.iter().map(|path| self.operand(path)).collect())
    }

    /// The paths that match a pattern, sorted.
    fn matches(&self, pattern: &[u8]) -> Result<Vec<Vec<u8>>, CliError> {
        let mut found = vec![if pattern.starts_with(b"/") { b"/".to_vec() } else { Vec::new() }];
        for part in pattern.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            let glob = std::str::from_utf8(part).ok().and_then(|part| part.parse::<Glob>().ok());
            let glob =
                glob.ok_or_else(|| CliError::usage(format!("`{}` is no pattern", text::visible(part))))?;
            let literal = !part.iter().any(|byte| b"*?[\\".contains(byte));
            let mut next = Vec::new();
            for base in &found {
                let below = |name: &[u8]| match base.as_slice() {
                    b"" => name.to_vec(),
                    base if base.ends_with(b"/") => [base, name].concat(),
                    base => [base, b"/", name].concat(),
                };
                if literal {
                    next.push(below(part));
                    continue;
                }
                let names = self.names(base).unwrap_or_default();
                let hidden = part.starts_with(b".");
                let matching =
                    names.iter().filter(|(name, _)| glob.matches(name, false) && (hidden || name[0] != b'.'));
                next.extend(matching.map(|(name, _)| below(name)));
            }
            if next.len() > MATCHES_MAX {
                return Err(CliError::usage("the pattern matches too many names"));
            }
            found = next;
        }
        let exists = |path: &Vec<u8>| {
            let absolute = self.absolute(path);
            self.session.open().node_at(Path::new(OsStr::from_bytes(&absolute)), false).is_ok()
        };
        found.retain(exists);
        found.sort_unstable();
        Ok(found)
    }

    /// The names in a directory, and whether each is a directory.
    fn names(&self, path: &[u8]) -> uext4::Result<Vec<(Vec<u8>, bool)>> {
        let absolute = [&self.absolute(path)[..], b"/"].concat();
        let directory = self.session.open().node_at(Path::new(OsStr::from_bytes(&absolute)), true)?;
        let mut names = Vec::new();
        for entry in directory.read_dir()? {
            let entry = entry?;
            if entry.name != b"." && entry.name != b".." {
                names.push((entry.name, entry.kind == Some(FileKind::Directory)));
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}
