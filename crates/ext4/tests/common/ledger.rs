//! What a power cut may leave of files: each change was announced before it began, and some were acknowledged as
//! durable.

use super::crash::GARBAGE;
use super::read_all;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use uext4::{Error, OpenOptions, Volume};

/// Bytes compared at once.
const UNIT: usize = 512;

/// A test's marks in the log of a device.
#[derive(Debug, Clone)]
pub enum Mark {
    /// A file is about to become this; `None`: it is about to lose its name.
    Begun {
        path: String,
        bytes: Option<Arc<Vec<u8>>>,
        /// Its blocks move meanwhile: its old places may become holes.
        moves: bool,
    },
    /// The name is about to lead to another file, which has these contents already.
    Replaced { path: String, bytes: Arc<Vec<u8>> },
    /// The change begun last is durable in this range; in the whole file, including its size, if the range has no end.
    Durable { path: String, range: Range<u64> },
    /// The name is durable, or durably gone.
    Named { path: String },
}

/// One file, from its first contents at the name on.
struct History {
    /// The oldest version of the first file at a name: it does not exist.
    versions: Vec<(Option<Arc<Vec<u8>>>, bool)>,
    /// From this version on, the existence of the file is durable.
    named: usize,
    /// From these versions on, a range is durable.
    floors: Vec<(Range<u64>, usize)>,
}

impl History {
    fn from(oldest: Option<Arc<Vec<u8>>>) -> History {
        History { versions: vec![(oldest, false)], named: 0, floors: Vec::new() }
    }
}

/// The marks made before a cut, by path.
#[derive(Default)]
pub struct Ledger {
    /// The files that a name may lead to: the last, or one that it replaced. Their contents never mix.
    files: BTreeMap<String, Vec<History>>,
    /// Blocks of a cluster that a file keeps can be reused by it at once, as in Linux: bytes that were cut off and
    /// written again may be zeros before the cut is durable.
    clusters: bool,
}

impl Ledger {
    /// `clusters`: whether clusters have several blocks.
    pub fn new<'m>(marks: impl Iterator<Item = &'m Mark>, clusters: bool) -> Ledger {
        let mut ledger = Ledger { clusters, ..Ledger::default() };
        marks.for_each(|mark| ledger.add(mark));
        ledger
    }

    /// The files of a name.
    fn of(&mut self, path: &str) -> &mut Vec<History> {
        self.files.entry(path.into()).or_insert_with(|| vec![History::from(None)])
    }

    /// The file that a name leads to, durably: it is none of those before.
    fn named(&mut self, path: &str) -> &mut History {
        let files = self.of(path);
        files.drain(..files.len() - 1);
        let last = &mut files[0];
        last.named = last.versions.len() - 1;
        last
    }

    pub fn add(&mut self, mark: &Mark) {
        match mark {
            Mark::Begun { path, bytes, moves } => {
                let last = self.of(path).last_mut().expect("never empty");
                last.versions.push((bytes.clone(), *moves));
            }
            Mark::Replaced { path, bytes } => self.of(path).push(History::from(Some(bytes.clone()))),
            Mark::Durable { path, range } => {
                let history = self.named(path);
                if range.end == u64::MAX {
                    history.floors.clear();
                }
                history.floors.push((range.clone(), history.named));
            }
            Mark::Named { path } => {
                self.named(path);
            }
        }
    }

    /// Checks that a volume holds a permitted state: these files, and no other in `/` and `/d`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, volume: &Volume) -> Result<(), String> {
        for directory in ["/", "/d"] {
            for entry in volume.read_dir(directory).map_err(|error| format!("{directory}: {error}"))? {
                let name =
                    String::from_utf8_lossy(&entry.map_err(|error| error.to_string())?.name).into_owned();
                let path = format!("{}/{name}", directory.trim_end_matches('/'));
                let known =
                    [".", "..", "lost+found", "d"].contains(&&*name) || self.files.contains_key(&path);
                if !known {
                    return Err(format!("{path} was never made"));
                }
            }
        }
        self.files.keys().try_for_each(|path| {
            let found = match volume.open_file(path, OpenOptions::new().read(true)) {
                Ok(file) => Some(read_all(&file)),
                Err(Error::NotFound) => None,
                Err(error) => return Err(format!("{path}: {error}")),
            };
            self.check_file(path, found.as_deref()).map_err(|wrong| format!("{path} {wrong}"))
        })
    }

    /// Checks that a file may have this content, or may not exist.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_file(&self, path: &str, found: Option<&[u8]>) -> Result<(), String> {
        let Some(files) = self.files.get(path) else { return Ok(()) };
        let mut wrong = Vec::new();
        for history in files {
            match history.check(found, self.clusters) {
                Ok(()) => return Ok(()),
                Err(what) => wrong.push(what),
            }
        }
        Err(wrong.join("; as the file that replaced it: "))
    }
}

impl History {
    fn check(&self, found: Option<&[u8]>, clusters: bool) -> Result<(), String> {
        let named = &self.versions[self.named..];
        if !named.iter().any(|(bytes, _)| bytes.is_some() == found.is_some()) {
            let what = if found.is_some() { "is there" } else { "is gone" };
            return Err(format!("{what}, which it was in none of {} versions", named.len()));
        }
        found.map_or(Ok(()), |found| {
            self.check_size(found.len())?;
            self.check_bytes(found, clusters)
        })
    }

    /// The oldest version possible in all of a range.
    fn floor(&self, range: &Range<u64>) -> usize {
        let meets = |floor: &&(Range<u64>, usize)| floor.0.start <= range.start && range.end <= floor.0.end;
        self.floors.iter().filter(meets).map(|floor| floor.1).max().unwrap_or(0)
    }

    fn sizes(&self, from: usize) -> impl Iterator<Item = usize> + Clone + '_ {
        self.versions[from..].iter().filter_map(|(bytes, _)| bytes.as_ref().map(|bytes| bytes.len()))
    }

    fn check_size(&self, found: usize) -> Result<(), String> {
        let whole = self.floor(&(0..u64::MAX));
        let sizes = self.sizes(whole);
        let (mut least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        for (range, version) in &self.floors {
            if range.end < u64::MAX {
                least =
                    least.max(self.sizes(version + 1).min().unwrap_or(usize::MAX).min(range.end as usize));
            }
        }
        match (least..=most).contains(&found) {
            true => Ok(()),
            false => Err(format!("has {found} bytes, not {least} to {most}")),
        }
    }

    fn check_bytes(&self, found: &[u8], clusters: bool) -> Result<(), String> {
        for (at, part) in (0..).step_by(UNIT).zip(found.chunks(UNIT)) {
            let range = at..at + part.len();
            let floor = self.floor(&(range.start as u64..range.end as u64));
            let possible = self.versions[floor..].iter().rev();
            let mut bytes = possible.clone().filter_map(|(bytes, _)| bytes.as_deref());
            if bytes.any(|bytes| bytes.get(range.clone()) == Some(part)) {
                continue;
            }
            // Each unit becomes durable on its own, and a size may end inside one.
            let wrong = part.iter().enumerate().find(|(inside, byte)| {
                let at = at + inside;
                // A durable range may begin or end inside the unit.
                let floor = self.floor(&(at as u64..at as u64 + 1));
                !self.versions[floor..].iter().any(|(bytes, moves)| {
                    let there = bytes.as_ref().and_then(|bytes| bytes.get(at));
                    there == Some(*byte) || (**byte == 0 && (*moves || (clusters && there.is_none())))
                })
            });
            if let Some((inside, byte)) = wrong {
                let what = match *byte {
                    GARBAGE => "what was in free blocks",
                    0 => "a zero",
                    _ => "something else",
                };
                let versions = self.versions.len() - floor;
                return Err(format!("holds {what} at byte {}, of {versions} versions", at + inside));
            }
        }
        Ok(())
    }
}
