//! The inodes in memory: one for all who use a file at a time, and some that nobody uses for the time being.
//!
//! # Who stays
//! An inode in use stays. One that nobody uses stays while it is *pinned*: a change of it is not committed, or its
//! record does not have the times of its overwrites yet.
//! The others may stay as long as they take no more than a budget of bytes together; the one that was used longest ago
//! goes first. What an inode takes is found out when it is
//! found unused, its mapping included, and does not change until somebody asks for it.
//!
//! Nobody tells the cache that he uses an inode no longer: that the cache has the only reference says it. So it looks
//! at a few of those it takes for used whenever it loads one, or hands out one that was unused. That keeps up with
//! those that become unused; many that do so at once (files closed, a commit) are found out as others are loaded.
//!
//! # Inodes without a name
//! The number of an inode that lost its last name is in use on the volume until the inode is freed, and that waits for
//! its last user. The cache only knows such an inode ([`Ext4State::unlinked`]), it does not hold it: so the last user
//! is the one who drops the last `Arc`, whoever that is and whatever locks he holds. That drop only notes the number
//! ([`Leavers`]); the inode is freed later, by somebody who holds nothing (`Files::free_left`). A look-up in between
//! reads the record and is told that it is free. One after the number was given out again makes an inode of its own,
//! with the new generation, gate and mapping.

use super::leave::{Leave, Leavers};
use super::{Inode, refuse_value};
use crate::ground::error::Result;
use crate::ground::state::Ground;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use uext4_ondisk::Ino;

/// The file system's own state: its ground, and the inodes on it.
pub(crate) struct Ext4State {
    ground: Ground,
    /// Whoever moves a directory to another parent: `operations/directories.rs`.
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
    /// Nothing in memory yet. Unused inodes may take `inode_budget` bytes.
    pub(crate) fn new(ground: Ground, inode_budget: usize) -> Ext4State {
        Ext4State { ground, moves: Mutex::new(()), inodes: InodeCache::new(inode_budget) }
    }

    /// The inode, loaded once for all users. One that holds an attribute's value is no file, whoever names it.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.any_inode(ino)?;
        refuse_value(ino, &inode.disk())?;
        Ok(inode)
    }

    /// The same, whatever it is for.
    pub(crate) fn any_inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.inodes.get(ino, || self.ground.load_inode(ino))
    }

    /// The inode if it is in memory: then it, not the table, has the latest attributes.
    pub(crate) fn live_inode(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.inodes.find(ino)
    }

    /// From now on inodes stay until their times are written: somebody writes them.
    pub(crate) fn keep_times(&mut self) {
        self.inodes.keeps_times = true;
    }

    /// All inodes in memory that have a name, are so and may be in use.
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

    /// An inode without a name got one: it stays in memory as others do.
    pub(crate) fn named(&self, inode: &Arc<Inode>) {
        self.inodes.named(inode);
    }

    /// A new inode without a name, known to the cache.
    pub(crate) fn nameless(&self, inode: Inode) -> Arc<Inode> {
        self.inodes.add_nameless(inode)
    }

    /// The inodes without a name whose last user is gone.
    pub(crate) fn leavers(&self) -> &Leavers {
        &self.inodes.leavers
    }

    /// Forgets an inode that is about to be freed: nobody uses it.
    pub(crate) fn forget(&self, ino: Ino) {
        self.inodes.shard(ino).table.lock().nameless.remove(&ino);
    }
}

/// Inodes that are looked at whenever one is handed out that was not in use: more than become unused by that.
pub(super) const LOOKS: usize = 4;
const SHARDS: usize = 16;

pub(super) struct InodeCache {
    shards: [Shard; SHARDS],
    /// Bytes that unused inodes may take, all shards together, and those that they take.
    budget: usize,
    unused_bytes: AtomicUsize,
    /// Whether times that are not written pin an inode.
    keeps_times: bool,
    leavers: Arc<Leavers>,
}

#[derive(Default)]
struct Shard {
    table: Mutex<Table>,
    /// A load of this shard has ended.
    loaded: Condvar,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Ino, Entry>,
    /// Those without a name, which their users alone keep.
    nameless: HashMap<Ino, Weak<Inode>>,
    /// By turn, the longest ago first: those that were in use or pinned when they were looked at last …
    used: BTreeMap<u64, Ino>,
    /// … and those that the cache alone refers to.
    unused: BTreeMap<u64, Ino>,
    turns: u64,
    /// Being loaded, without the lock.
    loading: HashSet<Ino>,
}

struct Entry {
    inode: Arc<Inode>,
    turn: u64,
    /// What it takes, if it is among the unused.
    unused: Option<usize>,
}

/// The one load of an inode. When it ends, those who wait look again.
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

    fn find(&self, ino: Ino) -> Option<Arc<Inode>> {
        // Dropped after the lock.
        let mut evicted = Vec::new();
        let mut table = self.shard(ino).table.lock();
        self.take(&mut table, ino, &mut evicted)
    }

    /// The inode, loaded by `load` if it is not here. One loads, without a lock, and others who want it wait: all must
    /// share one gate and one mapping. If the load fails, the next of them tries.
    pub(super) fn get(&self, ino: Ino, load: impl FnOnce() -> Result<Inode>) -> Result<Arc<Inode>> {
        let mut evicted = Vec::new();
        let shard = self.shard(ino);
        let mut table = shard.table.lock();
        loop {
            if let Some(inode) = self.take(&mut table, ino, &mut evicted) {
                return Ok(inode);
            }
            if table.loading.insert(ino) {
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

    /// The inode if it is here, which is in use from now on.
    fn take(&self, table: &mut Table, ino: Ino, evicted: &mut Vec<Arc<Inode>>) -> Option<Arc<Inode>> {
        let Some(entry) = table.entries.get_mut(&ino) else {
            return table.nameless.get(&ino).and_then(Weak::upgrade);
        };
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

    /// Finds out whether some that were in use are so no longer, and makes room for them.
    fn look_around(&self, table: &mut Table, evicted: &mut Vec<Arc<Inode>>) {
        for _ in 0..LOOKS.min(table.used.len()) {
            let Some((_, ino)) = table.used.pop_first() else { break };
            let turn = table.next_turn();
            let Some(entry) = table.entries.get_mut(&ino) else { continue };
            entry.turn = turn;
            // Nobody but the cache has it, and with the lock held nobody can get it.
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
        // Whoever adds to the unused makes room among those of the same shard: it can take back what it added.
        while self.unused_bytes.load(Ordering::Relaxed) > self.budget {
            let Some((_, ino)) = table.unused.pop_first() else { break };
            let Some(entry) = table.entries.remove(&ino) else { continue };
            self.unused_bytes.fetch_sub(entry.unused.unwrap_or(0), Ordering::Relaxed);
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

    /// Takes an inode in that somebody uses.
    fn add(&self, table: &mut Table, inode: &Arc<Inode>, evicted: &mut Vec<Arc<Inode>>) {
        let turn = table.next_turn();
        table.used.insert(turn, inode.ino());
        table.entries.insert(inode.ino(), Entry { inode: inode.clone(), turn, unused: None });
        self.look_around(table, evicted);
    }

    /// Takes an inode out that somebody uses.
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
    /// The numbers of all that are in memory.
    pub(super) fn numbers(&self) -> Vec<Ino> {
        self.shards
            .iter()
            .flat_map(|shard| shard.table.lock().entries.keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// What those that count as unused take now, added up, and held against the account of it.
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
