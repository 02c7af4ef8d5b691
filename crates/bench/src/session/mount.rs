//! A mount of the kernel's ext4 without a place in the tree.
//!
//! It lives as long as its descriptor, so that it goes with this process whatever ends it. Options are the kernel's
//! defaults with `noatime,lazytime`: our arm writes no times to the device either.

use crate::error::{BenchError, Doing, Result};
use crate::volume::wait_until;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The mount.
#[derive(Debug)]
pub struct Mount {
    root: OwnedFd,
    device: PathBuf,
}

impl Mount {
    /// Mounts `device`. It must not be open exclusively.
    pub fn new(device: &Path) -> Result<Self> {
        let mount = || -> rustix::io::Result<OwnedFd> {
            let context = mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
            mount::fsconfig_set_string(&context, "source", device)?;
            mount::fsconfig_set_flag(&context, "lazytime")?;
            mount::fsconfig_create(&context)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOATIME;
            mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        };
        let root = mount().doing(|| format!("mount {} with the kernel", device.display()))?;
        Ok(Mount { root, device: device.to_owned() })
    }

    /// Its root directory, for calls with relative paths.
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Makes everything durable that was written before.
    pub fn sync(&self) -> Result<()> {
        let sync = || {
            // The mount's own descriptor is not an open file.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::syncfs(rustix::fs::openat(&self.root, ".", flags, Mode::empty())?)
        };
        sync().doing(|| "sync the kernel's mount".into())
    }

    /// Unmounts, and waits until the device is free again. Files in it must be closed.
    pub fn unmount(self) -> Result<()> {
        let Mount { root, device } = self;
        drop(root);
        let free = || {
            let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::open(&device, flags, Mode::empty()).is_ok()
        };
        if wait_until(free) {
            return Ok(());
        }
        Err(BenchError::failed(format!("{} is still in use after it was unmounted", device.display())))
    }
}
