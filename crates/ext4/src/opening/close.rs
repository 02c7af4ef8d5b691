//! The flag that says that the log is in use (`needs_recovery`), and what is written last. On a volume without a
//! journal it is the state that says that it was left cleanly, which is taken away as long as there are changes.
//!
//! The flag is set, durably, before the log is used, and cleared when the log is empty and everything is home: without
//! it the next mount throws the log away. Both write the superblock as it is on the device, past the cache. What a
//! transaction makes of the superblock has the flag set (`ground/primary.rs`): it comes home while the log is in use.

use super::on_device::{encode, superblock_bytes, write_bytes};
use crate::alloc::group::free_counts;
use crate::ground::direct::Direct;
use crate::ground::error::Result;
use crate::ground::seal::{flag_log, seal};
use crate::ground::state::Ground;
use crate::ground::unlogged::Unlogged;
use uext4_jbd2::AbortCause;
use uext4_ondisk::ext4::{SUPERBLOCK_OFFSET, State, Superblock};

/// Makes it durable that the log is in use, or that the volume without one is.
///
/// # Errors
/// [`Error::Corrupt`](crate::ground::error::Error::Corrupt) if somebody else has damaged the superblock meanwhile;
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
    encode(&superblock, &mut bytes)?;
    flag_log(&mut bytes, in_use);
    seal(&before, &mut bytes);
    write_bytes(device, SUPERBLOCK_OFFSET, &bytes)?;
    Ok(device.flush()?)
}

/// The same for a volume that is not in use any more. Files may be open still, and what was written to them may have
/// gone with the flush that failed: a later one would not tell.
fn rewrite_last(ground: &Ground, change: impl FnOnce(&mut Superblock)) -> Result<()> {
    rewrite(ground, false, change).inspect_err(|error| {
        let what = format!("the superblock could not be marked (not in use): {error}").into();
        ground.abort(AbortCause { what, errno: error.errno() });
    })
}

/// Brings everything home, so that the volume needs no recovery. Nothing is written if nothing was changed since it was
/// opened, or since the last time. The caller holds no handle.
///
/// The free counts of the superblock are written with the flag, when nobody can change them.
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
    // Until the flag is cleared nobody begins to use the log again.
    let _quiet = journal.lock_updates()?;
    journal.empty_log()?;
    let (free_blocks, free_inodes) = free_counts(&Direct(ground))?;
    rewrite_last(ground, |superblock| {
        (superblock.free_blocks, superblock.free_inodes) = (free_blocks, free_inodes);
    })?;
    // What was read of it before is an old one.
    let (block, _) = ground.superblock.geometry.superblock_position();
    Ok(ground.cache.forget(block.get())?)
}

/// The same without a journal. The volume was left cleanly then, if it had been so before.
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
