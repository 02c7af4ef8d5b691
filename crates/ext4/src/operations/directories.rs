//! The directories whose names an operation changes, locked in the one order (`docs/internals/locks.md`).
//!
//! - One: its names.
//! - Two: an ancestor before what it holds, otherwise the lower number. What holds what changes only by moves of
//!   directories between parents, and whoever takes two from different places keeps those out (`Ext4State::moves`).
//! - More: a directory that is moved, or replaced, comes behind the two it is in.

use crate::dir;
use crate::ground::error::{Error, Result};
use crate::ground::order::{Rank, Taken};
use crate::inode::names::OwnNames;
use crate::inode::{Ext4State, Inode};
use parking_lot::MutexGuard;
use std::collections::HashSet;

/// See the module.
pub(crate) struct Directories<'d> {
    // Given back before the moves.
    locked: Vec<OwnNames<'d>>,
    moves: Option<(MutexGuard<'d, ()>, Taken)>,
}

/// How two directories lie to each other.
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
    /// Takes the names of one.
    pub(crate) fn one(directory: &'d Inode) -> Directories<'d> {
        Directories { locked: vec![directory.own_names()], moves: None }
    }

    /// Takes the names of two, which may be one, and tells how they lie to each other. The caller holds no lock.
    ///
    /// # Errors
    /// [`Error::CorruptInode`] if the parents of one lead nowhere, and those of looking `..` up.
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

    /// Takes the names of directories besides that are in those which are taken: one that is removed or moved, one that
    /// is replaced. None of them is an ancestor of one that is taken.
    ///
    /// # Errors
    /// [`Error::Invalid`] if three would be taken while others may move: ask for two, which keeps moves out.
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

    /// Whether the names of this one are taken.
    pub(crate) fn are_of(&self, directory: &Inode) -> bool {
        self.locked.iter().any(|names| names.are_of(directory))
    }
}

/// Whether a directory is an ancestor of another one. Moves are kept out.
fn holds(state: &Ext4State, above: &Inode, below: &Inode) -> Result<bool> {
    let (mut at, mut seen) = (below.ino(), HashSet::new());
    while seen.insert(at) {
        let inode = state.inode(at)?;
        let names = inode.steady_names();
        let parent =
            dir::look_up(state, &inode, b"..")?.ok_or_else(|| state.corrupt_inode(at, "no `..`"))?.ino;
        drop(names);
        if parent == above.ino() {
            return Ok(true);
        }
        if parent == at {
            return Ok(false);
        }
        at = parent;
    }
    Err(state.corrupt_inode(below.ino(), "its parents run in a circle"))
}
