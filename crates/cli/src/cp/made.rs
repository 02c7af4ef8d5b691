//! What a recursive copy has made so far.

use super::host::Identity;
use std::collections::{HashMap, HashSet};
use uext4::Ino;

/// Where the first copy of a file with several names is.
pub struct First {
    /// Its path below the directory that holds the copies.
    pub path: Vec<u8>,
    pub made: Identity,
    /// Names that may still come.
    pub left: u32,
}

/// What was made, of all sources of one command: they go into the same directory.
pub struct Made {
    several: bool,
    earlier: HashSet<Identity>,
    now: HashSet<Identity>,
    volume: usize,
    /// One of each volume.
    links: Vec<HashMap<Ino, First>>,
}

impl Made {
    /// Nothing yet, of `sources` sources.
    pub fn new(sources: usize) -> Self {
        let (earlier, now) = (HashSet::new(), HashSet::new());
        Made { several: sources > 1, earlier, now, volume: 0, links: Vec::new() }
    }

    /// The next source lies on this one of the volumes.
    pub fn next_source(&mut self, volume: usize) {
        self.earlier.extend(self.now.drain());
        self.volume = volume;
        if self.links.len() <= volume {
            self.links.resize_with(volume + 1, HashMap::new);
        }
    }

    /// Whether there are several sources, so that one can meet what another made.
    pub fn of_several(&self) -> bool {
        self.several
    }

    /// Whether an earlier source made it.
    pub fn is_earlier(&self, there: Identity) -> bool {
        self.earlier.contains(&there)
    }

    /// The source at hand made it.
    pub fn note(&mut self, made: Identity) {
        self.now.insert(made);
    }

    /// First copies of files with several names, of the volume of the source at hand.
    pub fn links(&mut self) -> &mut HashMap<Ino, First> {
        &mut self.links[self.volume]
    }
}
