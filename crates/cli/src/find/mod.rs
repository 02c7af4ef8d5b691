//! `uext4 find`.

mod args;
mod conditions;
mod glob;

pub use args::FindArgs;

use crate::args::Globals;
use crate::cat::Volumes;
use crate::error::{CliError, Troubles};
use crate::open::{How, Place};
use crate::out::{Elements, Out};
use crate::text::{self, JsonArgument, JsonTime};
use conditions::Conditions;
use serde::Serialize;
use uext4::{FileKind, Ino, Metadata, Switches, Visit, Volume, WalkEntry, WalkOptions};

/// An entry in JSON: that of `ls`, with the path in place of the name.
#[derive(Serialize)]
struct JsonEntry<'a> {
    #[serde(flatten)]
    argument: JsonArgument,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
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
    place: &'a Place,
    conditions: Conditions<'a>,
    out: Out,
    list: Elements,
    troubles: Troubles,
    /// The path of the entry at hand inside the volume, and how much of it every path begins with.
    path: Vec<u8>,
    prefix: usize,
}

/// Runs it.
pub fn run(args: &FindArgs, globals: &Globals) -> Result<(), CliError> {
    let places =
        args.places.iter().map(|place| Place::parse_or_root(place)).collect::<Result<Vec<_>, _>>()?;
    let Some(place) = places.first() else { return Ok(()) };
    let how = How::walking(globals, args.force.force, Switches::ON);
    let mut volumes = Volumes::default();
    let mut finder = Finder {
        args,
        json: globals.json,
        place,
        conditions: Conditions::new(args),
        out: Out::new(),
        list: Elements::new(true),
        troubles: Troubles::new("find", globals.json),
        prefix: 0,
        path: Vec::new(),
    };
    for place in &places {
        finder.place = place;
        let walked = volumes.get(place, &how).and_then(|volume| finder.walk(&volume));
        finder.troubles.one_of(places.len(), walked)?;
    }
    finder.finish()
}

impl Finder<'_> {
    /// One place with everything below.
    fn walk(&mut self, volume: &Volume) -> Result<(), CliError> {
        let options = WalkOptions::new()
            .stat(self.conditions.need_attributes() || self.args.ls || self.json)
            .max_depth(self.args.maxdepth.unwrap_or(u32::MAX));
        let walk = volume.walk(self.place.inner(), options);
        let mut walk = walk.map_err(|error| self.place.error(error))?;
        self.path = self.place.inside(b"");
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
        self.troubles.tell(&CliError::at(&self.place.below(relative), error));
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
                // The walk tells it when it comes to the directory; not if that is too deep.
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
            if self.args.places.len() > 1 {
                self.out.bytes(self.place.device())?;
                self.out.bytes(b":")?;
            }
            self.path.push(0);
            self.out.bytes(&self.path)
        } else {
            self.print_path()?;
            self.out.bytes(b"\n")
        }
    }

    /// The path as a name for people and programs: behind that of the device, if there are several arguments.
    fn print_path(&mut self) -> Result<(), CliError> {
        if self.args.places.len() > 1 {
            self.out.name(self.place.device())?;
            self.out.bytes(b":")?;
        }
        self.out.name(&self.path)
    }

    fn print_json(&mut self, entry: &WalkEntry<'_>) -> Result<(), CliError> {
        let (path, path_b64) = text::utf8_or_base64(&self.path);
        let metadata = entry.metadata;
        let element = JsonEntry {
            argument: JsonArgument::of(&self.place.argument, self.args.places.len()),
            path,
            path_b64,
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
            size_or_device(metadata),
            text::time(metadata.modified.seconds),
        )?;
        self.print_path()?;
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
        if self.json {
            self.list.end(&mut self.out)?;
        }
        self.out.finish()?;
        self.troubles.finish()
    }
}

fn size_or_device(metadata: &Metadata) -> String {
    match metadata.kind {
        FileKind::CharDevice | FileKind::BlockDevice => format!("{}, {}", metadata.rdev.0, metadata.rdev.1),
        _ => metadata.size.to_string(),
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
