//! `uext4 du`.

use crate::args::{CommonArgs, Globals};
use crate::cat::Volumes;
use crate::error::{CliError, Failures};
use crate::open::{OpenHow, Operand};
use crate::out::{Elements, Out};
use crate::text::{self, JsonBytes};
use clap::{ArgAction, Args, ValueHint};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use uext4::{FileKind, Ino, Metadata, Switches, Visit, WalkEntry, WalkOptions};

/// `uext4 du`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct DuArgs {
    /// Files and directories to add up; the root directory without a path. Every name is printed after its argument.
    /// Files with several hard links are counted once.
    #[arg(value_name = "DEVICE[:/path]", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Print files too, not only directories.
    #[arg(short, long, conflicts_with = "summarize")]
    pub all: bool,
    /// Print only the total of each argument, as -d 0 does.
    #[arg(short, long, conflicts_with = "depth")]
    pub summarize: bool,
    /// Print nothing deeper than this; it still counts.
    #[arg(short, long = "max-depth", value_name = "N")]
    pub depth: Option<u32>,
    /// Count file sizes, holes included, instead of space on the device.
    #[arg(long)]
    pub apparent_size: bool,
    /// Print sizes in powers of 1024 with a letter, instead of KiB.
    #[arg(short, long, conflicts_with = "bytes")]
    pub human_readable: bool,
    /// Print bytes instead of KiB.
    #[arg(long)]
    pub bytes: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
}

#[derive(Serialize)]
struct JsonSum<'a> {
    #[serde(flatten)]
    argument: JsonBytes<'a>,
    #[serde(flatten)]
    path: JsonBytes<'a>,
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
    /// The operand being added up, and the number of its volume.
    operand: &'a Operand,
    volume: usize,
    out: Out,
    list: Elements,
    /// Deepest level to print.
    depth: u32,
    levels: Vec<Level>,
    /// Files with several hard links already counted, by volume.
    counted: HashSet<(usize, Ino)>,
    failures: Failures<'a>,
}

/// Runs it.
pub fn run(args: &DuArgs, globals: &Globals) -> Result<(), CliError> {
    let operands = Operand::all(&args.operands)?;
    let Some(operand) = operands.first() else { return Ok(()) };
    let how = OpenHow::walking(globals, args.common.force, Switches::ON);
    let mut volumes = Volumes::default();
    let mut adder = Adder {
        args,
        json: globals.json,
        operand,
        volume: 0,
        out: Out::new(),
        list: Elements::new(globals.json),
        depth: if args.summarize { 0 } else { args.depth.unwrap_or(u32::MAX) },
        levels: Vec::new(),
        counted: HashSet::new(),
        failures: globals.failures(),
    };
    for operand in &operands {
        adder.operand = operand;
        let added = adder.add_up(&mut volumes, &how);
        adder.failures.one_of(operands.len(), added)?;
    }
    adder.finish()
}

impl Adder<'_> {
    /// One operand with everything below it.
    fn add_up(&mut self, volumes: &mut Volumes, how: &OpenHow<'_>) -> Result<(), CliError> {
        let (number, volume) = volumes.numbered(self.operand, how)?;
        self.volume = number;
        self.levels.clear();
        let options = WalkOptions::new().brackets(true);
        let walk = volume.walk(self.operand.inner(), options);
        let mut walk = walk.map_err(|error| self.operand.error(error))?;
        while let Some(told) = walk.advance() {
            match told {
                Ok(entry) => self.entry(&entry)?,
                Err(error) => {
                    self.failures.tell(&CliError::at(&self.operand.below(&error.shown()), error.error));
                }
            }
        }
        Ok(())
    }

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
                if linked && !self.counted.insert((self.volume, entry.ino)) {
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
        if self.json {
            let argument = JsonBytes::argument(&self.operand.argument, self.args.operands.len());
            let path = self.operand.inside(relative);
            let path = JsonBytes("path", Some(&path));
            return self.list.element(&mut self.out, &JsonSum { argument, path, bytes });
        }
        if self.args.human_readable {
            write!(self.out, "{}\t", text::short(bytes))?;
        } else {
            write!(self.out, "{}\t", if self.args.bytes { bytes } else { bytes.div_ceil(1024) })?;
        }
        self.operand.print_below(&mut self.out, relative)?;
        self.out.bytes(b"\n")
    }

    fn finish(mut self) -> Result<(), CliError> {
        self.list.end(&mut self.out)?;
        self.out.finish()?;
        self.failures.finish()
    }
}
