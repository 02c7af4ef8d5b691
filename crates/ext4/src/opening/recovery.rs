//! Opening a volume whose journal is not empty.
//!
//! Recovery first *looks at* the volume that the log describes, through an overlay in which home blocks are read from
//! their copies in the log, and the superblocks of volume and log have their future contents. Nothing is written. A
//! read-only open keeps using this view.
//!
//! An open for writing makes every decision on that view, so a refused volume is unchanged. Only then does it write:
//! home blocks, flush, superblock of the log (empty), flush, superblock without `needs_recovery`, flush. Until the last
//! step the next open starts over, with the same result.
//!
//! # Fast commits
//! They are replayed on the same view (`fast_commit/`). A writer stores the result as an ordinary transaction in the
//! log that was just written home, under the number of the fast commits, and then writes it home. So a crash leaves
//! either the fast commits and the volume without any of them, or the transaction (`jbd2`'s `convert.rs`).
//!
//! A fast commit that contradicts the volume or an earlier one does not count, nor do later ones. A read-only open
//! shows the volume before it and reports that. An open for writing is refused.
//!
//! # The superblock
//! The log may hold an older copy of it. Fields written to it past the journal must survive: the record of errors, the
//! error state (the kernel's `ext4_load_journal` keeps both), and `needs_recovery` until the log is empty. An error
//! that the journal recorded (`s_errno`) becomes the volume's error state before the journal's record is cleared.
//!
//! # Flag and log disagree
//! `needs_recovery` with an empty log: nothing is replayed. An open for writing clears the flag.
//!
//! A log with contents but without the flag: the contents are stale, because a writer sets the flag before it writes
//! the log. They are ignored. An open for writing empties the log, after the last check that may refuse the volume. The
//! kernel empties it too (`jbd2_journal_wipe`); e2fsck asks.
//!
//! # A journal that cannot be used
//! Without `needs_recovery`, reads do not need it: the damage is recorded, and only writing is refused. With
//! `needs_recovery` the log's contents are lost and the files are out of date: reading and writing are refused, by the
//! error that names the damage. (The kernel refuses too unless mounted with `noload`; e2fsck discards the journal.)

use crate::ground::clock::Clock;
use crate::ground::error::{Error, Result};
use crate::ground::features;
use crate::ground::groups::for_each_descriptor;
use crate::ground::lifetime::stamp_time;
use crate::ground::options::VolumeOptions;
use crate::ground::recovered::{RecoveryInfo, RecoveryState};
use crate::ground::seal::seal;
use crate::inode::Ext4State;
use crate::opening::external::Devices;
use crate::opening::on_device::{encode, read_bytes, superblock_bytes, write_bytes};
use crate::opening::state::{bare, open_state};
use crate::opening::superblock::read_superblock;
use crate::opening::{external, fast_commit, journal, mmp};
use std::sync::Arc;
use uext4_blockdev::Device;
use uext4_blockdev::layer::OverlayDevice;
use uext4_jbd2::{Changes, DeviceMap, JournalInfo, LogMap, Recovery, mark_empty, store_empty_superblock};
use uext4_ondisk::ext4::{Incompat, RoCompat, SUPERBLOCK_OFFSET, State, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind, Pblk};

/// Most bytes of metadata that recovery changes in memory.
const OVERLAY_BYTES: u64 = 16 << 20;

/// Devices ready to be opened, the superblock, and what recovery did.
pub(crate) struct Ready {
    pub(crate) devices: Devices,
    pub(crate) superblock: Superblock,
    pub(crate) info: RecoveryInfo,
}

/// A log that was read, and the view of the volume after its replay.
struct Pending {
    recovery: Recovery,
    overlay: Arc<OverlayDevice>,
    /// The device with the log, with an empty one, if it is another.
    log_overlay: Option<Arc<OverlayDevice>>,
    /// The log that was read.
    log: Arc<dyn LogMap>,
    /// The superblock after recovery.
    superblock: Superblock,
    /// Its bytes, first with and then without `needs_recovery`.
    flagged: Vec<u8>,
    cleared: Vec<u8>,
    /// Changes made by the fast commits.
    changes: Changes,
}

/// Recovers the volume if its superblock asks for it.
///
/// # Errors
/// Those that would refuse the volume later too, with nothing written. For an open for writing: [`Error::Journal`] if
/// the log is damaged, [`Error::FastCommit`] if its fast commits cannot be replayed.
pub(crate) fn recover(devices: Devices, superblock: Superblock, options: &VolumeOptions) -> Result<Ready> {
    match prepare(&devices, superblock, options)? {
        Prepared::Ready(ready) => Ok(*ready),
        Prepared::ToWrite { pending, mut info } => {
            pending.apply(&devices, Clock::new(options.fixed_time))?;
            info.needed = false;
            if info.state == RecoveryState::Overlay {
                info.state = RecoveryState::Replayed;
            }
            Ok(Ready { superblock: read_superblock(&*devices.volume)?, devices, info: *info })
        }
    }
}

/// Runs an open for writing up to its first write, to see whether it would succeed. `options` are those of a read-only
/// open that succeeded.
///
/// # Errors
/// Those of an open for writing, except that the device is read-only or in use.
pub(crate) fn rehearse(devices: &Devices, options: &VolumeOptions) -> Result<()> {
    let options = VolumeOptions { write: true, force: true, trace: None, ..options.clone() };
    let superblock = read_superblock(&*devices.volume)?;
    mmp::refuse_shared(&*devices.volume, &superblock, &options)?;
    let mut devices = devices.clone();
    if devices.log.is_none() {
        // It was not needed to read the volume. Nothing is written to it here either.
        let reading = VolumeOptions { write: false, ..options.clone() };
        devices.log = external::find(&superblock, &reading, true)?;
    }
    match prepare(&devices, superblock, &options)? {
        // `prepare` has already opened the volume on the view that includes everything to write.
        Prepared::ToWrite { .. } => Ok(()),
        Prepared::Ready(ready) => {
            let Ready { devices, superblock, info } = *ready;
            // In memory, this empties a stale log and takes over an error that it recorded.
            let size = superblock.geometry.block_size();
            let keeping = |device: &Arc<dyn Device>| {
                OverlayDevice::keeping_writes(device.clone(), size, OVERLAY_BYTES).map(Arc::new)
            };
            let volume = keeping(&devices.volume)?;
            let log = devices.log.map(|log| keeping(log.own_device()).map(|view| log.on(view)));
            open_state(Devices { volume, log: log.transpose()? }, superblock, &options, info).map(drop)
        }
    }
}

/// The result of all checks, before anything is written.
enum Prepared {
    /// There is nothing to write.
    Ready(Box<Ready>),
    /// All checks have passed. This must be written.
    ToWrite { pending: Box<Pending>, info: Box<RecoveryInfo> },
}

/// Decides what recovery has to do. Writes nothing.
fn prepare(devices: &Devices, superblock: Superblock, options: &VolumeOptions) -> Result<Prepared> {
    let ready = |devices: Devices, superblock, info| {
        Ok(Prepared::Ready(Box::new(Ready { devices, superblock, info })))
    };
    if !superblock.needs_recovery() {
        return ready(devices.clone(), superblock, RecoveryInfo::clean());
    }
    let device = &devices.volume;
    let state = bare(devices.clone(), superblock.clone(), options)?;
    let Some(log) = journal::find(&state)? else {
        if options.write {
            let text = "the superblock says so (needs_recovery), but there is no journal";
            return Err(Error::NeedsRecovery(text.into()));
        }
        return ready(devices.clone(), superblock, RecoveryInfo::new(RecoveryState::NoJournal, true));
    };
    let journal = JournalInfo::read(&state.cache, &*log)?;
    journal.check_version()?;
    drop(state);
    let block_size = u64::from(superblock.geometry.block_size());
    // This superblock may count too few blocks: if the volume was grown, the new size is in the log.
    let blocks = device.geometry().size / block_size;
    let recovery = Recovery::read(device, &*log, &journal, blocks)?;
    let mut info = RecoveryInfo::new(RecoveryState::Overlay, true);
    info.note_journal(journal.superblock.errno, &superblock);
    info.log = Some(recovery.report().clone());
    if !journal.needs_recovery() {
        info.state = RecoveryState::EmptyLog;
        info.log = None;
    }
    if options.write
        && let Some(damage) = recovery.report().ended.damage()
    {
        return Err(uext4_jbd2::Error::Damaged(damage).into());
    }
    let mut pending = Pending::new(devices, &superblock, recovery, log)?;
    mmp::refuse_shared(&*pending.overlay, &pending.superblock, options)?;
    pending.replay_fast_commits(devices, options, &mut info)?;
    if !options.write {
        return ready(pending.view(devices), pending.superblock, info);
    }
    let view = open_state(pending.view(devices), pending.superblock.clone(), options, info.clone())?;
    // The replay may have moved the journal. Then the block to empty belongs to something else.
    if view.journal_info.as_ref().is_none_or(|again| again.block != journal.block) {
        return Err(Corrupt::from(CorruptKind::JournalTarget).at_block(Pblk(journal.block)).into());
    }
    pending.recount(&view)?;
    drop(view);
    Ok(Prepared::ToWrite { pending: Box::new(pending), info: Box::new(info) })
}

impl Pending {
    /// `first` is the superblock as it is on the device.
    fn new(
        devices: &Devices,
        first: &Superblock,
        recovery: Recovery,
        log: Arc<dyn LogMap>,
    ) -> Result<Pending> {
        let size = first.geometry.block_size();
        let (overlay, log_overlay) = overlays(devices, size)?;
        for replay in recovery.blocks() {
            overlay.redirect(replay.home, replay.copy * u64::from(size), replay.head())?;
        }
        let journal = recovery.info();
        let errno = journal.superblock.errno;
        let mut bytes = superblock_bytes(&*overlay)?;
        // The superblock in the log may have other features than the one checked so far.
        features::check_readable(&Superblock::peek_features(&bytes)?)?;
        let mut superblock = Superblock::decode(&bytes)?;
        check_same(first, &superblock, &recovery)?;
        superblock.errors = first.errors;
        // The log's copy was made before the one on the device was last written.
        superblock.kbytes_written = superblock.kbytes_written.max(first.kbytes_written);
        superblock.state |= first.state & State::ERRORS;
        if errno != 0 {
            superblock.state |= State::ERRORS;
        }
        // Taken from the device: a power cut could leave a part of these bytes.
        let before = superblock_bytes(&*devices.volume)?;
        superblock.features.incompat |= Incompat::RECOVER;
        encode(&superblock, &mut bytes)?;
        seal(&before, &mut bytes);
        let flagged = bytes.clone();
        superblock.features.incompat &= !Incompat::RECOVER;
        encode(&superblock, &mut bytes)?;
        seal(&before, &mut bytes);
        overlay.patch(SUPERBLOCK_OFFSET, &bytes)?;

        let place = journal.block * u64::from(size);
        let holder = log_overlay.as_ref().unwrap_or(&overlay);
        let mut emptied = read_bytes(&**holder, place, size as usize)?;
        store_empty_superblock(&mut emptied, recovery.settled_sequence(), 0)?;
        holder.patch(place, &emptied)?;
        let changes = Changes::new();
        Ok(Pending { recovery, overlay, log_overlay, log, superblock, flagged, cleared: bytes, changes })
    }

    /// The recovered volume and its empty log.
    fn view(&self, devices: &Devices) -> Devices {
        let view = |log: &DeviceMap| self.log_overlay.as_ref().map(|overlay| log.on(overlay.clone()));
        Devices { volume: self.overlay.clone(), log: devices.log.as_ref().and_then(view) }
    }

    /// Replays the fast commits in memory, if there are any. A read-only open skips one that contradicts the volume,
    /// and all later ones.
    fn replay_fast_commits(
        &mut self,
        devices: &Devices,
        options: &VolumeOptions,
        info: &mut RecoveryInfo,
    ) -> Result<()> {
        if info.fast_commits().is_none() {
            return Ok(());
        }
        let mut reading = options.clone();
        reading.write = false;
        let view = open_state(self.view(devices), self.superblock.clone(), &reading, info.clone())?;
        if options.write
            && let Some(damage) = view.descriptor_damage
        {
            // The volume is refused later in any case, but an error of the fast commits would be less specific.
            return Err(damage.first.into());
        }
        let budget = OVERLAY_BYTES.saturating_sub(self.overlay.memory_bytes());
        let source = fast_commit::Source { view: &view, recovery: &self.recovery, log: &*self.log, budget };
        let replayed = if options.write { source.replay() } else { source.replay_good() };
        drop(view);
        let fast_commit::Replayed { changes, done, refused } = replayed?;
        if let Some(error) = refused {
            info.fast_commits_refused = Some(match error {
                Error::FastCommit { record, cause } => format!("record {record}: {cause}"),
                error => error.to_string(),
            });
            info.fast_commits_before = Some(done).filter(|done| done.commits > 0);
        }
        if options.write && !changes.is_empty() {
            self.recovery.check_room(changes.len())?;
            if self.superblock.features.ro_compat.contains(RoCompat::QUOTA) {
                let feature = "fast commits on a volume with quota, which has to be counted anew".into();
                return Err(Error::Incompatible { action: "recover for writing", feature });
            }
        }
        let size = u64::from(self.superblock.geometry.block_size());
        for (block, bytes) in &changes {
            self.overlay.patch(block * size, bytes)?;
        }
        self.changes = changes;
        Ok(())
    }

    /// Sets the superblock's free counts to the sums of the groups, as the kernel does at mount. The kernel writes them
    /// only at unmount, so they may be old. Impossible sums change nothing. Stamps the superblock as well.
    fn recount(&mut self, view: &Ext4State) -> Result<()> {
        let geometry = &self.superblock.geometry;
        let (mut blocks, mut inodes) = (0u64, 0u64);
        for_each_descriptor(&**view.cache.device(), &self.superblock, |_, descriptor| {
            let descriptor = descriptor.map_err(|damaged| damaged.fault)?;
            blocks = blocks.saturating_add(u64::from(descriptor.free_clusters));
            inodes = inodes.saturating_add(u64::from(descriptor.free_inodes));
            Ok(())
        })?;
        blocks = blocks.saturating_mul(u64::from(geometry.cluster_blocks()));
        let possible = u32::try_from(inodes).ok().filter(|inodes| *inodes <= geometry.inodes_count());
        if let Some(inodes) = possible.filter(|_| blocks <= geometry.blocks_count()) {
            (self.superblock.free_blocks, self.superblock.free_inodes) = (blocks, inodes);
        }
        // Blocks of fast commits are logged before they are written home.
        let written = (self.recovery.blocks().len() + 2 * self.changes.len()) as u64;
        let kbytes = written * u64::from(self.superblock.geometry.block_size() >> 10);
        self.superblock.kbytes_written = self.superblock.kbytes_written.saturating_add(kbytes);
        stamp_time(&mut self.superblock, view.clock);
        let before = self.cleared.clone();
        encode(&self.superblock, &mut self.cleared)?;
        seal(&before, &mut self.cleared);
        Ok(())
    }

    /// Writes everything, in the order of the module's documentation.
    fn apply(&self, devices: &Devices, clock: Clock) -> Result<()> {
        let (device, log) = (&*devices.volume, &*self.log);
        let log_device = &**devices.log_device();
        let journal = self.recovery.info();
        let size = u64::from(journal.superblock.block_size);
        let (home, offset) = (SUPERBLOCK_OFFSET / size, (SUPERBLOCK_OFFSET % size) as usize);
        let mut adjust = |block: u64, bytes: &mut [u8]| {
            if block == home {
                bytes[offset..offset + self.flagged.len()].copy_from_slice(&self.flagged);
            }
        };
        self.recovery.write_home(device, log, &mut adjust)?;
        device.flush()?;
        let mut sequence = self.recovery.settled_sequence();
        if !self.changes.is_empty() {
            let stored = self.recovery.convert(device, log, &self.changes, clock.of_commits())?;
            stored.write_home(device, log, &mut adjust)?;
            device.flush()?;
            sequence = stored.settled_sequence();
        }
        let errno = journal.superblock.errno;
        if journal.needs_recovery() {
            mark_empty(log_device, journal, sequence, errno)?;
        }
        write_bytes(device, SUPERBLOCK_OFFSET, &self.cleared)?;
        device.flush()?;
        if errno != 0 {
            // The superblock holds the error state now.
            mark_empty(log_device, journal, sequence, 0)?;
        }
        Ok(())
    }
}

/// Overlays of the volume and of the device with the log, if it is another.
fn overlays(devices: &Devices, size: u32) -> Result<(Arc<OverlayDevice>, Option<Arc<OverlayDevice>>)> {
    let volume = devices.volume.clone();
    let Some(log) = &devices.log else {
        return Ok((Arc::new(OverlayDevice::new(volume, size, OVERLAY_BYTES)?), None));
    };
    let copies = log.own_device().clone();
    let log = OverlayDevice::new(copies.clone(), size, OVERLAY_BYTES)?;
    let volume = OverlayDevice::with_copies_on(copies, volume, size, OVERLAY_BYTES)?;
    Ok((Arc::new(volume), Some(Arc::new(log))))
}

/// Checks that the superblock from the log belongs to this volume, and that all replayed blocks lie inside the volume.
fn check_same(first: &Superblock, recovered: &Superblock, recovery: &Recovery) -> Result<()> {
    let field = |name| Err(Corrupt::from(CorruptKind::SuperblockField(name)).into());
    if recovered.geometry.block_size() != first.geometry.block_size() {
        return field("log_block_size");
    }
    if recovered.journal_inode() != first.journal_inode() {
        return field("journal_inum");
    }
    if first.has_external_journal() && recovered.journal.uuid != first.journal.uuid {
        return field("journal_uuid");
    }
    let blocks = recovered.geometry.blocks_count();
    match recovery.blocks().last() {
        Some(last) if last.home >= blocks => {
            Err(Corrupt::from(CorruptKind::JournalTarget).at_block(Pblk(last.home)).into())
        }
        _ => Ok(()),
    }
}
