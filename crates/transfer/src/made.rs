//! The files that a recursive copy has created so far.

use crate::devices::Devices;
use crate::host::Identity;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Ino, Volume};

/// The first copy of a file with several hard links.
pub struct First {
    /// Its path below the directory of the copies.
    pub path: Vec<u8>,
    pub made: Identity,
    /// Hard links that may still come.
    pub left: u32,
}

/// A file of one of the sources' volumes.
type Source = (usize, Ino);

/// Files created from all sources of one export: they go into the same directory.
pub struct Made {
    devices: Arc<Devices>,
    several: bool,
    earlier: HashSet<Identity>,
    now: HashSet<Identity>,
    /// The volumes of the sources so far, each once: two volumes open on one device count as one.
    volumes: Vec<Arc<dyn Device>>,
    /// The current one.
    volume: usize,
    links: HashMap<Source, First>,
    /// The sources of `links`, by their copies.
    sources: HashMap<Identity, Source>,
}

impl Made {
    /// Empty, for `sources` sources on these devices.
    pub fn new(sources: usize, devices: Devices) -> Self {
        Made {
            devices: Arc::new(devices),
            several: sources > 1,
            earlier: HashSet::new(),
            now: HashSet::new(),
            volumes: Vec::new(),
            volume: 0,
            links: HashMap::new(),
            sources: HashMap::new(),
        }
    }

    /// The devices under the sources, which must not be written to.
    pub fn devices(&self) -> Arc<Devices> {
        Arc::clone(&self.devices)
    }

    /// The next source is on this volume.
    pub fn next_source(&mut self, volume: &Volume) {
        self.earlier.extend(self.now.drain());
        let device = volume.device();
        let known = self.volumes.iter().position(|other| Arc::ptr_eq(other, device));
        self.volume = known.unwrap_or_else(|| {
            self.volumes.push(Arc::clone(device));
            self.volumes.len() - 1
        });
    }

    /// Whether there are several sources, so that one can meet files created from another.
    pub fn of_several(&self) -> bool {
        self.several
    }

    /// Whether an existing file under the next entry's name matters.
    pub fn minds_names(&self) -> bool {
        self.several || !self.links.is_empty()
    }

    /// Whether it was created from an earlier source.
    pub fn is_earlier(&self, there: Identity) -> bool {
        self.earlier.contains(&there)
    }

    /// Records it as created from the current source.
    pub fn note(&mut self, made: Identity) {
        self.now.insert(made);
    }

    /// The first copy of a file of the current volume.
    pub fn first(&self, ino: Ino) -> Option<&First> {
        self.links.get(&(self.volume, ino))
    }

    /// Makes later hard links of the file link to this copy.
    pub fn remember(&mut self, ino: Ino, first: First) {
        let source = (self.volume, ino);
        self.sources.insert(first.made, source);
        if let Some(before) = self.links.insert(source, first) {
            self.sources.remove(&before.made);
        }
    }

    /// Counts one more of its hard links. After the last one the first is forgotten, unless names can come twice
    /// because sources are nested.
    pub fn count_name(&mut self, ino: Ino) {
        let source = (self.volume, ino);
        let Some(first) = self.links.get_mut(&source) else { return };
        first.left = first.left.saturating_sub(1);
        if first.left == 0 && !self.several {
            let made = first.made;
            self.links.remove(&source);
            self.sources.remove(&made);
        }
    }

    /// Forgets this as a first copy: something else is about to be written into it.
    pub fn forget(&mut self, made: Identity) {
        if let Some(source) = self.sources.remove(&made) {
            self.links.remove(&source);
        }
    }
}
