//! Changes of a volume without a journal: collected in memory, and written home in batches.
//!
//! A step changes blocks in the cache, where others see it at once. Nothing reaches the device until a caller needs it
//! durable, waits for freed blocks or closes the volume, or the batch is large. Then steps are held off, and the whole
//! batch is written home in this order:
//!
//! | what | why then |
//! |---|---|
//! | blocks that were free before: new nodes of maps, new blocks of directories | nothing leads to them yet |
//! | flush | the data before it too, which what follows shows |
//! | blocks at fixed places: superblock, descriptors, bitmaps, inode tables; flush | they lead to the new ones |
//! | other blocks of maps and directories; flush | |
//! | blocks of directories whose names have moved to another block; flush | that is part of the directory by now |
//!
//! A map gets new nodes in place of all that change, up to the inode: the record of the inode is the only change, size
//! and map at once (`map/edit/plan.rs`). So a size never shows blocks that the map does not have, nor does a map have
//! blocks behind the size, which e2fsck would take away together with those before them. Where no block is free for
//! that, nodes change in place, and a crash in the middle may show zeros, or lose some of this file.
//!
//! Between two batches a crash leaves the volume as the last batch left it. In the middle of one it leaves a volume
//! that e2fsck can repair, and everything durable before is still found, provided that each block reaches the device as
//! a whole. Freed blocks and inodes are reused only after the batch. So no block belongs to two files on the device,
//! and no name leads to a later file: more than ext4 without a journal promises.
//!
//! While a batch is pending or being written home, the superblock is not marked clean ([`CommitHooks::log_begins`]).
//! The first failure of a home write or flush, or a step that fails halfway, aborts the volume: the batch is lost, like
//! a transaction of an aborted journal.

use super::error::Result;
use super::zones::SystemZones;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use uext4_buffer::{BufferCache, BufferPin, Owner};
use uext4_jbd2::{AbortCause, CommitHooks, Error as JournalError, FreedRun, JournalStats, Tid};
use uext4_ondisk::Pblk;

/// Fraction of the cache's budget that a batch may take, and blocks that it may have in any case.
const SHARE: u64 = 4;
const BLOCKS: std::ops::RangeInclusive<u64> = 64..=8192;

/// When a block of a batch is written home, as in the table of the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    New,
    Fixed,
    Changed,
    Moved,
}

/// The changes of a volume without a journal, open for writing.
pub(crate) struct Unlogged {
    cache: BufferCache,
    /// Held shared by steps, and exclusively while a batch is written home.
    steps: RwLock<()>,
    batch: Mutex<Batch>,
    /// The number of the batch. It serves as the transaction number of its changes.
    number: AtomicU64,
    committed: Arc<AtomicU64>,
    /// Blocks in a batch at which it is written home without a request.
    most: usize,
    aborted: OnceLock<AbortCause>,
    hooks: OnceLock<Arc<dyn CommitHooks>>,
    counts: Mutex<JournalStats>,
}

#[derive(Default)]
struct Batch {
    blocks: BTreeMap<u64, (BufferPin, Turn)>,
    freed: Vec<FreedRun>,
    /// When it got its first block.
    since: Option<Instant>,
    /// An inode was freed.
    freed_inode: bool,
    /// The superblock is marked as in use.
    begun: bool,
}

impl Unlogged {
    pub(crate) fn new(cache: BufferCache, committed: Arc<AtomicU64>) -> Unlogged {
        let room = cache.stats().budget_bytes / SHARE / u64::from(cache.block_size());
        let most = room.clamp(*BLOCKS.start(), *BLOCKS.end());
        let number = AtomicU64::new(committed.load(Ordering::Acquire) + 1);
        Unlogged {
            cache,
            steps: RwLock::new(()),
            batch: Mutex::default(),
            number,
            committed,
            most: most as usize,
            aborted: OnceLock::new(),
            hooks: OnceLock::new(),
            counts: Mutex::default(),
        }
    }

    /// Connects the callbacks of batches. Called once, before the first step.
    pub(crate) fn set_hooks(&self, hooks: Arc<dyn CommitHooks>) {
        let _first_stays = self.hooks.set(hooks);
    }

    /// Begins a step. Waits for a batch that is being written home; the caller is in no other step. `zones` are those
    /// of the volume.
    pub(super) fn begin<'g>(&'g self, zones: &'g SystemZones) -> Result<Step<'g>> {
        if self.batch.lock().blocks.len() >= self.most {
            self.commit()?;
        }
        self.check_alive()?;
        let running = self.steps.read();
        self.check_alive()?;
        self.counts.lock().handles_started += 1;
        Ok(Step { unlogged: self, zones, _running: running })
    }

    /// Writes all changes so far home. Returns whether there were any: then the device was flushed after all data that
    /// was complete before the call. The caller is in no step.
    ///
    /// # Errors
    /// [`Error::Aborted`](super::error::Error::Aborted): nothing more is written.
    pub(crate) fn commit(&self) -> Result<bool> {
        self.commit_in(&self.quiesce()?)
    }

    /// What writing the batch home now would write. `None` if it is empty.
    pub(super) fn outlook(&self) -> Option<BatchOutlook> {
        let batch = self.batch.lock();
        if batch.blocks.is_empty() {
            return None;
        }
        let mut groups = [const { Vec::new() }; 4];
        for (block, (_, turn)) in &batch.blocks {
            groups[*turn as usize].push(*block);
        }
        let groups = groups.into_iter().enumerate();
        // The flush before the blocks at fixed places comes even if there are no new blocks: it covers the data.
        let groups = groups.filter(|(turn, blocks)| *turn == Turn::New as usize || !blocks.is_empty());
        Some(BatchOutlook { groups: groups.map(|(_, blocks)| blocks).collect(), begins: !batch.begun })
    }

    /// Waits until no step is active, and holds new ones off until the result is dropped.
    ///
    /// # Errors
    /// [`Error::Aborted`](super::error::Error::Aborted).
    pub(crate) fn quiesce(&self) -> Result<Quiet<'_>> {
        self.check_alive()?;
        let quiet = Quiet { _alone: self.steps.write() };
        self.check_alive()?;
        Ok(quiet)
    }

    /// [`Unlogged::commit`] for a caller that holds steps off.
    ///
    /// # Errors
    /// As of [`Unlogged::commit`].
    pub(crate) fn commit_in(&self, _: &Quiet<'_>) -> Result<bool> {
        let mut turns = [const { Vec::new() }; 4];
        let begun = {
            let batch = self.batch.lock();
            if batch.blocks.is_empty() {
                return Ok(false);
            }
            // Blocks stay in the batch until they are home, so that nobody considers them durable before.
            for (pin, turn) in batch.blocks.values() {
                turns[*turn as usize].push(pin.clone());
            }
            batch.begun
        };
        let writing = Instant::now();
        let written = match self.write_home(begun, &turns) {
            Ok(written) => written,
            Err(error) => {
                let what = format!("changes could not be written: {error}").into();
                self.abort(AbortCause { what, errno: error.errno() });
                return Err(self.check_alive().err().unwrap_or(error));
            }
        };
        let number = self.number.load(Ordering::Acquire);
        let freed = {
            let mut batch = self.batch.lock();
            self.committed.fetch_max(number, Ordering::AcqRel);
            self.number.store(number + 1, Ordering::Release);
            (batch.since, batch.freed_inode) = (None, false);
            batch.blocks.clear();
            std::mem::take(&mut batch.freed)
        };
        {
            let took = u64::try_from(writing.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let mut counts = self.counts.lock();
            counts.commits += 1;
            counts.commit_nanoseconds += took;
            counts.last_commit_nanoseconds = took;
            counts.home_writes += written;
        }
        if let Some(hooks) = self.hooks.get() {
            hooks.committed(Tid(number), &freed);
        }
        Ok(true)
    }

    /// Writes home in the order of the module. Returns how many blocks were written.
    fn write_home(&self, begun: bool, turns: &[Vec<BufferPin>; 4]) -> Result<u64> {
        if !begun {
            if let Some(hooks) = self.hooks.get() {
                hooks.log_begins().map_err(JournalError::Aborted)?;
            }
            self.batch.lock().begun = true;
        }
        let mut written = self.cache.write_due(&turns[Turn::New as usize])?;
        self.flush()?;
        for turn in [Turn::Fixed, Turn::Changed, Turn::Moved] {
            let pins = &turns[turn as usize];
            if !pins.is_empty() {
                self.check_alive()?;
                written += self.cache.write_due(pins)?;
                self.flush()?;
            }
        }
        Ok(written)
    }

    fn flush(&self) -> Result<()> {
        self.counts.lock().flushes += 1;
        Ok(self.cache.device().flush()?)
    }

    /// The superblock is marked clean again: the next batch must mark it as in use first.
    pub(crate) fn left_cleanly(&self, _: &Quiet<'_>) {
        self.batch.lock().begun = false;
    }

    /// Whether anything was changed since the volume was opened or marked clean.
    pub(crate) fn in_use(&self) -> bool {
        let batch = self.batch.lock();
        batch.begun || !batch.blocks.is_empty()
    }

    /// The pending batch, if any. Whatever is read from the volume may include its changes.
    pub(crate) fn newest_uncommitted(&self) -> Option<Tid> {
        let batch = self.batch.lock();
        (!batch.blocks.is_empty()).then(|| Tid(self.number.load(Ordering::Acquire)))
    }

    /// Age of the oldest change in the batch.
    pub(crate) fn running_for(&self) -> Option<Duration> {
        self.batch.lock().since.map(|since| since.elapsed())
    }

    /// Aborts the volume: no more changes.
    pub(crate) fn abort(&self, cause: AbortCause) {
        if self.aborted.set(cause).is_ok()
            && let (Some(hooks), Some(cause)) = (self.hooks.get(), self.aborted.get())
        {
            hooks.aborted(cause);
        }
    }

    /// # Errors
    /// [`Error::Aborted`](super::error::Error::Aborted) with the first cause.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.aborted.get() {
            None => Ok(()),
            Some(cause) => Err(JournalError::Aborted(cause.clone()).into()),
        }
    }

    /// Steps, batches, blocks and flushes, as a journal counts its handles, commits, home writes and flushes.
    pub(crate) fn stats(&self) -> JournalStats {
        *self.counts.lock()
    }

    /// An inode was freed in the current step.
    pub(crate) fn note_freed_inode(&self) {
        self.batch.lock().freed_inode = true;
    }

    /// Whether an inode was freed in the batch: a name on the device may still lead to it.
    pub(crate) fn has_freed_inode(&self) -> bool {
        self.batch.lock().freed_inode
    }

    fn note(&self, pin: BufferPin, turn: Turn) {
        let mut batch = self.batch.lock();
        batch.since.get_or_insert_with(Instant::now);
        let (_, known) = batch.blocks.entry(pin.block()).or_insert((pin, turn));
        // A new block counts as new, however it changes later.
        if *known != Turn::New {
            *known = turn.max(*known);
        }
    }
}

/// What a batch would write home.
pub(super) struct BatchOutlook {
    /// Blocks of the volume in groups. A flush follows each group.
    pub(super) groups: Vec<Vec<u64>>,
    /// Whether the superblock is first marked as in use.
    pub(super) begins: bool,
}

/// Proof that no step is active.
pub(crate) struct Quiet<'g> {
    _alone: RwLockWriteGuard<'g, ()>,
}

/// Changes that belong together: a batch has all or none of them.
pub(super) struct Step<'g> {
    unlogged: &'g Unlogged,
    zones: &'g SystemZones,
    _running: RwLockReadGuard<'g, ()>,
}

impl Step<'_> {
    pub(super) fn number(&self) -> Tid {
        Tid(self.unlogged.number.load(Ordering::Acquire))
    }

    /// Changes a block in place. `moved`: a part of it moved to another block.
    pub(super) fn change<T>(
        &mut self,
        block: Pblk,
        moved: bool,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let turn = match (self.is_fixed(block), moved) {
            (true, _) => Turn::Fixed,
            (false, false) => Turn::Changed,
            (false, true) => Turn::Moved,
        };
        let cache = &self.unlogged.cache;
        let pin = cache.pin(block.get())?;
        // Record the block first: a reader of the change must find it in the batch.
        self.unlogged.note(pin.clone(), turn);
        Ok(cache.modify(&pin, Owner::Direct, change)?)
    }

    /// Fills a block that was free before, or one at a fixed place.
    pub(super) fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let turn = if self.is_fixed(block) { Turn::Fixed } else { Turn::New };
        let cache = &self.unlogged.cache;
        let pin = cache.pin(block.get())?;
        self.unlogged.note(pin.clone(), turn);
        Ok(cache.overwrite(&pin, Owner::Direct, fill)?)
    }

    /// Whether a block goes home before all that leads to it.
    pub(super) fn is_new(&self, block: Pblk) -> bool {
        self.unlogged.batch.lock().blocks.get(&block.get()).is_some_and(|(_, turn)| *turn == Turn::New)
    }

    /// Cancels writing a block home.
    pub(super) fn freed(&mut self, block: Pblk) -> Result<()> {
        let known = self.unlogged.batch.lock().blocks.remove(&block.get());
        drop(known);
        Ok(self.unlogged.cache.forget(block.get())?)
    }

    pub(super) fn free_later(&mut self, run: FreedRun) {
        self.unlogged.batch.lock().freed.push(run);
    }

    fn is_fixed(&self, block: Pblk) -> bool {
        !self.zones.allows(block.get(), 1)
    }
}
