//! zram devices.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::lock::{MachineLock, machine_lock};
use super::{release_failed, wait_until};

const CONTROL: &str = "/sys/class/zram-control";

/// A zram device of our own (added, never a device that was there before), removed on drop.
#[derive(Debug)]
pub struct Zram {
    number: u32,
    path: PathBuf,
    _lock: Arc<MachineLock>,
}

impl Zram {
    /// Adds a device of `bytes`.
    ///
    /// # Panics
    /// If the kernel refuses (ask [`crate::Need::Zram`] first).
    #[track_caller]
    pub fn new(bytes: u64) -> Zram {
        let lock = machine_lock();
        // Reading the attribute is what adds the device.
        let text = std::fs::read_to_string(Path::new(CONTROL).join("hot_add")).expect("zram hot_add");
        let number: u32 = text.trim().parse().expect("hot_add gives a number");
        let device = Zram { number, path: PathBuf::from(format!("/dev/zram{number}")), _lock: lock };
        std::fs::write(device.sysfs("disksize"), bytes.to_string()).expect("zram disksize");
        assert!(
            wait_until(Duration::from_secs(2), || device.path.exists()),
            "{} did not appear",
            device.path.display()
        );
        device
    }

    /// `/dev/zramN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn sysfs(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{name}", self.number))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let remove = Path::new(CONTROL).join("hot_remove");
        // Busy while a closed descriptor's release is still under way.
        if !wait_until(Duration::from_secs(5), || std::fs::write(&remove, self.number.to_string()).is_ok()) {
            release_failed(&format!("{} could not be removed", self.path.display()));
        }
    }
}
