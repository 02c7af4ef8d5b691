//! Changing the primary superblock.

use super::blocks::Blocks;
use super::error::{Error, Result};
use super::seal::{self, flag_log, says_in_use, seal};
use super::trace::Role;
use uext4_ondisk::ext4::{SUPERBLOCK_SIZE, State, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind};

/// Sets the head of the orphan list. As [`change_superblock`], but in few instructions while the log is in use.
///
/// # Errors
/// As of [`change_superblock`].
pub(crate) fn set_last_orphan(blocks: &mut impl Blocks, ino: u32) -> Result<()> {
    let (block, offset) = blocks.ground().superblock.geometry.superblock_position();
    let offset = offset as usize;
    blocks.describe(block, Role::OrphanList);
    if blocks.ground().journal.is_some() && blocks.transaction().is_some() {
        let verify = |bytes: &[u8]| {
            Superblock::decode(bytes.get(offset..).unwrap_or_default())?;
            Ok(())
        };
        let in_use = blocks.look_verified(block, verify, |bytes| {
            bytes.get(offset..offset + SUPERBLOCK_SIZE as usize).is_some_and(says_in_use)
        })?;
        if in_use {
            return blocks.change(block, |bytes| {
                let superblock = bytes.get_mut(offset..offset + SUPERBLOCK_SIZE as usize);
                if let Some(superblock) = superblock {
                    seal::set_last_orphan(superblock, ino);
                }
            });
        }
    }
    change_superblock(blocks, |superblock| superblock.last_orphan = ino)
}

/// Changes fields of the superblock, serialized with other changes. Fields may have changed since the volume was
/// opened.
///
/// Also sets the flag that the log is in use, as the copy at home already does by the time this one is written home
/// (`opening/close.rs`). On a volume without a journal, clears the state flag "clean" instead.
///
/// # Errors
/// [`Error::Corrupt`] if it is damaged, with nothing changed. Those of the body.
pub(crate) fn change_superblock(
    blocks: &mut impl Blocks,
    change: impl FnOnce(&mut Superblock),
) -> Result<()> {
    let (block, offset) = blocks.ground().superblock.geometry.superblock_position();
    let offset = offset as usize;
    blocks.describe(block, Role::Superblock);
    let (logged, unlogged) = (blocks.ground().journal.is_some(), blocks.ground().unlogged.is_some());
    let stepwise = blocks.transaction().is_some();
    let short = || Error::from(Corrupt::from(CorruptKind::Truncated("superblock")));
    // Check it before anything is changed.
    blocks.look(block, |bytes| Superblock::decode(bytes.get(offset..).unwrap_or_default()).map(drop))??;
    blocks.change(block, |bytes| {
        let bytes = bytes.get_mut(offset..).ok_or_else(short)?;
        let before = bytes.get(..SUPERBLOCK_SIZE as usize).ok_or_else(short)?.to_vec();
        let mut superblock = Superblock::decode(bytes)?;
        change(&mut superblock);
        if stepwise && unlogged {
            superblock.state &= !State::CLEAN;
        }
        superblock.encode(bytes)?;
        if stepwise && logged {
            flag_log(bytes, true);
        }
        seal(&before, bytes);
        Ok(())
    })?
}
