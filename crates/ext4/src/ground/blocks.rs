//! Metadata blocks under change: the one way by which maps, directories, bitmaps and inodes are edited.
//!
//! An edit is written once, over [`Blocks`], and runs on three bodies: the canvas of a replay (`canvas.rs`), which
//! keeps changed blocks in memory, a step of a journal or of a volume without one (`journaled.rs`), and the cache alone
//! (`direct.rs`). `credits.rs` says how many blocks an edit changes at most.
//!
//! # The rule of an edit
//! First it looks at every block it needs and checks it, then it changes: an edit on a corrupt structure is a typed
//! error and changes no block. Errors are neutral: [`Error::NoSpace`](super::error::Error::NoSpace),
//! [`Error::Limit`](super::error::Error::Limit), [`Error::Corrupt`](super::error::Error::Corrupt) and those of the
//! body; what they mean to a replay or a caller is said by those. After the first change only the body itself may fail
//! (a read or a credit that is missing), and then the whole transaction is lost.

use super::error::Result;
use super::state::Ground;
use uext4_jbd2::Tid;
use uext4_ondisk::{Ino, Lblk, Pblk};

/// Metadata blocks, as they are now and as an edit makes them.
pub(crate) trait Blocks {
    /// The volume that they belong to.
    fn ground(&self) -> &Ground;

    /// What `look` says of a block as it is now.
    fn look<T>(&self, block: Pblk, look: impl FnOnce(&[u8]) -> T) -> Result<T>;

    /// The same of a block that `verify` finds sound. It may be asked for each load of the block only, so it says the
    /// same of all that is made of a sound block.
    fn look_verified<T>(
        &self,
        block: Pblk,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        self.look(block, |bytes| verify(bytes).map(|()| look(bytes)))?
    }

    /// Changes a block in place. The caller has looked at it before and found it sound.
    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T>;

    /// The same for a block of which a part is in a new block from now on. Without a journal it goes home after all
    /// that leads there.
    fn change_moved<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.change(block, change)
    }

    /// Makes metadata of a block that was allocated for it: `fill` gets zeroes, nothing is read.
    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T>;

    /// A block is no metadata any more. No older copy of it may come back (revoke), and it carries nothing else before
    /// the change is durable.
    fn freed(&mut self, block: Pblk) -> Result<()>;

    /// These blocks are free. They carry nothing else before the change is durable.
    fn free_later(&mut self, _first: Pblk, _count: u64) -> Result<()> {
        Ok(())
    }

    /// The transaction that the changes belong to; none where they are written without one.
    fn transaction(&self) -> Option<Tid> {
        None
    }

    /// Notes that a block is this one of a directory: a replay of hostile records refuses one that is another's too.
    fn claim(&self, _block: Pblk, _ino: Ino, _number: Lblk) -> Result<()> {
        Ok(())
    }

    /// Notes that an edit looks at so many bytes, or copies them: a replay of hostile records bounds its work by it.
    fn work(&self, _bytes: usize) -> Result<()> {
        Ok(())
    }
}
