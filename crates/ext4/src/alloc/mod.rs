//! Space: which blocks and inodes are free, and how edits get and return them.
//!
//! | file | what |
//! |---|---|
//! | `bits.rs` | ranges of bits |
//! | `claims.rs` | blocks that are somebody's before a bitmap says so |
//! | `group.rs` | bitmaps and descriptor of one group: the only file that changes them |
//! | `inode.rs` | inodes made and freed |
//! | `masks.rs` | bitmaps of freed and claimed clusters, where they are many |
//! | `orders.rs` | which groups may have a long run |
//! | `runs.rs` | runs of blocks that are set apart |
//! | `search.rs` | where new blocks and inodes are looked for: the policy |
//! | `reserve.rs` | what the data of files may not have |
//! | `trim.rs` | the device is told what is free |
//! | `shared.rs` | the same for all who change the volume at once, and what is promised to conversions |

pub(crate) mod bits;
pub(crate) mod claims;
pub(crate) mod group;
#[allow(dead_code)] // The operations that use it come next.
pub(crate) mod inode;
mod masks;
mod orders;
pub(crate) mod reserve;
mod runs;
pub(crate) mod search;
pub(crate) mod shared;
pub(crate) mod trim;

use crate::ground::blocks::Blocks;
use crate::ground::error::Result;
use uext4_ondisk::{Ino, Pblk};

/// Where an edit gets blocks for metadata from, and where it returns blocks to.
pub(crate) trait Space {
    /// `count` blocks for metadata of `ino`, near it and before block number `limit`, marked used. Their contents are
    /// anything: make them with [`Blocks::fresh`]. On volumes with clusters each is the first block of one of its own.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::ground::error::Error::NoSpace) if there are not so many: nothing was changed then.
    fn take(&mut self, blocks: &mut impl Blocks, ino: Ino, count: usize, limit: u64) -> Result<Vec<Pblk>>;

    /// Runs of blocks that `ino` does not use any more, data or metadata. A metadata block is told to [`Blocks::freed`]
    /// besides. On volumes with clusters every cluster that a run touches becomes free: the caller tells of one once,
    /// when nothing of it is mapped any more.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::ground::error::Error::Corrupt) if one of them is free already or holds metadata at a
    /// fixed place: nothing was changed then. Those of the body.
    fn give_back(&mut self, blocks: &mut impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()>;
}
