//! `uext4 ls`.

use crate::args::{CommonArgs, Globals};
use crate::cat::Volumes;
use crate::error::CliError;
use crate::open::{How, Operand};
use crate::out::{Elements, Out};
use crate::text::{self, JsonBytes, JsonTime};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uext4::{FileKind, Metadata, Switches, Volume};
use uext4_ondisk::Ino;

/// `uext4 ls`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct LsArgs {
    /// The directories (or files); the root directory without a path. Of several, each directory has a heading.
    #[arg(value_name = "DEVICE[:/path]", required = true, value_hint = ValueHint::FilePath)]
    pub operands: Vec<OsString>,
    /// Mode, links, owner, size and time of change too.
    #[arg(short)]
    pub long: bool,
    /// Sizes in powers of 1024 with a letter, with -l.
    #[arg(short, long)]
    pub human_readable: bool,
    /// Names that begin with a dot too.
    #[arg(short)]
    pub all: bool,
    /// Directories inside too. In JSON each entry then has the path of its directory in `dir`.
    #[arg(short = 'R')]
    pub recursive: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// How to open, and in which form.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// One line of a listing.
struct Row {
    name: Vec<u8>,
    ino: Ino,
    kind: Option<FileKind>,
    /// Not asked for (`None`), or what the inode said.
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

/// What went wrong on the way: the listing goes on, the command fails at the end.
#[derive(Default)]
struct Trouble {
    count: u64,
    first: Option<(String, uext4::Error)>,
}

impl Trouble {
    fn note(&mut self, what: &[u8], error: &uext4::Error) {
        self.count += 1;
        self.first.get_or_insert_with(|| (text::visible(what), error.clone()));
    }

    fn result(self, operand: &Operand) -> Result<(), CliError> {
        let Some((what, error)) = self.first else { return Ok(()) };
        let more = if self.count > 1 { format!(" (and {} more)", self.count - 1) } else { String::new() };
        let mut failure = CliError::at(&operand.argument, error);
        if let CliError::Failed(failure) = &mut failure {
            failure.message = format!("{what}: {}{more}", failure.message);
        }
        Err(failure)
    }
}

/// The directories of a listing: each by its name and the number of its parent. Whole paths would take memory that
/// grows with the square of the depth.
struct Paths(Vec<(usize, Vec<u8>)>);

impl Paths {
    fn add(&mut self, inside: usize, name: Vec<u8>) -> usize {
        self.0.push((inside, name));
        self.0.len() - 1
    }

    /// The path of number `at`: 0 is where the listing began.
    fn path(&self, mut at: usize) -> Vec<u8> {
        let mut names = Vec::new();
        while at != 0 {
            names.push(&self.0[at].1);
            at = self.0[at].0;
        }
        names.into_iter().rev().fold(self.0[0].1.clone(), |path, name| join(path, name))
    }
}

struct Listing<'a> {
    args: &'a LsArgs,
    json: bool,
    operand: &'a Operand,
    volume: Volume,
    out: &'a mut Out,
    list: &'a mut Elements,
    /// Whether something stands above, in text.
    printed: bool,
    trouble: Trouble,
}

/// Runs it.
pub fn run(args: &LsArgs, globals: &Globals) -> Result<(), CliError> {
    let operands = Operand::all(&args.operands)?;
    let how = How::reading(globals, args.common.force, Switches::ON);
    let (mut volumes, mut troubles) = (Volumes::default(), globals.troubles());
    let (mut out, mut list) = (Out::new(), Elements::new(globals.json));
    let mut printed = false;
    for operand in &operands {
        let listed = volumes.get(operand, &how).and_then(|volume| {
            let mut listing = Listing {
                args,
                json: globals.json,
                operand,
                volume,
                out: &mut out,
                list: &mut list,
                printed,
                trouble: Trouble::default(),
            };
            let listed = listing.all();
            printed = listing.printed;
            listed.map(|()| listing.trouble)
        });
        let Some(trouble) = troubles.one_of(operands.len(), listed)? else { continue };
        if let Err(error) = trouble.result(operand) {
            troubles.tell(&error);
        }
    }
    list.end(&mut out)?;
    out.finish()?;
    troubles.finish()
}

impl Listing<'_> {
    /// What the operand names, and what is in it.
    fn all(&mut self) -> Result<(), CliError> {
        // As ls(1): a link to a directory is followed unless its own attributes are asked for.
        let follow = !self.args.long;
        let operand = self.operand;
        let ino = self.volume.resolve(operand.inner(), follow).map_err(|error| operand.error(error))?;
        let top = self.volume.metadata_of(ino).map_err(|error| operand.error(error))?;
        if top.kind == FileKind::Directory {
            return self.tree(ino);
        }
        self.printed = true;
        let several = self.args.operands.len() > 1 && !self.json;
        let name = if several { operand.argument.as_bytes() } else { &operand.path };
        let row = Row { name: name.to_vec(), ino, kind: Some(top.kind), metadata: Some(Ok(top)) };
        self.print(b"", &mut [row])
    }

    /// A directory and, if asked, everything below it.
    fn tree(&mut self, top: Ino) -> Result<(), CliError> {
        let mut paths = Paths(vec![(0, self.operand.path.clone())]);
        let mut waiting = vec![(0, top)];
        // No directory has two names: one met twice is a cycle in a damaged volume.
        let mut seen = HashSet::from([top]);
        let mut first = true;
        while let Some((number, ino)) = waiting.pop() {
            let path = paths.path(number);
            let mut rows = match self.rows(ino) {
                Ok(rows) => rows,
                Err(error) if first => return Err(self.operand.error(error)),
                Err(error) => {
                    self.trouble.note(&path, &error);
                    continue;
                }
            };
            if (self.args.recursive || self.args.operands.len() > 1) && !self.json {
                self.heading(&path)?;
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
            self.print(&path, &mut rows)?;
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
                    self.trouble.note(&join(path.clone(), &row.name), &error);
                }
            }
        }
        Ok(())
    }

    /// Of one argument the path inside its volume, of several with the device.
    fn heading(&mut self, path: &[u8]) -> Result<(), CliError> {
        if self.printed {
            self.out.bytes(b"\n")?;
        }
        self.printed = true;
        if self.args.operands.len() > 1 {
            self.out.name(self.operand.device())?;
            self.out.bytes(b":")?;
        }
        self.out.name(path)?;
        self.out.bytes(b":\n")
    }

    /// The entries of a directory sorted by name. Inodes are read in their order on disk.
    fn rows(&mut self, directory: Ino) -> Result<Vec<Row>, uext4::Error> {
        let mut rows = Vec::new();
        for entry in self.volume.read_dir_of(directory)? {
            let entry = entry?;
            if self.args.all || !entry.name.starts_with(b".") {
                rows.push(Row { name: entry.name, ino: entry.ino, kind: entry.kind, metadata: None });
            }
        }
        rows.sort_by_key(|row| row.ino);
        for row in &mut rows {
            // Without the filetype feature the entry does not know, and -R must.
            if self.args.long || self.json || row.kind.is_none() {
                row.metadata = Some(self.volume.metadata_of(row.ino));
            }
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    fn print(&mut self, dir: &[u8], rows: &mut [Row]) -> Result<(), CliError> {
        for row in &*rows {
            if let Some(Err(error)) = &row.metadata {
                self.trouble.note(&join(dir.to_vec(), &row.name), error);
            }
        }
        if self.json {
            self.print_json(dir, rows)
        } else if self.args.long {
            self.print_long(dir, rows)
        } else {
            for row in &*rows {
                self.out.name(&row.name)?;
                self.out.bytes(b"\n")?;
            }
            Ok(())
        }
    }

    fn print_json(&mut self, dir: &[u8], rows: &[Row]) -> Result<(), CliError> {
        for row in rows {
            let metadata = row.metadata();
            let element = JsonRow {
                argument: JsonBytes::argument(&self.operand.argument, self.args.operands.len()),
                dir: JsonBytes("dir", self.args.recursive.then_some(dir)),
                name: JsonBytes("name", Some(&row.name)),
                ino: row.ino.get(),
                r#type: row.kind().map(text::kind),
                mode: metadata.map(|metadata| metadata.mode),
                uid: metadata.map(|metadata| metadata.uid),
                gid: metadata.map(|metadata| metadata.gid),
                size: metadata.map(|metadata| metadata.size),
                mtime: metadata.map(|metadata| metadata.modified.into()),
                mtime_ns: metadata.map(|metadata| metadata.modified.nanoseconds_since_epoch()),
            };
            self.list.element(self.out, &element)?;
        }
        Ok(())
    }

    fn print_long(&mut self, dir: &[u8], rows: &[Row]) -> Result<(), CliError> {
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
        match self.volume.read_link_of(row.ino) {
            Ok(target) => {
                self.out.bytes(b" -> ")?;
                self.out.name(&target)
            }
            Err(error) => {
                if row.metadata().is_some() {
                    self.trouble.note(&join(dir.to_vec(), &row.name), &error);
                }
                self.out.bytes(b" -> ?")
            }
        }
    }
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
