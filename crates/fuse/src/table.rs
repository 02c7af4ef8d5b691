//! What the kernel knows by number: nodes with their look-up counts, and open files and directories.

use crate::reply::{Errno, Outcome};
use crate::wire::ROOT;
use parking_lot::{Mutex, RwLock};
use slab::Slab;
use std::collections::HashMap;
use std::sync::Arc;
use uext4::{Ino, Metadata, Node, Volume};

/// Parts of the table, each with a lock.
const SHARDS: usize = 64;
/// Inode number of the root directory.
const ROOT_INO: u32 = 2;

/// The number of a node. It holds inode number and generation, so an inode number that is used again gives another
/// node, and a file handle that was kept finds its inode, or that it is gone.
pub(crate) fn id_of(metadata: &Metadata) -> u64 {
    match metadata.ino.get() {
        ROOT_INO => ROOT,
        ino => u64::from(metadata.generation) << 32 | u64::from(ino),
    }
}

/// A part of the table.
#[derive(Default)]
struct Shard {
    /// How often the kernel was told a node, by its number.
    lookups: HashMap<u64, u64>,
    /// Those of them that have lost their last name, or never had one: nothing else keeps them.
    nameless: HashMap<u64, Node>,
}

/// The nodes that the kernel knows. They stay usable until it forgets them, also without a name. One with a name takes
/// a few bytes: its inode is found by its number.
pub(crate) struct Nodes {
    volume: Volume,
    root: Node,
    shards: Vec<Mutex<Shard>>,
}

impl Nodes {
    /// None but the root.
    ///
    /// # Errors
    /// Those of reading the root.
    pub(crate) fn new(volume: &Volume) -> Result<Nodes, uext4::Error> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Ok(Nodes { volume: volume.clone(), root: volume.root()?, shards })
    }

    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[id as usize % SHARDS]
    }

    /// Counts one look-up of a node.
    pub(crate) fn add(&self, id: u64, node: Node) {
        if id == ROOT {
            return;
        }
        let mut shard = self.shard(id).lock();
        *shard.lookups.entry(id).or_default() += 1;
        // Whoever removes the last name looks here after that, so one of the two sees the other.
        if node.attributes().links > 0 || shard.nameless.contains_key(&id) {
            // Outside the lock: it may be the last reference, whose drop frees an inode.
            drop(shard);
            drop(node);
        } else {
            shard.nameless.insert(id, node);
        }
    }

    /// Keeps a node that has lost a name, if it was the last one and the kernel knows it.
    pub(crate) fn name_removed(&self, node: Node) {
        let found = node.attributes();
        if found.links > 0 {
            return;
        }
        let id = id_of(&found);
        let mut shard = self.shard(id).lock();
        if shard.lookups.contains_key(&id) && !shard.nameless.contains_key(&id) {
            shard.nameless.insert(id, node);
        } else {
            drop(shard);
            drop(node);
        }
    }

    /// The node with this number. One that the kernel forgot is looked up again, since file handles outlive it.
    ///
    /// # Errors
    /// `ESTALE` if it is gone; those of reading it.
    pub(crate) fn get(&self, id: u64) -> Outcome<Node> {
        if id == ROOT {
            return Ok(self.root.clone());
        }
        let shard = self.shard(id).lock();
        if let Some(node) = shard.nameless.get(&id) {
            return Ok(node.clone());
        }
        let known = shard.lookups.contains_key(&id);
        drop(shard);
        let stale = Errno(libc::ESTALE);
        let ino = Ino::nonzero(id as u32).ok_or(stale)?;
        // Reserved ones are the file system's own.
        if ino < self.volume.superblock().geometry.first_inode() {
            return Err(stale);
        }
        let node = self.volume.node(ino, Some((id >> 32) as u32)).map_err(|error| match error {
            // No inode has this number, or it holds none that was ever used.
            uext4::Error::Corrupt(_) | uext4::Error::Invalid(_) | uext4::Error::NotFound if !known => stale,
            other => other.into(),
        })?;
        if known || node.attributes().links > 0 { Ok(node) } else { Err(stale) }
    }

    /// How many the kernel knows, besides the root.
    pub(crate) fn known(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().lookups.len()).sum()
    }

    /// Numbers of at most so many that the kernel knows.
    pub(crate) fn some(&self, most: usize) -> Vec<u64> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().lookups.keys().take(most - found.len()));
        }
        found
    }

    /// Takes back look-ups.
    pub(crate) fn forget(&self, id: u64, lookups: u64) {
        let mut shard = self.shard(id).lock();
        let Some(known) = shard.lookups.get_mut(&id) else { return };
        *known = known.saturating_sub(lookups);
        if *known > 0 {
            return;
        }
        shard.lookups.remove(&id);
        let gone = shard.nameless.remove(&id);
        drop(shard);
        drop(gone);
    }
}

/// Open files or directories by number.
pub(crate) struct Handles<T>(RwLock<Slab<Arc<T>>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles(RwLock::new(Slab::new()))
    }
}

impl<T> Handles<T> {
    /// Adds one.
    pub(crate) fn add(&self, open: T) -> u64 {
        self.0.write().insert(Arc::new(open)) as u64
    }

    /// The one with this number.
    ///
    /// # Errors
    /// `EBADF`.
    pub(crate) fn get(&self, fh: u64) -> Outcome<Arc<T>> {
        let found = usize::try_from(fh).ok().and_then(|fh| self.0.read().get(fh).cloned());
        found.ok_or(Errno::BAD_HANDLE)
    }

    /// What is read of at most so many.
    pub(crate) fn some<R>(&self, most: usize, read: impl Fn(&T) -> R) -> Vec<R> {
        self.0.read().iter().take(most).map(|(_, open)| read(open)).collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.read().len()
    }

    /// Removes one, and gives it back, to be dropped without a lock.
    pub(crate) fn remove(&self, fh: u64) -> Option<Arc<T>> {
        self.0.write().try_remove(usize::try_from(fh).ok()?)
    }
}
