//! Kernel mounts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::lock::{MOUNT_PREFIX, MachineLock, machine_lock};
use super::loopdev::{LoopDevice, LoopOptions};
use super::{release_failed, wait_until};
use crate::oracle::command;

/// A mounted file system on a mount point of its own, unmounted on drop.
#[derive(Debug)]
pub struct Mount {
    dir: Option<tempfile::TempDir>,
    _lock: Arc<MachineLock>,
}

impl Mount {
    /// `mount -t kind -o options device` on a fresh directory; empty options are left out.
    ///
    /// # Panics
    /// With mount's own words if it refuses.
    #[track_caller]
    pub fn attach(device: &Path, kind: &str, options: &str) -> Mount {
        Mount::try_attach(device, kind, options).unwrap_or_else(|e| panic!("mount {}: {e}", device.display()))
    }

    /// Like [`Mount::attach`] for a mount that may be refused: the error is what mount(8) printed.
    pub fn try_attach(device: &Path, kind: &str, options: &str) -> Result<Mount, String> {
        let lock = machine_lock();
        let dir = tempfile::Builder::new().prefix(MOUNT_PREFIX).tempdir().expect("a mount point");
        let mut mount = command("mount");
        mount.args(["-t", kind]);
        if !options.is_empty() {
            mount.args(["-o", options]);
        }
        let output = mount.arg(device).arg(dir.path()).output().expect("run mount");
        if !output.status.success() {
            return Err(crate::oracle::text(&output));
        }
        Ok(Mount { dir: Some(dir), _lock: lock })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.dir.as_ref().expect("present until dropped").path()
    }

    /// Unmounts now.
    ///
    /// # Panics
    /// If something in it is still open after two seconds.
    #[track_caller]
    pub fn unmount(mut self) {
        let dir = self.dir.take().expect("present until dropped");
        let mut said = String::new();
        let gone = wait_until(Duration::from_secs(2), || {
            let output = command("umount").arg(dir.path()).output().expect("run umount");
            said = crate::oracle::text(&output);
            output.status.success()
        });
        if !gone {
            self.dir = Some(dir);
            panic!("umount: {said}");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        let unmounted = wait_until(Duration::from_secs(2), || {
            command("umount").arg("--quiet").arg(dir.path()).status().is_ok_and(|status| status.success())
        });
        if !unmounted {
            // Out of the way at least: the rest goes with the last open descriptor.
            let lazy = command("umount").arg("--lazy").arg(dir.path()).status();
            if !lazy.is_ok_and(|status| status.success()) {
                // TempDir would delete the mounted tree's files.
                let left = dir.keep();
                release_failed(&format!("{} could not be unmounted", left.display()));
                return;
            }
            release_failed(&format!("{} was busy and got detached lazily", dir.path().display()));
        }
    }
}

/// An ext4 image mounted by the kernel through a loop device.
#[derive(Debug)]
pub struct KernelMount {
    // Declared in the order of release.
    mount: Mount,
    device: LoopDevice,
}

impl KernelMount {
    /// Attaches and mounts the image (or, for a block device, a loop over it).
    #[track_caller]
    pub fn image(file: &Path, options: LoopOptions, mount_options: &str) -> KernelMount {
        let device = LoopDevice::attach(file, options);
        let mount = Mount::attach(device.path(), "ext4", mount_options);
        KernelMount { mount, device }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// The loop device below.
    pub fn device(&self) -> &LoopDevice {
        &self.device
    }

    /// Unmounts and detaches now; panics if something is still open.
    #[track_caller]
    pub fn unmount(self) {
        self.mount.unmount();
        drop(self.device);
    }
}

/// A tmpfs of a bounded size.
#[derive(Debug)]
pub struct Tmpfs {
    mount: Mount,
}

impl Tmpfs {
    /// Mounts a tmpfs of `bytes`.
    #[track_caller]
    pub fn new(bytes: u64) -> Tmpfs {
        Tmpfs { mount: Mount::attach(Path::new("tmpfs"), "tmpfs", &format!("size={bytes}")) }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }
}
