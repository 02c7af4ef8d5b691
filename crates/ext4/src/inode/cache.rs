//! The inodes in memory: one for all who use a file at a time.

use super::{Inode, refuse_value};
use crate::ground::error::Result;
use crate::ground::state::Ground;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use uext4_ondisk::Ino;

/// The file system's own state: its ground, and the inodes on it.
pub(crate) struct Ext4State {
    ground: Ground,
    inodes: InodeTable,
}

/// The inodes that somebody uses.
type InodeTable = parking_lot::Mutex<HashMap<Ino, Weak<Inode>>>;

/// Entries of the table after which the dead ones are swept out.
const SWEEP_AT: usize = 1024;

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
    /// Nothing in memory yet.
    pub(crate) fn new(ground: Ground) -> Ext4State {
        Ext4State { ground, inodes: InodeTable::default() }
    }

    /// The inode, loaded once for all users. One that holds an attribute's value is no file, whoever names it.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.any_inode(ino)?;
        refuse_value(ino, inode.disk())?;
        Ok(inode)
    }

    /// The same, whatever it is for.
    pub(crate) fn any_inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        if let Some(inode) = self.live_inode(ino) {
            return Ok(inode);
        }
        let loaded = Arc::new(self.load_inode(ino)?);
        let mut inodes = self.inodes.lock();
        if let Some(inode) = inodes.get(&ino).and_then(Weak::upgrade) {
            // Somebody else was faster; all must share one gate and one mapping.
            return Ok(inode);
        }
        if inodes.len() >= SWEEP_AT && inodes.len().is_power_of_two() {
            inodes.retain(|_, inode| inode.strong_count() > 0);
        }
        inodes.insert(ino, Arc::downgrade(&loaded));
        Ok(loaded)
    }

    /// The inode if somebody uses it: then it, not the table, has the latest attributes.
    pub(crate) fn live_inode(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.inodes.lock().get(&ino).and_then(Weak::upgrade)
    }
}
