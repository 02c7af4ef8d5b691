//! The free space of a volume, shared by all concurrent changes.
//!
//! There are two locks. The *account* records which blocks are free, promised, claimed, or wait for a commit; a search
//! for blocks holds it. The *groups* lock covers bitmaps and descriptors while one is read, changed and stored. Marking
//! claimed blocks takes the second one only, so a claim or a promise never waits for checksums. Both rank after map
//! locks and before buffers, and the account before the groups.
//!
//! # Promises
//! A conversion must not run out of space, since its data is already written. So the map blocks it may need are
//! promised before the data is sent ([`FreeSpace::promise`]), and nobody else gets them. A buffered write allocates
//! when its pages go home: its blocks are promised to the file at once ([`FreeSpace::promise_late`]), so that the write
//! itself fails if there are none.

use super::Space;
use super::claims::{Preallocation, Windows};
use super::group::{check_inode_used, place_of_inode};
use super::inode::{self, NewInode};
use super::reserve::set_aside;
use super::search::{Allocator, Run, Wish, check_give_back};
use super::spread::{self, Near};
use super::trim;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_ondisk::ext4::Timestamp;
use uext4_ondisk::{Corrupt, CorruptKind, Group, Ino, Pblk};

/// The free space of a volume.
pub(crate) struct FreeSpace {
    account: Mutex<Account>,
    pub(super) groups: Groups,
    /// As in the account, whose lock may be held while the device is waited for.
    late_clusters: Arc<AtomicU64>,
}

/// Lock of the bitmaps and descriptors of all groups. Ranks after the account.
#[derive(Default)]
pub(super) struct Groups(Mutex<()>);

impl Groups {
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock()
    }
}

/// Counts, in clusters.
pub(super) struct Account {
    allocator: Allocator,
    windows: Windows,
    /// Free according to the bitmaps; starts with the sum of the descriptors at open.
    free: u64,
    promised: u64,
    /// The part of it that was promised to the pages of a file, which allocate when they go home.
    late: HashMap<Ino, Late>,
    /// The sum of them.
    late_clusters: Arc<AtomicU64>,
    /// Reserved: not for file data.
    set_aside: u64,
}

/// What was promised to the pages of a file.
#[derive(Default)]
struct Late {
    clusters: u64,
    /// Used up since pages began to go home.
    spent: u64,
    /// Some of the pages go home now. What else the file allocates gets none of it.
    goes_home: bool,
}

/// What is reserved in memory and not marked in a bitmap, in clusters. Each is counted once.
pub(crate) struct Reserved {
    /// For writes under way.
    pub(crate) claimed: u64,
    /// For the next appends of files.
    pub(crate) windows: u64,
    /// For maps.
    pub(crate) promised: u64,
    /// For pages.
    pub(crate) late: u64,
}

impl Account {
    fn reserved(&self) -> Reserved {
        let windows: u64 = self.windows.values().map(Preallocation::blocks).sum();
        let late: u64 = self.late.values().map(|late| late.clusters).sum();
        // Volumes with clusters have no claims.
        let claimed = self.allocator.claimed_blocks() - windows;
        Reserved { claimed, windows, promised: self.promised - late, late }
    }

    /// Clusters available to a caller without a promise.
    pub(super) fn available(&self, ground: &Ground) -> u64 {
        self.free.saturating_sub(self.kept(ground)).saturating_sub(self.promised)
    }

    /// The same for data of a file: without the reserved clusters, with those promised to its pages.
    pub(super) fn available_for_data(&self, ground: &Ground, ino: Option<Ino>) -> u64 {
        let promised = self.promised.saturating_sub(self.late_of(ino));
        let kept = self.kept(ground).saturating_add(promised).saturating_add(self.set_aside);
        self.free.saturating_sub(kept)
    }

    /// Clusters promised to pages of a file, if some of them go home now.
    pub(super) fn late_of(&self, ino: Option<Ino>) -> u64 {
        let late = ino.and_then(|ino| self.late.get(&ino)).filter(|late| late.goes_home);
        late.map_or(0, |late| late.clusters)
    }

    /// Clusters were taken for a file: if its pages go home, those promised to them first.
    pub(super) fn spend(&mut self, ino: Ino, clusters: u64) {
        if let Some(late) = self.late.get_mut(&ino).filter(|late| late.goes_home) {
            let spent = clusters.min(late.clusters);
            late.clusters -= spent;
            late.spent += spent;
            self.promised -= spent;
            self.late_clusters.fetch_sub(spent, Ordering::Relaxed);
        }
    }

    /// So many that were taken are free again: they are promised to the pages as before.
    pub(super) fn promise_again(&mut self, ino: Ino, clusters: u64) {
        if let Some(late) = self.late.get_mut(&ino) {
            late.clusters += clusters;
            late.spent = late.spent.saturating_sub(clusters);
            self.promised += clusters;
            self.late_clusters.fetch_add(clusters, Ordering::Relaxed);
        }
    }

    /// A file gave up clusters. If its pages go home, they got those for nothing: as many as they used up are promised
    /// again.
    fn gave_back(&mut self, ino: Ino, clusters: u64) {
        if let Some(late) = self.late.get(&ino).filter(|late| late.goes_home) {
            self.promise_again(ino, clusters.min(late.spent));
        }
    }

    /// Clusters that are free on the volume but unavailable: they wait for a commit or are claimed.
    fn kept(&self, ground: &Ground) -> u64 {
        let size = u64::from(ground.superblock.geometry.cluster_blocks());
        (self.allocator.held_blocks() + self.allocator.claimed_blocks()) / size
    }

    pub(super) fn windows(&mut self) -> &mut Windows {
        &mut self.windows
    }

    /// As [`Allocator::claim`]; [`Account::available`] subtracts the run from then on.
    pub(super) fn claim_run(&mut self, blocks: &impl Blocks, wish: &Wish) -> Result<Run> {
        self.allocator.claim(blocks, wish)
    }

    /// As [`Allocator::unclaim`].
    pub(super) fn unclaim(&mut self, run: Run) {
        self.allocator.unclaim(run);
    }

    /// Records that claimed blocks are marked used.
    pub(super) fn took_claimed(&mut self, ground: &Ground, run: Run) {
        self.allocator.took_claimed(run);
        self.taken(run.count / u64::from(ground.superblock.geometry.cluster_blocks()));
    }

    fn taken(&mut self, clusters: u64) {
        self.free = self.free.saturating_sub(clusters);
    }
}

impl FreeSpace {
    /// Free space as of the open.
    pub(crate) fn new(ground: &Ground) -> Arc<FreeSpace> {
        let size = u64::from(ground.superblock.geometry.cluster_blocks());
        let set_aside = if ground.uses_reserved { 0 } else { set_aside(&ground.superblock) / size };
        let (allocator, windows) = (Allocator::new(ground), Windows::new());
        let late_clusters = Arc::<AtomicU64>::default();
        let account = Account {
            allocator,
            windows,
            free: ground.free_clusters,
            promised: 0,
            late: HashMap::new(),
            late_clusters: late_clusters.clone(),
            set_aside,
        };
        Arc::new(FreeSpace { account: Mutex::new(account), groups: Groups::default(), late_clusters })
    }

    /// As [`Allocator::allocate`], from blocks that are neither promised to others nor reserved. Leaves `spare`
    /// clusters, which the map may need for the new blocks. `data_of`: the file whose data they are for, if any.
    ///
    /// # Errors
    /// As of [`Allocator::allocate`].
    pub(crate) fn allocate(
        &self,
        blocks: &mut impl Blocks,
        data_of: Option<Ino>,
        wish: &Wish,
        spare: u64,
    ) -> Result<Run> {
        let size = u64::from(blocks.ground().superblock.geometry.cluster_blocks());
        let mut account = self.account.lock();
        let available =
            account.available_for_data(blocks.ground(), data_of).saturating_sub(spare).saturating_mul(size);
        if available < wish.least {
            return Err(Error::NoSpace);
        }
        let _groups = self.groups.lock();
        let run = account.allocator.allocate(blocks, &Wish { most: wish.most.min(available), ..*wish })?;
        account.taken(run.count / size);
        data_of.into_iter().for_each(|ino| account.spend(ino, run.count / size));
        Ok(run)
    }

    /// Creates an inode, in the group that the policy chooses (`spread.rs`) or in a later one.
    ///
    /// `is_known`: whether an inode is in memory. A free one never is, unless the bitmap is wrong.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if none is free; [`Error::Corrupt`]; as of [`inode::make`].
    pub(crate) fn make_inode(
        &self,
        blocks: &mut impl Blocks,
        near: &Near,
        new: &NewInode,
        is_known: impl FnOnce(Ino) -> bool,
    ) -> Result<Draft> {
        let account = self.account.lock();
        let _groups = self.groups.lock();
        let (parent, _) = place_of_inode(blocks, near.parent)?;
        let group = spread::choose(blocks, near, parent, new.is_directory())?;
        let ino = account.allocator.find_inode(blocks, group)?;
        if is_known(ino) {
            return Err(Corrupt::from(CorruptKind::InodeInUse).in_inode(ino).into());
        }
        inode::make(blocks, ino, new)
    }

    /// Frees an inode.
    ///
    /// # Errors
    /// As of [`inode::free`].
    pub(crate) fn free_inode(
        &self,
        blocks: &mut impl Blocks,
        draft: &mut Draft,
        now: Timestamp,
    ) -> Result<()> {
        // The descriptor counts free inodes and free blocks.
        let _groups = self.groups.lock();
        inode::free(blocks, draft, now)
    }

    /// Checks in the group that an inode could be freed. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is free, or bitmap and descriptor are damaged; those of the body.
    pub(crate) fn check_free_inode(&self, blocks: &impl Blocks, ino: Ino) -> Result<()> {
        let _groups = self.groups.lock();
        check_inode_used(blocks, ino)
    }

    /// Reserves clusters for the holder of the result. Pages of the file `ino` that go home may use those promised to
    /// them.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn promise(self: &Arc<Self>, ground: &Ground, ino: Ino, clusters: u64) -> Result<Promise> {
        self.promise_in(self.account.lock(), ground, ino, clusters).ok_or(Error::NoSpace)
    }

    /// Reserves clusters for the pages of a file ([`FreeSpace::go_home`]), and the first time `more` for its map.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn promise_late(&self, ground: &Ground, ino: Ino, clusters: u64, more: u64) -> Result<()> {
        let mut account = self.account.lock();
        let clusters = if account.late.contains_key(&ino) { clusters } else { clusters + more };
        if account.available_for_data(ground, None) < clusters {
            return Err(Error::NoSpace);
        }
        account.promised += clusters;
        account.late.entry(ino).or_default().clusters += clusters;
        account.late_clusters.fetch_add(clusters, Ordering::Relaxed);
        Ok(())
    }

    /// Takes back what is left of it.
    pub(crate) fn end_late(&self, ino: Ino) {
        let mut account = self.account.lock();
        if let Some(left) = account.late.remove(&ino) {
            account.promised -= left.clusters;
            account.late_clusters.fetch_sub(left.clusters, Ordering::Relaxed);
        }
    }

    /// Pages of a file begin to go home, or are there: in between, its allocations use up the promises.
    pub(crate) fn go_home(&self, ino: Ino, begins: bool) {
        if let Some(late) = self.account.lock().late.get_mut(&ino) {
            (late.goes_home, late.spent) = (begins, 0);
        }
    }

    /// Blocks claimed for a hole, which used up no promise, are in the map: if they are those of pages that go home, so
    /// many fewer are promised.
    pub(crate) fn spend_late(&self, ino: Ino, clusters: u64) {
        self.account.lock().spend(ino, clusters);
    }

    /// Whether pages of a file go home. Limits of quota do not hold for them: none did when they were written.
    pub(crate) fn goes_home(&self, ino: Ino) -> bool {
        self.account.lock().late.get(&ino).is_some_and(|late| late.goes_home)
    }

    /// What is reserved in memory now.
    pub(crate) fn reserved(&self) -> Reserved {
        self.account.lock().reserved()
    }

    /// Clusters that are promised to pages of files. Waits for nobody.
    pub(crate) fn late_clusters(&self) -> u64 {
        self.late_clusters.load(Ordering::Relaxed)
    }

    /// The same, or `None` if it would have to wait: for the lock, which is held over reads of metadata, or for a
    /// commit.
    pub(crate) fn try_promise(self: &Arc<Self>, ground: &Ground, ino: Ino, clusters: u64) -> Option<Promise> {
        self.promise_in(self.account.try_lock()?, ground, ino, clusters)
    }

    fn promise_in(
        self: &Arc<Self>,
        mut account: MutexGuard<'_, Account>,
        ground: &Ground,
        ino: Ino,
        clusters: u64,
    ) -> Option<Promise> {
        if account.available(ground) + account.late_of(Some(ino)) < clusters {
            return None;
        }
        account.promised += clusters;
        Some(Promise { space: Arc::clone(self), clusters })
    }

    /// Checks that runs of blocks of an inode could be freed. Changes nothing.
    ///
    /// # Errors
    /// As of [`Space::give_back`].
    pub(crate) fn check_give_back(&self, blocks: &impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
        // A descriptor and its bitmap change one after the other.
        let _groups = self.groups.lock();
        check_give_back(blocks, ino, runs)
    }

    /// Discards the free blocks of a group in a range, run by run, and returns their number. Skips runs shorter than
    /// `minimum`. No block of the group is allocated meanwhile; blocks that wait for a commit do not count as free.
    ///
    /// # Errors
    /// Those of the group's descriptor and bitmap, and of the device, after which some blocks may be discarded.
    pub(crate) fn trim_group(
        &self,
        ground: &Ground,
        group: Group,
        range: &Range<u64>,
        minimum: u64,
    ) -> Result<u64> {
        let mut account = self.account.lock();
        let _groups = self.groups.lock();
        trim::group(&mut account.allocator, ground, group, range, minimum)
    }

    /// Records blocks that a file no longer maps, in clusters of which it keeps others. No bitmap shows them, but they
    /// must not be reused before the change is durable: [`FreeSpace::holds_part`]. Each run is shorter than a cluster.
    ///
    /// # Errors
    /// Those of the body.
    pub(crate) fn hold_parts(&self, blocks: &mut impl Blocks, parts: &[(Pblk, u64)]) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        self.account.lock().allocator.hold_parts(blocks, parts)
    }

    /// Whether the file that uses their clusters has unmapped some of these blocks, and a commit must release them.
    pub(crate) fn holds_part(&self, first: Pblk, count: u64) -> bool {
        self.account.lock().allocator.holds_part(first, count)
    }

    /// Makes freed blocks in these runs available: the transaction that freed them is durable.
    pub(crate) fn release(&self, runs: impl Iterator<Item = (u64, u64)>) {
        let mut account = self.account.lock();
        runs.for_each(|(first, count)| account.allocator.release(first, count));
    }

    /// Whether there are freed blocks that a commit would release.
    pub(crate) fn awaits_commit(&self) -> bool {
        self.account.lock().allocator.held_blocks() > 0
    }

    /// Source of map blocks, limited to those not promised to others …
    pub(crate) fn open(&self) -> Nodes<'_> {
        Nodes { space: self, promised: false }
    }

    /// … or for the holder of a promise.
    pub(crate) fn promised(&self) -> Nodes<'_> {
        Nodes { space: self, promised: true }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Account> {
        self.account.lock()
    }
}

impl Drop for FreeSpace {
    fn drop(&mut self) {
        // Claims and promises keep it, and pages may never go home.
        let account = self.account.get_mut();
        let Reserved { claimed, promised, .. } = account.reserved();
        debug_assert!(
            std::thread::panicking() || (claimed, promised) == (0, 0),
            "{claimed} claimed and {promised} promised clusters were not given back"
        );
    }
}

/// Clusters reserved for the holder.
pub struct Promise {
    space: Arc<FreeSpace>,
    clusters: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.space.lock().promised -= self.clusters;
    }
}

/// Allocates and frees the blocks of a map edit.
pub(crate) struct Nodes<'s> {
    space: &'s FreeSpace,
    promised: bool,
}

impl Nodes<'_> {
    fn take_of(
        &mut self,
        promised: bool,
        blocks: &mut impl Blocks,
        ino: Ino,
        count: usize,
        limit: u64,
    ) -> Result<Vec<Pblk>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut account = self.space.lock();
        let available = account.available(blocks.ground()) + account.late_of(Some(ino));
        if !promised && available < count as u64 {
            return Err(Error::NoSpace);
        }
        let _groups = self.space.groups.lock();
        let taken = account.allocator.take(blocks, ino, count, limit)?;
        account.taken(count as u64);
        account.spend(ino, count as u64);
        Ok(taken)
    }
}

impl Space for Nodes<'_> {
    fn take(&mut self, blocks: &mut impl Blocks, ino: Ino, count: usize, limit: u64) -> Result<Vec<Pblk>> {
        self.take_of(self.promised, blocks, ino, count, limit)
    }

    fn take_spare(
        &mut self,
        blocks: &mut impl Blocks,
        ino: Ino,
        count: usize,
        limit: u64,
    ) -> Result<Vec<Pblk>> {
        self.take_of(false, blocks, ino, count, limit)
    }

    fn give_back(&mut self, blocks: &mut impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        let size = u64::from(blocks.ground().superblock.geometry.cluster_blocks());
        let mut account = self.space.lock();
        let _groups = self.space.groups.lock();
        account.allocator.give_back(blocks, ino, runs)?;
        let clusters: u64 = runs.iter().map(|(_, count)| count.div_ceil(size)).sum();
        account.free += clusters;
        account.gave_back(ino, clusters);
        Ok(())
    }
}
