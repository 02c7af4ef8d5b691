//! The kernel's ext4 on the same block device.
//!
//! The mount has no place in the tree: it lives as long as its descriptor, so that it goes with this process
//! whatever ends it. Options are the kernel's defaults with `noatime,lazytime`: our arm writes no times to
//! the device either.

use super::volume::one_buffer;
use super::{Requests, Session};
use crate::arm::Arm;
use crate::error::{BenchError, Doing, Result};
use crate::scenario::{Mode, Renewed};
use crate::volume::wait_until;
use crate::work::queued::{self, DeviceQueue, Idle};
use crate::work::synchronous::{self, KernelTarget};
use crate::work::{Lane, Work};
use rustix::fs::{FallocateFlags, Mode as FileMode, OFlags};
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Buffer, BufferPool, DeviceSpec, QueueFacts, RawQueue, Stats, device};

/// A kernel mount with the files of a scenario.
pub struct KernelSession {
    /// The file of queued requests, opened as a device is; all threads have their queues on it.
    target: Option<Arc<dyn Device>>,
    mount: Option<OwnedFd>,
    device: PathBuf,
    files: Vec<PathBuf>,
    requests: Requests,
}

impl KernelSession {
    /// Mounts `device`. It must not be open exclusively.
    pub fn mount(device: &Path, files: &[PathBuf], requests: Requests) -> Result<Self> {
        let mount = || -> rustix::io::Result<OwnedFd> {
            let context = mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
            mount::fsconfig_set_string(&context, "source", device)?;
            mount::fsconfig_set_flag(&context, "lazytime")?;
            mount::fsconfig_create(&context)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOATIME;
            mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        };
        let mount = mount().doing(|| format!("mount {} with the kernel", device.display()))?;
        let files = files.iter().map(|file| file.strip_prefix("/").unwrap_or(file).to_owned()).collect();
        let mut session =
            KernelSession { target: None, mount: Some(mount), device: device.to_owned(), files, requests };
        if requests.mode != Mode::Synchronous {
            session.target = Some(session.open_as_device()?);
        }
        session.make_durable()?;
        Ok(session)
    }

    fn sync(&self) -> rustix::io::Result<()> {
        let Some(mount) = &self.mount else { return Ok(()) };
        // The mount's own descriptor is not an open file.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::syncfs(rustix::fs::openat(mount, ".", flags, FileMode::empty())?)
    }

    fn directory(&self) -> Result<&OwnedFd> {
        self.mount.as_ref().ok_or_else(|| BenchError::failed("it is unmounted already"))
    }

    fn open(&self, file: &Path, dsync: bool) -> Result<OwnedFd> {
        let durable = if dsync { OFlags::DSYNC } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC | durable;
        let opened = rustix::fs::openat(self.directory()?, file, flags, FileMode::empty());
        opened.doing(|| format!("open {} in the kernel's mount", file.display()))
    }

    /// Unmounts, and waits until the device is free again.
    pub fn unmount(mut self) -> Result<()> {
        self.target = None;
        self.mount = None;
        let free = || {
            let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::open(&self.device, flags, FileMode::empty()).is_ok()
        };
        if wait_until(free) {
            return Ok(());
        }
        Err(BenchError::failed(format!("{} is still in use after it was unmounted", self.device.display())))
    }
}

impl Session for KernelSession {
    fn arms(&self) -> &[Arm] {
        &[Arm::Kernel]
    }

    fn lane(&self, beside: bool) -> Result<Box<dyn Lane + '_>> {
        match self.requests.mode {
            Mode::Synchronous => {
                let dsync = self.requests.dsync && !beside;
                let files = self.files.iter().map(|file| self.open(file, dsync)).collect::<Result<_>>()?;
                Ok(Box::new(SyncLane {
                    target: KernelTarget { files, fsync: self.requests.fsync },
                    buffer: one_buffer(self.requests.block)?,
                }))
            }
            Mode::Queued { batch, .. } => Ok(Box::new(self.queue_lane(batch)?)),
        }
    }

    fn make_durable(&self) -> Result<()> {
        self.sync().doing(|| "sync the kernel's mount".into())
    }

    fn renew(&self, _arm: usize) -> Result<()> {
        let Some(renewed) = self.requests.renewed else { return Ok(()) };
        for file in &self.files {
            let open = self.open(file, false)?;
            let renew = || {
                rustix::fs::ftruncate(&open, 0)?;
                match renewed {
                    Renewed::Empty => Ok(()),
                    Renewed::Unwritten => {
                        let all = self.requests.file_bytes;
                        rustix::fs::fallocate(&open, FallocateFlags::empty(), 0, all)
                    }
                }
            };
            renew().doing(|| format!("renew {} in the kernel's mount", file.display()))?;
        }
        Ok(())
    }

    fn is_durable(&self) -> bool {
        self.requests.starts_durable()
    }

    fn counters(&self) -> Option<Stats> {
        None
    }
}

impl KernelSession {
    /// The one file, opened by the same code that opens devices.
    fn open_as_device(&self) -> Result<Arc<dyn Device>> {
        let [file] = &self.files[..] else {
            return Err(BenchError::failed("the kernel's queued arm takes one file"));
        };
        let path = Path::new("/proc/self/fd").join(self.directory()?.as_raw_fd().to_string()).join(file);
        let options = device::OpenOptions { write: true, force: false };
        let opened = device::open(&DeviceSpec::file(&path), options);
        Ok(opened.doing(|| format!("open {} in the kernel's mount", file.display()))?.device)
    }

    /// A queue on it: the same ring, buffers and loop as the other arms have.
    fn queue_lane(&self, batch: usize) -> Result<QueueLane> {
        let absent = || BenchError::failed("no file is open for queues");
        let device = self.target.as_ref().ok_or_else(absent)?;
        let pool = BufferPool::new(self.requests.queue_bytes()).doing(|| "reserve memory".into())?;
        let queue = RawQueue::new(device, self.requests.device_queue_options(), pool);
        let queue = queue.map_err(uext4::Error::from).doing(|| "make a queue".into())?;
        let buffers = self.requests.buffers(|length| queue.buffer(length).map_err(uext4::Error::from))?;
        Ok(QueueLane { queue, idle: Idle::new(buffers), batch, fua: self.requests.dsync })
    }
}

struct SyncLane {
    target: KernelTarget,
    buffer: Buffer,
}

impl Lane for SyncLane {
    fn run(&mut self, _arm: usize, work: Work<'_>) -> Result<()> {
        synchronous::drive(&self.target, &mut self.buffer, work)
    }

    fn facts(&self) -> Option<QueueFacts> {
        None
    }
}

struct QueueLane {
    queue: RawQueue,
    idle: Idle,
    batch: usize,
    fua: bool,
}

impl Lane for QueueLane {
    fn run(&mut self, _arm: usize, work: Work<'_>) -> Result<()> {
        let mut target = DeviceQueue { queue: &mut self.queue, fua: self.fua };
        queued::drive(&mut target, &mut self.idle, self.batch, work)
    }

    fn facts(&self) -> Option<QueueFacts> {
        Some(self.queue.facts())
    }
}
