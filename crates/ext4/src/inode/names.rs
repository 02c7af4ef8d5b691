//! The names of directories, locked: for looking them up together with others, or for changing them alone.

use super::Inode;
use crate::ground::order::{Rank, Taken};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

/// The names of a directory do not change: a name that is found leads to its inode as long.
pub(crate) struct SteadyNames<'i> {
    _guard: RwLockReadGuard<'i, ()>,
    _taken: Taken,
}

/// The names of a directory are this thread's alone.
pub(crate) struct OwnNames<'i> {
    inode: &'i Inode,
    _guard: RwLockWriteGuard<'i, ()>,
    _taken: Taken,
}

impl Inode {
    /// Keeps the names as they are. A thread holds one of these at a time, and no [`OwnNames`] besides.
    pub(crate) fn steady_names(&self) -> SteadyNames<'_> {
        let _taken = Taken::note(Rank::Names);
        SteadyNames { _guard: self.names.read(), _taken }
    }

    /// Takes the names for changing them. Several directories are taken in one order only: `operations/directories.rs`
    /// knows it, and nobody else takes more than one.
    pub(crate) fn own_names(&self) -> OwnNames<'_> {
        let _taken = Taken::note(Rank::Names);
        OwnNames { inode: self, _guard: self.names.write(), _taken }
    }
}

impl OwnNames<'_> {
    /// Whether they are the names of this directory.
    pub(crate) fn are_of(&self, inode: &Inode) -> bool {
        std::ptr::eq(self.inode, inode)
    }
}
