//! Volumes with one large directory, and the cost of look-ups in it.

use super::Image;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use uext4::device::CountingDevice;
use uext4::device::MemoryDevice;
use uext4::{Ino, Result, Volume, VolumeOptions};
use uext4_testkit::{Scratch, VolumeBuilder, oracle};

/// `EXT4_CASEFOLD_FL`.
pub const CASEFOLD_FLAG: u32 = 0x4000_0000;
/// `EXT4_EXTENTS_FL`.
pub const EXTENTS_FLAG: u32 = 0x8_0000;
/// `EXT4_ENCRYPT_FL`.
pub const ENCRYPT_FLAG: u32 = 0x800;

/// How the volume is made.
pub struct Recipe<'a> {
    /// Bytes of the volume.
    pub size: u64,
    /// Arguments for mke2fs.
    pub args: &'a [&'a str],
    /// `-E` options for mke2fs.
    pub extended: &'a [&'a str],
    /// Requests for debugfs once the directory is filled.
    pub debugfs: &'a [&'a str],
    /// `-E` options for tune2fs.
    pub tune2fs: &'a [&'a str],
    /// Whether e2fsck makes hash trees.
    pub index: bool,
    /// Names per inode; with 1, the inode identifies the name.
    pub per_inode: usize,
}

impl Default for Recipe<'_> {
    fn default() -> Self {
        Recipe {
            size: 16 << 20,
            args: &["-b", "1024", "-O", "^has_journal"],
            extended: &[],
            debugfs: &[],
            tune2fs: &[],
            index: true,
            per_inode: 1,
        }
    }
}

/// About as many names as an inode may have links.
pub const MANY: usize = 60_000;

/// Creates files with these names in `dir`, hard-linking each `per_inode` of them to one inode.
pub fn fill<'n>(dir: &Path, per_inode: usize, names: impl IntoIterator<Item = &'n [u8]>) {
    let mut file = dir.to_owned();
    for (n, name) in names.into_iter().enumerate() {
        let path = dir.join(OsStr::from_bytes(name));
        if n % per_inode == 0 {
            std::fs::write(&path, "").unwrap();
            file = path;
        } else {
            std::fs::hard_link(&file, &path).unwrap();
        }
    }
}

impl Recipe<'_> {
    /// Makes the volume with `/dir` and these names in it. No root needed.
    pub fn make<N: AsRef<[u8]>>(&self, names: &[N]) -> Image {
        let source = Scratch::new(1 << 20);
        let dir = source.file("dir");
        std::fs::create_dir(&dir).unwrap();
        fill(&dir, self.per_inode, names.iter().map(AsRef::as_ref));
        let mut builder = VolumeBuilder::new(self.size).args(self.args.iter().copied());
        for option in self.extended {
            builder = builder.extended(*option);
        }
        let volume = builder.from_dir(source.path()).build();
        for option in self.tune2fs {
            let mut tune2fs = oracle::command("tune2fs");
            let output = tune2fs.args(["-E", option]).arg(volume.path()).output().unwrap();
            assert!(output.status.success(), "{}", oracle::text(&output));
        }
        for request in self.debugfs {
            oracle::debugfs_write(volume.path(), request);
        }
        if self.index {
            let report = oracle::e2fsck(volume.path(), &["-y", "-D"]);
            assert!(report.status <= 1, "{}", report.output);
        }
        volume.assert_clean();
        Image::load(volume.path())
    }
}

/// Opens the volume anew, so that nothing is cached, and looks a path up. Also returns how many blocks the look-up
/// read.
pub fn look_up_cold(device: &Arc<MemoryDevice>, path: &[u8]) -> (Result<Ino>, u64) {
    let counting = Arc::new(CountingDevice::new(device.clone()));
    let counters = counting.counters();
    let volume = Volume::open_device(counting, VolumeOptions::read_only()).unwrap();
    let block = u64::from(volume.block_size());
    counters.take();
    let found = volume.resolve(OsStr::from_bytes(path), false);
    (found, counters.get().read_bytes / block)
}

/// `/dir/NAME`.
pub fn in_dir(name: &[u8]) -> Vec<u8> {
    [b"/dir/", name].concat()
}

/// Asserts that every name is listed once and found, that `absent` ones are not, and that a look-up reads at most
/// `most` blocks.
#[track_caller]
pub fn assert_all_found<N: AsRef<[u8]>>(image: &Image, names: &[N], absent: &[Vec<u8>], most: u64) {
    let device = image.device();
    let volume = super::open_ro(device.clone());
    let entries = volume.read_dir("/dir").unwrap().map(Result::unwrap);
    let mut listed: Vec<_> =
        entries.filter(|entry| entry.name != b"." && entry.name != b"..").map(|e| (e.name, e.ino)).collect();
    listed.sort();
    let mut expected: Vec<&[u8]> = names.iter().map(AsRef::as_ref).collect();
    expected.sort_unstable();
    assert!(listed.iter().map(|(name, _)| name.as_slice()).eq(expected), "another listing");
    for (name, ino) in &listed {
        let found = volume.resolve(OsStr::from_bytes(&in_dir(name)), false).unwrap();
        assert_eq!(found, *ino, "{}", name.escape_ascii());
    }
    for name in absent {
        let error = volume.resolve(OsStr::from_bytes(&in_dir(name)), false).unwrap_err();
        assert_eq!(error.errno(), 2, "{}: {error}", name.escape_ascii());
    }
    let sample = listed.iter().map(|(name, _)| name).step_by(listed.len() / 50 + 1);
    for name in sample.chain(absent.iter().take(50)) {
        let (_, blocks) = look_up_cold(&device, &in_dir(name));
        assert!(blocks <= most, "{}: {blocks} blocks read, {most} allowed", name.escape_ascii());
    }
}
