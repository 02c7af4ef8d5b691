//! Contents inside the inode: writing and resizing them, and moving them to a block.
//!
//! As in Linux (`fs/ext4/inline.c`), a file keeps its contents in its inode while they fit beside its attributes, and
//! never returns to it. A new file on a volume with inline data has an empty map, and becomes inline with its first
//! write if that fits. Until then, and while it is inline, the engine sends all its requests here
//! ([`MapKind::Inline`]).
//!
//! Each step is one handle. The block that gets the contents is written before it is mapped, in the same handle: the
//! commit begins after that write is complete, and its flush covers it. A crash leaves the contents in the inode or in
//! the block, and in no case what the block held before.
//!
//! Linux keeps a file inline when it is extended over more bytes than fit, and then loses later writes to it. Here such
//! a file leaves its inode.

use super::Files;
use crate::alloc::Space;
use crate::alloc::search::Wish;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::direct::Direct;
use crate::ground::error::Result;
use crate::ground::journaled::Journaled;
use crate::inline;
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::inode::fields::{journals_data, maps_extents};
use crate::map::edit::{self, Form};
use uext4_blockdev::{BufferPool, WriteDurability};
use uext4_iomap::gate::InodeGuard;
use uext4_iomap::{MapKind, Run, State};
use uext4_ondisk::ext4::{Extent, Incompat, InodeFlags};
use uext4_ondisk::{Lblk, Pblk};

impl Files<'_> {
    /// Writes to a file of [`MapKind::Inline`]; the gate is held exclusively. Returns whether that is done. Otherwise
    /// the contents do not fit: the file is as it was, except that it has left its inode.
    ///
    /// # Errors
    /// Those of [`Files::leave_inode`].
    pub(crate) fn write_inline(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        pos: u64,
        data: &[&[u8]],
    ) -> Result<bool> {
        let end = data.iter().fold(pos, |end, part| end.saturating_add(part.len() as u64));
        let size = inode.state.size().max(end);
        let stored = self.store_inline(inode, size, |contents| {
            let mut at = pos as usize;
            for part in data {
                contents[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
        })?;
        if !stored {
            self.leave_inode(inode, held)?;
        }
        Ok(stored)
    }

    /// Makes a file of [`MapKind::Inline`] `size` bytes long; the gate is held exclusively. As
    /// [`Files::write_inline`].
    ///
    /// # Errors
    /// Those of [`Files::leave_inode`].
    pub(crate) fn resize_inline(&self, inode: &Inode, held: &InodeGuard<'_>, size: u64) -> Result<bool> {
        if !inode.is_inline() {
            // Nothing is stored so far, and a hole needs no room.
            return if size == 0 { self.truncate(inode, held, 0).map(|()| true) } else { Ok(false) };
        }
        let stored = self.store_inline(inode, size, |_| ())?;
        if !stored {
            self.leave_inode(inode, held)?;
        }
        Ok(stored)
    }

    /// Stores `size` bytes of contents, the old ones as `change` leaves them, if they fit.
    fn store_inline(&self, inode: &Inode, size: u64, change: impl FnOnce(&mut [u8])) -> Result<bool> {
        if size >= u64::from(self.state.superblock.geometry.inode_size()) {
            return Ok(false);
        }
        Journaled::run(self.state, "write inline", credits::inode(self.state), |blocks| {
            let mut edit = inode.edit(blocks)?;
            let superblock = &self.state.superblock;
            let mut contents = inline::edit::contents(superblock, &edit)?;
            contents.resize(size as usize, 0);
            change(&mut contents);
            if !inline::edit::store(superblock, &mut edit, &contents)? {
                return Ok(false);
            }
            edit.set_size(blocks.ground(), size)?;
            edit.store(blocks, Change::Data)?;
            inode.state.set_size(size, size);
            Ok(true)
        })
    }

    /// Whether `size` bytes of contents fit an inode of [`MapKind::Inline`]. It may change before the next write.
    ///
    /// # Errors
    /// [`Corrupt`](crate::Error::Corrupt) of the attributes, those of reading the inode.
    pub(crate) fn fits_inline(&self, inode: &Inode, size: u64) -> Result<bool> {
        let superblock = &self.state.superblock;
        if size >= u64::from(superblock.geometry.inode_size()) {
            return Ok(false);
        }
        let mut draft = Draft::load(&Direct(self.state), inode.ino())?;
        inline::edit::store(superblock, &mut draft, &vec![0; size as usize])
    }

    /// Moves the contents of a file of [`MapKind::Inline`] to a block: from here on it is an ordinary file for
    /// everybody who has it open. The gate is held exclusively, so nobody reads or writes meanwhile.
    ///
    /// # Errors
    /// `NoSpace` after waiting for commits that release freed blocks, `QuotaExceeded`, `Corrupt`, those of writing the
    /// block: the file is as it was. Those of the journal.
    pub(crate) fn leave_inode(&self, inode: &Inode, held: &InodeGuard<'_>) -> Result<()> {
        debug_assert!(held.is_exclusive());
        if inode.state.kind() != MapKind::Inline {
            return Ok(());
        }
        if inode.is_inline() {
            self.with_room(|| self.move_out(inode))?;
        }
        let journaled = journals_data(&self.state.superblock, &inode.disk());
        inode.state.set_kind(match inode.disk().uses_extents() {
            _ if journaled => MapKind::Journaled,
            true => MapKind::Extents,
            false => MapKind::Indirect,
        });
        Ok(())
    }

    fn move_out(&self, inode: &Inode) -> Result<()> {
        let credits = self.credits(0, 1, 1).max(credits::pointers(self.state, 1, 1));
        Journaled::run(self.state, "leave inode", credits, |blocks| {
            let mut edit = inode.edit(blocks)?;
            if inode.is_limited() {
                edit.obey_limits(blocks)?;
            }
            let mut map = inode.state.map.lock();
            let place = match self.place_contents(blocks, &mut edit)? {
                Ok(place) => place,
                Err(refused) => return Ok(Err(refused)),
            };
            edit.store(blocks, Change::Data)?;
            // No direct request may find contents that are journaled from now on.
            let place = place.filter(|_| !journals_data(&self.state.superblock, &edit.disk));
            if let Some(place) = place {
                let run = Run { first: 0, length: 1, state: State::Written, physical: place.get() };
                map.add(0, 1, &[run])?;
            }
            Ok(Ok(()))
        })?
    }

    /// Gives a draft with inline contents a map that has them in a block. Empty contents need none. `Err` inside:
    /// nothing was changed.
    fn place_contents(&self, blocks: &mut impl Blocks, draft: &mut Draft) -> Result<Result<Option<Pblk>>> {
        let superblock = &self.state.superblock;
        let contents = inline::edit::contents(superblock, draft)?;
        if contents.is_empty() {
            start_map(blocks, draft)?;
            return Ok(Ok(None));
        }
        draft.counted(blocks.ground(), 1)?;
        let extents = maps_extents(superblock, &draft.disk);
        let reach = if extents { Form::Extents.reach() } else { Form::Pointers.reach() };
        let wish = Wish { goal: self.home(draft.ino), least: 1, most: 1, limit: reach };
        let run = match self.space.allocate(blocks, None, &wish, 0) {
            Ok(run) => run,
            Err(full) if full.is_full() => return Ok(Err(full)),
            Err(error) => return Err(error),
        };
        if let Err(error) = self.write_contents(run.first, &contents) {
            self.space.open().give_back(blocks, draft.ino, &[(run.first, run.count)])?;
            return Ok(Err(error));
        }
        start_map(blocks, draft)?;
        draft.count(blocks.ground(), 1)?;
        let extent = Extent { logical: Lblk(0), length: 1, physical: run.first, unwritten: false };
        edit::insert(blocks, &mut self.space.open(), draft, extent)?;
        Ok(Ok(Some(run.first)))
    }

    /// Writes a block that belongs to the file, but is not mapped yet: the contents, and zeros.
    fn write_contents(&self, block: Pblk, contents: &[u8]) -> Result<()> {
        let size = self.state.superblock.geometry.block_size() as usize;
        let mut buffer = BufferPool::new(size)?.take(size)?;
        buffer.fill(0);
        buffer[..contents.len()].copy_from_slice(contents);
        let pos = block.get() * size as u64;
        self.state.cache.device().write_at(&buffer, pos, WriteDurability::Cached)?;
        self.state.written.add(size as u64);
        Ok(())
    }
}

/// Takes inline contents out of a draft, and gives it an empty map of the kind that the volume's files have.
fn start_map(blocks: &impl Blocks, draft: &mut Draft) -> Result<()> {
    let superblock = &blocks.ground().superblock;
    inline::edit::remove(superblock, draft)?;
    draft.disk.flags &= !InodeFlags::INLINE_DATA;
    if superblock.features.incompat.contains(Incompat::EXTENTS) {
        draft.disk.flags |= InodeFlags::EXTENTS;
    }
    edit::start(draft)
}
