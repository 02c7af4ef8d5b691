//! An inode in use by somebody outside.

use super::volume::Shared;
use crate::ground::error::{Error, Result};
use crate::inode::Inode;
use std::ops::Deref;
use std::sync::Arc;
use uext4_ondisk::Ino;

/// A use of an inode, with its volume. It lets go by itself: the last one writes the times of overwrites, and frees an
/// inode whose last name is gone. That takes handles, so no lock is held where one is dropped.
///
/// The rooms below hold an `Arc` and drop it wherever they are: of an inode without a name that notes the number only
/// (`inode/leave.rs`), and the next use that ends, operation or tick frees it.
#[derive(Clone)]
pub(crate) struct Held {
    /// `None` while it is dropped.
    inode: Option<Arc<Inode>>,
    writes: bool,
    shared: Arc<Shared>,
}

impl Held {
    /// A use for reading.
    pub(crate) fn new(inode: Arc<Inode>, shared: Arc<Shared>) -> Held {
        Held { inode: Some(inode), writes: false, shared }
    }

    /// A use that may write.
    pub(crate) fn for_writing(inode: Arc<Inode>, shared: Arc<Shared>) -> Held {
        Held { inode: Some(inode), writes: true, shared }
    }

    /// A use of the inode with this number: of `generation` only, if that is given. A number is given out again when
    /// its inode was freed, with another generation.
    ///
    /// # Errors
    /// [`Error::Stale`] if the number is another inode's by now; those of reading it.
    pub(crate) fn by_number(shared: &Arc<Shared>, ino: Ino, generation: Option<u32>) -> Result<Held> {
        let held = Held::new(shared.fs.state.inode(ino)?, shared.clone());
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
        // In a child the volume is the parent's.
        if !self.shared.is_ours() {
            return;
        }
        let files = self.shared.fs.files();
        if self.writes {
            files.close_times(&inode);
        }
        drop(inode);
        // What cannot be freed waits: the next tick, the end of the volume or the next open tries again.
        let _waits = files.free_left();
    }
}
