//! Metadata blocks under change in one step: in a journal handle, or on a volume without a journal.
//!
//! What is changed is seen at once by whoever reads through the cache. It reaches its home after the transaction is
//! committed; without a journal, with the batch that it belongs to (`unlogged.rs`).

use super::blocks::Blocks;
use super::error::{Error, Result};
use super::order::{Rank, Taken};
use super::state::Ground;
use super::unlogged::Step;
use uext4_jbd2::{AbortCause, FreedRun, Handle, Tid};
use uext4_ondisk::Pblk;

/// A step.
pub(crate) struct Journaled<'g> {
    ground: &'g Ground,
    /// Dropped before the handle: nobody commits in between.
    half: Half<'g>,
    body: Body<'g>,
    _taken: Taken,
}

enum Body<'g> {
    Handle(Handle<'g>),
    Unlogged(Step<'g>),
}

/// Aborts the volume if it is dropped after a change: by an error of the edit, or by its panic.
struct Half<'g> {
    ground: &'g Ground,
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
            self.ground.abort(AbortCause { what, errno: libc::EIO });
        }
    }
}

impl<'g> Journaled<'g> {
    /// Runs an edit that changes at most `credits` blocks ([`super::credits`]) in a handle of its own. Waits for room
    /// in the log, or for a batch on its way home; the caller holds no handle and no lock that comes after handles.
    ///
    /// An edit that fails or panics after its first change has left half of itself in the transaction: the volume is
    /// aborted, and nothing of the transaction is committed.
    ///
    /// # Errors
    /// What `edit` says; [`Error::Journal`] if there is no room for so many blocks; [`Error::Aborted`].
    pub(crate) fn run<T>(
        ground: &'g Ground,
        credits: u32,
        edit: impl FnOnce(&mut Journaled<'g>) -> Result<T>,
    ) -> Result<T> {
        let _taken = Taken::note(Rank::Handle);
        let body = match (&ground.journal, &ground.unlogged) {
            (Some(journal), _) => Body::Handle(journal.start(credits)?),
            (None, Some(unlogged)) => Body::Unlogged(unlogged.begin(&ground.zones)?),
            (None, None) => return Err(Error::ReadOnly("no journal was opened")),
        };
        let mut blocks = Journaled { ground, half: Half { ground, changed: false }, body, _taken };
        match edit(&mut blocks) {
            Ok(done) => {
                blocks.half.changed = false;
                if let Body::Handle(handle) = blocks.body {
                    handle.stop()?;
                }
                Ok(done)
            }
            Err(error) => {
                if blocks.half.changed {
                    // The first cause counts, and this one says more.
                    let what = format!("a change of metadata failed half-way: {error}").into();
                    ground.abort(AbortCause { what, errno: error.errno() });
                }
                Err(error)
            }
        }
    }

    /// The transaction.
    pub(crate) fn tid(&self) -> Tid {
        match &self.body {
            Body::Handle(handle) => handle.tid(),
            Body::Unlogged(step) => step.number(),
        }
    }

    /// Blocks that may still be changed.
    pub(crate) fn credits(&self) -> u32 {
        match &self.body {
            Body::Handle(handle) => handle.credits(),
            Body::Unlogged(_) => u32::MAX,
        }
    }

    fn change_in_turn<T>(
        &mut self,
        block: Pblk,
        moved: bool,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let Journaled { ground, body, half, .. } = self;
        match body {
            Body::Handle(handle) => {
                let pin = ground.cache.pin(block.get())?;
                handle.get_write_access(&pin)?;
                Ok(handle.dirty(&pin, |bytes| half.change(bytes, change))?)
            }
            Body::Unlogged(step) => step.change(block, moved, |bytes| half.change(bytes, change)),
        }
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
        self.change_in_turn(block, false, change)
    }

    fn change_moved<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.change_in_turn(block, true, change)
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let Journaled { ground, body, half, .. } = self;
        match body {
            Body::Handle(handle) => {
                let pin = ground.cache.pin(block.get())?;
                handle.get_write_access(&pin)?;
                Ok(handle.overwrite(&pin, |bytes| half.change(bytes, fill))?)
            }
            Body::Unlogged(step) => step.fresh(block, |bytes| half.change(bytes, fill)),
        }
    }

    fn free_later(&mut self, first: Pblk, count: u64) -> Result<()> {
        let run = FreedRun { first: first.get(), blocks: count };
        match &mut self.body {
            Body::Handle(handle) => Ok(handle.free_at_commit(run)?),
            Body::Unlogged(step) => {
                step.free_later(run);
                Ok(())
            }
        }
    }

    fn transaction(&self) -> Option<Tid> {
        Some(self.tid())
    }

    fn freed(&mut self, block: Pblk) -> Result<()> {
        match &mut self.body {
            Body::Handle(handle) => handle.revoke(block.get())?,
            Body::Unlogged(step) => {
                // What it held is gone from memory.
                self.half.changed = true;
                step.freed(block)?;
            }
        }
        self.half.changed = true;
        Ok(())
    }
}
