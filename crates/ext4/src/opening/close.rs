//! The flag that says that the log is in use (`needs_recovery`), and what is written last.
//!
//! The flag is set, durably, before the log is used, and cleared when the log is empty and everything is home: without
//! it the next mount throws the log away. Both write the superblock as it is on the device, past the cache. What a
//! transaction makes of the superblock has the flag set (`alloc/group.rs`): it comes home while the log is in use.

use super::on_device::{superblock_bytes, write_bytes};
use crate::alloc::group::store_counts;
use crate::ground::error::Result;
use crate::ground::journaled::Journaled;
use crate::ground::log_flag::flag_log;
use crate::ground::state::Ground;
use uext4_ondisk::ext4::{SUPERBLOCK_OFFSET, Superblock};

/// Makes it durable that the log is in use, or is not.
///
/// # Errors
/// [`Error::Corrupt`](crate::ground::error::Error::Corrupt) if somebody else has damaged the superblock meanwhile;
/// those of the device.
pub(crate) fn write_flag(ground: &Ground, in_use: bool) -> Result<()> {
    let device = &**ground.cache.device();
    let mut bytes = superblock_bytes(device)?;
    Superblock::decode(&bytes)?;
    flag_log(&mut bytes, in_use);
    write_bytes(device, SUPERBLOCK_OFFSET, &bytes)?;
    Ok(device.flush()?)
}

/// Brings everything home, so that the volume needs no recovery. Nothing is written if nothing was changed since it was
/// opened, or since the last time. The caller holds no handle.
///
/// # Errors
/// [`Error::Aborted`](crate::ground::error::Error::Aborted): the flag and the log stay as they are, for recovery.
pub(crate) fn settle(ground: &Ground) -> Result<()> {
    let Some(journal) = &ground.journal else { return Ok(()) };
    journal.check_alive()?;
    if !journal.in_use() {
        return Ok(());
    }
    Journaled::run(ground, 1, store_counts)?;
    // Until the flag is cleared nobody begins to use the log again.
    let _quiet = journal.lock_updates()?;
    journal.empty_log()?;
    write_flag(ground, false)
}
