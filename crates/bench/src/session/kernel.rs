//! The kernel's ext4 on the same block device.

use super::volume::one_buffer;
use super::{Mount, Requests, Session};
use crate::arm::Arm;
use crate::error::{BenchError, Doing, Result};
use crate::scenario::{Mode, Renewed};
use crate::work::queued::{self, DeviceQueue, Idle};
use crate::work::synchronous::{self, KernelTarget};
use crate::work::{Lane, Work};
use rustix::fs::{FallocateFlags, Mode as FileMode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Buffer, BufferPool, DeviceSpec, QueueFacts, RawQueue, Stats, device};

/// A kernel mount with the files of a scenario.
pub struct KernelSession {
    /// The file of queued requests, opened as a device is; all threads have their queues on it.
    target: Option<Arc<dyn Device>>,
    mount: Mount,
    files: Vec<PathBuf>,
    requests: Requests,
}

impl KernelSession {
    /// Mounts `device`. It must not be open exclusively.
    pub fn mount(device: &Path, files: &[PathBuf], requests: Requests) -> Result<Self> {
        let mount = Mount::new(device)?;
        let files = files.iter().map(|file| file.strip_prefix("/").unwrap_or(file).to_owned()).collect();
        let mut session = KernelSession { target: None, mount, files, requests };
        if requests.mode != Mode::Synchronous {
            session.target = Some(session.open_as_device()?);
        }
        session.make_durable()?;
        Ok(session)
    }

    fn open(&self, file: &Path, dsync: bool) -> Result<OwnedFd> {
        let durable = if dsync { OFlags::DSYNC } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC | durable;
        let opened = rustix::fs::openat(self.mount.root(), file, flags, FileMode::empty());
        opened.doing(|| format!("open {} in the kernel's mount", file.display()))
    }

    /// Unmounts, and waits until the device is free again.
    pub fn unmount(self) -> Result<()> {
        drop(self.target);
        self.mount.unmount()
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
        self.mount.sync()
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
        let path = Path::new("/proc/self/fd").join(self.mount.root().as_raw_fd().to_string()).join(file);
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
