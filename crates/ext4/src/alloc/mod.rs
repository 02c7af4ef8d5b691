//! Space: which blocks and inodes are free, and how edits get and return them.

use crate::ground::blocks::Blocks;
use crate::ground::error::Result;
use uext4_ondisk::{Ino, Pblk};

/// Where an edit gets blocks for metadata from, and where it returns blocks to.
pub(crate) trait Space {
    /// A block for metadata of `ino`, near it and before block number `limit`, marked used. Its contents are anything:
    /// make them with [`Blocks::fresh`].
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::ground::error::Error::NoSpace).
    fn take(&mut self, blocks: &mut impl Blocks, ino: Ino, limit: u64) -> Result<Pblk>;

    /// Blocks that `ino` does not use any more, data or metadata. A metadata block is told to [`Blocks::freed`]
    /// besides.
    fn give_back(&mut self, blocks: &mut impl Blocks, ino: Ino, first: Pblk, count: u64) -> Result<()>;
}
