//! The inodes in memory: one object for all users of a file, plus a cache of unused ones.
//!
//! # Which inodes stay
//! An inode in use stays. An unused one stays while it is *pinned*: a change of it is not committed, or its record does
//! not have the times of its overwrites yet. The others stay within a budget of bytes; the least recently used one is
//! evicted first. The size of an inode, mapping included, is computed when it is found unused, and cannot change until
//! it is used again.
//!
//! Users do not report when they are done: an inode is unused when the cache holds its only reference. So the cache
//! re-examines a few inodes it lists as used whenever it loads one, or hands out an unused one. That keeps up with
//! inodes that become unused one by one; many at once (files closed, a commit) are noticed as others are loaded.
//!
//! # Inodes without a name
//! The number of an unlinked inode stays allocated on the volume until the inode is freed, and that waits for its last
//! user. The cache only has a weak reference to such an inode ([`Ext4State::unlinked`]): so its last user drops the
//! last `Arc`, possibly while holding locks. That drop only records the number ([`Leavers`]); the inode is freed later,
//! by a caller without locks (`Files::free_left`). A look-up in between reads the record and finds it free. A look-up
//! after the number was reused creates another inode, with the new generation, gate and mapping.

use super::leave::{Leave, Leavers};
use super::{Inode, value_refused};
use crate::ground::error::Result;
use crate::ground::known::Usage;
use crate::ground::state::{Ground, ROOT};
use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use uext4_ondisk::Ino;

/// The file system's own state: its ground, and the inodes on it.
pub(crate) struct Ext4State {
    ground: Ground,
    /// The root directory, once it was asked for. It stays, and walks begin there without asking the cache, whose shard
    /// and counts of references all threads would share.
    root: OnceLock<Arc<Inode>>,
    /// Held while a directory moves to another parent: `operations/directories.rs`.
    pub(crate) moves: Mutex<()>,
    pub(super) inodes: InodeCache,
}

impl Deref for Ext4State {
    type Target = Ground;

    #[inline(always)]
    fn deref(&self) -> &Ground {
        &self.ground
    }
}

impl DerefMut for Ext4State {
    fn deref_mut(&mut self) -> &mut Ground {
        &mut self.ground
    }
}

impl Ext4State {
    /// An empty cache. Unused inodes may take `inode_budget` bytes.
    pub(crate) fn new(ground: Ground, inode_budget: usize) -> Ext4State {
        let (root, moves) = (OnceLock::new(), Mutex::new(()));
        Ext4State { ground, root, moves, inodes: InodeCache::new(inode_budget) }
    }

    /// The root directory.
    ///
    /// # Errors
    /// Those of loading it.
    #[inline]
    pub(crate) fn root(&self) -> Result<&Arc<Inode>> {
        match self.root.get() {
            Some(root) => Ok(root),
            None => {
                let root = self.inode(ROOT)?;
                Ok(self.root.get_or_init(|| root))
            }
        }
    }

    /// The inode, loaded once for all users. Refuses an inode that holds an attribute's value: it is not a file, even
    /// if a name leads to it.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.any_inode(ino)?;
        match inode.holds_value {
            true => Err(value_refused(ino)),
            false => Ok(inode),
        }
    }

    /// The same, without that check.
    #[inline]
    pub(crate) fn any_inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.inodes.get(ino, || self.ground.load_inode(ino))
    }

    /// The inode if it is in memory: then it has the latest attributes, not the table.
    pub(crate) fn live_inode(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.inodes.find(ino)
    }

    /// As [`Ext4State::inode`], if it is in memory.
    #[inline]
    pub(crate) fn known_inode(&self, ino: Ino) -> Result<Option<Arc<Inode>>> {
        match self.inodes.find(ino) {
            Some(inode) if inode.holds_value => Err(value_refused(ino)),
            found => Ok(found),
        }
    }

    /// Whether the inode is in memory.
    pub(crate) fn knows_inode(&self, ino: Ino) -> bool {
        let table = self.inodes.shard(ino).table.lock();
        let is_nameless = || table.nameless.get(&ino).and_then(Weak::upgrade).is_some();
        table.entries.contains_key(&ino) || is_nameless()
    }

    /// What is in memory and was asked for.
    pub(crate) fn inode_usage(&self) -> Usage {
        let cache = &self.inodes;
        let bytes = cache.unused_bytes.load(Ordering::Relaxed) as u64;
        let mut usage = Usage { bytes, budget: cache.budget as u64, ..Usage::default() };
        for shard in &cache.shards {
            let table = shard.table.lock();
            usage.entries += table.entries.len() as u64;
            usage.hits += table.hits;
            usage.misses += table.misses;
            usage.evictions += table.evictions;
        }
        usage
    }

    /// From now on inodes stay until their times are written: the volume is open for writing.
    pub(crate) fn keep_times(&mut self) {
        self.inodes.keeps_times = true;
    }

    /// All inodes in memory that have a name, satisfy `are_so` and may be in use.
    pub(crate) fn inodes_in_use(&self, are_so: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.inodes.shards {
            let table = shard.table.lock();
            let entries = table.used.values().filter_map(|ino| table.entries.get(ino));
            found.extend(entries.filter(|entry| are_so(&entry.inode)).map(|entry| entry.inode.clone()));
        }
        found
    }

    /// An inode has lost its last name: its last user frees it (see the module).
    pub(crate) fn unlinked(&self, inode: &Arc<Inode>) {
        self.inodes.unlinked(inode);
    }

    /// An inode without a name was linked: it is cached like others.
    pub(crate) fn named(&self, inode: &Arc<Inode>) {
        self.inodes.named(inode);
    }

    /// A new inode without a name, registered with the cache.
    pub(crate) fn nameless(&self, inode: Inode) -> Arc<Inode> {
        self.inodes.add_nameless(inode)
    }

    /// The inodes without a name whose last user has gone.
    pub(crate) fn leavers(&self) -> &Leavers {
        &self.inodes.leavers
    }

    /// Removes an inode that is about to be freed and has no user. One that holds an attribute's value is among those
    /// with a name.
    pub(crate) fn forget(&self, ino: Ino) {
        let shard = self.inodes.shard(ino);
        let mut table = shard.table.lock();
        // A load that began before the inode lost its links may find them.
        while table.loading.contains(&ino) {
            shard.loaded.wait(&mut table);
        }
        table.nameless.remove(&ino);
        self.inodes.remove(&mut table, ino);
    }
}

/// Inodes re-examined whenever an unused one is handed out: more than can become unused by that.
pub(super) const LOOKS: usize = 4;
const SHARDS: usize = 16;

pub(super) struct InodeCache {
    shards: [Shard; SHARDS],
    /// Bytes that unused inodes may take over all shards, and that they take now.
    budget: usize,
    unused_bytes: AtomicUsize,
    /// Whether unwritten times pin an inode.
    keeps_times: bool,
    leavers: Arc<Leavers>,
}

#[derive(Default)]
struct Shard {
    table: Mutex<Table>,
    /// Signalled when a load of this shard ends.
    loaded: Condvar,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Ino, Entry, RandomState>,
    /// Inodes without a name, kept alive by their users only.
    nameless: HashMap<Ino, Weak<Inode>, RandomState>,
    /// By turn, least recently used first: in use or pinned when last examined …
    used: BTreeMap<u64, Ino>,
    /// … and referenced by the cache only.
    unused: BTreeMap<u64, Ino>,
    turns: u64,
    /// Being loaded, with the lock released.
    loading: HashSet<Ino>,
    hits: u64,
    misses: u64,
    evictions: u64,
}

struct Entry {
    inode: Arc<Inode>,
    turn: u64,
    /// Its size in bytes, if it is among the unused.
    unused: Option<usize>,
}

/// A load of an inode in progress. When it ends, waiters look again.
struct Loading<'a> {
    shard: &'a Shard,
    ino: Ino,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.shard.table.lock().loading.remove(&self.ino);
        self.shard.loaded.notify_all();
    }
}

impl InodeCache {
    pub(super) fn new(budget: usize) -> InodeCache {
        InodeCache {
            shards: Default::default(),
            budget,
            unused_bytes: AtomicUsize::new(0),
            keeps_times: false,
            leavers: Arc::default(),
        }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[ino.get() as usize % SHARDS]
    }

    #[inline]
    fn find(&self, ino: Ino) -> Option<Arc<Inode>> {
        let mut table = self.shard(ino).table.lock();
        if let Some(Entry { inode, unused: None, .. }) = table.entries.get(&ino) {
            let inode = inode.clone();
            table.hits += 1;
            return Some(inode);
        }
        drop(table);
        self.find_unused(ino)
    }

    #[inline(never)]
    fn find_unused(&self, ino: Ino) -> Option<Arc<Inode>> {
        // Declared first, so that it is dropped after the lock.
        let mut evicted = Vec::new();
        let mut table = self.shard(ino).table.lock();
        self.take(&mut table, ino, &mut evicted)
    }

    /// The inode, loaded by `load` if it is not here. One thread loads, without a lock, and others wait for it: all
    /// must share one gate and one mapping. If the load fails, the next waiter tries.
    #[inline]
    pub(super) fn get(&self, ino: Ino, load: impl FnOnce() -> Result<Inode>) -> Result<Arc<Inode>> {
        let mut table = self.shard(ino).table.lock();
        if let Some(Entry { inode, unused: None, .. }) = table.entries.get(&ino) {
            let inode = inode.clone();
            table.hits += 1;
            return Ok(inode);
        }
        drop(table);
        self.get_unused(ino, load)
    }

    /// The same of an inode that is not listed as used.
    #[inline(never)]
    fn get_unused(&self, ino: Ino, load: impl FnOnce() -> Result<Inode>) -> Result<Arc<Inode>> {
        let mut evicted = Vec::new();
        let shard = self.shard(ino);
        let mut table = shard.table.lock();
        loop {
            if let Some(inode) = self.take(&mut table, ino, &mut evicted) {
                return Ok(inode);
            }
            if table.loading.insert(ino) {
                table.misses += 1;
                break;
            }
            shard.loaded.wait(&mut table);
        }
        drop(table);
        let loading = Loading { shard, ino };
        let inode = Arc::new(load()?);
        let mut table = shard.table.lock();
        self.add(&mut table, &inode, &mut evicted);
        drop(table);
        drop(loading);
        Ok(inode)
    }

    /// The inode if it is here; it counts as used from now on.
    fn take(&self, table: &mut Table, ino: Ino, evicted: &mut Vec<Arc<Inode>>) -> Option<Arc<Inode>> {
        let Some(entry) = table.entries.get_mut(&ino) else {
            let inode = table.nameless.get(&ino).and_then(Weak::upgrade);
            table.hits += u64::from(inode.is_some());
            return inode;
        };
        table.hits += 1;
        let inode = entry.inode.clone();
        if let Some(bytes) = entry.unused.take() {
            self.unused_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let old = std::mem::replace(&mut entry.turn, table.turns);
            table.turns += 1;
            table.unused.remove(&old);
            table.used.insert(entry.turn, ino);
            self.look_around(table, evicted);
        }
        Some(inode)
    }

    /// Checks whether some used inodes have become unused, and evicts to stay within the budget.
    fn look_around(&self, table: &mut Table, evicted: &mut Vec<Arc<Inode>>) {
        for _ in 0..LOOKS.min(table.used.len()) {
            let Some((_, ino)) = table.used.pop_first() else { break };
            let turn = table.next_turn();
            let Some(entry) = table.entries.get_mut(&ino) else { continue };
            entry.turn = turn;
            // Only the cache refers to it, and while the lock is held nobody can get it.
            let times = self.keeps_times;
            let pinned = |inode: &Inode| inode.is_pinned() || times && inode.has_untold_times();
            let alone = Arc::get_mut(&mut entry.inode).is_some_and(|inode| !pinned(inode));
            if alone {
                let bytes = entry.inode.resident_bytes();
                entry.unused = Some(bytes);
                self.unused_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            if alone { &mut table.unused } else { &mut table.used }.insert(turn, ino);
        }
        // Whoever adds an unused inode evicts from the same shard, which always has at least what was added.
        while self.unused_bytes.load(Ordering::Relaxed) > self.budget {
            let Some((_, ino)) = table.unused.pop_first() else { break };
            let Some(entry) = table.entries.remove(&ino) else { continue };
            self.unused_bytes.fetch_sub(entry.unused.unwrap_or(0), Ordering::Relaxed);
            table.evictions += 1;
            evicted.push(entry.inode);
        }
    }

    fn unlinked(&self, inode: &Arc<Inode>) {
        let ino = inode.ino();
        let mut table = self.shard(ino).table.lock();
        if table.entries.get(&ino).is_some_and(|entry| Arc::ptr_eq(&entry.inode, inode)) {
            self.remove(&mut table, ino);
        }
        table.nameless.insert(ino, Arc::downgrade(inode));
        inode.leaves_with(Leave::new(ino, &self.leavers));
    }

    fn named(&self, inode: &Arc<Inode>) {
        let ino = inode.ino();
        let mut evicted = Vec::new();
        let mut table = self.shard(ino).table.lock();
        if table.nameless.remove(&ino).is_some() {
            inode.stays();
            self.add(&mut table, inode, &mut evicted);
        }
    }

    fn add_nameless(&self, inode: Inode) -> Arc<Inode> {
        let inode = Arc::new(inode);
        self.unlinked(&inode);
        inode
    }

    /// Adds an inode that is in use.
    fn add(&self, table: &mut Table, inode: &Arc<Inode>, evicted: &mut Vec<Arc<Inode>>) {
        let turn = table.next_turn();
        table.used.insert(turn, inode.ino());
        table.entries.insert(inode.ino(), Entry { inode: inode.clone(), turn, unused: None });
        self.look_around(table, evicted);
    }

    /// Removes an inode that is in use.
    fn remove(&self, table: &mut Table, ino: Ino) {
        let Some(Entry { turn, unused, .. }) = table.entries.remove(&ino) else { return };
        if let Some(bytes) = unused {
            self.unused_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        table.used.remove(&turn);
        table.unused.remove(&turn);
    }
}

#[cfg(test)]
impl InodeCache {
    /// The numbers of all inodes in memory.
    pub(super) fn numbers(&self) -> Vec<Ino> {
        self.shards
            .iter()
            .flat_map(|shard| shard.table.lock().entries.keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// The summed size of the unused inodes, checked against the running total.
    pub(super) fn check_unused_bytes(&self) -> usize {
        let mut bytes = 0;
        for shard in &self.shards {
            let table = shard.table.lock();
            assert_eq!(table.used.len() + table.unused.len(), table.entries.len());
            for entry in table.unused.values().map(|ino| &table.entries[ino]) {
                assert_eq!(
                    (Arc::strong_count(&entry.inode), entry.unused),
                    (1, Some(entry.inode.resident_bytes()))
                );
                bytes += entry.inode.resident_bytes();
            }
        }
        assert_eq!(bytes, self.unused_bytes.load(Ordering::Relaxed));
        bytes
    }
}

impl Table {
    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns - 1
    }
}
