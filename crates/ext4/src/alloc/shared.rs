//! The free space of a volume, for all who change it at once.
//!
//! Two locks for all. The *account* says what is whose: what is free, promised, claimed, waits for a commit. Who looks
//! for blocks holds it. The *groups* are the bitmaps and descriptors: whoever reads, changes and stores one holds that
//! lock meanwhile. Who marks blocks that are his already needs the second one only, so nobody who claims or promises
//! waits for checksums. They come after map locks and before buffers, and the account comes first.
//!
//! # What is promised
//! A conversion must not find the volume full: the data is there already. So what it may need for nodes of the map is
//! promised before the data is sent ([`FreeSpace::promise`]), and nobody else gets it.

use super::Space;
use super::claims::Windows;
use super::group::{check_inode_used, place_of_inode};
use super::inode::{self, NewInode};
use super::reserve::set_aside;
use super::search::{Allocator, Run, Wish, check_give_back};
use super::trim;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::ext4::Timestamp;
use uext4_ondisk::{Group, Ino, Pblk};

/// See the module.
pub(crate) struct FreeSpace {
    account: Mutex<Account>,
    pub(super) groups: Groups,
}

/// Bitmaps and descriptors of all groups. It comes after the account.
#[derive(Default)]
pub(super) struct Groups(Mutex<()>);

impl Groups {
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock()
    }
}

/// In clusters.
pub(super) struct Account {
    allocator: Allocator,
    windows: Windows,
    /// Free by the bitmaps, from the descriptors as they were at open.
    free: u64,
    promised: u64,
    /// Not for the data of files.
    set_aside: u64,
}

impl Account {
    /// What may be taken by somebody to whom nothing is promised.
    pub(super) fn available(&self, ground: &Ground) -> u64 {
        self.free.saturating_sub(self.kept(ground)).saturating_sub(self.promised)
    }

    /// The same for the data of files: less what is set aside.
    pub(super) fn available_for_data(&self, ground: &Ground) -> u64 {
        self.available(ground).saturating_sub(self.set_aside)
    }

    /// Clusters that are free on the volume and nobody may take: they wait for a commit or are claimed.
    fn kept(&self, ground: &Ground) -> u64 {
        let size = u64::from(ground.superblock.geometry.cluster_blocks());
        (self.allocator.held_blocks() + self.allocator.claimed_blocks()) / size
    }

    pub(super) fn windows(&mut self) -> &mut Windows {
        &mut self.windows
    }

    /// As [`Allocator::claim`]; counted by [`Account::available`] from then on.
    pub(super) fn claim_run(&mut self, blocks: &impl Blocks, wish: &Wish) -> Result<Run> {
        self.allocator.claim(blocks, wish)
    }

    /// As [`Allocator::unclaim`].
    pub(super) fn unclaim(&mut self, run: Run) {
        self.allocator.unclaim(run);
    }

    /// Claimed blocks are marked used.
    pub(super) fn took_claimed(&mut self, ground: &Ground, run: Run) {
        self.allocator.took_claimed(run);
        self.taken(run.count / u64::from(ground.superblock.geometry.cluster_blocks()));
    }

    fn taken(&mut self, clusters: u64) {
        self.free = self.free.saturating_sub(clusters);
    }
}

impl FreeSpace {
    /// Free space as it was when the volume was opened.
    pub(crate) fn new(ground: &Ground) -> Arc<FreeSpace> {
        let size = u64::from(ground.superblock.geometry.cluster_blocks());
        let set_aside = if ground.uses_reserved { 0 } else { set_aside(&ground.superblock) / size };
        let (allocator, windows) = (Allocator::new(ground), Windows::new());
        let account = Account { allocator, windows, free: ground.free_clusters, promised: 0, set_aside };
        Arc::new(FreeSpace { account: Mutex::new(account), groups: Groups::default() })
    }

    /// As [`Allocator::allocate`], of what is neither promised to others nor set aside. Leaves `spare` clusters, which
    /// a map may need for what is allocated.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn allocate(&self, blocks: &mut impl Blocks, wish: &Wish, spare: u64) -> Result<Run> {
        let size = u64::from(blocks.ground().superblock.geometry.cluster_blocks());
        let mut account = self.account.lock();
        let available =
            account.available_for_data(blocks.ground()).saturating_sub(spare).saturating_mul(size);
        if available < wish.least {
            return Err(Error::NoSpace);
        }
        let _groups = self.groups.lock();
        let run = account.allocator.allocate(blocks, &Wish { most: wish.most.min(available), ..*wish })?;
        account.taken(run.count / size);
        Ok(run)
    }

    /// Makes an inode: the first free one of the group of `near`, or of one behind it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if none is free; as of [`inode::make`].
    pub(crate) fn make_inode(&self, blocks: &mut impl Blocks, near: Ino, new: &NewInode) -> Result<Draft> {
        let account = self.account.lock();
        let _groups = self.groups.lock();
        let (group, _) = place_of_inode(blocks, near)?;
        let ino = account.allocator.find_inode(blocks, group)?;
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
        // The descriptor that counts it counts blocks too.
        let _groups = self.groups.lock();
        inode::free(blocks, draft, now)
    }

    /// Whether an inode could be freed, as far as its group says: changes nothing.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is free, or bitmap and descriptor are damaged; those of the body.
    pub(crate) fn check_free_inode(&self, blocks: &impl Blocks, ino: Ino) -> Result<()> {
        let _groups = self.groups.lock();
        check_inode_used(blocks, ino)
    }

    /// Keeps so many clusters for who holds the result.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn promise(self: &Arc<Self>, ground: &Ground, clusters: u64) -> Result<Promise> {
        self.promise_in(self.account.lock(), ground, clusters).ok_or(Error::NoSpace)
    }

    /// The same if nothing has to be waited for: neither the lock, which is held over reads of metadata, nor a commit.
    pub(crate) fn try_promise(self: &Arc<Self>, ground: &Ground, clusters: u64) -> Option<Promise> {
        self.promise_in(self.account.try_lock()?, ground, clusters)
    }

    fn promise_in(
        self: &Arc<Self>,
        mut account: MutexGuard<'_, Account>,
        ground: &Ground,
        clusters: u64,
    ) -> Option<Promise> {
        if account.available(ground) < clusters {
            return None;
        }
        account.promised += clusters;
        Some(Promise { space: Arc::clone(self), clusters })
    }

    /// Whether runs of blocks of an inode could be given back: changes nothing.
    ///
    /// # Errors
    /// As of [`Space::give_back`].
    pub(crate) fn check_give_back(&self, blocks: &impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
        // A descriptor and its bitmap change one after the other.
        let _groups = self.groups.lock();
        check_give_back(blocks, ino, runs)
    }

    /// Discards what is free in a group and lies in a range of blocks, run by run, and returns the blocks. Runs shorter
    /// than `minimum` are left alone. Nobody gets a block of the group meanwhile; blocks that wait for a commit are not
    /// free.
    ///
    /// # Errors
    /// Those of the group's descriptor and bitmap, and of the device: some may be discarded then.
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

    /// A file maps these blocks no more, and keeps others of their clusters. No bitmap tells of them, but until the
    /// change is durable they carry nothing else: [`FreeSpace::holds_part`]. Each run is shorter than a cluster.
    ///
    /// # Errors
    /// Those of the body.
    pub(crate) fn hold_parts(&self, blocks: &mut impl Blocks, parts: &[(Pblk, u64)]) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        self.account.lock().allocator.hold_parts(blocks, parts)
    }

    /// Whether some of these blocks were given up by the file that has their clusters, and a commit releases them.
    pub(crate) fn holds_part(&self, first: Pblk, count: u64) -> bool {
        self.account.lock().allocator.holds_part(first, count)
    }

    /// What was given back in these runs may be handed out again: the transaction that freed it is durable.
    pub(crate) fn release(&self, runs: impl Iterator<Item = (u64, u64)>) {
        let mut account = self.account.lock();
        runs.for_each(|(first, count)| account.allocator.release(first, count));
    }

    /// Whether something was given back that a commit would release.
    pub(crate) fn awaits_commit(&self) -> bool {
        self.account.lock().allocator.held_blocks() > 0
    }

    /// For the blocks of a map: of what is not promised to others …
    pub(crate) fn open(&self) -> Nodes<'_> {
        Nodes { space: self, promised: false }
    }

    /// … or by somebody to whom they are promised.
    pub(crate) fn promised(&self) -> Nodes<'_> {
        Nodes { space: self, promised: true }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Account> {
        self.account.lock()
    }
}

/// Clusters that nobody else gets.
pub struct Promise {
    space: Arc<FreeSpace>,
    clusters: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.space.lock().promised -= self.clusters;
    }
}

/// How an edit of a map gets its blocks.
pub(crate) struct Nodes<'s> {
    space: &'s FreeSpace,
    promised: bool,
}

impl Space for Nodes<'_> {
    fn take(&mut self, blocks: &mut impl Blocks, ino: Ino, count: usize, limit: u64) -> Result<Vec<Pblk>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut account = self.space.lock();
        if !self.promised && account.available(blocks.ground()) < count as u64 {
            return Err(Error::NoSpace);
        }
        let _groups = self.space.groups.lock();
        let taken = account.allocator.take(blocks, ino, count, limit)?;
        account.taken(count as u64);
        Ok(taken)
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
        Ok(())
    }
}
