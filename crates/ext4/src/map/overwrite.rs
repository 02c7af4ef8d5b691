//! Room 1, `overwrite-no-transaction`: mapping a write without starting a journal handle.
//!
//! Fast route: look the range up; if all of it is written, that is the mapping, and the journal is not touched. Plain
//! route: a real handle around the look-up, as for a write that may have to allocate: join the running transaction,
//! reserve credits, check log space, stop.
//!
//! Legal because a range whose pieces are all `Written` needs no metadata change. Whether they are, and whether the
//! range lies inside the size, is decided after the look-up by the plan; a write that needs more is refused there.

use crate::error::Error;
use uext4_iomap::{Count, Counter, MapMiss, MapSnapshot, Piece, Pieces, Range, State};
use uext4_jbd2::Journal;

/// Credits that a write reserves for mapping one extent when it may have to allocate: the blocks of an extent tree
/// path, bitmaps and descriptors of the groups touched, inode and superblock
/// (the rule of `Documentation/filesystems/ext4`, "journal credits": index blocks, one group and one descriptor for
/// each block changed, and three for the inode and the superblock).
const MAPPING_CREDITS: u32 = 11;

/// The fast route: no handle.
#[inline]
pub(crate) fn without_handle(
    map: &MapSnapshot,
    block_bits: u32,
    range: Range,
    pieces: &mut Pieces,
    counters: &impl Count,
) -> Result<(), MapMiss<Error>> {
    look_up(map, block_bits, range, pieces)?;
    counters.bump(Counter::OverwritesWithoutHandle);
    Ok(())
}

/// The plain route: a handle around the look-up. Nothing is dirtied, so the transaction stays empty.
#[inline(never)]
pub(crate) fn with_handle(
    journal: Option<&Journal>,
    map: &MapSnapshot,
    block_bits: u32,
    range: Range,
    pieces: &mut Pieces,
    counters: &impl Count,
) -> Result<(), MapMiss<Error>> {
    // A volume without a journal has no handles to start: both routes are the same look-up.
    let Some(journal) = journal else { return look_up(map, block_bits, range, pieces) };
    let handle = journal.start(MAPPING_CREDITS).map_err(|error| MapMiss::Failed(error.into()))?;
    counters.bump(Counter::HandlesStarted);
    let found = look_up(map, block_bits, range, pieces);
    handle.stop().map_err(|error| MapMiss::Failed(error.into()))?;
    found
}

#[inline]
fn look_up(
    map: &MapSnapshot,
    block_bits: u32,
    range: Range,
    pieces: &mut Pieces,
) -> Result<(), MapMiss<Error>> {
    pieces.clear();
    if let Some(physical) = map.find_written(range, block_bits) {
        pieces.push(Piece { logical: range.pos, physical, length: range.length, state: State::Written });
        return Ok(());
    }
    map.pieces(range, block_bits, pieces).map_err(MapMiss::Unknown)
}
