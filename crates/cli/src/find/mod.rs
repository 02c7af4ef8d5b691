//! `uext4 find`.

mod args;
mod conditions;
pub mod glob;

pub use args::FindArgs;

use crate::args::Globals;
use crate::cat::Volumes;
use crate::error::{CliError, Failures};
use crate::open::{OpenHow, Operand};
use crate::out::{Elements, Out};
use crate::text::{self, JsonBytes, JsonTime};
use conditions::Conditions;
use serde::Serialize;
use uext4::{FileKind, Ino, Switches, Visit, Volume, WalkEntry, WalkOptions};

/// An entry in JSON: that of `ls`, with the path instead of the name.
#[derive(Serialize)]
struct JsonEntry<'a> {
    #[serde(flatten)]
    argument: JsonBytes<'a>,
    #[serde(flatten)]
    path: JsonBytes<'a>,
    ino: u32,
    r#type: Option<&'static str>,
    mode: Option<u32>,
    links: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    blocks: Option<u64>,
    mtime: Option<JsonTime>,
    mtime_ns: Option<i128>,
}

struct Finder<'a> {
    args: &'a FindArgs,
    json: bool,
    operand: &'a Operand,
    conditions: Conditions<'a>,
    out: Out,
    list: Elements,
    failures: Failures<'a>,
    /// The path of the current entry inside the volume, and the length of the operand's own path in it.
    path: Vec<u8>,
    prefix: usize,
}

/// Runs it.
pub fn run(args: &FindArgs, globals: &Globals) -> Result<(), CliError> {
    let operands = Operand::all(&args.operands)?;
    let Some(operand) = operands.first() else { return Ok(()) };
    let how = OpenHow::walking(globals, args.common.force, Switches::ON);
    let mut volumes = Volumes::default();
    let mut finder = Finder {
        args,
        json: globals.json,
        operand,
        conditions: Conditions::new(args),
        out: Out::new(),
        list: Elements::new(globals.json),
        failures: globals.failures(),
        prefix: 0,
        path: Vec::new(),
    };
    for operand in &operands {
        finder.operand = operand;
        let walked = volumes.get(operand, &how).and_then(|volume| finder.walk(&volume));
        finder.failures.one_of(operands.len(), walked)?;
    }
    finder.finish()
}

impl Finder<'_> {
    /// One operand with everything below it.
    fn walk(&mut self, volume: &Volume) -> Result<(), CliError> {
        let options = WalkOptions::new()
            .stat(self.conditions.need_attributes() || self.args.ls || self.json)
            .max_depth(self.args.maxdepth.unwrap_or(u32::MAX));
        let walk = volume.walk(self.operand.inner(), options);
        let mut walk = walk.map_err(|error| self.operand.error(error))?;
        self.path = self.operand.inside(b"");
        self.prefix = self.path.len();
        while let Some(told) = walk.advance() {
            match told {
                Ok(entry) if entry.visit == Visit::Found => self.entry(volume, &entry)?,
                Ok(_) => {}
                Err(error) => self.trouble(&error.shown(), error.error),
            }
        }
        Ok(())
    }

    fn trouble(&mut self, relative: &[u8], error: uext4::Error) {
        self.failures.tell(&CliError::at(&self.operand.below(relative), error));
    }

    fn entry(&mut self, volume: &Volume, entry: &WalkEntry<'_>) -> Result<(), CliError> {
        self.path.truncate(self.prefix);
        if !entry.path.is_empty() {
            if self.path.last() != Some(&b'/') {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(entry.path);
        }
        if !self.conditions.hold(entry, &self.path) {
            return Ok(());
        }
        if self.args.empty && entry.kind == Some(FileKind::Directory) {
            match is_empty(volume, entry.ino) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // The walk reports the error when it enters the directory, unless that is too deep.
                Err(error) => {
                    if self.args.maxdepth.is_some_and(|depth| entry.depth >= depth) {
                        self.trouble(entry.path, error);
                    }
                    return Ok(());
                }
            }
        }
        if self.json {
            self.print_json(entry)
        } else if self.args.ls {
            self.print_long(volume, entry)
        } else if self.args.print0 {
            self.operand.print_below_raw(&mut self.out, entry.path)?;
            self.out.bytes(b"\0")
        } else {
            self.operand.print_below(&mut self.out, entry.path)?;
            self.out.bytes(b"\n")
        }
    }

    fn print_json(&mut self, entry: &WalkEntry<'_>) -> Result<(), CliError> {
        let metadata = entry.metadata;
        let element = JsonEntry {
            argument: JsonBytes::argument(&self.operand.argument, self.args.operands.len()),
            path: JsonBytes("path", Some(&self.path)),
            ino: entry.ino.get(),
            r#type: entry.kind.map(text::kind),
            mode: metadata.map(|metadata| metadata.mode),
            links: metadata.map(|metadata| metadata.links),
            uid: metadata.map(|metadata| metadata.uid),
            gid: metadata.map(|metadata| metadata.gid),
            size: metadata.map(|metadata| metadata.size),
            blocks: metadata.map(|metadata| metadata.blocks),
            mtime: metadata.map(|metadata| metadata.modified.into()),
            mtime_ns: metadata.map(|metadata| metadata.modified.nanoseconds_since_epoch()),
        };
        self.list.element(&mut self.out, &element)
    }

    fn print_long(&mut self, volume: &Volume, entry: &WalkEntry<'_>) -> Result<(), CliError> {
        let Some(metadata) = entry.metadata else { return Ok(()) };
        write!(
            self.out,
            "{:>9} {:>6} {} {:>3} {:>8} {:>8} {:>8} {} ",
            entry.ino,
            metadata.blocks.div_ceil(2),
            text::mode_string(metadata.kind, metadata.mode),
            metadata.links,
            metadata.uid,
            metadata.gid,
            text::size_or_device(metadata, false),
            text::time(metadata.modified.seconds),
        )?;
        self.operand.print_below(&mut self.out, entry.path)?;
        if metadata.kind == FileKind::Symlink {
            self.out.bytes(b" -> ")?;
            match volume.read_link_of(entry.ino) {
                Ok(target) => self.out.name(&target)?,
                Err(error) => {
                    self.out.bytes(b"?")?;
                    self.trouble(entry.path, error);
                }
            }
        }
        self.out.bytes(b"\n")
    }

    fn finish(mut self) -> Result<(), CliError> {
        self.list.end(&mut self.out)?;
        self.out.finish()?;
        self.failures.finish()
    }
}

fn is_empty(volume: &Volume, directory: Ino) -> Result<bool, uext4::Error> {
    for entry in volume.read_dir_of(directory)? {
        let name = entry?.name;
        if name != b"." && name != b".." {
            return Ok(false);
        }
    }
    Ok(true)
}
