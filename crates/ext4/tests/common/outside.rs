//! Volumes whose journal is on a device of its own.

use super::Image;
use super::crash::GARBAGE;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::device::Device;
use uext4::mkfs::{self, Defaults, Options};
use uext4::{Result, Volume, VolumeOptions};
use uext4_testkit::oracle::Fsck;
use uext4_testkit::{Scratch, oracle};

/// A volume and its journal.
#[derive(Clone)]
pub struct Pair {
    pub volume: Image,
    pub journal: Image,
}

/// Made here: a volume of this size with garbage in its free blocks, and its journal.
pub fn pair(size: u64, journal: u64, block: u32, features: &str) -> Pair {
    let log = Image { bytes: vec![0; journal as usize] }.device();
    let mut options = Options::new(Defaults::Upstream).features("journal_dev").unwrap();
    options.block_size = Some(block);
    mkfs::format_journal(&*log, &options).unwrap();
    let volume = Image { bytes: vec![GARBAGE; size as usize] }.device();
    let options = Options::new(Defaults::Upstream).features(features).unwrap();
    let made = mkfs::format_with_journal(&*volume, &*log, 0, &options).unwrap();
    assert!(!made.without_journal && made.superblock.has_external_journal());
    Pair { volume: Image::of(&*volume), journal: Image::of(&*log) }
}

/// Opens a volume with this journal.
pub fn open(volume: Arc<dyn Device>, journal: Arc<dyn Device>, options: VolumeOptions) -> Result<Volume> {
    Volume::open_device(volume, options.journal_device(journal))
}

/// The same for writing.
pub fn open_rw(volume: Arc<dyn Device>, journal: Arc<dyn Device>) -> Volume {
    open(volume, journal, VolumeOptions::read_write()).unwrap()
}

impl Pair {
    pub fn of(volume: &dyn Device, journal: &dyn Device) -> Pair {
        Pair { volume: Image::of(volume), journal: Image::of(journal) }
    }

    /// Opens copies in memory for writing.
    pub fn open_rw(&self) -> Volume {
        open_rw(self.volume.device(), self.journal.device())
    }

    /// Saves both, and returns their paths.
    pub fn save(&self, scratch: &Scratch) -> (PathBuf, PathBuf) {
        let paths = (scratch.file("volume.img"), scratch.file("journal.img"));
        self.volume.save(&paths.0);
        self.journal.save(&paths.1);
        paths
    }
}

/// e2fsck of both.
pub fn e2fsck(volume: &Path, journal: &Path, how: &str) -> Fsck {
    oracle::e2fsck(volume, &[how, "-j", journal.to_str().unwrap()])
}

/// `e2fsck -fn` finds nothing.
#[track_caller]
pub fn assert_clean(volume: &Path, journal: &Path) {
    let report = e2fsck(volume, journal, "-n");
    assert!(report.is_clean(), "status {}\n{}", report.status, report.output);
}
