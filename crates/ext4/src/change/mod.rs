//! What a file gets and loses: blocks, written ones of unwritten, size.
//!
//! | file | what |
//! |---|---|
//! | `allocate.rs` | blocks for holes |
//! | `append.rs` | blocks behind the end that are written before they are the file's |
//! | `pointers.rs` | the same for maps of block pointers |
//! | `convert.rs` | unwritten blocks become written, and the size follows |
//! | `remove.rs` | blocks and size are taken away |
//! | `clear.rs` | written blocks become unwritten |
//! | `shift.rs` | blocks get other places in the file |
//! | `free.rs` | all that an inode without a name has |
//! | `attributes.rs` | owner, mode, lists and the like of a file that is replaced |
//! | `privileges.rs` | set-user-id, set-group-id and capabilities, which go with the first write |
//! | `times.rs` | times of overwrites, which nothing else writes |
//! | `orphans.rs` | inodes that are to be freed or cut, and what a crash left of that |
//!
//! Each step is one handle, begun without a lock. Inside it: the inode's turn ([`Inode::edit`]), its map lock, then the
//! free space. The map lock is held from the first look until the outcome is published, so nobody loads what is being
//! changed.
//!
//! [`Inode::edit`]: crate::inode::Inode::edit

mod allocate;
pub(crate) mod append;
mod attributes;
mod clear;
mod convert;
pub(crate) mod free;
pub(crate) mod orphans;
mod pointers;
pub(crate) mod privileges;
mod remove;
mod shift;
mod times;

use crate::alloc::shared::{FreeSpace, Promise};
use crate::ground::credits;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::features;
use crate::inode::fields::check_size;
use crate::inode::{Ext4State, Inode};
use crate::map::edit;
use orphans::Orphans;
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::ext4::{ExtentNode, Inode as DiskInode, NodeLimits};

/// Commits that are waited for because they release blocks.
const COMMITS_FOR_ROOM: usize = 3;

/// The files of a volume that can be changed.
#[derive(Clone, Copy)]
pub(crate) struct Files<'v> {
    pub(crate) state: &'v Ext4State,
    pub(crate) space: &'v Arc<FreeSpace>,
    pub(crate) orphans: &'v Orphans,
}

impl Files<'_> {
    /// Whether an inode can get blocks.
    ///
    /// # Errors
    /// What it lacks.
    pub(crate) fn check_allocates(&self, inode: &Inode) -> Result<()> {
        self.check_changes()?;
        // As the kernel has it: a pointer cannot say that a block is part of a cluster.
        if !inode.disk().uses_extents() && self.state.superblock.geometry.cluster_blocks() > 1 {
            let feature = format!("a map without extents on a volume with clusters (inode {})", inode.ino());
            return Err(Error::Incompatible { action: "allocate", feature });
        }
        Ok(())
    }

    /// Whether an inode can have blocks that are not written.
    ///
    /// # Errors
    /// What it lacks.
    pub(crate) fn check_unwritten(&self, inode: &Inode) -> Result<()> {
        self.check_changes()?;
        if !inode.disk().uses_extents() {
            let feature =
                format!("a map without extents (inode {}), which holds data and holes only", inode.ino());
            return Err(Error::Incompatible { action: "preallocate, zero or shift blocks", feature });
        }
        Ok(())
    }

    /// Whether maps and sizes can be changed at all: enough for who takes blocks away.
    ///
    /// # Errors
    /// What the volume lacks.
    pub(crate) fn check_changes(&self) -> Result<()> {
        features::check_changes(&self.state.superblock)
    }

    /// Refuses a size that the inode cannot have.
    ///
    /// # Errors
    /// [`Limit::Map`].
    pub(crate) fn check_size(&self, inode: &Inode, size: u64) -> Result<()> {
        if check_size(&self.state.superblock, &inode.disk(), size) {
            Ok(())
        } else {
            Err(Error::Limit(Limit::Map))
        }
    }

    /// Keeps what converting a range of blocks may need.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; those of reading the groups.
    pub(crate) fn promise(&self, inode: &Inode, blocks: Range<u64>) -> Result<Promise> {
        let clusters = self.nodes_of_ends(inode, &blocks);
        self.with_room(|| self.space.promise(&Direct(self.state), clusters))
    }

    /// The same if nothing has to be waited for.
    pub(crate) fn try_promise(&self, inode: &Inode, blocks: Range<u64>) -> Option<Promise> {
        self.space.try_promise(self.state, self.nodes_of_ends(inode, &blocks))
    }

    /// A conversion's two ends may divide a leaf each, and all above.
    fn nodes_of_ends(&self, inode: &Inode, blocks: &Range<u64>) -> u64 {
        let levels = u64::from(self.depth(inode)) + 2;
        2.min(blocks.end - blocks.start + 1) * levels * edit::copies(self.state) as u64
    }

    /// Does a step again after a commit, if it finds no room and freed blocks wait for one.
    pub(crate) fn with_room<T>(&self, mut step: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..COMMITS_FOR_ROOM {
            let mut done = step();
            if matches!(done, Err(Error::NoSpace)) && self.space.close_windows() {
                done = step();
            }
            match done {
                Err(Error::NoSpace) if self.space.awaits_commit() => {
                    self.state.commit_all()?;
                }
                // Somebody else's commit may have released them since the step looked.
                Err(Error::NoSpace) => return step(),
                other => return other,
            }
        }
        step()
    }

    /// Levels of the tree below its root. A root that is damaged is found out by whoever changes it.
    pub(crate) fn depth(&self, inode: &Inode) -> u16 {
        depth(self.state, &inode.disk())
    }

    /// Credits of changing one leaf of a tree that has one level more by then.
    fn credits(&self, depth: u16, leaves: u32, runs: u32) -> u32 {
        credits::extents(self.state, depth + 1, leaves, runs)
    }
}

fn depth(state: &Ext4State, disk: &DiskInode) -> u16 {
    let root = ExtentNode::root(&disk.i_block, NodeLimits::root(&state.superblock));
    root.map_or(0, |root| root.depth())
}
