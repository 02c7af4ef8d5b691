//! An inode in use by somebody outside.

use super::volume::Shared;
use crate::inode::{Inode, Node};
use std::ops::Deref;
use std::sync::Arc;

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

    /// Number and generation, which tell it from all others that ever had its number.
    pub(crate) fn node(&self) -> Node {
        Inode::node(self)
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
