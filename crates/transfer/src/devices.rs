//! The devices under the sources, which a copy must not destroy: no lock on an image keeps the kernel from truncating
//! or unlinking it.

use crate::host::Identity;
use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use uext4::DeviceSpec;
use uext4::device::Locator;

/// The files and device nodes of the sources, their overlay files, and the devices under them: backing files of loop
/// devices, components of other devices, and devices with the file systems that contain the files.
#[derive(Debug, Default)]
pub struct Devices {
    files: HashSet<Identity>,
    /// Numbers of block devices.
    nodes: HashSet<u64>,
}

impl Devices {
    /// The devices of these sources, as far as they can be found.
    pub fn of<'a>(specs: impl IntoIterator<Item = &'a DeviceSpec>) -> Self {
        let mut devices = Devices::default();
        let mut looked: HashSet<&Path> = HashSet::new();
        for spec in specs {
            let device = match &spec.locator {
                Locator::Path(path) => Some(path.as_path()),
                Locator::Size(_) | Locator::Remote(_) => None,
            };
            for path in device.into_iter().chain(spec.options.overlay.as_deref()) {
                if looked.insert(path)
                    && let Ok(metadata) = fs::metadata(path)
                {
                    devices.add(&metadata);
                }
            }
        }
        devices
    }

    fn add(&mut self, metadata: &Metadata) {
        let block = metadata.file_type().is_block_device();
        self.add_node(if block { metadata.rdev() } else { metadata.dev() });
        self.files.insert((metadata.dev(), metadata.ino()));
    }

    fn add_node(&mut self, rdev: u64) {
        if !self.nodes.insert(rdev) {
            return;
        }
        if let Some(backing) = backing_file(rdev, &["loop", "../loop"]) {
            self.add(&backing);
        }
        for slave in slaves(rdev) {
            self.add_node(slave);
        }
    }

    /// Whether it is one of them.
    pub(crate) fn contain(&self, file: Identity) -> bool {
        self.files.contains(&file)
    }

    /// Whether writing to this file writes to one of them.
    pub fn are_at(&self, path: &Path) -> bool {
        let Ok(metadata) = fs::metadata(path) else { return false };
        if !metadata.file_type().is_block_device() {
            return self.contain((metadata.dev(), metadata.ino()));
        }
        // A device under a source, or another loop device on a source's image. Partitions of one device, and anything
        // else that shares a device, are independent.
        let image = backing_file(metadata.rdev(), &["loop"]);
        self.nodes.contains(&metadata.rdev())
            || image.is_some_and(|image| self.contain((image.dev(), image.ino())))
    }
}

/// The sysfs directory of a block device.
fn sysfs(rdev: u64) -> PathBuf {
    let numbers = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    Path::new("/sys/dev/block").join(numbers)
}

/// The backing file of a loop device: `loop` is its directory in sysfs, `../loop` that of the device whose partition
/// this is.
fn backing_file(rdev: u64, loops: &[&str]) -> Option<Metadata> {
    let directory = sysfs(rdev);
    let mut said = loops.iter().map(|loops| directory.join(loops).join("backing_file"));
    let named = said.find_map(|said| fs::read_to_string(said).ok())?;
    fs::metadata(named.strip_suffix('\n').unwrap_or(&named)).ok()
}

/// The components of a device (dm, md), or of the device whose partition it is.
fn slaves(rdev: u64) -> Vec<u64> {
    let directory = sysfs(rdev);
    let entries =
        ["slaves", "../slaves"].iter().filter_map(|slaves| fs::read_dir(directory.join(slaves)).ok());
    let numbers =
        entries.flatten().flatten().filter_map(|entry| fs::read_to_string(entry.path().join("dev")).ok());
    let parse = |text: String| -> Option<u64> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    };
    numbers.filter_map(parse).collect()
}
