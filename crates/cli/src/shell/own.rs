//! Commands that only the shell has.

use super::words::Word;
use super::{Ended, Shell};
use crate::error::CliError;
use crate::out::Out;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use uext4::FileKind;

/// Their names, for completion.
pub const NAMES: [&str; 11] =
    ["cd", "edit", "exit", "get", "help", "lcd", "put", "pwd", "quit", "sync", "lpwd"];

fn host(word: &Word) -> OsString {
    OsString::from_vec(word.text.clone())
}

impl Shell<'_> {
    /// Runs one of them; `None` if it is none.
    pub(super) fn own(&mut self, name: &str, words: &[Word]) -> Result<Option<Ended>, CliError> {
        let one = |what: &str| match words {
            [word] => Ok(word),
            _ => Err(CliError::usage(format!("{name} takes {what}"))),
        };
        let none = || match words {
            [] => Ok(()),
            _ => Err(CliError::usage(format!("{name} takes nothing"))),
        };
        let ended = match name {
            "exit" | "quit" => none().map(|()| Ended::Exit)?,
            "pwd" => {
                none()?;
                let path = if self.here.is_empty() { b"/" } else { &self.here[..] };
                self.print(path)?
            }
            "cd" if words.is_empty() => {
                self.here.clear();
                Ended::Done
            }
            "cd" => self.enter(one("a directory of the volume")?)?,
            "lcd" => {
                let path = host(one("a directory of the host")?);
                let changed = std::env::set_current_dir(&path);
                changed.map_err(|error| CliError::host(&path, "enter", &error))?;
                Ended::Done
            }
            "lpwd" => {
                none()?;
                let path = std::env::current_dir();
                let path = path.map_err(|error| CliError::host(OsStr::new("."), "find", &error))?;
                self.print(path.as_os_str().as_bytes())?
            }
            "sync" => {
                none()?;
                let synced = self.session.open().sync_all();
                synced.map_err(|error| CliError::at(&self.args.device, error))?;
                Ended::Done
            }
            "put" => self.put(words)?,
            "get" => self.get(words)?,
            "edit" => self.edit(one("a file of the volume")?)?,
            "help" => self.help(words)?,
            _ => return Ok(None),
        };
        Ok(Some(ended))
    }

    fn print(&self, line: &[u8]) -> Result<Ended, CliError> {
        let mut out = Out::new();
        out.name(line)?;
        out.bytes(b"\n")?;
        out.finish()?;
        Ok(Ended::Done)
    }

    fn enter(&mut self, word: &Word) -> Result<Ended, CliError> {
        let mut path = self.absolute(&word.text);
        while path.ends_with(b"/") {
            path.pop();
        }
        let inner = if path.is_empty() { Path::new("/") } else { Path::new(OsStr::from_bytes(&path)) };
        let found = self.session.open().node_at(inner, true);
        let found = found.and_then(|found| match found.kind() {
            FileKind::Directory => Ok(()),
            _ => Err(uext4::Error::NotDirectory),
        });
        found.map_err(|error| CliError::at(&self.operand(&word.text), error))?;
        self.here = path;
        Ok(Ended::Done)
    }

    fn put(&mut self, words: &[Word]) -> Result<Ended, CliError> {
        let (sources, into) = match words {
            [] => return Err(CliError::usage("put takes files of the host, and a directory of the volume")),
            [source] => (std::slice::from_ref(source), self.operand(b"")),
            [sources @ .., into] => (sources, self.operand(&into.text)),
        };
        let mut arguments: Vec<OsString> = ["uext4", "cp", "-a", "--"].map(OsString::from).to_vec();
        arguments.extend(sources.iter().map(|word| not_inside(host(word))));
        arguments.push(into);
        Ok(self.run(arguments))
    }

    fn get(&mut self, words: &[Word]) -> Result<Ended, CliError> {
        let (sources, into) = match words {
            [] => return Err(CliError::usage("get takes files of the volume, and a directory of the host")),
            [source] => (std::slice::from_ref(source), ".".into()),
            [sources @ .., into] => (sources, not_inside(host(into))),
        };
        let mut arguments: Vec<OsString> = ["uext4", "cp", "-a", "--"].map(OsString::from).to_vec();
        for source in sources {
            arguments.extend(self.operands(source)?);
        }
        arguments.push(into);
        Ok(self.run(arguments))
    }

    /// Copies a file out, runs the editor, and copies it back over the old contents if they changed.
    fn edit(&mut self, word: &Word) -> Result<Ended, CliError> {
        let operand = self.operand(&word.text);
        let editor = ["VISUAL", "EDITOR"].into_iter().find_map(std::env::var_os).unwrap_or("vi".into());
        let base =
            Path::new(OsStr::from_bytes(&word.text)).file_name().unwrap_or(OsStr::new("file")).to_owned();
        let folder = Folder::new()?;
        let copy = folder.0.join(base);
        let cp = |from: &OsStr, to: &OsStr| {
            let words = ["uext4".into(), "cp".into(), "--".into(), from.to_owned(), to.to_owned()];
            self.run(words.to_vec())
        };
        let absolute = self.absolute(&word.text);
        let exists = self.session.open().node_at(Path::new(OsStr::from_bytes(&absolute)), true).is_ok();
        if exists && cp(&operand, copy.as_os_str()) != Ended::Done {
            return Ok(Ended::Failed);
        }
        let read = || std::fs::read(&copy).unwrap_or_default();
        let before = read();
        // As git and others do: the editor may have arguments.
        let mut shell = Command::new("sh");
        let line = [editor.as_bytes(), b" \"$@\""].concat();
        let status = shell.arg("-c").arg(OsStr::from_bytes(&line)).arg("edit").arg(&copy).status();
        let status = status.map_err(|error| CliError::host(&editor, "run", &error))?;
        if !status.success() {
            return Err(CliError::failed(&editor, format!("the editor failed: {status}"), libc::ECANCELED));
        }
        if exists && read() == before || !copy.exists() {
            return Ok(Ended::Done);
        }
        Ok(cp(copy.as_os_str(), &operand))
    }

    fn help(&self, words: &[Word]) -> Result<Ended, CliError> {
        let name = match words {
            [] => "shell".into(),
            [name] if NAMES.contains(&String::from_utf8_lossy(&name.text).as_ref()) => "shell".into(),
            [name] => host(name),
            _ => return Err(CliError::usage("help takes one command")),
        };
        let ended = self.run(vec!["uext4".into(), name, "--help".into()]);
        if words.is_empty() {
            let names: Vec<&str> = self.commands.get_subcommands().map(clap::Command::get_name).collect();
            let inside = names.iter().filter(|name| !super::OUTSIDE.contains(name)).copied();
            let line = format!("Commands: {}", inside.collect::<Vec<_>>().join(", "));
            self.print(line.as_bytes())?;
        }
        Ok(ended)
    }
}

/// A path of the host that is not taken for one inside a volume.
fn not_inside(path: OsString) -> OsString {
    let bytes = path.as_bytes();
    let plain =
        bytes.starts_with(b"/") || bytes.starts_with(b"./") || bytes.starts_with(b"../") || bytes == b".";
    if plain { path } else { OsString::from_vec([b"./", bytes].concat()) }
}

/// A directory that is removed again.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, CliError> {
        let name = |number: u32| format!("uext4-edit-{}-{number}", std::process::id());
        let base = std::env::temp_dir();
        for number in 0..100 {
            let path = base.join(name(number));
            let mut how = std::fs::DirBuilder::new();
            match std::os::unix::fs::DirBuilderExt::mode(&mut how, 0o700).create(&path) {
                Ok(()) => return Ok(Folder(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(CliError::host(path.as_os_str(), "create", &error)),
            }
        }
        Err(CliError::failed(base.as_os_str(), "no free name for a directory", libc::EEXIST))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is a copy in the directory for temporary files.
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}
