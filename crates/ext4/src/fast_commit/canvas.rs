//! Metadata blocks under change: what the volume holds, with what was changed so far in memory.

use crate::error::{Error, Result};
use crate::volume::Ext4State;
use uext4_jbd2::Changes;
use uext4_ondisk::{Corrupt, CorruptKind};

/// The volume, and the blocks that were changed.
pub(super) struct Canvas<'v> {
    pub(super) state: &'v Ext4State,
    changed: Changes,
    bytes: u64,
    budget: u64,
    /// Bytes that everything else takes that is kept until the end.
    kept: u64,
    /// Blocks of all directories that were read.
    directory_blocks: u64,
}

/// Most bytes of inodes, names and ranges in memory.
const KEPT_MAX: u64 = 64 << 20;

impl<'v> Canvas<'v> {
    /// Nothing changed yet; at most `budget` bytes ever will be.
    pub(super) fn new(state: &'v Ext4State, budget: u64) -> Self {
        Canvas { state, changed: Changes::new(), bytes: 0, budget, kept: 0, directory_blocks: 0 }
    }

    pub(super) fn block_size(&self) -> usize {
        self.state.superblock.geometry.block_size() as usize
    }

    /// Notes that more is kept in memory.
    ///
    /// # Errors
    /// [`Error::Incompatible`] if that is more than may be.
    pub(super) fn charge(&mut self, bytes: usize) -> Result<()> {
        self.kept = self.kept.saturating_add(bytes as u64);
        if self.kept > KEPT_MAX {
            let feature = format!("fast commits that take more than {} MiB of memory", KEPT_MAX >> 20);
            return Err(Error::Incompatible { action: "recover", feature });
        }
        Ok(())
    }

    /// Notes that a directory of so many blocks is read. All of them together are no longer than the volume.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they are.
    pub(super) fn load_directory(&mut self, blocks: u32) -> Result<()> {
        self.directory_blocks += u64::from(blocks);
        if self.directory_blocks > self.state.superblock.geometry.blocks_count() {
            return Err(Corrupt::from(CorruptKind::DirectorySize).into());
        }
        Ok(())
    }

    /// A copy of a block as it is now.
    pub(super) fn read(&self, block: u64) -> Result<Vec<u8>> {
        match self.changed.get(&block) {
            Some(bytes) => Ok(bytes.to_vec()),
            None => Ok(self.state.cache.read(block)?.to_vec()),
        }
    }

    /// Gives a block other contents.
    ///
    /// # Errors
    /// [`Error::Incompatible`] if more was changed than may be kept in memory.
    pub(super) fn write(&mut self, block: u64, bytes: Vec<u8>) -> Result<()> {
        let added = if self.changed.contains_key(&block) { 0 } else { bytes.len() as u64 };
        if self.bytes + added > self.budget {
            let feature = format!("fast commits that change more than {} KiB of metadata", self.budget >> 10);
            return Err(Error::Incompatible { action: "recover", feature });
        }
        self.bytes += added;
        self.changed.insert(block, bytes.into());
        Ok(())
    }

    /// Changes a part of a block.
    pub(super) fn patch(&mut self, block: u64, offset: usize, part: &[u8]) -> Result<()> {
        let mut bytes = self.read(block)?;
        let place = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..part.len()));
        let outside = || Error::Invalid(format!("a change beyond the end of block {block}"));
        place.ok_or_else(outside)?.copy_from_slice(part);
        self.write(block, bytes)
    }

    /// What was changed.
    pub(super) fn into_changes(self) -> Changes {
        self.changed
    }
}
