//! Lock of a directory's names: shared for look-ups, exclusive for changes.

use super::Inode;
use crate::ground::order::{Rank, Taken};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

/// Shared lock: the names do not change, and each found name leads to its inode as long as this is held.
pub(crate) struct SteadyNames<'i> {
    _guard: RwLockReadGuard<'i, ()>,
    _taken: Taken,
}

/// Exclusive lock: only this thread reads or changes the names.
pub(crate) struct OwnNames<'i> {
    inode: &'i Inode,
    _guard: RwLockWriteGuard<'i, ()>,
    _taken: Taken,
}

impl Inode {
    /// Locks the names shared. A thread holds at most one of these, and no [`OwnNames`] besides.
    pub(crate) fn steady_names(&self) -> SteadyNames<'_> {
        let _taken = Taken::note(Rank::Names(self.ino()));
        SteadyNames { _guard: self.names.read(), _taken }
    }

    /// Locks the names for changing them. Only `operations/directories.rs` takes several directories, in ascending
    /// number; everyone else takes one.
    pub(crate) fn own_names(&self) -> OwnNames<'_> {
        let _taken = Taken::note(Rank::Names(self.ino()));
        OwnNames { inode: self, _guard: self.names.write(), _taken }
    }
}

impl OwnNames<'_> {
    /// Whether this locks the names of `inode`.
    pub(crate) fn are_of(&self, inode: &Inode) -> bool {
        std::ptr::eq(self.inode, inode)
    }
}
