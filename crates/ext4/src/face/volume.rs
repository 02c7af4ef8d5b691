//! An open volume.

use crate::change::orphans::{Leftovers, survey};
use crate::face::tick::{Background, sync_all, tick};
use crate::face::to_device::ToDevice;
use crate::ground::clock::Clock;
use crate::ground::devices;
use crate::ground::error::{Error, Result};
use crate::ground::features;
use crate::ground::options::VolumeOptions;
use crate::ground::recovered::RecoveryInfo;
use crate::inode::Ext4State;
use crate::opening::close;
use crate::opening::external::{self, Devices};
use crate::opening::heartbeat::{self, Heartbeat};
use crate::opening::identify;
use crate::opening::mmp;
use crate::opening::recovery::{self, Ready};
use crate::opening::state::open_state;
use crate::opening::superblock::{check_device, read_superblock};
use crate::seam::Ext4;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{self as blockdev, Device};
use uext4_iomap::{Counter, Engine, FileSystem, Stats};
use uext4_ondisk::ext4::{MmpBlock, Superblock, Timestamp};

/// An open volume. Cheap to clone; every call may come from any thread. The device is released when the last
/// clone, file and queue are gone.
#[derive(Clone)]
pub struct Volume {
    pub(super) shared: Arc<Shared>,
}

/// What a volume's clones, files and queues share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine<Ext4>>,
    pub(crate) fs: Arc<Ext4>,
    pub(super) options: VolumeOptions,
    /// The devices as they were given, without the overlays of an in-memory recovery.
    devices: Devices,
    /// Whether an open for writing would succeed. Computed on first use.
    writable: OnceLock<Result<()>>,
    /// The process that opened the volume.
    process: u32,
    last_stats: Arc<OnceLock<Stats>>,
    /// `None` after the volume ended.
    background: Option<Background>,
    /// Set on volumes with multi-mount protection until all blocks are written home.
    heartbeat: Option<Heartbeat>,
    /// All blocks are written home.
    ended: bool,
}

/// The counters of a volume that was closed, from [`Volume::last_stats`].
#[derive(Clone, Debug)]
pub struct LastStats(Arc<OnceLock<Stats>>);

impl LastStats {
    /// `None` while a clone, file or queue of the volume exists.
    #[must_use]
    pub fn get(&self) -> Option<Stats> {
        self.0.get().copied()
    }
}

impl Shared {
    /// Checks whether the volume could be opened for writing. Looks only at the volume, not at whether the device is
    /// writable or in use. For a volume opened read-only, it rehearses such an open once and writes nothing.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.write {
            return Ok(());
        }
        self.writable.get_or_init(|| recovery::rehearse(&self.devices, &self.options)).clone()
    }
}

impl Shared {
    /// Whether this process opened the volume. In a forked child it belongs to the parent.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Refuses a change in a forked child, where it would succeed in memory only.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(blockdev::Error::Forked.into()) }
    }

    /// The device as it was given, without the overlay of recovery.
    pub(super) fn given_device(&self) -> &Arc<dyn Device> {
        &self.devices.volume
    }

    fn stats(&self) -> Stats {
        let engine = self.engine.stats();
        if !self.options.write {
            return engine;
        }
        let journal = self.fs.state.journal_stats();
        let flushes = engine.get(Counter::Flushes) + journal.flushes;
        engine
            .with(Counter::HandlesStarted, journal.handles_started)
            .with(Counter::Commits, journal.commits)
            .with(Counter::Flushes, flushes)
            .with(Counter::BlocksLogged, journal.blocks_logged)
            .with(Counter::Checkpoints, journal.checkpoints)
            .with(Counter::HomeWrites, journal.home_writes)
    }

    /// Frees unlinked inodes and writes all blocks home.
    fn end(&self) -> Result<()> {
        let pages = if self.fs.check_alive().is_ok() { self.engine.write_all_pages() } else { Ok(()) };
        let files = self.fs.files();
        let released = files.free_all_left();
        let times = files.write_old_times(Duration::ZERO);
        close::settle(&self.fs.state).and(pages).and(released).and(times)
    }
}

impl Shared {
    /// Ends the volume when its last clone goes.
    fn finish(&mut self) -> Result<()> {
        // Stop the thread first: what its tick changes must go home too.
        drop(self.background.take());
        self.ended = true;
        let ended = self.end();
        self.fs.state.leavers().end();
        let released = self.heartbeat.take().map_or(Ok(()), Heartbeat::release);
        ended.and(released)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_ours() {
            // The threads run in the parent only.
            std::mem::forget((self.background.take(), self.heartbeat.take()));
        } else {
            if !self.ended {
                // A drop cannot report errors; [`Volume::close`] does.
                let _not_told = self.finish();
            }
            let _only_once = self.last_stats.set(self.stats());
        }
    }
}

impl Volume {
    /// Opens the volume on `device`: text in the device grammar (`"disk.img"`, `"/dev/nvme0n1p3"`, `"dax:…"`,
    /// `"disk.img?partition=2"`), or the path of an image file or block device, taken byte by byte. [`ToDevice`] says
    /// which type is which.
    ///
    /// A journal that is not empty is replayed first: onto the device when opened for writing, in memory when opened
    /// for reading ([`Info::recovery`](crate::Info::recovery)). An open for writing first makes earlier writes to the
    /// device durable (`Device::settle`), which can take long for an image that was just copied. A read-only open
    /// tolerates damaged group descriptors and reports them ([`Info::descriptors`](crate::Info::descriptors)).
    ///
    /// # Errors
    /// [`Error::NotExt4`] naming what is there instead, [`Error::InUse`], [`Error::ExternalJournal`] if the journal is
    /// on a device that the options do not name, [`Error::Incompatible`] naming the feature, [`Error::Journal`] if the
    /// journal is damaged and the volume is opened for writing, [`Error::Corrupt`] (when opened for writing, of group
    /// descriptors too), and those of the device.
    pub fn open(device: impl ToDevice, options: VolumeOptions) -> Result<Volume> {
        Self::open_spec(&device.to_device()?, options)
    }

    /// Opens the volume on a parsed device.
    pub fn open_spec(spec: &DeviceSpec, options: VolumeOptions) -> Result<Volume> {
        options.check_overlay(spec)?;
        let how = blockdev::OpenOptions { write: options.write, force: options.force };
        let opened = devices::open(spec, how)?;
        Self::open_device(opened.device, options)
    }

    /// Opens the volume on a device that the caller opened, possibly wrapped in layers.
    pub fn open_device(device: Arc<dyn Device>, options: VolumeOptions) -> Result<Volume> {
        if options.write && device.capabilities().read_only {
            return Err(Error::ReadOnly("the device"));
        }
        let superblock = read_superblock(&*device).map_err(|error| identify::instead(&*device, error))?;
        features::check_encoding(&superblock)?;
        check_device(&superblock, &*device)?;
        mmp::refuse_shared(&*device, &superblock, &options)?;
        let (mut superblock, mut heartbeat) = (superblock, None);
        if options.write {
            features::check_writable(&superblock)?;
        }
        let log = external::find(&superblock, &options, options.write || superblock.needs_recovery())?;
        if options.write {
            heartbeat =
                heartbeat::claim(&device, &superblock, options.mmp_second, Clock::new(options.fixed_time))?;
            if heartbeat.is_some() {
                // The previous user may have changed it until the lock was taken.
                superblock = read_superblock(&*device)?;
            }
            // A durable write is lost if the file system around it is lost. The image may have been made or copied
            // without a sync, and FUA covers only the range it writes.
            device.settle()?;
            log.as_ref().map_or(Ok(()), |log| log.own_device().settle())?;
        }
        let given = Devices { volume: device, log };
        let Ready { devices, superblock, info } = recovery::recover(given.clone(), superblock, &options)?;
        let device = devices.volume.clone();
        let state = open_state(devices, superblock, &options, info)?;
        let orphans = if options.write { survey(&state)? } else { Leftovers::default() };
        let fs = Ext4::new(state);
        fs.files().process_orphans(&orphans)?;
        let engine = Arc::new(Engine::with_pages(fs.clone(), device, options.page_budget)?);
        fs.state.written.connect(engine.counters().clone());
        if let Some(heartbeat) = &heartbeat {
            let fs = Arc::downgrade(&fs);
            heartbeat.connect(Box::new(move |why| {
                if let Some(fs) = fs.upgrade() {
                    fs.abandon(why);
                }
            }));
        }
        let ticks = options.write && options.background && options.fixed_time.is_none();
        let background =
            ticks.then(|| Background::start(engine.clone(), options.commit_interval)).transpose()?;
        Ok(Volume {
            shared: Arc::new(Shared {
                engine,
                fs,
                options,
                devices: given,
                writable: OnceLock::new(),
                process: std::process::id(),
                last_stats: Arc::default(),
                background,
                heartbeat,
                ended: false,
            }),
        })
    }

    /// Makes all changes durable and writes them home, so that the next open needs no recovery. Dropping the last clone
    /// does the same, but cannot report errors. Files that are still open stay usable. An unlinked one among them is
    /// freed later, at the latest by the next open for writing.
    ///
    /// # Errors
    /// [`Error::Aborted`] if the volume was aborted before or is now: everything acknowledged as durable is in its log,
    /// and the next open recovers it.
    pub fn close(self) -> Result<()> {
        if !self.shared.is_ours() {
            return Err(blockdev::Error::Forked.into());
        }
        self.shared.fs.check_alive()?;
        match Arc::try_unwrap(self.shared) {
            Ok(mut last) => last.finish(),
            Err(shared) => shared.end(),
        }
    }

    /// The time of all changes, if the volume was opened with [`VolumeOptions::deterministic`].
    #[must_use]
    pub fn fixed_time(&self) -> Option<Timestamp> {
        self.shared.options.fixed_time
    }

    /// Does the periodic work: commits a transaction that is older than [`VolumeOptions::commit_interval`], and writes
    /// times of overwrites that have been in memory for half a minute (at once for a file whose attributes were never
    /// read here). Does nothing on a volume opened for reading.
    ///
    /// Call it about once a second, or let [`VolumeOptions::background`] do so. Without either, unsynced changes become
    /// durable with the next sync that commits, or when the volume is closed.
    ///
    /// # Errors
    /// [`Error::Aborted`]; [`Error::Corrupt`] of a record. The rest of the work is done all the same.
    pub fn tick(&self) -> Result<()> {
        if !self.shared.is_ours() {
            return Err(blockdev::Error::Forked.into());
        }
        tick(&self.shared.engine, self.shared.options.commit_interval)
    }

    /// Makes everything before this call durable, as `syncfs` does with a commit and a flush: names, sizes, attributes,
    /// times, and data of completed writes, of every file. That includes removed names, which no sync of a file covers.
    /// Does nothing on a volume opened for reading.
    ///
    /// # Errors
    /// [`Error::Aborted`], [`Error::Io`] if the flush fails: nothing is promised then. [`Error::Corrupt`] of a record
    /// whose times could not be written; everything else is durable.
    pub fn sync_all(&self) -> Result<()> {
        if !self.shared.is_ours() {
            return Err(blockdev::Error::Forked.into());
        }
        if !self.shared.options.write {
            return Ok(());
        }
        self.shared.fs.check_alive()?;
        sync_all(&self.shared.engine)
    }

    /// Bytes of files in memory for requests of any bytes, and how many of them are newer than the device. Both are
    /// limited by [`VolumeOptions::page_budget`].
    pub fn page_bytes(&self) -> (u64, u64) {
        self.shared.engine.page_bytes()
    }

    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        Volume { shared }
    }

    pub(crate) fn state(&self) -> &Ext4State {
        &self.shared.fs.state
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<Ext4>> {
        &self.shared.engine
    }

    /// The device, outermost layer.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.shared.engine.device()
    }

    /// The superblock as it was when the volume was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.state().superblock
    }

    /// What recovery did when the volume was opened.
    pub fn recovery(&self) -> &RecoveryInfo {
        &self.state().recovery
    }

    /// File-system block size in bytes.
    pub fn block_size(&self) -> u32 {
        self.superblock().geometry.block_size()
    }

    /// Whether files can be opened for writing.
    pub fn is_writable(&self) -> bool {
        self.shared.options.write
    }

    /// Counters of routes since the volume was opened, and of its journal. Changes made outside the engine (sizes,
    /// names, orphans) start handles too. Most queued requests are counted when a call to their queue finds them
    /// complete, so wait for requests in flight before you compare two readings.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// The counters at the end: after the last clone of the volume is gone and all blocks are written home.
    pub fn last_stats(&self) -> LastStats {
        LastStats(self.shared.last_stats.clone())
    }

    /// The primary superblock as it is on `device` now, decoded and checked as for opening. Copies in the journal are
    /// ignored. For volumes that cannot be opened.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged or is no superblock, [`Error::Incompatible`] naming the feature,
    /// [`Error::TooSmall`] if the device is smaller than the volume, and those of the device.
    pub fn read_superblock(device: &dyn Device) -> Result<Superblock> {
        let superblock = read_superblock(device)?;
        check_device(&superblock, device)?;
        Ok(superblock)
    }

    /// The multi-mount protection block as it is on `device` now, or `None` without that feature. For volumes that
    /// cannot be opened.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the block, and those of the device.
    pub fn read_mmp(device: &dyn Device, superblock: &Superblock) -> Result<Option<MmpBlock>> {
        check_device(superblock, device)?;
        mmp::read(device, superblock)
    }
}
