//! Editing an inode: one editor at a time, and readers see each change as a whole.

use super::Inode;
use super::core::{InodeValue, Told};
use super::draft::Draft;
use super::fields::{TIMES_END, storable};
use super::metadata::FileKind;
use crate::ground::blocks::Blocks;
use crate::ground::error::Result;
use crate::ground::order::{Rank, Taken};
use parking_lot::MutexGuard;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use uext4_ondisk::ext4::InodeFlags;

/// What kind of change it is, for `fsync` and `fdatasync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing needed to read the data back: `fsync` waits for it, `fdatasync` does not.
    Attributes,
    /// Extents or size: until its transaction is committed the inode is datasync-dirty.
    Data,
}

/// An inode being edited, by this editor only; readers still see what was stored last. Taken inside the handle and
/// before the map lock; never wait for a handle or a gate while holding one. Use [`edit_several`] for several.
pub(crate) struct Edit<'a> {
    inode: &'a Inode,
    draft: Draft,
    told: Told,
    _turn: MutexGuard<'a, ()>,
    _taken: Taken,
}

impl Inode {
    /// Begins an edit. The draft is the record in the table's block plus the times of the latest write and access,
    /// which so far were only in memory: the next change stores them too.
    ///
    /// # Errors
    /// Those of [`Draft::load_at`].
    pub(crate) fn edit(&self, blocks: &impl Blocks) -> Result<Edit<'_>> {
        let taken = Taken::note(self.rank());
        let turn = self.editing.lock();
        let mut draft = Draft::load_at(blocks, self.ino(), self.place(blocks.ground()))?;
        draft.check_quota(blocks)?;
        let mut told = self.disk().told;
        let (written, accessed) = self.noted();
        if written > told.written_ns {
            told.written_ns = written;
            draft.stamp(self.clock.at(written), true);
        }
        if accessed > told.accessed_ns {
            told.accessed_ns = accessed;
            draft.disk.accessed = storable(self.clock.at(accessed), draft.disk.extra_isize, TIMES_END);
        }
        Ok(Edit { inode: self, draft, told, _turn: turn, _taken: taken })
    }

    fn rank(&self) -> Rank {
        match self.kind {
            FileKind::Directory => Rank::Directory(self.ino),
            _ => Rank::File(self.ino),
        }
    }
}

/// Begins edits of several inodes, each given once: directories first, then by number, so that two callers with the
/// same inodes cannot deadlock. Returned in the order given.
/// # Errors
/// As of [`Inode::edit`].
pub(crate) fn edit_several<'a>(blocks: &impl Blocks, inodes: &[&'a Inode]) -> Result<Vec<Edit<'a>>> {
    let mut order: Vec<usize> = (0..inodes.len()).collect();
    order.sort_unstable_by_key(|at| inodes[*at].rank());
    let mut edits = Vec::with_capacity(inodes.len());
    for at in order {
        edits.push((at, inodes[at].edit(blocks)?));
    }
    edits.sort_unstable_by_key(|(at, _)| *at);
    Ok(edits.into_iter().map(|(_, edit)| edit).collect())
}

impl<'a> Edit<'a> {
    /// The inode.
    pub(crate) fn inode(&self) -> &'a Inode {
        self.inode
    }

    /// The time of modification is set by hand: overwrites so far do not count any more.
    pub(crate) fn forget_writes(&mut self) {
        self.inode.state.gate.forget_writes();
        self.told.written_ns = 0;
    }

    /// The time of access is set by hand: reads so far do not count any more.
    pub(crate) fn forget_accesses(&mut self) {
        self.inode.last_access.forget();
        self.told.accessed_ns = 0;
    }

    /// Writes the record into its table and publishes it to readers in one step. More changes may follow.
    ///
    /// The inode counts as dirty *before* anybody can see the change. Publish a map that changed with it after this.
    ///
    /// # Errors
    /// Those of [`Draft::store_in_chain`]: readers still see what was stored before.
    pub(crate) fn store(&mut self, blocks: &mut impl Blocks, change: Change) -> Result<()> {
        self.count_dirty(blocks, change);
        self.draft.store_in_chain(blocks)?;
        self.publish(blocks);
        Ok(())
    }

    /// The same for attributes, with the next inode in the orphan chain, which is locked: quota is not settled yet
    /// ([`Draft::settle_quota`]).
    ///
    /// # Errors
    /// Those of [`Draft::store_next_orphan`]: readers still see what was stored before.
    pub(crate) fn store_next_orphan(&mut self, blocks: &mut impl Blocks, next: u32) -> Result<()> {
        self.count_dirty(blocks, Change::Attributes);
        self.draft.store_next_orphan(blocks, next)?;
        self.publish(blocks);
        Ok(())
    }

    fn count_dirty(&self, blocks: &impl Blocks, change: Change) {
        let state = &self.inode.state;
        match (blocks.transaction(), change) {
            (Some(tid), Change::Data) => state.set_datasync_tid(tid.0),
            (Some(tid), Change::Attributes) => state.set_sync_tid(tid.0),
            (None, _) => {}
        }
    }

    fn publish(&self, blocks: &impl Blocks) {
        let Draft { ino, disk, raw, .. } = &self.draft;
        let core = InodeValue::new(blocks.ground(), *ino, disk.clone(), raw, self.told);
        let syncs = core.flags.contains(InodeFlags::SYNC);
        let mut published = self.inode.core.lock();
        match Arc::get_mut(&mut published) {
            // Nobody reads the one before.
            Some(published) => *published = core,
            None => *published = Arc::new(core),
        }
        drop(published);
        self.inode.state.set_syncs(syncs);
    }
}

impl Deref for Edit<'_> {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.draft
    }
}

impl DerefMut for Edit<'_> {
    fn deref_mut(&mut self) -> &mut Draft {
        &mut self.draft
    }
}
