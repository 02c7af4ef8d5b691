//! The commands that change attributes: `chmod`, `chown`, `touch`, `chattr`. This module finds the inodes and reports.

pub mod chattr;
pub mod chmod;
pub mod chown;
pub mod symbolic;
pub mod touch;

use crate::args::Globals;
use crate::cat::Volumes;
use crate::error::CliError;
use crate::open::{OpenHow, Operand};
use crate::out::{Elements, Out};
use crate::stat::JsonStat;
use crate::text::JsonBytes;
use clap::Args;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use uext4::{FileKind, Metadata, Node, SetAttributes, Switches, Timestamp, Visit, Volume, WalkOptions};

/// Put before a mode that begins with a hyphen, which would be taken for an option. No mode begins with it otherwise.
const MARK: &str = ",";

/// Marks the modes of `chmod` and `chattr` that begin with a hyphen.
pub fn mark_modes(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let letters = match arguments.get(1).and_then(|name| name.to_str()) {
        Some("chmod") => "rwxXstugo",
        Some("chattr") => chattr::HYPHENATED,
        _ => return arguments,
    };
    for word in arguments.iter_mut().take_while(|word| *word != "--") {
        let mode = word.to_str().and_then(|word| word.strip_prefix('-'));
        if mode.is_some_and(|mode| mode.starts_with(|letter| letters.contains(letter))) {
            *word = [OsStr::new(MARK), word].into_iter().collect();
        }
    }
    arguments
}

/// A word as it was typed.
fn typed(word: &str) -> &str {
    word.strip_prefix(MARK).unwrap_or(word)
}

/// What `chmod` and `chown` print.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct ReportArgs {
    /// Print a line for every file.
    #[arg(short, long)]
    pub verbose: bool,
    /// Print a line for every file that changes.
    #[arg(short, long, conflicts_with = "verbose")]
    pub changes: bool,
    /// Do not report errors.
    #[arg(short = 'f', long, visible_alias = "quiet")]
    pub silent: bool,
}

impl ReportArgs {
    fn tells(self, changed: bool) -> bool {
        self.verbose || self.changes && changed
    }
}

/// Which inodes a command changes.
#[derive(Clone, Copy)]
pub struct Reach {
    /// Everything below directories too.
    pub recursive: bool,
    /// The target of an operand that is a symbolic link, instead of the link.
    pub follow: bool,
    /// Report no errors.
    pub silent: bool,
}

/// An inode to change.
pub struct Found<'a> {
    /// As an argument.
    name: OsString,
    node: Node,
    before: Metadata,
    operand: &'a Operand,
    path: &'a [u8],
}

/// The result for an inode.
#[derive(Serialize)]
struct JsonChanged<'a> {
    #[serde(flatten)]
    argument: JsonBytes<'a>,
    /// Below the argument, with `-R`.
    #[serde(flatten)]
    path: JsonBytes<'a>,
    #[serde(flatten)]
    stat: JsonStat<'a>,
}

/// Changes inodes one by one.
pub struct Changer<'g> {
    globals: &'g Globals,
    reach: Reach,
    count: usize,
    volumes: Volumes,
    out: Out,
    list: Elements,
    failed: bool,
}

impl<'g> Changer<'g> {
    /// For `count` operands.
    pub fn new(globals: &'g Globals, reach: Reach, count: usize) -> Self {
        let list = Elements::new(globals.json && (count > 1 || reach.recursive));
        let volumes = Volumes::default();
        Changer { globals, reach, count, volumes, out: Out::new(), list, failed: false }
    }

    fn volume(&mut self, operand: &Operand) -> Result<Volume, CliError> {
        let how = OpenHow { write: true, ..OpenHow::reading(self.globals, false, Switches::ON) };
        self.volumes.get(operand, &how)
    }

    /// Where the clock stands, if the command is deterministic.
    pub fn fixed_time(&self) -> Option<Timestamp> {
        self.globals.fixed
    }

    /// The attributes of a reference: of a file of a volume, or of the host.
    pub fn reference(&mut self, reference: &OsStr) -> Result<Reference, CliError> {
        if let Ok(operand) = Operand::parse(reference) {
            let volume = self.volume(&operand)?;
            let found = volume.metadata(operand.inner()).map_err(|error| operand.error(error))?;
            return Ok(Reference::Volume(Box::new(found)));
        }
        let found = std::fs::metadata(reference);
        found.map(Reference::Host).map_err(|error| CliError::host(reference, "stat", &error))
    }

    /// Changes what `operands` name; `missing` is asked first for each of them.
    pub fn run(
        mut self,
        operands: &[Operand],
        mut missing: impl FnMut(&Volume, &Operand) -> uext4::Result<Missing>,
        mut change: impl FnMut(&mut Self, &Found<'_>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let mut ended = Ok(());
        for operand in operands {
            match self.operand(operand, &mut missing, &mut change) {
                Err(error) if error.ends_all() => {
                    ended = Err(error);
                    break;
                }
                Err(error) => self.tell(&error),
                Ok(()) => {}
            }
        }
        if let Err(error) = std::mem::take(&mut self.volumes).close() {
            self.tell(&error);
        }
        ended?;
        self.list.end(&mut self.out)?;
        self.out.finish()?;
        if self.failed { Err(CliError::Told) } else { Ok(()) }
    }

    fn tell(&mut self, error: &CliError) {
        self.failed = true;
        if !self.reach.silent {
            error.report(Some(&self.globals.command), self.globals.json);
        }
    }

    fn operand(
        &mut self,
        operand: &Operand,
        missing: &mut impl FnMut(&Volume, &Operand) -> uext4::Result<Missing>,
        change: &mut impl FnMut(&mut Self, &Found<'_>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let volume = self.volume(operand)?;
        if missing(&volume, operand).map_err(|error| operand.error(error))? == Missing::Skip {
            return Ok(());
        }
        let node =
            volume.node_at(operand.inner(), self.reach.follow).map_err(|error| operand.error(error))?;
        if !self.reach.recursive || node.kind() != FileKind::Directory {
            return self.one(operand, b"", node, change);
        }
        let walk = volume.walk(operand.inner(), WalkOptions::new());
        let mut walk = walk.map_err(|error| operand.error(error))?;
        while let Some(told) = walk.advance() {
            let done = match told {
                Ok(entry) if entry.visit == Visit::Found => volume
                    .node(entry.ino, None)
                    .map_err(|error| CliError::at(&operand.below(entry.path), error))
                    .and_then(|node| self.one(operand, entry.path, node, change)),
                Ok(_) => Ok(()),
                Err(error) => Err(CliError::at(&operand.below(&error.shown()), error.error)),
            };
            match done {
                Err(error) if error.ends_all() => return Err(error),
                Err(error) => self.tell(&error),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn one(
        &mut self,
        operand: &Operand,
        path: &[u8],
        node: Node,
        change: &mut impl FnMut(&mut Self, &Found<'_>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let name = if path.is_empty() { operand.argument.clone() } else { operand.below(path) };
        let before = node.attributes();
        change(self, &Found { name, node, before, operand, path })
    }

    /// Sets attributes of an inode, and prints its attributes if JSON is wanted.
    pub fn set(&mut self, found: &Found<'_>, set: &SetAttributes) -> Result<Metadata, CliError> {
        found.node.set_attributes(set).map_err(|error| CliError::at(&found.name, error))?;
        let after = found.node.attributes();
        if self.globals.json {
            let target = if after.kind == FileKind::Symlink { found.node.read_link().ok() } else { None };
            let element = JsonChanged {
                argument: JsonBytes::argument(&found.operand.argument, self.count),
                path: JsonBytes("path", self.reach.recursive.then_some(found.path)),
                stat: JsonStat::new(&after, target.as_deref()),
            };
            self.list.element(&mut self.out, &element)?;
        }
        Ok(after)
    }

    /// Prints a line about an inode: `before 'NAME' after`.
    pub fn line(&mut self, before: &str, found: &Found<'_>, after: &str) -> Result<(), CliError> {
        if self.globals.json {
            return Ok(());
        }
        write!(self.out, "{before} '")?;
        self.out.name(found.name.as_bytes())?;
        writeln!(self.out, "' {after}")
    }
}

/// What to do with an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Change it; if it does not exist, that is an error.
    Change,
    /// Skip it.
    Skip,
}

/// A file whose attributes are copied.
pub enum Reference {
    /// Of a volume.
    Volume(Box<Metadata>),
    /// Of the host.
    Host(std::fs::Metadata),
}

/// Splits the first word off.
pub fn first<'w>(words: &'w [OsString], what: &str) -> Result<(&'w OsStr, &'w [OsString]), CliError> {
    match words {
        [first, rest @ ..] if !rest.is_empty() => Ok((first, rest)),
        _ => Err(CliError::usage(format!("{what} and DEVICE:/path are needed"))),
    }
}

/// The operands.
pub fn operands(words: &[OsString]) -> Result<Vec<Operand>, CliError> {
    words.iter().map(|word| Operand::parse(word)).collect()
}
