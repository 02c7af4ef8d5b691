//! Changing metadata blocks in one step: in a journal handle, or on a volume without a journal.
//!
//! Every reader of the cache sees a change at once. It is written home after the transaction commits; without a
//! journal, with its batch (`unlogged.rs`).

use super::blocks::Blocks;
use super::error::{Error, Result};
use super::last_descriptor::LastDescriptor;
use super::order::{Rank, Taken};
use super::state::Ground;
use super::trace::{Role, Watched};
use super::tracking::ChangedName;
use super::unlogged::Step;
use std::ops::Range;
use uext4_jbd2::{AbortCause, FreedRun, Handle, Tid};
use uext4_ondisk::{Ino, Lblk, Pblk};

/// A step.
pub(crate) struct Journaled<'g> {
    ground: &'g Ground,
    /// Dropped before the handle, so that no commit comes in between.
    guard: AbortOnDrop<'g>,
    body: Body<'g>,
    /// What is told of it, if anybody listens.
    watched: Option<Box<Watched<'g>>>,
    _taken: Taken,
}

enum Body<'g> {
    Handle(Handle<'g>),
    Unlogged(Step<'g>),
}

/// Aborts the volume if it is dropped after a change without success: by an error or a panic of the edit.
struct AbortOnDrop<'g> {
    ground: &'g Ground,
    changed: bool,
}

impl AbortOnDrop<'_> {
    fn change<T>(&mut self, bytes: &mut [u8], change: impl FnOnce(&mut [u8]) -> T) -> T {
        self.changed = true;
        change(bytes)
    }
}

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        if self.changed {
            let what = "a metadata change stopped halfway".into();
            self.ground.abort(AbortCause { what, errno: libc::EIO });
        }
    }
}

impl<'g> Journaled<'g> {
    /// Runs an edit that changes at most `credits` blocks ([`super::credits`]) in a handle of its own. Waits for log
    /// space, or for a batch that is being written home; the caller holds no handle and no lock that ranks after
    /// handles. `purpose` is for a trace.
    ///
    /// An edit that fails or panics after its first change leaves a partial change in the transaction: the volume is
    /// aborted, and the transaction is not committed.
    ///
    /// # Errors
    /// Those of `edit`; [`Error::Journal`] if the log cannot hold that many blocks; [`Error::Aborted`].
    pub(crate) fn run<T>(
        ground: &'g Ground,
        purpose: &'static str,
        credits: u32,
        edit: impl FnOnce(&mut Journaled<'g>) -> Result<T>,
    ) -> Result<T> {
        let _taken = Taken::note(Rank::Handle);
        let credits = credits.saturating_add(ground.quota_credits());
        let body = match (&ground.journal, &ground.unlogged) {
            (Some(journal), _) => Body::Handle(journal.start(credits)?),
            (None, Some(unlogged)) => Body::Unlogged(unlogged.begin(&ground.zones)?),
            (None, None) => return Err(Error::ReadOnly("no journal was opened")),
        };
        let watched = ground.trace.as_ref().map(|trace| trace.watch(purpose, credits));
        let guard = AbortOnDrop { ground, changed: false };
        let mut blocks = Journaled { ground, guard, body, watched, _taken };
        match edit(&mut blocks) {
            Ok(done) => {
                blocks.guard.changed = false;
                blocks.stop()?;
                Ok(done)
            }
            Err(error) => {
                if blocks.guard.changed {
                    // Abort here: the first cause is the one recorded, and this one is more specific than that of the
                    // drop.
                    let what = format!("a metadata change failed halfway: {error}").into();
                    ground.abort(AbortCause { what, errno: error.errno() });
                } else {
                    let _first_error_counts = blocks.stop();
                }
                Err(error)
            }
        }
    }

    fn stop(mut self) -> Result<()> {
        let watched = self.watched.take();
        let (tid, credits) = (self.tid(), self.credits());
        let Journaled { body, .. } = self;
        let (stopped, left) = match body {
            Body::Handle(handle) => (handle.stop(), Some(credits)),
            Body::Unlogged(_) => (Ok(()), None),
        };
        if let Some(watched) = watched {
            watched.end(tid, left);
        }
        Ok(stopped?)
    }

    /// The transaction.
    pub(crate) fn tid(&self) -> Tid {
        match &self.body {
            Body::Handle(handle) => handle.tid(),
            Body::Unlogged(step) => step.number(),
        }
    }

    /// Declares, for fast commits, that everything this step changes is the record of a file, its map in `blocks`, and
    /// which blocks are in use.
    pub(crate) fn declare(&mut self, ino: Ino, blocks: Range<u32>) {
        if let (Some(tracking), Body::Handle(handle)) = (&self.ground.tracking, &mut self.body) {
            tracking.file(handle.tid(), ino, blocks);
            handle.declare();
        }
    }

    /// Declares that everything this step changes are these names, and the records of files and directories that follow
    /// from that.
    pub(crate) fn declare_names(&mut self, names: Vec<ChangedName>) {
        if let (Some(tracking), Body::Handle(handle)) = (&self.ground.tracking, &mut self.body) {
            let files: Vec<Ino> = names.iter().map(|changed| changed.ino).collect();
            files.into_iter().for_each(|ino| tracking.file(handle.tid(), ino, 0..0));
            tracking.names(handle.tid(), names);
            handle.declare();
        }
    }

    /// Credits left.
    pub(crate) fn credits(&self) -> u32 {
        match &self.body {
            Body::Handle(handle) => handle.credits(),
            Body::Unlogged(_) => u32::MAX,
        }
    }

    /// Tells a trace of a change; `before` it the handle had so many credits.
    #[inline]
    fn note_change(&self, block: Pblk, before: u32) {
        if let Some(watched) = &self.watched {
            let unlogged = matches!(self.body, Body::Unlogged(_));
            watched.changed(block, unlogged || self.credits() < before);
        }
    }

    fn change_in_turn<T>(
        &mut self,
        block: Pblk,
        (moved, whom): (bool, u128),
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let before = self.credits();
        let Journaled { ground, body, guard, .. } = self;
        let changed = match body {
            Body::Handle(handle) => {
                let pin = ground.cache.pin(block.get())?;
                handle.change_for(&pin, whom, |bytes| guard.change(bytes, change))?
            }
            Body::Unlogged(step) => step.change(block, moved, |bytes| guard.change(bytes, change))?,
        };
        self.note_change(block, before);
        Ok(changed)
    }
}

impl Blocks for Journaled<'_> {
    fn ground(&self) -> &Ground {
        self.ground
    }

    fn last_descriptor(&self) -> Option<&LastDescriptor> {
        Some(&self.ground.last_descriptor)
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

    fn look_for<T>(
        &self,
        block: Pblk,
        whom: u128,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        Ok(look(&self.ground.cache.get_or_verify_for(block.get(), whom, verify)?))
    }

    fn change_for<T>(&mut self, block: Pblk, whom: u128, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.change_in_turn(block, (false, whom), change)
    }

    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.change_in_turn(block, (false, 0), change)
    }

    fn change_moved<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.change_in_turn(block, (true, 0), change)
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let before = self.credits();
        let Journaled { ground, body, guard, .. } = self;
        let filled = match body {
            Body::Handle(handle) => {
                let pin = ground.cache.pin(block.get())?;
                handle.get_write_access(&pin)?;
                handle.overwrite(&pin, |bytes| guard.change(bytes, fill))?
            }
            Body::Unlogged(step) => step.fresh(block, |bytes| guard.change(bytes, fill))?,
        };
        self.note_change(block, before);
        Ok(filled)
    }

    fn changes_in_place(&self, block: Pblk) -> bool {
        match &self.body {
            Body::Handle(_) => true,
            Body::Unlogged(step) => step.is_new(block),
        }
    }

    fn describe(&self, block: Pblk, role: Role) {
        if let Some(watched) = &self.watched {
            watched.describe(block, role);
        }
    }

    fn claim(&self, block: Pblk, ino: Ino, number: Lblk) -> Result<()> {
        self.describe(block, Role::Directory(ino, number));
        Ok(())
    }

    fn free_later(&mut self, first: Pblk, count: u64) -> Result<()> {
        if let Some(watched) = &self.watched {
            watched.freed(count);
        }
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
                // The block's previous contents are no longer in memory.
                self.guard.changed = true;
                step.freed(block)?;
            }
        }
        self.guard.changed = true;
        if let Some(watched) = &self.watched {
            watched.revoked(block);
        }
        Ok(())
    }
}
