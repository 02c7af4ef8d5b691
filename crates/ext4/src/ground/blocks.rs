//! Metadata blocks under change: the only interface through which maps, directories, bitmaps and inodes are edited.
//!
//! An edit is written once, over [`Blocks`], and runs on three implementations ("bodies"): the canvas of a replay
//! (`canvas.rs`), which keeps changed blocks in memory; a step of a journal or of a volume without one
//! (`journaled.rs`); and the cache alone (`direct.rs`). `credits.rs` says how many blocks an edit changes at most.
//!
//! # The rule of an edit
//! An edit first reads and checks every block it needs, and only then changes anything: on a corrupt structure it
//! returns a typed error and has changed no block. Errors are neutral
//! ([`Error::NoSpace`](super::error::Error::NoSpace), [`Error::Limit`](super::error::Error::Limit),
//! [`Error::Corrupt`](super::error::Error::Corrupt) and those of the body); a replay and a caller each decide what they
//! mean. After the first change only the body itself may fail (a failed read, a missing credit), and then the whole
//! transaction is lost.

use super::error::Result;
use super::last_descriptor::LastDescriptor;
use super::state::Ground;
use super::trace::Role;
use uext4_jbd2::Tid;
use uext4_ondisk::{Ino, Lblk, Pblk};

/// Metadata blocks: their current contents, and changes to them.
pub(crate) trait Blocks {
    /// The volume.
    fn ground(&self) -> &Ground;

    /// Says, for a trace, what a block holds that is changed next.
    fn describe(&self, _block: Pblk, _role: Role) {}

    /// Calls `look` on the current contents of a block.
    fn look<T>(&self, block: Pblk, look: impl FnOnce(&[u8]) -> T) -> Result<T>;

    /// The same for a block that `verify` accepts. `verify` may run only once per load of the block, so it must also
    /// accept everything that edits make of a sound block.
    fn look_verified<T>(
        &self,
        block: Pblk,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        self.look(block, |bytes| verify(bytes).map(|()| look(bytes)))?
    }

    /// The same if what `verify` accepts also depends on `whom` (not 0), which names all of that: it may run only once
    /// per load of the block and `whom`, until the block changes other than by [`Blocks::change_for`].
    fn look_for<T>(
        &self,
        block: Pblk,
        _whom: u128,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        self.look(block, |bytes| verify(bytes).map(|()| look(bytes)))?
    }

    /// Changes a block as [`Blocks::change`] does, such that `whom` would accept it again.
    fn change_for<T>(&mut self, block: Pblk, _whom: u128, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.change(block, change)
    }

    /// Changes a block in place. The caller has read and checked it before.
    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T>;

    /// The same for a block of which a part moved to a new block. Without a journal it is written home after all blocks
    /// that lead to the new one.
    fn change_moved<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.change(block, change)
    }

    /// Initializes a newly allocated metadata block: `fill` gets zeros, nothing is read.
    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T>;

    /// Whether this block can be changed in place: a journal makes all changes one, or nothing on the device leads to
    /// it yet. Otherwise a map gets another block instead, so that its inode is the only change (`map/edit/plan.rs`).
    fn changes_in_place(&self, _block: Pblk) -> bool {
        true
    }

    /// The block no longer holds metadata. No older copy of it may be replayed (revoke), and it is not reused before
    /// the change is durable.
    fn freed(&mut self, block: Pblk) -> Result<()>;

    /// These blocks are freed. They are not reused before the change is durable.
    fn free_later(&mut self, _first: Pblk, _count: u64) -> Result<()> {
        Ok(())
    }

    /// The transaction that the changes belong to; `None` if they are written without one.
    fn transaction(&self) -> Option<Tid> {
        None
    }

    /// The group descriptor that was stored last, where all that stores one says so.
    fn last_descriptor(&self) -> Option<&LastDescriptor> {
        None
    }

    /// Records that a block is block `number` of a directory. A replay of hostile records refuses a block that belongs
    /// to another directory too.
    fn claim(&self, _block: Pblk, _ino: Ino, _number: Lblk) -> Result<()> {
        Ok(())
    }

    /// Accounts for bytes that an edit reads or copies. A replay of hostile records bounds its work by this.
    fn work(&self, _bytes: usize) -> Result<()> {
        Ok(())
    }
}
