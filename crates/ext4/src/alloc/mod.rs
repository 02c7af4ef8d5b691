//! Space: which blocks and inodes are free, and how edits allocate and free them.
//!
//! | file | what |
//! |---|---|
//! | `bits.rs` | ranges of bits |
//! | `claims.rs` | blocks reserved in memory before a bitmap marks them used |
//! | `group.rs` | bitmaps and descriptor of one group: the only file that changes them |
//! | `inode.rs` | creating and freeing inodes |
//! | `masks.rs` | bitmaps of freed and claimed clusters, where they are many |
//! | `orders.rs` | which groups may have a long run |
//! | `runs.rs` | sets of runs of blocks |
//! | `search.rs` | where to look for free blocks and inodes: the policy |
//! | `spread.rs` | which group a new inode goes to |
//! | `reserve.rs` | blocks that file data may not use |
//! | `trim.rs` | discards free blocks on the device |
//! | `shared.rs` | the locked free space that all changes share, and promises for conversions |

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
pub(crate) mod spread;
pub(crate) mod trim;

use crate::ground::blocks::Blocks;
use crate::ground::error::Result;
use uext4_ondisk::{Ino, Pblk};

/// Allocates metadata blocks for an edit, and frees blocks.
pub(crate) trait Space {
    /// Allocates `count` metadata blocks for `ino`, near it and below block number `limit`, and marks them used. Their
    /// contents are undefined: initialize them with [`Blocks::fresh`]. On volumes with clusters each is the first block
    /// of its own cluster.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::ground::error::Error::NoSpace) if there are too few, with nothing changed.
    fn take(&mut self, blocks: &mut impl Blocks, ino: Ino, count: usize, limit: u64) -> Result<Vec<Pblk>>;

    /// The same of blocks that nobody was promised, the caller neither.
    ///
    /// # Errors
    /// As of [`Space::take`].
    fn take_spare(
        &mut self,
        blocks: &mut impl Blocks,
        ino: Ino,
        count: usize,
        limit: u64,
    ) -> Result<Vec<Pblk>> {
        self.take(blocks, ino, count, limit)
    }

    /// Frees runs of blocks that `ino` no longer uses, data or metadata. For a metadata block the caller also calls
    /// [`Blocks::freed`]. On volumes with clusters every cluster that a run touches is freed: the caller names each
    /// only once, when none of its blocks is mapped any more.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::ground::error::Error::Corrupt) if one of them is already free or holds metadata at a
    /// fixed place, with nothing changed. Those of the body.
    fn give_back(&mut self, blocks: &mut impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()>;
}
