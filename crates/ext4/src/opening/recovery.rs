//! Opening a volume whose journal is not empty.
//!
//! The state that the log describes is first *looked at* through an overlay: home blocks lead to their copies in
//! the log, the superblock and the log's superblock are as they will be afterwards, and nothing is written. Read-only
//! opens stay there. An open for writing takes every decision on that view, so that a volume that cannot be opened
//! for writing is left as it was, and only then writes: home blocks, flush, superblock of the log (empty), flush,
//! superblock without `needs_recovery`, flush. Until the last step the next open begins anew, with the same result.
//!
//! # Fast commits
//! They are replayed on the same view (`fast_commit/`). What comes of it is written as an ordinary transaction into the
//! log that was just written home, under the number of the fast commits, and then goes home from there: so a crash
//! finds either the fast commits and the volume without any of them, or the transaction (`jbd2`'s `convert.rs`). A
//! fast commit that contradicts the volume or those before it does not count, nor does what follows it: a read-only
//! open shows what came before it and says so, an open for writing is refused.
//!
//! # The superblock
//! The log may hold an older copy of it. What was written to it around the journal must survive: the record of
//! errors and the error state (as the kernel's `ext4_load_journal` keeps them), and `needs_recovery` until the log is
//! empty. An error that the journal itself recorded (`s_errno`) becomes the volume's error state before it is
//! cleared.
//!
//! # Flag and log disagree
//! `needs_recovery` with an empty log: nothing is replayed, an open for writing clears the flag. A log in use without
//! the flag: its contents are left-overs (whoever writes the log sets the flag before), so they are ignored, and an
//! open for writing empties the log, as the kernel does (`jbd2_journal_wipe`); e2fsck asks. That, too, comes after the
//! last check that may refuse the volume.
//!
//! # A journal that cannot be used
//! If nothing is to be recovered, reading does not need it: it is noted, and only writing is refused. If
//! `needs_recovery` is set, what the log holds is lost to us and the files are not what they were: both are refused, by
//! the error that names the damage. (The kernel refuses too unless it is told `noload`; e2fsck throws the journal
//! away.)

use crate::ground::error::{Error, Result};
use crate::ground::features;
use crate::ground::groups::for_each_descriptor;
use crate::ground::options::VolumeOptions;
use crate::ground::recovered::{RecoveryInfo, RecoveryState};
use crate::inode::Ext4State;
use crate::opening::on_device::{encode, read_bytes, superblock_bytes, write_bytes};
use crate::opening::state::{bare, open_state};
use crate::opening::superblock::read_superblock;
use crate::opening::{fast_commit, journal, mmp};
use std::sync::Arc;
use uext4_blockdev::Device;
use uext4_blockdev::layer::OverlayDevice;
use uext4_jbd2::{Changes, JournalInfo, LogMap, Recovery, mark_empty, store_empty_superblock};
use uext4_ondisk::ext4::{Compat, Incompat, RoCompat, SUPERBLOCK_OFFSET, State, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind, Pblk};

/// Most bytes of metadata that recovery patches in memory.
const OVERLAY_BYTES: u64 = 16 << 20;

/// A device with its superblock, ready to be opened, and how it came to that.
pub(crate) struct Settled {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) superblock: Superblock,
    pub(crate) info: RecoveryInfo,
}

/// A log that was read, and the view of the volume with it applied.
struct Pending {
    recovery: Recovery,
    overlay: Arc<OverlayDevice>,
    /// The superblock as it will be.
    superblock: Superblock,
    /// Its bytes, with and without `needs_recovery`.
    asking: Vec<u8>,
    settled: Vec<u8>,
    /// What the fast commits changed.
    changes: Changes,
}

/// Recovers the volume if its superblock asks for it.
///
/// # Errors
/// What refuses the volume afterwards too, in which case nothing was written; [`Error::Incompatible`] for an external
/// journal; for an open for writing [`Error::Journal`] if the log is damaged and [`Error::FastCommit`] if its fast
/// commits cannot be replayed.
pub(crate) fn settle(
    device: Arc<dyn Device>,
    superblock: Superblock,
    options: &VolumeOptions,
) -> Result<Settled> {
    match prepare(&device, superblock, options)? {
        Prepared::Settled(settled) => Ok(*settled),
        Prepared::ToWrite { pending, log, mut info } => {
            pending.apply(&*device, &log)?;
            info.needed = false;
            if info.state == RecoveryState::Overlay {
                info.state = RecoveryState::Replayed;
            }
            Ok(Settled { superblock: read_superblock(&*device)?, device, info: *info })
        }
    }
}

/// Whether an open for writing would succeed: all of it is done but the writing. `options` are those of a read-only
/// open that did succeed.
///
/// # Errors
/// What that open would say. Not that the device cannot be written or is in use.
pub(crate) fn rehearse(device: &Arc<dyn Device>, options: &VolumeOptions) -> Result<()> {
    let options = VolumeOptions { write: true, force: true, ..options.clone() };
    let superblock = read_superblock(&**device)?;
    mmp::refuse_shared(&**device, &superblock, &options)?;
    match prepare(device, superblock, &options)? {
        // The volume was opened on the view of it already, with what is to be written.
        Prepared::ToWrite { .. } => Ok(()),
        Prepared::Settled(settled) => {
            let Settled { device, superblock, info } = *settled;
            // A log that is not empty and does not count is emptied, an error that it recorded is noted: in memory.
            let size = superblock.geometry.block_size();
            let view = OverlayDevice::keeping_writes(device, size, OVERLAY_BYTES)?;
            open_state(Arc::new(view), superblock, &options, info).map(drop)
        }
    }
}

/// What an open comes to before it writes anything.
enum Prepared {
    /// There is nothing to write.
    Settled(Box<Settled>),
    /// Everything that may refuse the volume was asked; this is to be written.
    ToWrite { pending: Box<Pending>, log: uext4_jbd2::RunMap, info: Box<RecoveryInfo> },
}

/// Decides what recovery has to do. Nothing is written.
fn prepare(device: &Arc<dyn Device>, superblock: Superblock, options: &VolumeOptions) -> Result<Prepared> {
    let settled = |device: Arc<dyn Device>, superblock, info| {
        Ok(Prepared::Settled(Box::new(Settled { device, superblock, info })))
    };
    if !superblock.needs_recovery() {
        return settled(device.clone(), superblock, RecoveryInfo::clean());
    }
    // With a journal but without its inode: it is found by its UUID.
    if superblock.features.compat.contains(Compat::HAS_JOURNAL) && superblock.journal_inode().is_none() {
        let feature = "an external journal that was not replayed".into();
        return Err(Error::Incompatible { action: "recover", feature });
    }
    let state = bare(device.clone(), superblock.clone(), options)?;
    let Some(log) = journal::find(&state)? else {
        if options.write {
            let text = "the superblock says so (needs_recovery), but there is no journal";
            return Err(Error::NeedsRecovery(text.into()));
        }
        return settled(device.clone(), superblock, RecoveryInfo::new(RecoveryState::NoJournal, true));
    };
    let journal = JournalInfo::read(&state.cache, &log)?;
    journal.check_version()?;
    drop(state);
    let block_size = u64::from(superblock.geometry.block_size());
    // Not the blocks of this superblock: a volume that was grown has its new size in the log.
    let blocks = device.geometry().size / block_size;
    let recovery = Recovery::read(device, &log, &journal, blocks)?;
    let mut info = RecoveryInfo::new(RecoveryState::Overlay, true);
    info.journal_errno = journal.superblock.errno;
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
    let mut pending = Pending::new(device, &superblock, recovery)?;
    mmp::refuse_shared(&*pending.overlay, &pending.superblock, options)?;
    pending.replay_fast_commits(&log, options, &mut info)?;
    if !options.write {
        return settled(pending.overlay, pending.superblock, info);
    }
    let view = open_state(pending.overlay.clone(), pending.superblock.clone(), options, info.clone())?;
    // What was replayed may have moved the journal; then the block that is about to be emptied is somebody else's.
    if view.journal_info.as_ref().is_none_or(|again| again.block != journal.block) {
        return Err(Corrupt::from(CorruptKind::JournalTarget).at_block(Pblk(journal.block)).into());
    }
    pending.recount(&view)?;
    drop(view);
    Ok(Prepared::ToWrite { pending: Box::new(pending), log, info: Box::new(info) })
}

impl Pending {
    /// `first` is the superblock as the device has it.
    fn new(device: &Arc<dyn Device>, first: &Superblock, recovery: Recovery) -> Result<Pending> {
        let size = first.geometry.block_size();
        let overlay = Arc::new(OverlayDevice::new(device.clone(), size, OVERLAY_BYTES)?);
        for replay in recovery.blocks() {
            overlay.redirect(replay.home, replay.copy * u64::from(size), replay.head())?;
        }
        let journal = recovery.info();
        let errno = journal.superblock.errno;
        let mut bytes = superblock_bytes(&*overlay)?;
        // The log may bring another superblock than the one whose features were looked at.
        features::check_readable(&Superblock::peek_features(&bytes)?)?;
        let mut superblock = Superblock::decode(&bytes)?;
        check_same(first, &superblock, &recovery)?;
        superblock.errors = first.errors;
        superblock.state |= first.state & State::ERRORS;
        if errno != 0 {
            superblock.state |= State::ERRORS;
        }
        superblock.features.incompat |= Incompat::RECOVER;
        encode(&superblock, &mut bytes)?;
        let asking = bytes.clone();
        superblock.features.incompat &= !Incompat::RECOVER;
        encode(&superblock, &mut bytes)?;
        overlay.patch(SUPERBLOCK_OFFSET, &bytes)?;

        let place = journal.block * u64::from(size);
        let mut log = read_bytes(&*overlay, place, size as usize)?;
        store_empty_superblock(&mut log, recovery.settled_sequence(), 0)?;
        overlay.patch(place, &log)?;
        let changes = Changes::new();
        Ok(Pending { recovery, overlay, superblock, asking, settled: bytes, changes })
    }

    /// Replays the fast commits in memory, if there are any. One that contradicts the volume is no error of a
    /// read-only open, which goes on without it and those behind it.
    fn replay_fast_commits(
        &mut self,
        log: &dyn LogMap,
        options: &VolumeOptions,
        info: &mut RecoveryInfo,
    ) -> Result<()> {
        if info.fast_commits().is_none() {
            return Ok(());
        }
        let mut reading = options.clone();
        reading.write = false;
        let view = open_state(self.overlay.clone(), self.superblock.clone(), &reading, info.clone())?;
        if options.write
            && let Some(damage) = view.descriptor_damage
        {
            // The opening that decides refuses it, too; what the fast commits make of it says less.
            return Err(damage.first.into());
        }
        let budget = OVERLAY_BYTES.saturating_sub(self.overlay.memory_bytes());
        let source = fast_commit::Source { view: &view, recovery: &self.recovery, log, budget };
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

    /// Brings the free counts of the superblock up to date, which the kernel keeps only while it unmounts and takes
    /// from the groups when it mounts. Counts that cannot be are left alone.
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
        encode(&self.superblock, &mut self.settled)
    }

    /// Writes it all. See the module's documentation for the order.
    fn apply(&self, device: &dyn Device, log: &dyn LogMap) -> Result<()> {
        let journal = self.recovery.info();
        let size = u64::from(journal.superblock.block_size);
        let (home, offset) = (SUPERBLOCK_OFFSET / size, (SUPERBLOCK_OFFSET % size) as usize);
        let mut adjust = |block: u64, bytes: &mut [u8]| {
            if block == home {
                bytes[offset..offset + self.asking.len()].copy_from_slice(&self.asking);
            }
        };
        self.recovery.write_home(device, &mut adjust)?;
        device.flush()?;
        let mut sequence = self.recovery.settled_sequence();
        if !self.changes.is_empty() {
            let stored = self.recovery.convert(device, log, &self.changes)?;
            stored.write_home(device, &mut adjust)?;
            device.flush()?;
            sequence = stored.settled_sequence();
        }
        let errno = journal.superblock.errno;
        if journal.needs_recovery() {
            mark_empty(device, journal, sequence, errno)?;
        }
        write_bytes(device, SUPERBLOCK_OFFSET, &self.settled)?;
        device.flush()?;
        if errno != 0 {
            // The superblock holds the error state now.
            mark_empty(device, journal, sequence, 0)?;
        }
        Ok(())
    }
}

/// The superblock in the log must be one of this volume, and the blocks that are replayed part of it.
fn check_same(first: &Superblock, recovered: &Superblock, recovery: &Recovery) -> Result<()> {
    let field = |name| Err(Corrupt::from(CorruptKind::SuperblockField(name)).into());
    if recovered.geometry.block_size() != first.geometry.block_size() {
        return field("log_block_size");
    }
    if recovered.journal_inode() != first.journal_inode() {
        return field("journal_inum");
    }
    let blocks = recovered.geometry.blocks_count();
    match recovery.blocks().last() {
        Some(last) if last.home >= blocks => {
            Err(Corrupt::from(CorruptKind::JournalTarget).at_block(Pblk(last.home)).into())
        }
        _ => Ok(()),
    }
}
