//! Metadata blocks under change in a journal handle.
//!
//! What is changed is seen at once by whoever reads through the cache, and reaches its home after the transaction is
//! committed.

use super::blocks::Blocks;
use super::error::{Error, Result};
use super::state::Ground;
use uext4_jbd2::{AbortCause, Handle, Tid};
use uext4_ondisk::Pblk;

/// A handle on the volume's journal.
pub(crate) struct Journaled<'g> {
    ground: &'g Ground,
    handle: Handle<'g>,
    /// Whether anything was changed.
    changed: bool,
}

impl<'g> Journaled<'g> {
    /// Runs an edit that changes at most `credits` blocks ([`super::credits`]) in a handle of its own. Waits for room
    /// in the log; the caller holds no handle and no lock that comes after handles.
    ///
    /// An edit that fails after its first change has left half of itself in the transaction: the journal is aborted,
    /// and nothing of the transaction is committed.
    ///
    /// # Errors
    /// What `edit` says; [`Error::Journal`] if there is no room for so many blocks; [`Error::Aborted`].
    pub(crate) fn run<T>(
        ground: &'g Ground,
        credits: u32,
        edit: impl FnOnce(&mut Journaled<'g>) -> Result<T>,
    ) -> Result<T> {
        let journal = ground.journal.as_ref().ok_or(Error::ReadOnly("no journal was opened"))?;
        let mut blocks = Journaled { ground, handle: journal.start(credits)?, changed: false };
        match edit(&mut blocks) {
            Ok(done) => {
                blocks.handle.stop()?;
                Ok(done)
            }
            Err(error) => {
                if blocks.changed {
                    let what = format!("a change of metadata failed half-way: {error}").into();
                    journal.abort(AbortCause { what, errno: error.errno() });
                }
                Err(error)
            }
        }
    }

    /// The transaction.
    pub(crate) fn tid(&self) -> Tid {
        self.handle.tid()
    }

    /// Blocks that may still be changed.
    pub(crate) fn credits(&self) -> u32 {
        self.handle.credits()
    }
}

impl Blocks for Journaled<'_> {
    fn ground(&self) -> &Ground {
        self.ground
    }

    fn look<T>(&self, block: Pblk, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        Ok(look(&self.ground.cache.read(block.get())?))
    }

    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let pin = self.ground.cache.pin(block.get())?;
        self.handle.get_write_access(&pin)?;
        let done = self.handle.dirty(&pin, change)?;
        self.changed = true;
        Ok(done)
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let pin = self.ground.cache.pin(block.get())?;
        self.handle.get_write_access(&pin)?;
        let done = self.handle.overwrite(&pin, fill)?;
        self.changed = true;
        Ok(done)
    }

    fn transaction(&self) -> Option<Tid> {
        Some(self.tid())
    }

    fn freed(&mut self, block: Pblk) -> Result<()> {
        self.handle.revoke(block.get())?;
        self.changed = true;
        Ok(())
    }
}
