//! What opening changes on the device itself, around the cache: the superblock, and a log that does not count.

use crate::ground::error::{Error, Result};
use crate::ground::recovered::RecoveryState;
use crate::ground::state::Ground;
use uext4_blockdev::{BufferPool, Device, WriteDurability};
use uext4_jbd2::{JournalInfo, Recovery, mark_empty};
use uext4_ondisk::ext4::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock};

pub(super) fn encode(superblock: &Superblock, bytes: &mut [u8]) -> Result<()> {
    superblock.encode(bytes).map_err(|error| Error::Invalid(error.to_string()))
}

/// Notes an error that the journal recorded in the volume's state. `write`: also on the device, first there and only
/// then no longer in the journal.
pub(super) fn note_journal_error(state: &mut Ground, journal: &JournalInfo, write: bool) -> Result<()> {
    let errno = journal.superblock.errno;
    if errno == 0 {
        return Ok(());
    }
    state.recovery.journal_errno = errno;
    state.superblock.state |= State::ERRORS;
    if !write {
        return Ok(());
    }
    let device = state.cache.device().clone();
    let mut bytes = superblock_bytes(&*device)?;
    encode(&state.superblock, &mut bytes)?;
    write_bytes(&*device, SUPERBLOCK_OFFSET, &bytes)?;
    device.flush()?;
    mark_empty(&*device, journal, journal.sequence(), 0)?;
    forget(state, journal)
}

/// Deals with a log in use although the superblock does not ask for recovery: it is ignored, and emptied if the
/// volume is opened for writing.
pub(super) fn ignore_log(
    state: &mut Ground,
    log: &uext4_jbd2::RunMap,
    journal: &JournalInfo,
    write: bool,
) -> Result<()> {
    state.recovery.state = RecoveryState::Ignored;
    if !write {
        return Ok(());
    }
    let device = state.cache.device().clone();
    // Only to learn which sequence numbers are used up.
    let left_overs = Recovery::read(&device, log, journal, state.cache.blocks())?;
    mark_empty(&*device, journal, left_overs.empty_sequence(), journal.superblock.errno)?;
    state.recovery.state = RecoveryState::Emptied;
    forget(state, journal)
}

/// What was written around the cache must be read again.
fn forget(state: &Ground, journal: &JournalInfo) -> Result<()> {
    let size = u64::from(state.superblock.geometry.block_size());
    state.cache.forget(SUPERBLOCK_OFFSET / size)?;
    Ok(state.cache.forget(journal.block)?)
}

pub(super) fn superblock_bytes(device: &dyn Device) -> Result<Vec<u8>> {
    read_bytes(device, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE as usize)
}

/// The device blocks around a range: first byte, length, and where the range begins in them.
fn around(device: &dyn Device, pos: u64, length: usize) -> (u64, usize, usize) {
    let block = u64::from(device.geometry().logical_block);
    let start = pos / block * block;
    let end = (pos + length as u64).next_multiple_of(block);
    (start, (end - start) as usize, (pos - start) as usize)
}

pub(super) fn read_bytes(device: &dyn Device, pos: u64, length: usize) -> Result<Vec<u8>> {
    let (start, whole, offset) = around(device, pos, length);
    let mut buffer = BufferPool::new(whole)?.take(whole)?;
    device.read_at(&mut buffer, start)?;
    Ok(buffer[offset..offset + length].to_vec())
}

pub(super) fn write_bytes(device: &dyn Device, pos: u64, bytes: &[u8]) -> Result<()> {
    let (start, whole, offset) = around(device, pos, bytes.len());
    let mut buffer = BufferPool::new(whole)?.take(whole)?;
    device.read_at(&mut buffer, start)?;
    buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
    Ok(device.write_at(&buffer, start, WriteDurability::Cached)?)
}
