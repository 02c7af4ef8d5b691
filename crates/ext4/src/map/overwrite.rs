//! Room 1, `overwrite-no-transaction`: maps an overwrite without starting a journal handle.
//!
//! Fast route: nothing; the look-up that follows is the whole mapping, and the journal is not touched. Plain route: a
//! real handle around the look-up, as for a write that may have to allocate: join the running transaction, reserve
//! credits, check log space, stop.
//!
//! Correct because a range whose pieces are all `Written` and inside the size needs no metadata change. The plan
//! decides after the look-up whether they are, and refuses a write that needs more.

use crate::ground::error::Result;
use uext4_iomap::switches::Routing;
use uext4_iomap::{Count, Counter};
use uext4_jbd2::{Handle, Journal};

/// Credits that a write reserves for mapping one extent when it may have to allocate: the blocks of an extent tree
/// path, bitmaps and descriptors of the affected groups, inode and superblock. Follows Linux's
/// `ext4_chunk_trans_blocks` for one extent and a tree of depth one: 2 index blocks, 3 groups, 3 descriptors, and 3 for
/// the inode and the superblock.
const MAPPING_CREDITS: u32 = 11;

/// The journal work for mapping an overwrite. A volume without a journal has no handles to start: both routes are the
/// same there.
#[inline(always)]
pub(crate) fn start<'j, R: Routing>(
    journal: Option<&'j Journal>,
    routing: R,
    counters: &impl Count,
) -> Result<Option<Handle<'j>>> {
    if routing.switches().overwrite_no_transaction {
        return Ok(None);
    }
    let Some(journal) = journal else { return Ok(None) };
    let handle = journal.start(MAPPING_CREDITS)?;
    counters.bump(Counter::HandlesStarted);
    Ok(Some(handle))
}
