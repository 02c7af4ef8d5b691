//! A directory for one test, in memory when the machine allows it.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// A directory that is removed with its content on drop.
#[derive(Debug)]
pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    /// A directory on a file system that takes O_DIRECT and has `bytes` free: `/dev/shm` if it can (tmpfs
    /// takes O_DIRECT from Linux 6.6 on), else the ordinary temporary directory, else `/var/tmp`.
    ///
    /// # Panics
    /// If none of them can.
    #[track_caller]
    pub fn new(bytes: u64) -> Scratch {
        let temporary = std::env::temp_dir();
        let places = [Path::new("/dev/shm"), &temporary, Path::new("/var/tmp")];
        for place in places {
            if free_bytes(place) < bytes.saturating_add(bytes / 8) {
                continue;
            }
            let Ok(dir) = tempfile::Builder::new().prefix("uext4-test-").tempdir_in(place) else {
                continue;
            };
            if takes_direct_io(dir.path()) {
                return Scratch { dir };
            }
        }
        panic!("no directory of {places:?} takes O_DIRECT and has {bytes} bytes free");
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A path in it; nothing is created.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a sparse file of `bytes` in it.
    #[track_caller]
    pub fn sparse_file(&self, name: impl AsRef<Path>, bytes: u64) -> PathBuf {
        let path = self.file(name);
        let file = std::fs::File::create_new(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        file.set_len(bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}

fn free_bytes(place: &Path) -> u64 {
    rustix::fs::statvfs(place).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize))
}

fn takes_direct_io(dir: &Path) -> bool {
    let probe = dir.join(".probe");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let taken = rustix::fs::open(&probe, flags, rustix::fs::Mode::RUSR).is_ok();
    // The probe file exists even when O_DIRECT was refused on some file systems.
    let _ = std::fs::remove_file(&probe);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_empty_direct_and_gone_after_drop() {
        let scratch = Scratch::new(1 << 20);
        let path = scratch.path().to_owned();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        assert!(takes_direct_io(&path));
        let image = scratch.sparse_file("image", 1 << 30);
        assert_eq!(std::fs::metadata(image).unwrap().len(), 1 << 30);
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    #[should_panic(expected = "bytes free")]
    fn an_impossible_size_is_refused() {
        Scratch::new(1 << 60);
    }
}
