//! Locks the directories whose names an operation changes.
//!
//! Several are always locked in ascending inode number, wherever they are in the tree: so threads cannot wait for one
//! another in a circle (`docs/internals/locks.md` has the proof). An operation that also needs the names of a directory
//! that it finds by a name (one that is removed, replaced or moved) looks the name up, locks all of them, and looks it
//! up again: it may lead elsewhere by then.
//!
//! Where directories are in the tree matters to those operations only that move one to another parent. [`Moves`]
//! excludes all others of that kind.

use crate::dir;
use crate::ground::error::Result;
use crate::ground::order::{Rank, Taken};
use crate::inode::names::OwnNames;
use crate::inode::{Ext4State, Inode};
use parking_lot::MutexGuard;
use std::collections::HashSet;
use uext4_ondisk::Ino;

/// Locked directories: see the module.
pub(crate) struct Directories<'d> {
    locked: Vec<OwnNames<'d>>,
}

impl<'d> Directories<'d> {
    /// Locks the names of one directory.
    pub(crate) fn one(directory: &'d Inode) -> Directories<'d> {
        Directories { locked: vec![directory.own_names()] }
    }

    /// Locks the names of several directories, each once, however often it is given. The caller holds no names.
    pub(crate) fn several(directories: impl IntoIterator<Item = &'d Inode>) -> Directories<'d> {
        let mut directories: Vec<&'d Inode> = directories.into_iter().collect();
        in_order(&mut directories, |directory| directory.ino());
        Directories { locked: directories.into_iter().map(Inode::own_names).collect() }
    }

    /// Whether the names of this directory are locked.
    pub(crate) fn are_of(&self, directory: &Inode) -> bool {
        self.locked.iter().any(|names| names.are_of(directory))
    }
}

/// The order in which directories are locked.
pub(crate) fn in_order<D>(directories: &mut Vec<D>, number: impl Fn(&D) -> Ino) {
    directories.sort_unstable_by_key(&number);
    directories.dedup_by_key(|directory| number(directory));
}

/// While this is held, nobody else moves a directory to another parent.
pub(crate) struct Moves<'d> {
    state: &'d Ext4State,
    _guard: MutexGuard<'d, ()>,
    _taken: Taken,
}

impl<'d> Moves<'d> {
    /// Waits until no directory is being moved. The caller holds no lock.
    pub(crate) fn exclude(state: &'d Ext4State) -> Moves<'d> {
        let taken = Taken::note(Rank::Moves);
        Moves { state, _guard: state.moves.lock(), _taken: taken }
    }

    /// Whether a directory is another one or inside it. The caller holds no names. If the directory has a name when the
    /// caller locks its names later, the answer still holds; else it may be wrong or an error.
    ///
    /// # Errors
    /// [`Error::CorruptInode`](crate::Error::CorruptInode) if the chain of its parents is damaged; those of looking up
    /// `..`.
    pub(crate) fn is_inside(&self, inner: &Inode, outer: &Inode) -> Result<bool> {
        let (state, mut seen) = (self.state, HashSet::new());
        let mut at = inner.ino();
        while at != outer.ino() {
            if !seen.insert(at) {
                return Err(state.corrupt_inode(inner.ino(), "its parents form a cycle"));
            }
            let directory = state.inode(at)?;
            let names = directory.steady_names();
            let parent = dir::look_up(state, &directory, b"..")?;
            drop(names);
            let parent = parent.ok_or_else(|| state.corrupt_inode(at, "no `..`"))?.ino;
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
        Ok(true)
    }
}
