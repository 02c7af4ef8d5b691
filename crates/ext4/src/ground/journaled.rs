//! Metadata blocks under change in a journal handle.
//!
//! What is changed is seen at once by whoever reads through the cache, and reaches its home after the transaction is
//! committed.

use super::blocks::Blocks;
use super::error::{Error, Result};
use super::state::Ground;
use uext4_jbd2::{AbortCause, FreedRun, Handle, Journal, Tid};
use uext4_ondisk::Pblk;

/// A handle on the volume's journal.
pub(crate) struct Journaled<'g> {
    ground: &'g Ground,
    /// Dropped before the handle: nobody commits in between.
    half: Half<'g>,
    handle: Handle<'g>,
}

/// Aborts the journal if it is dropped after a change: by an error of the edit, or by its panic.
struct Half<'g> {
    journal: &'g Journal,
    changed: bool,
}

impl Half<'_> {
    fn change<T>(&mut self, bytes: &mut [u8], change: impl FnOnce(&mut [u8]) -> T) -> T {
        self.changed = true;
        change(bytes)
    }
}

impl Drop for Half<'_> {
    fn drop(&mut self) {
        if self.changed {
            let what = "a change of metadata ended half-way".into();
            self.journal.abort(AbortCause { what, errno: libc::EIO });
        }
    }
}

impl<'g> Journaled<'g> {
    /// Runs an edit that changes at most `credits` blocks ([`super::credits`]) in a handle of its own. Waits for room
    /// in the log; the caller holds no handle and no lock that comes after handles.
    ///
    /// An edit that fails or panics after its first change has left half of itself in the transaction: the journal is
    /// aborted, and nothing of the transaction is committed.
    ///
    /// # Errors
    /// What `edit` says; [`Error::Journal`] if there is no room for so many blocks; [`Error::Aborted`].
    pub(crate) fn run<T>(
        ground: &'g Ground,
        credits: u32,
        edit: impl FnOnce(&mut Journaled<'g>) -> Result<T>,
    ) -> Result<T> {
        let journal = ground.journal.as_ref().ok_or(Error::ReadOnly("no journal was opened"))?;
        let half = Half { journal, changed: false };
        let mut blocks = Journaled { ground, half, handle: journal.start(credits)? };
        match edit(&mut blocks) {
            Ok(done) => {
                blocks.half.changed = false;
                blocks.handle.stop()?;
                Ok(done)
            }
            Err(error) => {
                if blocks.half.changed {
                    // The first cause counts, and this one says more.
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

    fn look_verified<T>(
        &self,
        block: Pblk,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        Ok(look(&self.ground.cache.get_or_verify(block.get(), verify)?))
    }

    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let pin = self.ground.cache.pin(block.get())?;
        self.handle.get_write_access(&pin)?;
        let Journaled { handle, half, .. } = self;
        Ok(handle.dirty(&pin, |bytes| half.change(bytes, change))?)
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let pin = self.ground.cache.pin(block.get())?;
        self.handle.get_write_access(&pin)?;
        let Journaled { handle, half, .. } = self;
        Ok(handle.overwrite(&pin, |bytes| half.change(bytes, fill))?)
    }

    fn free_later(&mut self, first: Pblk, count: u64) -> Result<()> {
        Ok(self.handle.free_at_commit(FreedRun { first: first.get(), blocks: count })?)
    }

    fn transaction(&self) -> Option<Tid> {
        Some(self.tid())
    }

    fn freed(&mut self, block: Pblk) -> Result<()> {
        self.handle.revoke(block.get())?;
        self.half.changed = true;
        Ok(())
    }
}
