//! What the sources lie on, which a copy must not destroy: no lock on an image keeps the kernel from emptying or
//! unlinking it.

use super::host::Identity;
use crate::open::Place;
use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use uext4::blockdev::spec::Locator;

/// The files and device nodes of the sources, and what loop devices among them stand on.
#[derive(Debug, Default)]
pub struct Devices {
    files: HashSet<Identity>,
    /// Numbers of block devices.
    nodes: HashSet<u64>,
}

impl Devices {
    /// Of these sources, as far as they can be found.
    pub fn of(places: &[Place]) -> Self {
        let mut devices = Devices::default();
        let mut looked: HashSet<&Path> = HashSet::new();
        for place in places {
            if let Locator::Path(path) = &place.spec.locator
                && looked.insert(path)
                && let Ok(metadata) = fs::metadata(path)
            {
                devices.add(&metadata);
            }
        }
        devices
    }

    fn add(&mut self, metadata: &Metadata) {
        self.files.insert((metadata.dev(), metadata.ino()));
        if !metadata.file_type().is_block_device() || !self.nodes.insert(metadata.rdev()) {
            return;
        }
        if let Some(backing) = backing_file(metadata.rdev()) {
            self.add(&backing);
        }
    }

    /// Whether it is one of them.
    pub fn contain(&self, file: Identity) -> bool {
        self.files.contains(&file)
    }

    /// Whether this file is one of them, or a node of one.
    pub fn are_at(&self, path: &Path) -> bool {
        let Ok(metadata) = fs::metadata(path) else { return false };
        let node = metadata.file_type().is_block_device() && self.nodes.contains(&metadata.rdev());
        node || self.contain((metadata.dev(), metadata.ino()))
    }
}

/// The file under a loop device, or under the one that this is a partition of.
fn backing_file(rdev: u64) -> Option<Metadata> {
    let numbers = format!("/sys/dev/block/{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let named = ["loop", "../loop"].iter().find_map(|directory| {
        fs::read_to_string(Path::new(&numbers).join(directory).join("backing_file")).ok()
    })?;
    fs::metadata(named.strip_suffix('\n').unwrap_or(&named)).ok()
}
