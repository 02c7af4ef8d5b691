//! `uext4 overlay diff`.

use crate::args::Globals;
use crate::error::CliError;
use crate::open::OpenHow;
use crate::out::Out;
use crate::text::{self, JsonBytes};
use serde::{Serialize, Serializer};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4::device::{self, OverlayFile, overlay};
use uext4::{Switches, Volume};
use uext4_check::{Areas, Changes, Compare, Difference, Fate, Unknown};

/// What an overlay holds, in bytes.
#[derive(Serialize)]
struct JsonDiff<'a, 'c> {
    base: &'a str,
    base_size: u64,
    granule: u64,
    changed: u64,
    /// A merge was cut.
    merging: bool,
    ranges: Ranges<'a>,
    /// Why there are no names.
    not_compared: Option<String>,
    areas: Option<JsonAreas>,
    names: Option<Names<'a, 'c>>,
}

/// Written one by one: there may be many.
struct Ranges<'a>(&'a OverlayFile);

#[derive(Serialize)]
struct JsonRange {
    offset: u64,
    length: u64,
}

#[derive(Serialize)]
struct JsonAreas {
    superblocks: u64,
    block_bitmaps: u64,
    inode_bitmaps: u64,
    inode_tables: u64,
    journal: u64,
    rest: u64,
}

/// Written while they are found.
struct Names<'a, 'c> {
    found: RefCell<Compare<'c>>,
    tell: &'a dyn Fn(Unknown),
}

#[derive(Serialize)]
struct JsonName<'n> {
    #[serde(flatten)]
    path: JsonBytes<'n>,
    ino: u32,
    r#type: &'static str,
    fate: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<&'static str>,
    bytes: u64,
}

impl Ranges<'_> {
    fn each(&self) -> impl Iterator<Item = JsonRange> {
        let mut pos = 0;
        std::iter::from_fn(move || {
            let run = self.0.next_change(pos)?;
            pos = run.end;
            Some(JsonRange { offset: run.start, length: run.end - run.start })
        })
    }
}

impl Serialize for Ranges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.each())
    }
}

impl Serialize for Names<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq;
        let mut list = serializer.serialize_seq(None)?;
        for found in &mut *self.found.borrow_mut() {
            match found {
                Ok(found) => {
                    let (fate, changes) = fate(found.fate);
                    list.serialize_element(&JsonName {
                        path: JsonBytes("path", Some(&found.path)),
                        ino: found.ino.get(),
                        r#type: text::kind(found.kind),
                        fate,
                        changes,
                        bytes: found.bytes,
                    })?;
                }
                Err(unknown) => (self.tell)(unknown),
            }
        }
        list.end()
    }
}

/// The names of a fate and of what changed.
fn fate(fate: Fate) -> (&'static str, Vec<&'static str>) {
    let changes = match fate {
        Fate::Added => return ("added", Vec::new()),
        Fate::Removed => return ("removed", Vec::new()),
        Fate::Changed(changes) => changes,
        _ => Changes::default(),
    };
    let named = [
        ("contents", changes.contents),
        ("names", changes.names),
        ("attributes", changes.attributes),
        ("xattrs", changes.xattrs),
        ("times", changes.times),
        ("place", changes.place),
    ];
    ("changed", named.into_iter().filter_map(|(name, holds)| holds.then_some(name)).collect())
}

/// The volume on the base alone, and with the overlay.
fn states(overlay: &OverlayFile, file: &Path, globals: &Globals) -> Result<[Volume; 2], uext4::Error> {
    let base = overlay::base(overlay)?;
    let mut over = base.clone();
    over.options.overlay = Some(file.to_owned());
    let how = OpenHow::walking(globals, false, Switches::ON);
    // Not by the open of other commands, which take the overlay file that the command names over every device.
    let open = |spec| how.open_on(device::open(spec, device::OpenOptions::default())?.device);
    Ok([open(&base)?, open(&over)?])
}

pub(super) fn diff(file: &Path, globals: &Globals) -> Result<(), CliError> {
    let at = |error: device::Error| CliError::at(file.as_os_str(), error);
    let overlay = overlay::inspect(file).map_err(at)?;
    let next_change = |pos: u64| -> Option<Range<u64>> { overlay.next_change(pos) };
    // What is no volume, or cannot be opened as one, has ranges only.
    let states = match overlay.is_merging() {
        true => Err("a merge was cut: run it again".to_owned()),
        false => states(&overlay, file, globals).map_err(|error| error.to_string()),
    };
    let failures = RefCell::new(globals.failures());
    // At once: on a damaged volume it may be much.
    let tell = |Unknown { path, error }| {
        failures.borrow_mut().tell(&CliError::at(OsStr::from_bytes(&path), error));
    };
    let (areas, names, not_compared) = match &states {
        Ok([old, new]) => {
            let at = |error| CliError::at(file.as_os_str(), error);
            let areas = Areas::of(new, &next_change).map_err(at)?;
            (Some(areas), Some(Compare::new(old, new, &next_change).map_err(at)?), None)
        }
        Err(reason) => (None, None, Some(reason.clone())),
    };
    let mut out = Out::new();
    if globals.json {
        json(&overlay, &mut out, areas, names, not_compared, &tell)?;
    } else {
        ranges(&overlay, &mut out)?;
        if let Some(reason) = not_compared {
            let name = file.to_string_lossy();
            crate::error::warn(&globals.command, false, &name, &format!("names are not compared: {reason}"));
        }
        if let (Some(areas), Some(names)) = (areas, names) {
            print_areas(&overlay, &areas, &mut out)?;
            for found in names {
                match found {
                    Ok(found) => print_name(&found, &mut out)?,
                    Err(unknown) => tell(unknown),
                }
            }
        }
    }
    out.finish()?;
    failures.into_inner().finish()
}

fn json(
    overlay: &OverlayFile,
    out: &mut Out,
    areas: Option<Areas>,
    names: Option<Compare<'_>>,
    not_compared: Option<String>,
    tell: &dyn Fn(Unknown),
) -> Result<(), CliError> {
    let changed = overlay.changed_bytes();
    let areas = areas.map(|areas| JsonAreas {
        superblocks: areas.superblocks,
        block_bitmaps: areas.block_bitmaps,
        inode_bitmaps: areas.inode_bitmaps,
        inode_tables: areas.inode_tables,
        journal: areas.journal,
        rest: changed.saturating_sub(areas.sum()),
    });
    out.json(&JsonDiff {
        base: &String::from_utf8_lossy(overlay.base_name()),
        base_size: overlay.base().size,
        granule: overlay.granule(),
        changed,
        merging: overlay.is_merging(),
        ranges: Ranges(overlay),
        not_compared,
        areas,
        names: names.map(|found| Names { found: RefCell::new(found), tell }),
    })
}

fn ranges(overlay: &OverlayFile, out: &mut Out) -> Result<(), CliError> {
    writeln!(out, "{:>16} {:>12}", "offset", "bytes")?;
    let mut count = 0u64;
    for JsonRange { offset, length } in Ranges(overlay).each() {
        writeln!(out, "{offset:>16} {length:>12}")?;
        count += 1;
    }
    let cut = if overlay.is_merging() { "; a merge was cut, run it again" } else { "" };
    let (ranges, base) = (if count == 1 { "range" } else { "ranges" }, text::visible(overlay.base_name()));
    writeln!(out, "{} in {count} {ranges} of {base}{cut}", text::short(overlay.changed_bytes()))?;
    Ok(())
}

fn print_areas(overlay: &OverlayFile, areas: &Areas, out: &mut Out) -> Result<(), CliError> {
    writeln!(out, "\n{:>12} of", "bytes")?;
    for (name, bytes) in [
        ("superblocks and group descriptors", areas.superblocks),
        ("block bitmaps", areas.block_bitmaps),
        ("inode bitmaps", areas.inode_bitmaps),
        ("inode tables", areas.inode_tables),
        ("journal", areas.journal),
        ("files, directories and free blocks", overlay.changed_bytes().saturating_sub(areas.sum())),
    ] {
        writeln!(out, "{bytes:>12} {name}")?;
    }
    writeln!(out)?;
    Ok(())
}

fn print_name(found: &Difference, out: &mut Out) -> Result<(), CliError> {
    let (fate, changes) = fate(found.fate);
    write!(out, "{fate:8} ")?;
    out.name(&found.path)?;
    if !changes.is_empty() {
        write!(out, ": {}", changes.join(", "))?;
    }
    if found.bytes > 0 {
        write!(out, " ({})", text::short(found.bytes))?;
    }
    writeln!(out)?;
    Ok(())
}
