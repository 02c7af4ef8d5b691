//! The library and, beside it, the device it was opened on.

use super::{Requests, Session};
use crate::arm::Arm;
use crate::error::{BenchError, Doing, Result};
use crate::ops::{Addresses, Op};
use crate::scenario::{Mode, Renewed};
use crate::work::queued::{self, DeviceQueue, FileQueue, Idle};
use crate::work::synchronous::{self, DeviceTarget, FileTarget};
use crate::work::{Lane, Work, fill};
use std::path::PathBuf;
use uext4::device::WriteDurability;
use uext4::{
    Buffer, BufferPool, Fallocate, File, FileSlot, IoQueue, OpenOptions, QueueFacts, RawQueue, Stats,
    Switches, Volume, WriteFlags,
};

/// An open volume with every file opened once for each arm.
pub struct VolumeSession {
    volume: Volume,
    arms: Vec<Arm>,
    /// By arm; empty for `raw`.
    files: Vec<Vec<File>>,
    requests: Requests,
    /// The raw queue and its buffers are made before the other.
    pub raw_first: bool,
}

impl VolumeSession {
    /// `arms` with the switches each uses; `raw` has none.
    pub fn new(
        volume: Volume,
        paths: &[PathBuf],
        arms: &[(Arm, Option<Switches>)],
        requests: Requests,
    ) -> Result<Self> {
        let open = |switches: Option<Switches>| -> Result<Vec<File>> {
            let Some(switches) = switches else { return Ok(Vec::new()) };
            let options = OpenOptions::new().read(true).write(true).direct(true).switches(switches);
            let open = |path: &PathBuf| {
                volume.open_file(path, options.clone()).doing(|| format!("open {}", path.display()))
            };
            paths.iter().map(open).collect()
        };
        let files = arms.iter().map(|&(_, switches)| open(switches)).collect::<Result<_>>()?;
        let arms = arms.iter().map(|&(arm, _)| arm).collect();
        Ok(VolumeSession { volume, arms, files, requests, raw_first: false })
    }

    /// Where the files are. Reading the maps also loads them, so that no arm does it while it is measured.
    pub fn addresses(&self, paths: &[PathBuf], span: u64) -> Result<Addresses> {
        for files in &self.files {
            for file in files {
                file.map()
                    .try_for_each(|piece| piece.map(drop))
                    .doing(|| format!("map inode {}", file.ino()))?;
            }
        }
        let options = OpenOptions::new().read(true).direct(true);
        let open = |path: &PathBuf| self.volume.open_file(path, options.clone());
        let files = paths.iter().map(open).collect::<uext4::Result<Vec<File>>>();
        Addresses::of(&files.doing(|| "open the files".into())?, span)
    }

    /// Reads some requests' bytes both ways: the raw arm must be at the places that the files have.
    pub fn compare_with_raw(&self, paths: &[PathBuf], ops: &[Op], raw: &[Op]) -> Result<()> {
        let mut from_file = one_buffer(self.requests.block)?;
        let mut from_device = one_buffer(self.requests.block)?;
        for (op, raw) in ops.iter().zip(raw) {
            let path = &paths[op.file as usize];
            let file = self.volume.open_file(path, OpenOptions::new().read(true));
            let read = file.and_then(|file| file.read_at(&mut from_file, op.pos));
            read.doing(|| format!("read {}", path.display()))?;
            self.volume.device().read_at(&mut from_device, raw.pos).doing(|| "read the device".into())?;
            if from_file[..] != from_device[..] {
                return Err(BenchError::failed(format!(
                    "{} at {}: the file and its place on the device differ",
                    path.display(),
                    op.pos
                )));
            }
        }
        Ok(())
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    fn writes_durably(&self, arm: usize) -> bool {
        self.requests.dsync && self.arms[arm] != Arm::NoDsync
    }

    /// Whether `raw` writes carry FUA, as those of `on` do.
    fn raw_fua(&self) -> bool {
        self.requests.dsync && self.volume.device().capabilities().fua
    }
}

fn flags(durable: bool) -> WriteFlags {
    if durable { WriteFlags::DSYNC } else { WriteFlags::empty() }
}

/// A buffer with its own memory.
pub fn one_buffer(length: usize) -> Result<Buffer> {
    let pool = BufferPool::new(length).doing(|| "reserve memory".into())?;
    let mut buffer = pool.take(length).doing(|| "reserve memory".into())?;
    fill(&mut buffer, 0);
    Ok(buffer)
}

impl Session for VolumeSession {
    fn arms(&self) -> &[Arm] {
        &self.arms
    }

    fn lane(&self, beside: bool) -> Result<Box<dyn Lane + '_>> {
        match self.requests.mode {
            Mode::Synchronous => {
                Ok(Box::new(SyncLane { session: self, buffer: one_buffer(self.requests.block)?, beside }))
            }
            Mode::Queued { batch, .. } => Ok(Box::new(QueueLane::new(self, batch)?)),
        }
    }

    fn make_durable(&self) -> Result<()> {
        let files: Vec<&File> = self.files.iter().flatten().collect();
        if files.is_empty() {
            return self.volume.device().flush().doing(|| "flush the device before the measurement".into());
        }
        self.volume.sync_files(&files).doing(|| "sync before the measurement".into())
    }

    fn renew(&self, arm: usize) -> Result<()> {
        let Some(renewed) = self.requests.renewed else { return Ok(()) };
        for file in &self.files[arm] {
            let renew = || {
                file.set_len(0)?;
                match renewed {
                    Renewed::Empty => Ok(()),
                    Renewed::Unwritten => file.fallocate(Fallocate::Allocate, 0, self.requests.file_bytes),
                }
            };
            renew().doing(|| format!("renew inode {}", file.ino()))?;
        }
        Ok(())
    }

    fn is_durable(&self) -> bool {
        self.requests.starts_durable()
    }

    fn counters(&self) -> Option<Stats> {
        Some(self.volume.stats())
    }
}

struct SyncLane<'s> {
    session: &'s VolumeSession,
    buffer: Buffer,
    beside: bool,
}

impl Lane for SyncLane<'_> {
    fn run(&mut self, arm: usize, work: Work<'_>) -> Result<()> {
        let session = self.session;
        if session.arms[arm] == Arm::Raw {
            let fua = session.raw_fua() && !self.beside;
            let durability = if fua { WriteDurability::Fua } else { WriteDurability::Cached };
            let target = DeviceTarget { device: session.volume.device(), durability };
            return synchronous::drive(&target, &mut self.buffer, work);
        }
        let durable = session.writes_durably(arm) && !self.beside;
        let fsync = session.requests.fsync;
        let target = FileTarget { files: &session.files[arm], flags: flags(durable), fsync };
        synchronous::drive(&target, &mut self.buffer, work)
    }

    fn facts(&self) -> Option<QueueFacts> {
        None
    }
}

/// One queue with the files of all arms, and one straight to the device, made alike.
struct QueueLane<'s> {
    session: &'s VolumeSession,
    batch: usize,
    slots: Vec<Vec<FileSlot>>,
    queue: Option<(IoQueue, Idle)>,
    raw: Option<(RawQueue, Idle)>,
}

impl<'s> QueueLane<'s> {
    fn new(session: &'s VolumeSession, batch: usize) -> Result<Self> {
        let mut lane = QueueLane { session, batch, slots: Vec::new(), queue: None, raw: None };
        if session.raw_first {
            lane.add_raw()?;
            lane.add_queue()?;
        } else {
            lane.add_queue()?;
            lane.add_raw()?;
        }
        Ok(lane)
    }

    fn add_queue(&mut self) -> Result<()> {
        let session = self.session;
        if session.arms.iter().all(|&arm| arm == Arm::Raw) {
            return Ok(());
        }
        let options = session.requests.queue_options();
        let mut queue = session.volume.queue(options).doing(|| "make a queue".into())?;
        for files in &session.files {
            let slots = files.iter().map(|file| queue.attach(file)).collect::<uext4::Result<_>>();
            self.slots.push(slots.doing(|| "attach a file".into())?);
        }
        let buffers = session.requests.buffers(|length| queue.buffer(length))?;
        self.queue = Some((queue, Idle::new(buffers)));
        Ok(())
    }

    fn add_raw(&mut self) -> Result<()> {
        let session = self.session;
        if !session.arms.contains(&Arm::Raw) {
            return Ok(());
        }
        let options = session.requests.queue_options();
        let queue = session.volume.raw_queue(options).doing(|| "make a raw queue".into())?;
        let buffers = session.requests.buffers(|length| queue.buffer(length).map_err(uext4::Error::from))?;
        self.raw = Some((queue, Idle::new(buffers)));
        Ok(())
    }
}

impl Lane for QueueLane<'_> {
    fn run(&mut self, arm: usize, work: Work<'_>) -> Result<()> {
        let absent = || BenchError::failed("an arm without its queue");
        if self.session.arms[arm] == Arm::Raw {
            let fua = self.session.raw_fua();
            let (queue, idle) = self.raw.as_mut().ok_or_else(absent)?;
            let mut target = DeviceQueue { queue, fua };
            return queued::drive(&mut target, idle, self.batch, work);
        }
        let (queue, idle) = self.queue.as_mut().ok_or_else(absent)?;
        let flags = flags(self.session.writes_durably(arm));
        let mut target = FileQueue { queue, slots: &self.slots[arm], flags };
        queued::drive(&mut target, idle, self.batch, work)
    }

    fn facts(&self) -> Option<QueueFacts> {
        match (&self.queue, &self.raw) {
            (Some((queue, _)), _) => Some(queue.facts()),
            (None, Some((queue, _))) => Some(queue.facts()),
            (None, None) => None,
        }
    }
}
