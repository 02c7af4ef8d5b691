//! Locks the directories whose names an operation changes, in the one order (`docs/internals/locks.md`).
//!
//! - One: its names.
//! - Two: an ancestor before its descendant, otherwise the lower number first. Ancestry changes only when a directory
//!   moves to another parent, and whoever locks two different directories excludes such moves (`Ext4State::moves`).
//! - More: a directory that is moved or replaced comes after the two parents.

use crate::dir;
use crate::ground::error::{Error, Result};
use crate::ground::order::{Rank, Taken};
use crate::inode::names::OwnNames;
use crate::inode::{Ext4State, Inode};
use parking_lot::MutexGuard;
use std::collections::HashSet;
use std::sync::Arc;

/// Locked directories: see the module.
pub(crate) struct Directories<'d> {
    // Unlocked before `moves`.
    locked: Vec<OwnNames<'d>>,
    moves: Option<(MutexGuard<'d, ()>, Taken)>,
}

/// How two directories are related.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kin {
    Same,
    /// The first one is an ancestor of the second.
    Above,
    /// The second one is an ancestor of the first.
    Below,
    Apart,
}

impl<'d> Directories<'d> {
    /// Locks the names of one directory.
    pub(crate) fn one(directory: &'d Inode) -> Directories<'d> {
        Directories { locked: vec![directory.own_names()], moves: None }
    }

    /// Locks the names of two directories, which may be the same, and returns how they are related. The caller holds no
    /// lock.
    ///
    /// # Errors
    /// [`Error::CorruptInode`] if the chain of parents of one is damaged, and those of looking up `..`.
    pub(crate) fn two(
        state: &'d Ext4State,
        first: &'d Inode,
        second: &'d Inode,
    ) -> Result<(Directories<'d>, Kin)> {
        if first.ino() == second.ino() {
            return Ok((Directories::one(first), Kin::Same));
        }
        let taken = Taken::note(Rank::Moves);
        let moves = Some((state.moves.lock(), taken));
        let kin = if holds(state, first, second)? {
            Kin::Above
        } else if holds(state, second, first)? {
            Kin::Below
        } else {
            Kin::Apart
        };
        let first_leads = match kin {
            Kin::Above | Kin::Same => true,
            Kin::Below => false,
            Kin::Apart => first.ino() < second.ino(),
        };
        let (leading, behind) = if first_leads { (first, second) } else { (second, first) };
        Ok((Directories { locked: vec![leading.own_names(), behind.own_names()], moves }, kin))
    }

    /// Also locks the names of directories inside the locked ones: one that is removed or moved, or one that is
    /// replaced. None of them may be an ancestor of a locked one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this makes three while moves are not excluded: lock two with [`Directories::two`], which
    /// excludes them.
    pub(crate) fn and(&mut self, children: &[&'d Inode]) -> Result<()> {
        let mut children: Vec<&'d Inode> =
            children.iter().copied().filter(|child| !self.are_of(child)).collect();
        children.sort_unstable_by_key(|child| child.ino());
        children.dedup_by_key(|child| child.ino());
        if self.moves.is_none() && self.locked.len() + children.len() > 2 {
            return Err(Error::Invalid("names of three directories while others may move".into()));
        }
        self.locked.extend(children.into_iter().map(Inode::own_names));
        Ok(())
    }

    /// Whether the names of this directory are locked.
    pub(crate) fn are_of(&self, directory: &Inode) -> bool {
        self.locked.iter().any(|names| names.are_of(directory))
    }
}

/// Whether a directory is an ancestor of another one. Moves must be excluded.
fn holds(state: &Ext4State, above: &Inode, below: &Inode) -> Result<bool> {
    let (mut at, mut seen) = (below.ino(), HashSet::new());
    let mut loaded: Option<Arc<Inode>> = None;
    while seen.insert(at) {
        let inode = loaded.as_deref().unwrap_or(below);
        let names = inode.steady_names();
        if inode.disk().links == 0 {
            // It was removed, and is in no directory.
            return Ok(false);
        }
        let parent =
            dir::look_up(state, inode, b"..")?.ok_or_else(|| state.corrupt_inode(at, "no `..`"))?.ino;
        if parent == above.ino() {
            return Ok(true);
        }
        if parent == at {
            return Ok(false);
        }
        // Loaded while its directory is locked, which therefore still exists and keeps it.
        let next = state.inode(parent)?;
        drop(names);
        (at, loaded) = (parent, Some(next));
    }
    Err(state.corrupt_inode(below.ino(), "its parents form a cycle"))
}
