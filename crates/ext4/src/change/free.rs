//! Frees unlinked inodes, and blocks of a file past its size.
//!
//! The inode has no user, so only its record changes, and no mapping in memory. A large file takes many handles, each
//! with a bounded number of blocks; meanwhile it stays an orphan.

use super::attribute_blocks::drop_credits;
use super::{Files, depth, orphans};
use crate::alloc::Space;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::state::Ground;
use crate::ground::trace::Role;
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::fields::journals_data;
use crate::map::edit::{self, Form, Part};
use crate::xattr::values;
use std::collections::BTreeSet;
use std::ops::Range;
use uext4_blockdev::{BufferPool, WriteDurability};
use uext4_ondisk::ext4::{
    Extent, FileType, InodeFlags, XattrArea, XattrBlock, XattrFormat, XattrValue, translator_block,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// Most metadata blocks freed in one handle: each is revoked.
pub(super) const METADATA: u32 = 64;
/// Blocks changed by freeing an attribute block, besides its group: the block itself and a revoke block.
const ATTRIBUTES: u32 = 2;
/// Runs of blocks checked against the bitmaps at a time.
const CHECKED: usize = 256;

/// Checks that this version can free an inode with everything it refers to.
///
/// # Errors
/// [`Error::Incompatible`] if it has a passive translator of the Hurd, whose block would leak, or attribute values in
/// the form of Lustre; [`Error::Corrupt`].
pub(crate) fn check_frees(blocks: &impl Blocks, draft: &Draft) -> Result<()> {
    draft.check_quota(blocks)?;
    let superblock = &blocks.ground().superblock;
    if translator_block(&draft.raw, superblock).is_some() {
        let feature = format!("a passive translator of the Hurd (inode {})", draft.ino);
        return Err(Error::Incompatible { action: "delete", feature });
    }
    values_of(blocks, draft)?.into_iter().try_for_each(|ino| values::check(blocks, ino, draft).map(drop))
}

/// The inodes that hold values of an inode's attributes, which are checked.
fn values_of(blocks: &impl Blocks, draft: &Draft) -> Result<Vec<Ino>> {
    let superblock = &blocks.ground().superblock;
    let place = |corrupt: Corrupt| Error::from(corrupt.in_inode(draft.ino));
    let mut found = Vec::new();
    let mut take = |area: &XattrArea<'_>| {
        found.extend(area.entries().filter_map(|entry| match entry.value {
            XattrValue::Inode { inode, .. } => Some(inode),
            XattrValue::Here(_) => None,
        }));
    };
    if draft.disk.extra_isize > 0
        && let Some(bytes) = draft.raw.get(draft.disk.xattr_range(superblock))
        && let Some(area) = XattrArea::in_inode(bytes, &XattrFormat::new(superblock)).map_err(place)?
    {
        take(&area);
    }
    let block = draft.disk.xattr_block;
    if block.get() != 0 {
        if !blocks.ground().zones.allows(block.get(), 1) {
            return Err(place(Corrupt::from(CorruptKind::SystemZone).at_block(block)));
        }
        blocks.look(block, |bytes| {
            XattrBlock::decode(bytes, block, superblock).map(|decoded| take(&decoded.area)).map_err(place)
        })??;
    }
    Ok(found)
}

/// Whether the blocks of an inode were written through the journal: then older copies must not be replayed.
pub(super) fn is_journaled(ground: &Ground, draft: &Draft) -> bool {
    draft.disk.file_type() != Some(FileType::Regular)
        || draft.disk.flags.contains(InodeFlags::EA_INODE)
        || journals_data(&ground.superblock, &draft.disk)
}

/// Whether an inode maps nothing and says so.
fn is_empty(draft: &Draft) -> bool {
    let map = &draft.disk.i_block;
    // Of an extent map: no entries in the root, and no nodes below it.
    let maps_nothing = match draft.disk.uses_extents() {
        true => map[2..4] == [0; 2] && map[6..8] == [0; 2],
        false => map.iter().all(|byte| *byte == 0),
    };
    maps_nothing && draft.disk.blocks_raw == 0
}

impl Files<'_> {
    /// Checks that everything an inode has can be freed: its attributes, every node of its map, the bitmaps of its
    /// blocks and of itself. Reads what freeing it reads, and changes nothing. Holds the map lock, so its map does not
    /// change.
    ///
    /// # Errors
    /// As of [`check_frees`]; [`Error::Corrupt`] naming the damage.
    pub(crate) fn check_frees_all(&self, inode: &Inode) -> Result<()> {
        let (blocks, ino) = (Direct(self.state), inode.ino());
        let _map = inode.state.map.lock();
        let draft = Draft::load_at(&blocks, ino, inode.place(self.state))?;
        check_frees(&blocks, &draft)?;
        self.space.check_free_inode(&blocks, ino)?;
        for value in values_of(&blocks, &draft)? {
            let value = values::check(&blocks, value, &draft)?;
            if values::references(&value.disk) == 1 {
                self.check_frees_value(&blocks, &value)?;
            }
        }
        self.check_frees_map(&blocks, &draft)
    }

    /// Checks that an inode's attribute block, and everything that its map uses, can be freed.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn check_frees_map(&self, blocks: &impl Blocks, draft: &Draft) -> Result<()> {
        let mut runs = Vec::new();
        if draft.disk.xattr_block.get() != 0 {
            runs.push((draft.disk.xattr_block, 1));
        }
        if Form::of(&draft.disk).is_some() {
            edit::walk(blocks, draft, &mut |part| {
                runs.push(match part {
                    Part::Node(block) => (block, 1),
                    Part::Data(extent) => (extent.physical, u64::from(extent.length)),
                });
                if runs.len() < CHECKED { Ok(()) } else { self.check_runs(blocks, draft.ino, &mut runs) }
            })?;
        }
        self.check_runs(blocks, draft.ino, &mut runs)
    }

    fn check_runs(&self, blocks: &impl Blocks, ino: Ino, runs: &mut Vec<(Pblk, u64)>) -> Result<()> {
        let size = u64::from(self.state.superblock.geometry.cluster_blocks());
        if size == 1 {
            self.space.check_give_back(blocks, ino, runs)?;
        } else {
            // Several runs may share a cluster, and one call must not name a cluster twice.
            runs.iter().try_for_each(|run| self.space.check_give_back(blocks, ino, &[*run]))?;
        }
        runs.clear();
        Ok(())
    }

    /// Frees an inode without links or users: its blocks, its attributes, its number. Values of attributes that lose
    /// their last reference are left to [`Files::free_left`].
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Incompatible`] as of [`check_frees`]; those of the journal. What was freed so far
    /// stays freed, and the inode stays an orphan.
    pub(crate) fn free_inode(&self, ino: Ino) -> Result<()> {
        let blocks = Direct(self.state);
        let mut draft = Draft::load(&blocks, ino)?;
        check_frees(&blocks, &draft)?;
        let place = draft.place;
        if self.has_values() {
            self.drop_all_values(ino)?;
            draft = Draft::load_at(&blocks, ino, place)?;
        }
        // Nobody changes it any more.
        if !is_empty(&draft) {
            self.free_blocks(ino, 0)?;
        }
        // Whoever shared its attribute block may have left it: then the values there are its own.
        while !self.free_rest(ino, place)? {
            self.drop_all_values(ino)?;
        }
        Ok(())
    }

    fn drop_all_values(&self, ino: Ino) -> Result<()> {
        let step = |blocks: &mut Journaled<'_>| self.drop_values(blocks, ino);
        while self.has_values() && Journaled::run(self.state, "free values", drop_credits(), step)? {}
        Ok(())
    }

    /// Frees an inode whose blocks are free, and its attributes. `false`: nothing was done, since its attribute block
    /// refers to values.
    fn free_rest(&self, ino: Ino, place: (Pblk, usize)) -> Result<bool> {
        let credits =
            credits::inode(self.state) + credits::groups(self.state, 1) + ATTRIBUTES + orphans::CREDITS;
        Journaled::run(self.state, "free inode", credits, |blocks| {
            let mut draft = Draft::load_at(blocks, ino, place)?;
            check_frees(blocks, &draft)?;
            if !self.release_attribute_block(blocks, &mut draft)? {
                return Ok(false);
            }
            self.remove_freed_orphan(blocks, ino)?;
            draft.disk.blocks_raw = 0;
            if let Some(unlogged) = &self.state.unlogged {
                unlogged.note_freed_inode();
            }
            let now = self.state.clock.now();
            self.space.free_inode(blocks, &mut draft, now)?;
            Ok(true)
        })
    }

    /// Cuts an unused file at its size, and removes it from the orphans.
    ///
    /// # Errors
    /// As of [`Files::free_inode`].
    pub(crate) fn cut_at_size(&self, draft: &Draft) -> Result<()> {
        let block = u64::from(self.state.superblock.geometry.block_size());
        if let Ok(first) = u32::try_from(draft.disk.size.div_ceil(block)) {
            self.free_blocks(draft.ino, first)?;
        }
        self.clear_tail(draft)?;
        Journaled::run(self.state, "orphans", orphans::CREDITS, |blocks| {
            self.remove_orphan(blocks, draft.ino)
        })
    }

    /// Zeroes the last block of a file past its size: whoever extends the file relies on zeros there.
    fn clear_tail(&self, draft: &Draft) -> Result<()> {
        let geometry = &self.state.superblock.geometry;
        let size = u64::from(geometry.block_size());
        let (used, last) = ((draft.disk.size % size) as usize, u32::try_from(draft.disk.size / size));
        let (Ok(last), true, true) = (last, used > 0, Form::of(&draft.disk).is_some()) else {
            return Ok(());
        };
        let found = edit::leaf(&Direct(self.state), draft, Lblk(last))?.find(Lblk(last));
        let Some(block) =
            found.filter(|extent| !extent.unwritten).and_then(|extent| extent.physical_of(Lblk(last)))
        else {
            return Ok(());
        };
        if !self.state.zones.allows(block.get(), 1) {
            return Err(Corrupt::from(CorruptKind::SystemZone).in_inode(draft.ino).at_block(block).into());
        }
        if is_journaled(self.state, draft) {
            let _kept = self.state.cache.read(block.get())?;
            return Journaled::run(self.state, "clear tail", 1, |blocks| {
                blocks.describe(block, Role::Data(draft.ino));
                blocks.change(block, |bytes| bytes[used..].fill(0))
            });
        }
        let device = self.state.cache.device();
        let mut bytes = BufferPool::new(size as usize)?.take(size as usize)?;
        device.read_at(&mut bytes, block.get() * size)?;
        bytes[used..].fill(0);
        device.write_at(&bytes, block.get() * size, WriteDurability::Cached)?;
        self.state.written.add(size);
        Ok(device.flush()?)
    }

    /// Frees everything mapped from a block on.
    fn free_blocks(&self, ino: Ino, first: u32) -> Result<()> {
        let mut at = first;
        loop {
            let draft = Draft::load(&Direct(self.state), ino)?;
            if Form::of(&draft.disk).is_none() {
                return Ok(());
            }
            let levels = depth(&draft.disk);
            // One more revoke block, and for pointers the blocks at both ends of the range.
            let (credits, groups) = self.removal_credits(draft.disk.uses_extents(), levels, 2);
            let step = |blocks: &mut Journaled<'_>| self.free_step(blocks, ino, at, groups as usize);
            match Journaled::run(self.state, "free blocks", credits + 1, step)? {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
    }

    /// Frees the first runs from a block on, within at most this many groups. Returns where to continue, if there were
    /// any.
    fn free_step(
        &self,
        blocks: &mut Journaled<'_>,
        ino: Ino,
        from: u32,
        groups: usize,
    ) -> Result<Option<u32>> {
        let mut draft = Draft::load(blocks, ino)?;
        let Some(range) = next_mapped(blocks, &draft, from, groups)? else { return Ok(None) };
        let next = range.end;
        let removed = edit::remove(blocks, &mut self.space.open(), &mut draft, range)?;
        let idle = edit::idle_clusters(blocks, &draft, &removed)?;
        let size = u64::from(blocks.ground().superblock.geometry.cluster_blocks());
        let clusters: u64 = idle.iter().map(|(_, count)| count.div_ceil(size)).sum();
        draft.count(blocks.ground(), -(clusters as i64))?;
        self.space.open().give_back(blocks, ino, &idle)?;
        let geometry = &self.state.superblock.geometry;
        self.space.hold_parts(blocks, &edit::parts_of_kept_clusters(geometry, &removed, &idle))?;
        if is_journaled(blocks.ground(), &draft) {
            for extent in &removed {
                let first = extent.physical.get();
                (first..first + u64::from(extent.length)).try_for_each(|block| blocks.freed(Pblk(block)))?;
            }
        }
        draft.store_in_chain(blocks)?;
        Ok(Some(next))
    }
}

/// The next mapped range to free in one handle, from a block on: within one leaf, and within this many groups.
fn next_mapped(blocks: &impl Blocks, draft: &Draft, from: u32, groups: usize) -> Result<Option<Range<u32>>> {
    let mut at = from;
    while at < u32::MAX {
        let leaf = edit::leaf(blocks, draft, Lblk(at))?;
        let behind = leaf.extents.iter().filter_map(|extent| edit::within(extent, &(at..u32::MAX)));
        let mut found: Option<Range<u32>> = None;
        let mut touched = BTreeSet::new();
        for extent in behind {
            let (start, end) = (extent.logical.get(), fitting(blocks, &extent, &mut touched, groups));
            if end > start {
                found = Some(found.map_or(start, |found| found.start)..end);
            }
            if end < extent.logical_end().get() {
                break;
            }
        }
        if let Some(Range { start, end }) = found {
            let most =
                if is_journaled(blocks.ground(), draft) { start.saturating_add(METADATA) } else { end };
            return Ok(Some(start..end.min(most)));
        }
        if leaf.window.end <= at {
            break;
        }
        at = leaf.window.end;
    }
    Ok(None)
}

/// The end of the leading part of an extent that stays within this many groups, counting those already touched. With
/// small blocks an extent may span several groups.
fn fitting(blocks: &impl Blocks, extent: &Extent, touched: &mut BTreeSet<u64>, groups: usize) -> u32 {
    let geometry = &blocks.ground().superblock.geometry;
    let (per, base) = (u64::from(geometry.blocks_per_group().max(1)), u64::from(geometry.first_data_block()));
    let (first, last) = (extent.physical.get(), extent.physical.get() + u64::from(extent.length) - 1);
    let group = |block: u64| block.saturating_sub(base) / per;
    for number in group(first)..=group(last) {
        if !touched.contains(&number) && touched.len() == groups {
            return extent.logical.get() + (number * per + base).saturating_sub(first) as u32;
        }
        touched.insert(number);
    }
    extent.logical_end().get()
}
