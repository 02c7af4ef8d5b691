//! Writes to the device at open that bypass the cache: the superblock, and the superblock of a stale log.

use crate::ground::error::{Error, Result};
use crate::ground::recovered::RecoveryState;
use crate::ground::seal::seal;
use crate::ground::state::Ground;
use std::sync::Arc;
use uext4_blockdev::{Buffer, BufferPool, Device, WriteDurability};
use uext4_jbd2::{JournalInfo, LogMap, Recovery, mark_empty};
use uext4_ondisk::ext4::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock};

pub(super) fn encode(superblock: &Superblock, bytes: &mut [u8]) -> Result<()> {
    superblock.encode(bytes).map_err(|error| Error::Invalid(error.to_string()))
}

/// Copies an error that the journal recorded to the superblock. With `write` also on the device: the journal's record
/// is cleared only after the superblock is durable.
pub(super) fn note_journal_error(ground: &mut Ground, journal: &JournalInfo, write: bool) -> Result<()> {
    let errno = journal.superblock.errno;
    if errno == 0 {
        return Ok(());
    }
    ground.recovery.note_journal(errno, &ground.superblock);
    Arc::make_mut(&mut ground.superblock).state |= State::ERRORS;
    if !write {
        return Ok(());
    }
    let device = ground.cache.device().clone();
    let before = superblock_bytes(&*device)?;
    let (mut bytes, mut superblock) = (before.clone(), Superblock::clone(&ground.superblock));
    ground.stamp(&mut superblock);
    encode(&superblock, &mut bytes)?;
    seal(&before, &mut bytes);
    write_bytes(&*device, SUPERBLOCK_OFFSET, &bytes)?;
    device.flush()?;
    mark_empty(&**ground.log_device(), journal, journal.sequence(), 0)?;
    forget(ground, journal)
}

/// Ignores a log with contents if the superblock does not ask for recovery. An open for writing empties it.
pub(super) fn ignore_log(
    ground: &mut Ground,
    log: &dyn LogMap,
    journal: &JournalInfo,
    write: bool,
) -> Result<()> {
    ground.recovery.state = RecoveryState::Ignored;
    if !write {
        return Ok(());
    }
    let device = ground.log_device().clone();
    // Read only to learn which sequence numbers are used up.
    let left_overs = Recovery::read(&device, log, journal, ground.cache.blocks())?;
    mark_empty(&*device, journal, left_overs.empty_sequence(), journal.superblock.errno)?;
    ground.recovery.state = RecoveryState::Emptied;
    forget(ground, journal)
}

/// Drops cached copies of blocks that were written past the cache.
fn forget(ground: &Ground, journal: &JournalInfo) -> Result<()> {
    let size = u64::from(ground.superblock.geometry.block_size());
    ground.cache.forget(SUPERBLOCK_OFFSET / size)?;
    if ground.external_log.is_some() {
        return Ok(());
    }
    Ok(ground.cache.forget(journal.block)?)
}

pub(super) fn superblock_bytes(device: &dyn Device) -> Result<Vec<u8>> {
    read_bytes(device, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE as usize)
}

pub(crate) fn read_bytes(device: &dyn Device, pos: u64, length: usize) -> Result<Vec<u8>> {
    let (_, buffer, offset) = read_around(device, pos, length)?;
    Ok(buffer[offset..offset + length].to_vec())
}

pub(crate) fn write_bytes(device: &dyn Device, pos: u64, bytes: &[u8]) -> Result<()> {
    let (start, mut buffer, offset) = read_around(device, pos, bytes.len())?;
    buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
    Ok(device.write_at(&buffer, start, WriteDurability::Cached)?)
}

/// Reads the logical blocks around a range. Returns their first byte, their contents, and the range's offset in them.
fn read_around(device: &dyn Device, pos: u64, length: usize) -> Result<(u64, Buffer, usize)> {
    let block = u64::from(device.geometry().logical_block);
    let start = pos / block * block;
    let whole = ((pos + length as u64).next_multiple_of(block) - start) as usize;
    let mut buffer = BufferPool::new(whole)?.take(whole)?;
    device.read_at(&mut buffer, start)?;
    Ok((start, buffer, (pos - start) as usize))
}
