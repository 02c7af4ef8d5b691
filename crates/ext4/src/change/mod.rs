//! Changes of a file: allocating and freeing blocks, converting unwritten ones, setting the size.
//!
//! | file | what |
//! |---|---|
//! | `allocate.rs` | allocates blocks for holes |
//! | `append.rs`, `queued.rs` | blocks past the end that are written before they are mapped |
//! | `holes.rs` | the same for holes inside the size |
//! | `pointers.rs` | allocation for maps of block pointers |
//! | `data.rs` | contents that are written through the log |
//! | `convert.rs` | marks unwritten blocks written, and sets the size |
//! | `remove.rs` | frees blocks and lowers the size |
//! | `clear.rs` | marks written blocks unwritten |
//! | `shift.rs` | moves blocks within the file |
//! | `swap.rs` | puts blocks in place of others: atomic writes |
//! | `fast_commit.rs` | describes for fast commits what was declared |
//! | `free.rs` | frees everything an unlinked inode has |
//! | `attributes.rs` | copies owner, mode, access control lists and the like from a replaced file |
//! | `set_attributes.rs` | sets permissions, owner, times and the like |
//! | `set_xattr.rs` | sets and removes extended attributes |
//! | `attribute_blocks.rs` | stores attributes in the record and in shared blocks |
//! | `value_inodes.rs` | values of attributes in inodes of their own |
//! | `set_flags.rs` | which flags and projects can be set |
//! | `inline.rs` | contents inside the inode, and their way out |
//! | `privileges.rs` | strips set-user-id, set-group-id and capabilities at the first write |
//! | `times.rs` | writes times of overwrites, which change nothing else |
//! | `orphans.rs` | inodes to be freed or cut, also after a crash |
//!
//! Each step is one handle, started without holding a lock. Inside it, locks are taken in this order: the inode's
//! editor lock ([`Inode::edit`]), its map lock, then free space. The map lock is held from the first look until the
//! result is published, so nobody loads a mapping while it changes.
//!
//! [`Inode::edit`]: crate::inode::Inode::edit

mod allocate;
pub(crate) mod append;
pub(crate) mod attribute_blocks;
mod attributes;
mod clear;
mod convert;
pub(crate) mod data;
pub(crate) mod fast_commit;
pub(crate) mod free;
pub(crate) mod holes;
mod inline;
pub(crate) mod orphans;
mod pointers;
pub(crate) mod privileges;
pub(crate) mod queued;
mod remove;
mod set_attributes;
mod set_flags;
pub(crate) mod set_xattr;
mod shift;
pub(crate) mod swap;
mod times;
mod value_inodes;

use crate::alloc::shared::{FreeSpace, Promise};
use crate::ground::credits;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::features;
use crate::inode::fields::{check_size, maps_extents};
use crate::inode::{Ext4State, Inode};
use crate::map::edit;
use orphans::Orphans;
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{ExtentNode, Inode as DiskInode, NodeLimits};

/// How often an allocation waits for a commit that releases blocks.
const COMMITS_FOR_ROOM: usize = 3;

/// Changes of the files of a volume.
#[derive(Clone, Copy)]
pub(crate) struct Files<'v> {
    pub(crate) state: &'v Ext4State,
    pub(crate) space: &'v Arc<FreeSpace>,
    pub(crate) orphans: &'v Orphans,
}

impl Files<'_> {
    /// Checks that an inode can get blocks.
    ///
    /// # Errors
    /// [`Error::Incompatible`] naming what is missing.
    pub(crate) fn check_allocates(&self, inode: &Inode) -> Result<()> {
        self.check_changes()?;
        // As in the kernel: a pointer cannot say that a block is part of a cluster.
        if !self.maps_extents(inode) && self.state.superblock.geometry.cluster_blocks() > 1 {
            let feature = format!("a map without extents on a volume with clusters (inode {})", inode.ino());
            return Err(Error::Incompatible { action: "allocate", feature });
        }
        Ok(())
    }

    /// Whether an inode has a map of extents, or gets one when its contents leave it.
    pub(crate) fn maps_extents(&self, inode: &Inode) -> bool {
        maps_extents(&self.state.superblock, &inode.disk())
    }

    /// Checks that an inode can have unwritten blocks.
    ///
    /// # Errors
    /// [`Error::Incompatible`] naming what is missing.
    pub(crate) fn check_unwritten(&self, inode: &Inode) -> Result<()> {
        self.check_changes()?;
        if !self.maps_extents(inode) {
            let feature =
                format!("a map without extents (inode {}), which holds data and holes only", inode.ino());
            return Err(Error::Incompatible { action: "preallocate, zero or shift blocks", feature });
        }
        Ok(())
    }

    /// Checks that maps and sizes can be changed at all, which is enough to free blocks.
    ///
    /// # Errors
    /// [`Error::Incompatible`] naming what is missing.
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

    /// Reserves the map blocks that converting a range may need.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; those of reading the groups.
    pub(crate) fn promise(&self, inode: &Inode, blocks: Range<u64>) -> Result<Promise> {
        let clusters = self.nodes_of_ends(inode, &blocks);
        self.with_room(|| self.space.promise(self.state, inode.ino(), clusters))
    }

    /// Reserves blocks for pages of a file that are not in its map yet.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::NotSupported`] if limits of quota hold for the file: they are checked where blocks
    /// are allocated.
    pub(crate) fn promise_late(&self, inode: &Inode, blocks: u64) -> Result<()> {
        if inode.is_limited() {
            return Err(Error::NotSupported("promises under limits of quota"));
        }
        // With clusters each block may need one of its own. A node of the map that was split has room for 42 extents at
        // the least. What a conversion reserves is returned, so that is needed once.
        let clusters = blocks + blocks.div_ceil(32);
        let more = 2 * self.nodes_of_ends(inode, &(0..u64::from(u32::MAX)));
        self.with_room(|| self.space.promise_late(self.state, inode.ino(), clusters, more))
    }

    /// The same, or `None` if that would have to wait.
    pub(crate) fn try_promise(&self, inode: &Inode, blocks: Range<u64>) -> Option<Promise> {
        self.space.try_promise(self.state, inode.ino(), self.nodes_of_ends(inode, &blocks))
    }

    /// Each end of a conversion may split a leaf and all nodes above it.
    fn nodes_of_ends(&self, inode: &Inode, blocks: &Range<u64>) -> u64 {
        let levels = u64::from(self.depth(inode)) + 2;
        2.min(blocks.end - blocks.start + 1) * levels * edit::copies(self.state) as u64
    }

    /// Retries a step after a commit if it finds no room while freed blocks wait for the commit, and after making the
    /// entries of quota and the inodes of values that it waits for.
    pub(crate) fn with_room<T>(&self, step: impl FnMut() -> Result<T>) -> Result<T> {
        let mut made = Vec::new();
        let done = self.try_for_room(&mut made, step);
        if !made.is_empty() {
            self.leave_unused_values(&made);
        }
        done
    }

    /// `made`: the inodes of values made for it.
    fn try_for_room<T>(&self, made: &mut Vec<Ino>, mut step: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..COMMITS_FOR_ROOM {
            let mut done = step();
            if matches!(done, Err(Error::NoSpace)) && self.create_wanted_entries()? {
                done = step();
            }
            if matches!(done, Err(Error::NoSpace)) && self.make_wanted_values(made)? {
                done = step();
            }
            if matches!(done, Err(Error::NoSpace)) && self.space.close_windows() {
                done = step();
            }
            match done {
                Err(Error::NoSpace) if self.space.awaits_commit() => {
                    self.state.commit_all()?;
                }
                // Another thread's commit may have released some since the step failed.
                Err(Error::NoSpace) => return step(),
                other => return other,
            }
        }
        step()
    }

    /// Levels of the tree below its root. Damage to the root is reported by the edit.
    pub(crate) fn depth(&self, inode: &Inode) -> u16 {
        depth(self.state, &inode.disk())
    }

    /// Credits to change leaves of a tree, which may have grown by one level.
    fn credits(&self, depth: u16, leaves: u32, runs: u32) -> u32 {
        credits::extents(self.state, depth + 1, leaves, runs)
    }
}

fn depth(state: &Ext4State, disk: &DiskInode) -> u16 {
    let root = ExtentNode::root(&disk.i_block, NodeLimits::root(&state.superblock));
    root.map_or(0, |root| root.depth())
}
