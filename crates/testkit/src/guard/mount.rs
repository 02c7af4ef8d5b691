//! Kernel mounts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::lock::{MOUNT_PREFIX, MachineLock, machine_lock};
use super::loopdev::{LoopDevice, LoopOptions};
use super::{release_failed, wait_until};
use crate::oracle::{command, run};

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

/// Drops the page, dentry and inode caches of the whole machine, so that the next read comes from devices.
#[track_caller]
pub fn drop_caches() {
    run(&mut command("sync"));
    std::fs::write("/proc/sys/vm/drop_caches", "3").expect("drop_caches needs root");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Need, VolumeBuilder};

    fn is_mounted(path: &Path) -> bool {
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
        table.lines().any(|line| line.split(' ').nth(1) == path.to_str())
    }

    #[test]
    fn root_mounts_and_gives_back_on_drop_and_on_panic() {
        crate::needs!(Need::Loop, Need::Tool("mke2fs"));
        let volume = VolumeBuilder::new(16 << 20).build();
        let mounted = KernelMount::image(volume.path(), LoopOptions::default(), "noatime");
        let path = mounted.path().to_owned();
        assert!(is_mounted(&path));
        drop(mounted);
        assert!(!is_mounted(&path) && !path.exists());

        let (told, heard) = std::sync::mpsc::channel();
        let image = volume.path().to_owned();
        let thread = std::thread::spawn(move || {
            let mounted = KernelMount::image(&image, LoopOptions::default(), "");
            told.send((mounted.path().to_owned(), mounted.device().path().to_owned())).unwrap();
            panic!("planted");
        });
        let (path, device) = heard.recv().unwrap();
        assert!(thread.join().is_err());
        assert!(!is_mounted(&path) && !path.exists());
        let backing = Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file");
        assert!(!backing.exists());
    }

    #[test]
    fn root_a_refused_mount_says_why_and_leaves_nothing() {
        crate::needs!(Need::Loop);
        let scratch = crate::Scratch::new(1 << 20);
        let image = scratch.sparse_file("empty", 1 << 20);
        let device = LoopDevice::attach(&image, LoopOptions::default());
        let error = Mount::try_attach(device.path(), "ext4", "").unwrap_err();
        assert!(error.contains("mount"), "{error}");
    }

    #[test]
    fn root_tmpfs_is_bounded() {
        crate::needs!(Need::Root);
        let tmpfs = Tmpfs::new(1 << 20);
        let error = std::fs::write(tmpfs.path().join("big"), vec![1; 2 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }
}
