//! The flag that the log is in use (`needs_recovery`), and the last writes of a close. On a volume without a journal
//! the state flag "clean" takes its place, and is cleared while there are changes.
//!
//! The flag is set, durably, before the log is used, and cleared when the log is empty and all blocks are home: without
//! it the next mount discards the log. Both write the superblock directly to the device, past the cache. Copies of the
//! superblock in transactions have the flag set (`ground/primary.rs`), since they are written home while the log is in
//! use.

use super::on_device::{encode, superblock_bytes, write_bytes};
use crate::alloc::group::free_counts;
use crate::ground::direct::Direct;
use crate::ground::error::Result;
use crate::ground::seal::{flag_log, seal};
use crate::ground::state::Ground;
use crate::ground::unlogged::Unlogged;
use uext4_jbd2::AbortCause;
use uext4_ondisk::ext4::{SUPERBLOCK_OFFSET, State, Superblock};

/// Durably marks the log as in use, or the volume if it has none.
///
/// # Errors
/// [`Error::Corrupt`](crate::ground::error::Error::Corrupt) if the superblock on the device was damaged meanwhile;
/// those of the device.
pub(crate) fn log_begins(ground: &Ground) -> Result<()> {
    match ground.unlogged {
        Some(_) => rewrite(ground, false, |superblock| superblock.state &= !State::CLEAN),
        None => rewrite(ground, true, |_| ()),
    }
}

/// Changes the superblock on the device.
fn rewrite(ground: &Ground, in_use: bool, change: impl FnOnce(&mut Superblock)) -> Result<()> {
    let device = &**ground.cache.device();
    let before = superblock_bytes(device)?;
    let (mut bytes, mut superblock) = (before.clone(), Superblock::decode(&before)?);
    change(&mut superblock);
    ground.stamp(&mut superblock);
    encode(&superblock, &mut bytes)?;
    flag_log(&mut bytes, in_use);
    seal(&before, &mut bytes);
    write_bytes(device, SUPERBLOCK_OFFSET, &bytes)?;
    Ok(device.flush()?)
}

/// The same for a volume that is no longer in use; a failure aborts it. Files may still be open, and the failed flush
/// may have lost writes to them, which a later flush would not report.
fn rewrite_last(ground: &Ground, change: impl FnOnce(&mut Superblock)) -> Result<()> {
    rewrite(ground, false, change).inspect_err(|error| {
        let what = format!("the superblock could not be marked (not in use): {error}").into();
        ground.abort(AbortCause { what, errno: error.errno() });
    })
}

/// Writes everything home, so that the volume needs no recovery. Writes nothing if nothing was changed since the volume
/// was opened or last settled. The caller holds no handle.
///
/// The free counts of the superblock are written along with the flag, while nobody can change them.
///
/// # Errors
/// [`Error::Aborted`](crate::ground::error::Error::Aborted): the flag and the log stay as they are, for recovery.
pub(crate) fn settle(ground: &Ground) -> Result<()> {
    if let Some(unlogged) = &ground.unlogged {
        return settle_unlogged(ground, unlogged);
    }
    let Some(journal) = &ground.journal else { return Ok(()) };
    journal.check_alive()?;
    if !journal.in_use() {
        return Ok(());
    }
    // Keep others from using the log before the flag is cleared.
    let _quiet = journal.lock_updates()?;
    journal.empty_log()?;
    let (free_blocks, free_inodes) = free_counts(&Direct(ground))?;
    rewrite_last(ground, |superblock| {
        (superblock.free_blocks, superblock.free_inodes) = (free_blocks, free_inodes);
    })?;
    // The cached copy is out of date.
    let (block, _) = ground.superblock.geometry.superblock_position();
    Ok(ground.cache.forget(block.get())?)
}

/// The same without a journal. Marks the volume clean if it was clean when it was opened.
fn settle_unlogged(ground: &Ground, unlogged: &Unlogged) -> Result<()> {
    unlogged.check_alive()?;
    if !unlogged.in_use() {
        return Ok(());
    }
    let quiet = unlogged.quiesce()?;
    unlogged.commit_in(&quiet)?;
    let (free_blocks, free_inodes) = free_counts(&Direct(ground))?;
    let clean = ground.superblock.state & State::CLEAN;
    rewrite_last(ground, |superblock| {
        (superblock.free_blocks, superblock.free_inodes) = (free_blocks, free_inodes);
        superblock.state |= clean;
    })?;
    unlogged.left_cleanly(&quiet);
    let (block, _) = ground.superblock.geometry.superblock_position();
    Ok(ground.cache.forget(block.get())?)
}
