//! What a recursive copy has made so far.

use crate::devices::Devices;
use crate::host::Identity;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Ino, Volume};

/// Where the first copy of a file with several names is.
pub struct First {
    /// Its path below the directory that holds the copies.
    pub path: Vec<u8>,
    pub made: Identity,
    /// Names that may still come.
    pub left: u32,
}

/// A file of one of the sources' volumes.
type Source = (usize, Ino);

/// What was made, of all sources of one export: they go into the same directory.
pub struct Made {
    devices: Arc<Devices>,
    several: bool,
    earlier: HashSet<Identity>,
    now: HashSet<Identity>,
    /// Of the sources so far, each once: two volumes that are open on one device are one.
    volumes: Vec<Arc<dyn Device>>,
    /// The one at hand.
    volume: usize,
    links: HashMap<Source, First>,
    /// The sources of `links`, by what was made of them.
    sources: HashMap<Identity, Source>,
}

impl Made {
    /// Nothing yet, of `sources` sources on these devices.
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

    /// What the sources lie on, which must not be written to.
    pub fn devices(&self) -> Arc<Devices> {
        Arc::clone(&self.devices)
    }

    /// The next source lies on this volume.
    pub fn next_source(&mut self, volume: &Volume) {
        self.earlier.extend(self.now.drain());
        let device = volume.device();
        let known = self.volumes.iter().position(|other| Arc::ptr_eq(other, device));
        self.volume = known.unwrap_or_else(|| {
            self.volumes.push(Arc::clone(device));
            self.volumes.len() - 1
        });
    }

    /// Whether there are several sources, so that one can meet what another made.
    pub fn of_several(&self) -> bool {
        self.several
    }

    /// Whether it matters what has the name of the next entry already.
    pub fn minds_names(&self) -> bool {
        self.several || !self.links.is_empty()
    }

    /// Whether an earlier source made it.
    pub fn is_earlier(&self, there: Identity) -> bool {
        self.earlier.contains(&there)
    }

    /// The source at hand made it.
    pub fn note(&mut self, made: Identity) {
        self.now.insert(made);
    }

    /// The first copy of a file of the volume at hand.
    pub fn first(&self, ino: Ino) -> Option<&First> {
        self.links.get(&(self.volume, ino))
    }

    /// Other names of the file are to be links to this copy.
    pub fn remember(&mut self, ino: Ino, first: First) {
        let source = (self.volume, ino);
        self.sources.insert(first.made, source);
        if let Some(before) = self.links.insert(source, first) {
            self.sources.remove(&before.made);
        }
    }

    /// One more of its names has come. The last one needs no memory of the first, unless names can come twice, with
    /// sources that lie in each other.
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

    /// Something else is about to be written into this: it is nobody's first copy any longer.
    pub fn forget(&mut self, made: Identity) {
        if let Some(source) = self.sources.remove(&made) {
            self.links.remove(&source);
        }
    }
}
