//! An inode held by a user of the crate.

use super::volume::Shared;
use crate::ground::error::{Error, Result};
use crate::inode::Inode;
use std::ops::Deref;
use std::sync::Arc;
use uext4_ondisk::{CorruptKind, Ino};

/// A reference to an inode, together with its volume. Dropping the last one writes pages home and the times of
/// overwrites, releases claimed blocks and frees an unlinked inode. Some of it starts handles, so drop it without
/// holding a lock.
///
/// Internal code holds a plain `Arc` and may drop it anywhere: for an unlinked inode that only records the number
/// (`inode/leave.rs`), and the next `Held` to be dropped, change or tick frees it.
pub(crate) struct Held {
    /// `None` only during the drop.
    inode: Option<Arc<Inode>>,
    writes: bool,
    shared: Arc<Shared>,
}

impl Held {
    /// A reference for reading.
    pub(crate) fn new(inode: Arc<Inode>, shared: Arc<Shared>) -> Held {
        inode.hold(false);
        Held { inode: Some(inode), writes: false, shared }
    }

    /// A reference that may write.
    pub(crate) fn for_writing(inode: Arc<Inode>, shared: Arc<Shared>) -> Held {
        inode.hold(true);
        Held { inode: Some(inode), writes: true, shared }
    }

    /// A reference to the inode with this number, and with this `generation` if one is given. A freed number is reused
    /// with another generation.
    ///
    /// # Errors
    /// [`Error::Stale`] if the inode with this generation was freed; those of reading it.
    pub(crate) fn by_number(shared: &Arc<Shared>, ino: Ino, generation: Option<u32>) -> Result<Held> {
        let inode = shared.fs.state.inode(ino).map_err(|error| match error {
            // It was freed, and the number is not used again yet.
            Error::Corrupt(corrupt) if generation.is_some() && corrupt.kind == CorruptKind::InodeFree => {
                Error::Stale(ino)
            }
            other => other,
        })?;
        let held = Held::new(inode, shared.clone());
        match generation {
            Some(generation) if held.disk().generation != generation => Err(Error::Stale(ino)),
            _ => Ok(held),
        }
    }

    /// The volume.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Clone for Held {
    fn clone(&self) -> Held {
        if let Some(inode) = &self.inode {
            inode.hold(self.writes);
        }
        Held { inode: self.inode.clone(), writes: self.writes, shared: self.shared.clone() }
    }
}

impl Deref for Held {
    type Target = Arc<Inode>;

    fn deref(&self) -> &Arc<Inode> {
        match &self.inode {
            Some(inode) => inode,
            None => unreachable!("only its drop takes it out"),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(inode) = self.inode.take() else { return };
        // After a fork, the child must leave the parent's volume alone.
        if !self.shared.is_ours() {
            return;
        }
        if inode.let_go(self.writes) {
            self.shared.engine.end_pages(&inode);
        }
        let files = self.shared.fs.files();
        if self.writes {
            files.close_times(&inode);
            files.close_window(&inode);
        }
        drop(inode);
        // If freeing fails, the next tick, the close or the next open tries again.
        let _waits = files.free_left();
    }
}
