//! Metadata blocks as they are in the cache, for readers.
//!
//! Changes through it become due for write-back, but nothing keeps the blocks of an edit together: only tests change
//! blocks this way. A volume without a journal is changed in steps (`journaled.rs`).

use super::blocks::Blocks;
use super::error::Result;
use super::last_descriptor::LastDescriptor;
use super::state::Ground;
use uext4_buffer::Owner;
use uext4_ondisk::Pblk;

/// The blocks of a volume, changed outside any transaction.
pub(crate) struct Direct<'g>(pub(crate) &'g Ground);

impl Blocks for Direct<'_> {
    fn ground(&self) -> &Ground {
        self.0
    }

    fn last_descriptor(&self) -> Option<&LastDescriptor> {
        Some(&self.0.last_descriptor)
    }

    fn look<T>(&self, block: Pblk, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        Ok(look(&self.0.cache.read(block.get())?))
    }

    fn look_verified<T>(
        &self,
        block: Pblk,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        Ok(look(&self.0.cache.get_or_verify(block.get(), verify)?))
    }

    fn look_for<T>(
        &self,
        block: Pblk,
        whom: u128,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        Ok(look(&self.0.cache.get_or_verify_for(block.get(), whom, verify)?))
    }

    fn change_for<T>(&mut self, block: Pblk, whom: u128, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let pin = self.0.cache.pin(block.get())?;
        Ok(self.0.cache.modify_for(&pin, Owner::Direct, whom, change)?)
    }

    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let pin = self.0.cache.pin(block.get())?;
        Ok(self.0.cache.modify(&pin, Owner::Direct, change)?)
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let pin = self.0.cache.pin(block.get())?;
        Ok(self.0.cache.overwrite(&pin, Owner::Direct, fill)?)
    }

    /// Cancels a pending write-back, after waiting for one in flight.
    fn freed(&mut self, block: Pblk) -> Result<()> {
        Ok(self.0.cache.forget(block.get())?)
    }
}
