//! Loop devices.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::lock::{MachineLock, machine_lock};
use super::{release_failed, wait_until};
use crate::oracle::{command, run};

/// How a loop device is set up. Default: buffered, writable, 512-byte sectors.
#[derive(Debug, Clone, Copy)]
pub struct LoopOptions {
    /// The loop driver does direct I/O on the backing file (and passes io_uring's NOWAIT on).
    pub direct_io: bool,
    /// The device refuses writes.
    pub read_only: bool,
    /// Logical block size, bytes.
    pub sector_size: u32,
}

impl Default for LoopOptions {
    fn default() -> Self {
        LoopOptions { direct_io: false, read_only: false, sector_size: 512 }
    }
}

/// A loop device over a file, detached on drop.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    open: Option<File>,
    /// Attributes that were changed, with what they were.
    changed: Vec<(PathBuf, String)>,
    _lock: Arc<MachineLock>,
}

impl LoopDevice {
    /// Attaches `file` to a free loop device.
    ///
    /// # Panics
    /// If the kernel refuses (ask [`crate::Need::Loop`] first).
    #[track_caller]
    pub fn attach(file: &Path, options: LoopOptions) -> LoopDevice {
        let lock = machine_lock();
        let mut losetup = command("losetup");
        losetup.args(["--find", "--show", "--sector-size", &options.sector_size.to_string()]);
        losetup.arg(format!("--direct-io={}", if options.direct_io { "on" } else { "off" }));
        if options.read_only {
            losetup.arg("--read-only");
        }
        let path = PathBuf::from(run(losetup.arg(file)).trim());
        let open = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        // Detaching a device that is open only marks it: the kernel takes it away with the last descriptor.
        // From here on even a killed test leaves nothing behind.
        run(command("losetup").arg("--detach").arg(&path));
        let device = LoopDevice { path, open: Some(open), changed: Vec::new(), _lock: lock };
        if options.direct_io {
            assert_eq!(device.attribute("loop/dio"), "1", "no direct I/O over {}", file.display());
        }
        device
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An attribute under `/sys/block/loopN`, trimmed.
    #[track_caller]
    pub fn attribute(&self, name: &str) -> String {
        let file = self.sysfs(name);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        text.trim().to_owned()
    }

    /// Changes an attribute for as long as the device is attached: the kernel would keep it for the next one of this
    /// name.
    #[track_caller]
    pub fn set_attribute(&mut self, name: &str, value: &str) {
        let (file, before) = (self.sysfs(name), self.attribute(name));
        std::fs::write(&file, value).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.changed.push((file, before));
        assert_eq!(self.attribute(name), value, "{name}");
    }

    fn sysfs(&self, name: &str) -> PathBuf {
        let device = self.path.file_name().expect("a device path has a name");
        Path::new("/sys/block").join(device).join(name)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        for (file, before) in self.changed.drain(..).rev() {
            if let Err(error) = std::fs::write(&file, &before) {
                release_failed(&format!("{} cannot be set back to {before}: {error}", file.display()));
            }
        }
        self.open = None;
        let backing = self.sysfs("loop/backing_file");
        if !wait_until(Duration::from_secs(5), || !backing.exists()) {
            release_failed(&format!("{} is still attached: something has it open", self.path.display()));
        }
    }
}
