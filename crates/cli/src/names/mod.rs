//! The commands that change names: `mkdir`, `rmdir`, `mv`, `ln`, `rm`. This module opens the volumes and reports.

pub mod ln;
pub mod mkdir;
pub mod mv;
pub mod rm;
pub mod rmdir;
mod tree;

use crate::args::Globals;
use crate::cat::Volumes;
use crate::error::{CliError, Failures};
use crate::open::{OpenHow, Operand, owner, umask};
use crate::out::{Elements, Out};
use crate::text::JsonBytes;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::{Caller, FileKind, Switches, Volume};

/// The user who runs the command, with the mask of the shell; of a deterministic command, root.
fn caller(globals: &Globals) -> Caller {
    let (uid, gid) = owner(globals);
    Caller::new(uid, gid).umask(umask(globals))
}

/// One step in JSON.
#[derive(Serialize)]
struct JsonStep<'a> {
    #[serde(flatten)]
    first: JsonBytes<'a>,
    #[serde(flatten)]
    second: JsonBytes<'a>,
}

/// Changes names of volumes, reports failures and, with `-v`, each step.
pub struct Changes<'g> {
    globals: &'g Globals,
    verbose: bool,
    force: bool,
    volumes: Volumes,
    failures: Failures<'g>,
    out: Out,
    list: Elements,
    /// If standard output fails, the changes go on.
    failed: Option<CliError>,
}

impl<'g> Changes<'g> {
    pub fn new(globals: &'g Globals, verbose: bool, force: bool) -> Self {
        Changes {
            globals,
            verbose,
            force,
            volumes: Volumes::default(),
            failures: globals.failures(),
            out: Out::new(),
            list: Elements::new(globals.json && verbose),
            failed: None,
        }
    }

    /// The operand's volume, open for writing.
    pub fn volume(&mut self, operand: &Operand) -> Result<Volume, CliError> {
        self.volumes.get(operand, &self.how())
    }

    /// The same, and the volume's number: equal for operands on one volume.
    pub fn numbered(&mut self, operand: &Operand) -> Result<(usize, Volume), CliError> {
        self.volumes.numbered(operand, &self.how())
    }

    fn how(&self) -> OpenHow<'g> {
        OpenHow { write: true, ..OpenHow::reading(self.globals, self.force, Switches::ON) }
    }

    /// Handles the outcome for one of `count` operands: with several, the command goes on after a failure.
    pub fn one_of(&mut self, count: usize, done: Result<(), CliError>) -> Result<(), CliError> {
        self.failures.one_of(count, done).map(drop)
    }

    /// Reports a failure; the command goes on.
    pub fn tell(&mut self, error: &CliError) {
        self.failures.tell(error);
    }

    /// With `-v`, says what was done: `before 'NAME'`, and `between 'SECOND'` if there is a second name.
    pub fn step(&mut self, before: &str, names: [(&'static str, &OsStr); 2], between: &str) {
        if !self.verbose || self.failed.is_some() {
            return;
        }
        let [(first, name), (second, other)] = names;
        let said = if self.globals.json {
            let first = JsonBytes(first, Some(name.as_bytes()));
            let second = JsonBytes(second, Some(other.as_bytes()).filter(|name| !name.is_empty()));
            self.list.element(&mut self.out, &JsonStep { first, second })
        } else {
            self.line(before, name, between, other)
        };
        self.failed = said.err();
    }

    /// The same of one name.
    pub fn done(&mut self, before: &str, name: &OsStr) {
        self.step(before, [("path", name), ("", OsStr::new(""))], "");
    }

    fn line(&mut self, before: &str, name: &OsStr, between: &str, other: &OsStr) -> Result<(), CliError> {
        self.out.bytes(before.as_bytes())?;
        self.out.bytes(b"'")?;
        self.out.name(name.as_bytes())?;
        self.out.bytes(b"'")?;
        if !between.is_empty() {
            self.out.bytes(between.as_bytes())?;
            self.out.bytes(b"'")?;
            self.out.name(other.as_bytes())?;
            self.out.bytes(b"'")?;
        }
        self.out.line_end()
    }

    /// Closes the volumes, which makes the changes durable. `ended`: whether the command stopped early.
    pub fn finish(mut self, ended: Result<(), CliError>) -> Result<(), CliError> {
        let closed = self.volumes.close();
        ended.and(closed)?;
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        self.list.end(&mut self.out)?;
        self.out.finish()?;
        self.failures.finish()
    }
}

/// A new name: its path in the volume, and how it is shown.
struct Dest {
    path: Vec<u8>,
    shown: OsString,
}

impl Dest {
    fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }
}

/// Where several sources go: into the directory `dest`, or, for one source, onto `dest` if that is no directory. With
/// `plain` (`-T`), `dest` is a name even if it leads to a directory.
fn destination(
    changes: &mut Changes<'_>,
    dest: &Operand,
    sources: usize,
    plain: bool,
) -> Result<bool, CliError> {
    let volume = changes.volume(dest)?;
    let found = volume.metadata(dest.inner());
    let into = !plain && found.as_ref().is_ok_and(|found| found.kind == FileKind::Directory);
    match found {
        Err(uext4::Error::NotFound) | Ok(_) => {}
        Err(error) => return Err(dest.error(error)),
    }
    match into || sources == 1 {
        true => Ok(into),
        false => Err(CliError::failed(&dest.argument, "not a directory", libc::ENOTDIR)),
    }
}

/// The message for a source that has the new name already.
const SAME: &str = "source and destination are the same file";

/// Whether two paths that lead to the same inode are spellings of one name.
fn are_one_name(volume: &Volume, one: &Path, other: &Path) -> bool {
    let parent = |path: &Path| volume.resolve(path.parent().unwrap_or(Path::new("/")), true).ok();
    one.file_name() == other.file_name() && parent(one) == parent(other)
}

/// The new name of a source whose last name is `name`.
fn named(dest: &Operand, into: bool, name: Option<&OsStr>) -> Result<Dest, CliError> {
    if !into {
        return Ok(Dest { path: dest.path.clone(), shown: dest.argument.clone() });
    }
    let name = name.ok_or_else(|| CliError::usage("a source without a last name: name the destination"))?;
    Ok(Dest { path: dest.inside(name.as_bytes()), shown: dest.below(name.as_bytes()) })
}
