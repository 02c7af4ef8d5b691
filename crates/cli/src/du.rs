//! `uext4 du`.

use crate::args::{ForceArgs, Globals, JsonArgs};
use crate::error::{CliError, Troubles};
use crate::open::{How, Place};
use crate::out::Out;
use crate::text;
use clap::{ArgAction, Args, ValueHint};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use uext4::{FileKind, Ino, Metadata, Switches, Visit, WalkEntry, WalkOptions};

/// `uext4 du`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct DuArgs {
    /// Whose space; the root directory's without a path.
    #[arg(value_name = "DEVICE[:/path]", value_hint = ValueHint::FilePath)]
    pub place: OsString,
    /// Files too, not only directories.
    #[arg(short, long, conflicts_with = "summarize")]
    pub all: bool,
    /// Only the sum. The same as -d 0.
    #[arg(short, long, conflicts_with = "depth")]
    pub summarize: bool,
    /// Nothing deeper than this is printed; it is counted all the same.
    #[arg(short, long = "max-depth", value_name = "N")]
    pub depth: Option<u32>,
    /// Sizes of files as their readers see them, holes included, instead of space on the device.
    #[arg(long)]
    pub apparent_size: bool,
    /// Powers of 1024 with a letter, instead of KiB.
    #[arg(short, long, conflicts_with = "bytes")]
    pub human_readable: bool,
    /// Bytes instead of KiB.
    #[arg(long)]
    pub bytes: bool,
    /// How to open.
    #[command(flatten)]
    pub force: ForceArgs,
    /// In which form.
    #[command(flatten)]
    pub form: JsonArgs,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
}

#[derive(Serialize)]
struct JsonSum<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    bytes: u64,
}

/// A directory that is being added up.
struct Level {
    own: u64,
    sum: u64,
}

struct Adder<'a> {
    args: &'a DuArgs,
    json: bool,
    place: &'a Place,
    out: Out,
    /// Deepest level that is printed.
    depth: u32,
    levels: Vec<Level>,
    /// Files with several names that were counted.
    counted: HashSet<Ino>,
    any: bool,
}

/// Runs it.
pub fn run(args: &DuArgs, globals: &Globals) -> Result<(), CliError> {
    let place = Place::parse_or_root(&args.place)?;
    let volume = place.volume(&How::walking(globals, args.force.force, Switches::ON))?;
    let options = WalkOptions::new().brackets(true);
    let mut walk = volume.walk(place.inner(), options).map_err(|error| place.error(error))?;
    let mut troubles = Troubles::new("du", globals.json);
    let mut adder = Adder {
        args,
        json: globals.json,
        place: &place,
        out: Out::new(),
        depth: if args.summarize { 0 } else { args.depth.unwrap_or(u32::MAX) },
        levels: Vec::new(),
        counted: HashSet::new(),
        any: false,
    };
    while let Some(told) = walk.advance() {
        match told {
            Ok(entry) => adder.entry(&entry)?,
            Err(error) => troubles.tell(&CliError::at(&place.below(&error.shown()), error.error)),
        }
    }
    adder.finish()?;
    troubles.finish()
}

impl Adder<'_> {
    fn size(&self, metadata: Option<&Metadata>) -> u64 {
        metadata.map_or(0, |metadata| {
            if self.args.apparent_size { metadata.size } else { metadata.blocks.saturating_mul(512) }
        })
    }

    fn entry(&mut self, entry: &WalkEntry<'_>) -> Result<(), CliError> {
        let own = self.size(entry.metadata);
        match entry.visit {
            // A directory counts for its parent even if it cannot be entered.
            Visit::Found if entry.kind == Some(FileKind::Directory) => self.add(own),
            Visit::Found => {
                let linked = entry.metadata.is_some_and(|metadata| metadata.links > 1);
                if linked && !self.counted.insert(entry.ino) {
                    return Ok(());
                }
                self.add(own);
                if entry.depth == 0 || self.args.all && entry.depth <= self.depth {
                    self.print(entry.path, own)?;
                }
            }
            Visit::Enter => self.levels.push(Level { own, sum: own }),
            Visit::Leave => {
                let Some(level) = self.levels.pop() else { return Ok(()) };
                self.add(level.sum.saturating_sub(level.own));
                if entry.depth <= self.depth {
                    self.print(entry.path, level.sum)?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, bytes: u64) {
        if let Some(level) = self.levels.last_mut() {
            level.sum = level.sum.saturating_add(bytes);
        }
    }

    fn print(&mut self, relative: &[u8], bytes: u64) -> Result<(), CliError> {
        let path = self.place.inside(relative);
        if self.json {
            let (path, path_b64) = text::utf8_or_base64(&path);
            self.out.bytes(if self.any { b",\n" } else { b"[\n" })?;
            self.any = true;
            return self.out.json_compact(&JsonSum { path, path_b64, bytes });
        }
        if self.args.human_readable {
            write!(self.out, "{}\t", text::short(bytes))?;
        } else {
            write!(self.out, "{}\t", if self.args.bytes { bytes } else { bytes.div_ceil(1024) })?;
        }
        self.out.name(&path)?;
        self.out.bytes(b"\n")
    }

    fn finish(mut self) -> Result<(), CliError> {
        if self.json {
            self.out.bytes(if self.any { b"\n]\n" } else { b"[]\n" })?;
        }
        self.out.finish()
    }
}
