//! `uext4 ls`, with the flags and the order of ls(1) in the C locale.

use crate::args::{CommonArgs, Globals};
use crate::cat::Volumes;
use crate::error::CliError;
use crate::open::{OpenHow, Operand};
use crate::out::{Elements, Out};
use crate::text::{self, JsonBytes, JsonTime};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uext4::{FileKind, Metadata, Switches, Volume};
use uext4_ondisk::Ino;

/// `uext4 ls`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct LsArgs {
    /// The directories (or files); the root directory without a path. Files come first; with several arguments, each
    /// directory has a heading.
    #[arg(value_name = "DEVICE[:/path]", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Print mode, links, owner, size and modification time too.
    #[arg(short)]
    pub long: bool,
    /// With -l, print sizes in powers of 1024 with a letter.
    #[arg(short, long)]
    pub human_readable: bool,
    /// List names that begin with a dot too.
    #[arg(short)]
    pub all: bool,
    /// List directories themselves, not their contents. Follow no link.
    #[arg(short)]
    pub directory: bool,
    /// Print inode numbers too.
    #[arg(short)]
    pub inode: bool,
    /// Print one name per line. This is always so.
    #[arg(short = '1')]
    pub one: bool,
    /// Sort by modification time, latest first. Of -t and -S the last one counts.
    #[arg(short, overrides_with = "size")]
    pub time: bool,
    /// Sort by size, largest first.
    #[arg(short = 'S', overrides_with = "time")]
    pub size: bool,
    /// Reverse the order.
    #[arg(short)]
    pub reverse: bool,
    /// List subdirectories too. In JSON each entry then has the path of its directory in `dir`.
    #[arg(short = 'R')]
    pub recursive: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// One line of a listing.
struct Row {
    /// Number of the argument that it is, or is below.
    operand: usize,
    /// Whether it is the argument itself, named as it was typed.
    top: bool,
    name: Vec<u8>,
    ino: Ino,
    kind: Option<FileKind>,
    /// The inode's metadata, or `None` if not requested.
    metadata: Option<Result<Metadata, uext4::Error>>,
}

impl Row {
    fn kind(&self) -> Option<FileKind> {
        match &self.metadata {
            Some(Ok(metadata)) => Some(metadata.kind),
            _ => self.kind,
        }
    }

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref().and_then(|metadata| metadata.as_ref().ok())
    }

    /// Its path below the argument, given its directory `dir` there.
    fn below(&self, dir: &[u8]) -> Vec<u8> {
        if self.top { Vec::new() } else { join(dir.to_vec(), &self.name) }
    }
}

/// An entry in JSON.
#[derive(Serialize)]
struct JsonRow<'a> {
    #[serde(flatten)]
    argument: JsonBytes<'a>,
    #[serde(flatten)]
    dir: JsonBytes<'a>,
    #[serde(flatten)]
    name: JsonBytes<'a>,
    ino: u32,
    r#type: Option<&'static str>,
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    mtime: Option<JsonTime>,
    mtime_ns: Option<i128>,
}

/// Failures below one argument: the listing goes on, and the command fails at the end.
#[derive(Default)]
struct Trouble {
    count: u64,
    first: Option<(Vec<u8>, uext4::Error)>,
}

impl Trouble {
    /// Adds a failure at `relative` below the argument.
    fn note(&mut self, relative: Vec<u8>, error: &uext4::Error) {
        self.count += 1;
        self.first.get_or_insert_with(|| (relative, error.clone()));
    }

    fn result(self, operand: &Operand) -> Result<(), CliError> {
        let Some((relative, error)) = self.first else { return Ok(()) };
        let mut failure = CliError::at(&operand.below(&relative), error);
        if let CliError::Failed(failure) = &mut failure
            && self.count > 1
        {
            failure.message = format!("{} (and {} more)", failure.message, self.count - 1);
        }
        Err(failure)
    }
}

/// The directories of a listing, each as its name and the number of its parent. Whole paths would take memory
/// quadratic in the depth.
struct Paths(Vec<(usize, Vec<u8>)>);

impl Paths {
    fn add(&mut self, inside: usize, name: Vec<u8>) -> usize {
        self.0.push((inside, name));
        self.0.len() - 1
    }

    /// The path of directory `at`, relative to the start of the listing, which is number 0.
    fn path(&self, mut at: usize) -> Vec<u8> {
        let mut names = Vec::new();
        while at != 0 {
            names.push(&self.0[at].1);
            at = self.0[at].0;
        }
        names.into_iter().rev().fold(Vec::new(), |path, name| join(path, name))
    }
}

/// An argument that exists.
struct Place {
    volume: Volume,
    /// Failures below it.
    trouble: Trouble,
}

struct Listing<'a> {
    args: &'a LsArgs,
    json: bool,
    operands: &'a [Operand],
    /// One per argument, `None` if it does not exist.
    places: Vec<Option<Place>>,
    out: Out,
    list: Elements,
    /// Whether text was already printed above.
    printed: bool,
}

/// Runs it.
pub fn run(args: &LsArgs, globals: &Globals) -> Result<(), CliError> {
    let operands = Operand::all(&args.operands)?;
    let how = OpenHow::reading(globals, args.common.force, Switches::ON);
    let (mut volumes, mut failures) = (Volumes::default(), globals.failures());
    let mut listing = Listing {
        args,
        json: globals.json,
        operands: &operands,
        places: Vec::new(),
        out: Out::new(),
        list: Elements::new(globals.json),
        printed: false,
    };
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    for (number, operand) in operands.iter().enumerate() {
        let found = volumes.get(operand, &how).and_then(|volume| look(args, number, operand, volume));
        let found = failures.one_of(operands.len(), found)?;
        listing.places.push(found.map(|(volume, row)| {
            let inside = !args.directory && row.kind() == Some(FileKind::Directory);
            if inside {
                directories.push(row)
            } else {
                files.push(row)
            }
            Place { volume, trouble: Trouble::default() }
        }));
    }
    listing.sort(&mut files);
    listing.sort(&mut directories);
    listing.printed = !files.is_empty();
    // Across all arguments, as in ls(1).
    let inodes = inode_width(files.iter().chain(&directories));
    listing.print(b"", &files, inodes)?;
    for row in directories {
        let listed = listing.tree(row.operand, row.ino);
        failures.one_of(operands.len(), listed)?;
    }
    for (place, operand) in listing.places.into_iter().zip(&operands) {
        if let Some(Err(error)) = place.map(|place| place.trouble.result(operand)) {
            failures.tell(&error);
        }
    }
    listing.list.end(&mut listing.out)?;
    listing.out.finish()?;
    failures.finish()
}

/// Looks up an argument.
fn look(args: &LsArgs, number: usize, operand: &Operand, volume: Volume) -> Result<(Volume, Row), CliError> {
    // As in ls(1), a link is followed only to a directory, and only if its own attributes are not requested.
    let own = volume.resolve(operand.inner(), false).map_err(|error| operand.error(error))?;
    let mut top = volume.metadata_of(own).map_err(|error| operand.error(error))?;
    if top.kind == FileKind::Symlink && !args.long && !args.directory {
        // List a dangling link as itself.
        let behind = volume.resolve(operand.inner(), true).and_then(|ino| volume.metadata_of(ino));
        match behind {
            Ok(behind) if behind.kind == FileKind::Directory => top = behind,
            _ => {}
        }
    }
    let name = operand.argument.as_bytes().to_vec();
    let (ino, kind) = (top.ino, Some(top.kind));
    Ok((volume, Row { operand: number, top: true, name, ino, kind, metadata: Some(Ok(top)) }))
}

impl Listing<'_> {
    /// Lists a directory and, if requested, everything below it.
    fn tree(&mut self, operand: usize, top: Ino) -> Result<(), CliError> {
        let mut paths = Paths(vec![(0, Vec::new())]);
        let mut waiting = vec![(0, top)];
        // A directory has only one name: meeting it twice means a cycle in a damaged volume.
        let mut seen = HashSet::from([top]);
        let mut first = true;
        while let Some((number, ino)) = waiting.pop() {
            let path = paths.path(number);
            let rows = match self.rows(operand, ino) {
                Ok(rows) => rows,
                Err(error) if first => return Err(self.operands[operand].error(error)),
                Err(error) => {
                    self.note(operand, path, &error);
                    continue;
                }
            };
            if (self.args.recursive || self.operands.len() > 1) && !self.json {
                self.heading(&self.operands[operand], &path)?;
            }
            if self.args.long && !self.json {
                let sectors: u64 =
                    rows.iter().filter_map(Row::metadata).map(|metadata| metadata.blocks).sum();
                let total = match self.args.human_readable {
                    true => text::short(sectors.saturating_mul(512)),
                    false => (sectors / 2).to_string(),
                };
                writeln!(self.out, "total {total}")?;
            }
            self.print(&path, &rows, inode_width(&rows))?;
            first = false;
            if !self.args.recursive {
                break;
            }
            for row in rows.iter().rev() {
                let inner = row.kind() == Some(FileKind::Directory) && row.name != b"." && row.name != b"..";
                if inner && seen.insert(row.ino) {
                    waiting.push((paths.add(number, row.name.clone()), row.ino));
                } else if inner {
                    let error = uext4::Error::CorruptInode {
                        ino: row.ino,
                        what: "the directory has more than one name".into(),
                    };
                    self.note(operand, join(path.clone(), &row.name), &error);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, operand: usize, relative: Vec<u8>, error: &uext4::Error) {
        if let Some(place) = &mut self.places[operand] {
            place.trouble.note(relative, error);
        }
    }

    /// The directory's name, as an argument.
    fn heading(&mut self, operand: &Operand, relative: &[u8]) -> Result<(), CliError> {
        if self.printed {
            self.out.bytes(b"\n")?;
        }
        self.printed = true;
        operand.print_below(&mut self.out, relative)?;
        self.out.bytes(b":\n")
    }

    /// The entries of a directory in the requested order. Inodes are read in disk order.
    fn rows(&self, operand: usize, directory: Ino) -> Result<Vec<Row>, uext4::Error> {
        let Some(Place { volume, .. }) = &self.places[operand] else { return Ok(Vec::new()) };
        let mut rows = Vec::new();
        for entry in volume.read_dir_of(directory)? {
            let entry = entry?;
            if self.args.all || !entry.name.starts_with(b".") {
                let (name, ino, kind) = (entry.name, entry.ino, entry.kind);
                rows.push(Row { operand, top: false, name, ino, kind, metadata: None });
            }
        }
        rows.sort_by_key(|row| row.ino);
        let attributes = self.args.long || self.args.time || self.args.size || self.json;
        for row in &mut rows {
            // Without the filetype feature the entry has no type, and -R needs it.
            if attributes || row.kind.is_none() {
                row.metadata = Some(volume.metadata_of(row.ino));
            }
        }
        self.sort(&mut rows);
        Ok(rows)
    }

    /// The requested order, with ties in name order; -r reverses both, as ls(1) does.
    fn sort(&self, rows: &mut [Row]) {
        let time = |row: &Row| row.metadata().map(|metadata| metadata.modified.nanoseconds_since_epoch());
        let size = |row: &Row| row.metadata().map(|metadata| metadata.size);
        rows.sort_by(|a, b| {
            let first = match self.args {
                LsArgs { time: true, .. } => time(b).cmp(&time(a)),
                LsArgs { size: true, .. } => size(b).cmp(&size(a)),
                _ => Ordering::Equal,
            };
            let order = first.then_with(|| a.name.cmp(&b.name));
            if self.args.reverse { order.reverse() } else { order }
        });
    }

    /// Prints the rows of one directory, or the arguments; inode numbers take `inodes` columns.
    fn print(&mut self, dir: &[u8], rows: &[Row], inodes: usize) -> Result<(), CliError> {
        for row in rows {
            if let Some(Err(error)) = &row.metadata {
                self.note(row.operand, row.below(dir), error);
            }
        }
        if self.json {
            return self.print_json(dir, rows);
        }
        if self.args.long {
            return self.print_long(dir, rows, inodes);
        }
        for row in rows {
            self.inode(row, inodes)?;
            self.out.name(&row.name)?;
            self.out.bytes(b"\n")?;
        }
        Ok(())
    }

    /// Prints the inode number, if requested.
    fn inode(&mut self, row: &Row, width: usize) -> Result<(), CliError> {
        if self.args.inode { write!(self.out, "{:>width$} ", row.ino.get()) } else { Ok(()) }
    }

    fn print_json(&mut self, dir: &[u8], rows: &[Row]) -> Result<(), CliError> {
        for row in rows {
            let metadata = row.metadata();
            let operand = &self.operands[row.operand];
            let name = if row.top { &operand.path } else { &row.name };
            let dir = (self.args.recursive && !row.top).then(|| operand.inside(dir));
            let element = JsonRow {
                argument: JsonBytes::argument(&operand.argument, self.operands.len()),
                dir: JsonBytes("dir", dir.as_deref()),
                name: JsonBytes("name", Some(name)),
                ino: row.ino.get(),
                r#type: row.kind().map(text::kind),
                mode: metadata.map(|metadata| metadata.mode),
                uid: metadata.map(|metadata| metadata.uid),
                gid: metadata.map(|metadata| metadata.gid),
                size: metadata.map(|metadata| metadata.size),
                mtime: metadata.map(|metadata| metadata.modified.into()),
                mtime_ns: metadata.map(|metadata| metadata.modified.nanoseconds_since_epoch()),
            };
            self.list.element(&mut self.out, &element)?;
        }
        Ok(())
    }

    fn print_long(&mut self, dir: &[u8], rows: &[Row], inodes: usize) -> Result<(), CliError> {
        let cells: Vec<[String; 4]> = rows.iter().map(|row| cells(row, self.args.human_readable)).collect();
        let mut widths = [0; 4];
        for row in &cells {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.len().max(*width);
            }
        }
        let [links, uid, gid, size] = widths;
        for (row, cell) in rows.iter().zip(&cells) {
            let (mode, time) = match row.metadata() {
                Some(metadata) => {
                    (text::mode_string(metadata.kind, metadata.mode), text::time(metadata.modified.seconds))
                }
                None => ("??????????".into(), format!("{:>20}", "?")),
            };
            let [a, b, c, d] = cell;
            self.inode(row, inodes)?;
            write!(self.out, "{mode} {a:>links$} {b:>uid$} {c:>gid$} {d:>size$} {time} ")?;
            self.out.name(&row.name)?;
            if row.kind() == Some(FileKind::Symlink) {
                self.link_target(dir, row)?;
            }
            self.out.bytes(b"\n")?;
        }
        Ok(())
    }

    fn link_target(&mut self, dir: &[u8], row: &Row) -> Result<(), CliError> {
        let Some(Place { volume, .. }) = &self.places[row.operand] else { return Ok(()) };
        match volume.read_link_of(row.ino) {
            Ok(target) => {
                self.out.bytes(b" -> ")?;
                self.out.name(&target)
            }
            Err(error) => {
                if row.metadata().is_some() {
                    self.note(row.operand, row.below(dir), &error);
                }
                self.out.bytes(b" -> ?")
            }
        }
    }
}

/// Width of the longest inode number.
fn inode_width<'r>(rows: impl IntoIterator<Item = &'r Row>) -> usize {
    rows.into_iter().map(|row| row.ino.get()).max().unwrap_or(0).to_string().len()
}

/// Links, owner, group and size (device nodes: major, minor).
fn cells(row: &Row, human: bool) -> [String; 4] {
    let Some(metadata) = row.metadata() else { return ["?", "?", "?", "?"].map(String::from) };
    let size = text::size_or_device(metadata, human);
    [metadata.links.to_string(), metadata.uid.to_string(), metadata.gid.to_string(), size]
}

fn join(mut dir: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !dir.is_empty() && !dir.ends_with(b"/") {
        dir.push(b'/');
    }
    dir.extend_from_slice(name);
    dir
}
