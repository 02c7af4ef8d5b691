//! Who makes the files: the library on an image, or the kernel on a loop device over one.

use super::FILE_BYTES;
use crate::error::{BenchError, Doing, Result};
use crate::session::Mount;
use crate::volume::Loop;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use uext4::{Buffer, Caller, DeviceSpec, OpenOptions, Stats, Switches, Volume, VolumeOptions};

/// Calls on names. Paths begin with a slash.
pub trait Side: Sync {
    /// Makes a directory.
    fn make_dir(&self, path: &str) -> Result<()>;
    /// Makes a file that must not exist, writes `contents`, syncs the file if it is to be `durable`, and closes it.
    fn create(&self, path: &str, contents: &Buffer, durable: bool) -> Result<()>;
    /// Looks up a file's attributes.
    fn stat(&self, path: &str) -> Result<()>;
    /// Removes a file.
    fn unlink(&self, path: &str) -> Result<()>;
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
    /// The library's counters.
    fn counters(&self) -> Option<Stats>;
    /// Lets go of the volume.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Verifies the measurement: a look-up that found another file is none.
fn check_size(path: &str, size: u64) -> Result<()> {
    match size == u64::from(FILE_BYTES) {
        true => Ok(()),
        false => Err(BenchError::failed(format!("{path} has {size} bytes, not {FILE_BYTES}"))),
    }
}

/// The library.
pub struct Library(Volume);

impl Library {
    /// Opens an image.
    pub fn open(image: &Path, switches: Switches) -> Result<Library> {
        let options = VolumeOptions::read_write().switches(switches);
        let volume = Volume::open_spec(&DeviceSpec::file(image), options);
        volume.map(Library).doing(|| format!("open {}", image.display()))
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.0
    }
}

impl Side for Library {
    fn make_dir(&self, path: &str) -> Result<()> {
        self.0.create_dir(path, 0o755, &Caller::root()).doing(|| format!("make directory {path}"))
    }

    fn create(&self, path: &str, contents: &Buffer, durable: bool) -> Result<()> {
        let make = || -> uext4::Result<()> {
            let file =
                self.0.open_file(path, OpenOptions::new().write(true).direct(true).create_new(true))?;
            file.write_at(contents, 0)?;
            if durable { file.sync_all() } else { Ok(()) }
        };
        make().doing(|| format!("make {path}"))
    }

    fn stat(&self, path: &str) -> Result<()> {
        let found = self.0.symlink_metadata(path).doing(|| format!("look at {path}"))?;
        check_size(path, found.size)
    }

    fn unlink(&self, path: &str) -> Result<()> {
        self.0.remove_file(path).doing(|| format!("remove {path}"))
    }

    fn sync(&self) -> Result<()> {
        self.0.sync_all().doing(|| "sync the volume".into())
    }

    fn counters(&self) -> Option<Stats> {
        Some(self.0.stats())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.close().doing(|| "close the volume".into())
    }
}

/// The kernel's ext4.
pub struct Kernel {
    mount: Mount,
    // Detached after the mount is gone.
    _device: Loop,
}

impl Kernel {
    /// Mounts a loop device with direct I/O over an image.
    pub fn mount(image: &Path) -> Result<Kernel> {
        let device = Loop::attach(image)?;
        Ok(Kernel { mount: Mount::new(device.path())?, _device: device })
    }
}

impl Kernel {
    /// The mount's root directory.
    pub fn root(&self) -> &OwnedFd {
        self.mount.root()
    }
}

/// The mount is where relative paths begin.
fn relative(path: &str) -> &str {
    path.strip_prefix('/').unwrap_or(path)
}

impl Side for Kernel {
    fn make_dir(&self, path: &str) -> Result<()> {
        let made = rustix::fs::mkdirat(self.mount.root(), relative(path), Mode::from_raw_mode(0o755));
        made.doing(|| format!("make directory {path} in the kernel's mount"))
    }

    fn create(&self, path: &str, contents: &Buffer, durable: bool) -> Result<()> {
        let mount = self.mount.root();
        let make = || -> rustix::io::Result<usize> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = rustix::fs::openat(mount, relative(path), flags, Mode::from_raw_mode(0o644))?;
            let written = rustix::io::write(&file, contents)?;
            if durable {
                rustix::fs::fsync(&file)?;
            }
            Ok(written)
        };
        let written = make().doing(|| format!("make {path} in the kernel's mount"))?;
        check_size(path, written as u64)
    }

    fn stat(&self, path: &str) -> Result<()> {
        let found = rustix::fs::statat(self.mount.root(), relative(path), AtFlags::SYMLINK_NOFOLLOW);
        let found = found.doing(|| format!("look at {path} in the kernel's mount"))?;
        check_size(path, found.st_size.unsigned_abs())
    }

    fn unlink(&self, path: &str) -> Result<()> {
        let removed = rustix::fs::unlinkat(self.mount.root(), relative(path), AtFlags::empty());
        removed.doing(|| format!("remove {path} in the kernel's mount"))
    }

    fn sync(&self) -> Result<()> {
        self.mount.sync()
    }

    fn counters(&self) -> Option<Stats> {
        None
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.mount.unmount()
    }
}
