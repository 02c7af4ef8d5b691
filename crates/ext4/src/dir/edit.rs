//! Adds names to a directory, removes them, and redirects them to other inodes.
//!
//! An edit reads only the blocks on its name's path through the hash tree. Without a tree it reads all blocks once, to
//! see whether the name exists. It prepares the changed blocks in memory before it writes the first one ([`DirEdit`]),
//! so a fault found on the way leaves everything unchanged.

use super::Found;
use super::grow;
use super::inline;
use super::name::{self, Wanted};
use super::row::{self, Entry, Held};
use super::rows::{self, Rows, Shape};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::trace::Role;
use crate::inode::draft::Draft;
use std::ops::Range;
use uext4_ondisk::ext4::{
    DirBlockKind, DirFormat, FileType, InodeFlags, Superblock, encode_dir_tail, flip_dir_checksum,
    update_htree_checksum,
};
use uext4_ondisk::{Ino, Lblk, Pblk};

/// A directory without `large_dir` stays below this many bytes. A hash tree can address this many blocks.
const SIZE_END: u64 = 1 << 31;
const HTREE_BLOCKS_MAX: u64 = 1 << 28;

/// Locates the blocks of a directory, and allocates more.
pub(crate) trait DirMap {
    /// The location of a block, checked against the system zones. `None` if nothing is written there.
    fn find(&self, blocks: &impl Blocks, draft: &Draft, number: Lblk) -> Result<Option<Pblk>>;

    /// Maps `count` more blocks at `first`, the directory's end, and counts them in `i_blocks`. Their contents are
    /// undefined. The caller changes the size.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Limit`], [`Error::Corrupt`], with neither a block nor the draft changed.
    fn append(
        &mut self,
        blocks: &mut impl Blocks,
        draft: &mut Draft,
        first: Lblk,
        count: u32,
    ) -> Result<Vec<Pblk>>;

    /// Writes an empty map into the inode, of the kind for new directories (`i_block` and the extents flag).
    fn start(&mut self, blocks: &impl Blocks, draft: &mut Draft) -> Result<()>;
}

/// Most bytes whose change is summed instead of the block.
const FEW: u32 = 512;

/// The new contents of a block. Its checksum is right only if it is sealed.
pub(super) struct Sheet {
    pub(super) kind: DirBlockKind,
    pub(super) bytes: Vec<u8>,
    /// Whether the checksum is right already.
    pub(super) sealed: bool,
}

/// The blocks that an edit changes, and those that it appends.
#[derive(Default)]
pub(super) struct DirEdit {
    pub(super) changed: Vec<(Pblk, Sheet)>,
    pub(super) fresh: Vec<Sheet>,
}

/// A directory being edited. Its draft changes along, except for times, links and version. The caller stores the draft.
pub(crate) struct Edit<'e, B, M> {
    blocks: &'e mut B,
    map: &'e mut M,
    draft: &'e mut Draft,
    shape: Shape,
    /// The block in which a name was found last. Names are usually removed in on-disk order: without a tree, the search
    /// for each would otherwise scan all blocks before its own.
    pub(crate) hint: u32,
}

impl<B: Blocks, M: DirMap> Rows for Edit<'_, B, M> {
    const EDITS: bool = true;

    fn superblock(&self) -> &Superblock {
        &self.blocks.ground().superblock
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn bytes<T>(
        &self,
        number: u32,
        verify: impl FnOnce(Pblk, &[u8]) -> Result<()>,
        look: impl FnOnce(Pblk, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let physical = self.map.find(self.blocks, self.draft, Lblk(number))?;
        let physical = physical.ok_or_else(|| rows::missing(self.shape.ino, number, "not allocated"))?;
        self.blocks.work(self.shape.format.block_size as usize)?;
        self.blocks.look_verified(physical, |bytes| verify(physical, bytes), |bytes| look(physical, bytes))?
    }
}

impl<'e, B: Blocks, M: DirMap> Edit<'e, B, M> {
    /// # Errors
    /// [`Error::NotDirectory`]; [`Error::Incompatible`] if it is encrypted; [`Error::CorruptInode`].
    pub(crate) fn open(blocks: &'e mut B, map: &'e mut M, draft: &'e mut Draft) -> Result<Self> {
        check(draft)?;
        let shape = Shape::of(&blocks.ground().superblock, draft.ino, &draft.disk)?;
        Ok(Edit { blocks, map, draft, shape, hint: 0 })
    }

    /// Makes an inode without blocks a directory with `.` and `..`. The directory is inline if the inode has the inline
    /// flag and attribute.
    ///
    /// # Errors
    /// As of [`Edit::open`]; [`Error::NoSpace`], with nothing changed.
    pub(crate) fn start(
        blocks: &'e mut B,
        map: &'e mut M,
        draft: &'e mut Draft,
        parent: Ino,
    ) -> Result<Self> {
        check(draft)?;
        let shape = Shape::empty(&blocks.ground().superblock, draft.ino, &draft.disk)?;
        let mut edit = Edit { blocks, map, draft, shape, hint: 0 };
        if edit.draft.disk.has_inline_data() {
            inline::start(&edit.blocks.ground().superblock, edit.draft, parent)?;
            edit.draft.disk.flags &= !InodeFlags::INDEX;
        } else {
            edit.found(parent, Vec::new())?;
        }
        Ok(edit)
    }

    /// Looks up a name.
    pub(crate) fn get(&self, name: &[u8]) -> Result<Option<Found>> {
        if self.draft.disk.has_inline_data() && matches!(name, b"." | b"..") {
            let parent = inline::entries(self.superblock(), self.draft)?.0;
            let ino = if name == b"." { self.draft.ino } else { parent };
            return Ok(Some(Found { ino, spelling: None }));
        }
        let mut wanted = self.wanted(name)?;
        let found = self.find(&mut wanted)?;
        Ok(found.map(|(_, held)| Found { ino: held.ino, spelling: wanted.spelling }))
    }

    /// Whether it has no names except `.` and `..`.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        if self.draft.disk.has_inline_data() {
            return Ok(inline::entries(self.superblock(), self.draft)?.1.is_empty());
        }
        rows::is_empty(self)
    }

    /// Adds a name.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Invalid`] and [`Error::NameTooLong`] for an impossible name; [`Error::NoSpace`];
    /// [`Error::Limit`] if the tree cannot grow; [`Error::Corrupt`]. Nothing was changed then.
    pub(crate) fn insert(&mut self, name: &[u8], ino: Ino, kind: Option<FileType>) -> Result<()> {
        self.add(name, ino, kind, false)
    }

    /// The same of a name that no entry has, as the caller knows: its block is searched for room only.
    ///
    /// # Errors
    /// As of [`Edit::insert`].
    pub(crate) fn insert_absent(&mut self, name: &[u8], ino: Ino, kind: Option<FileType>) -> Result<()> {
        self.add(name, ino, kind, true)
    }

    fn add(&mut self, name: &[u8], ino: Ino, kind: Option<FileType>, absent: bool) -> Result<()> {
        name::check(name)?;
        let entry = Entry { name, ino, kind };
        let (format, needed) = (self.shape.format, entry.length());
        let mut wanted = self.wanted(name)?;
        let (mut gap, mut exists) = (None, None);
        if self.draft.disk.has_inline_data() {
            (exists, gap) = inline::survey(self.superblock(), self.draft, &mut wanted, needed)?;
        } else {
            exists = rows::search(self, &mut wanted, 0, |block, wanted, astray| {
                let row = block.row()?;
                let surveyed = match absent {
                    true => row::room(row, needed).map(|room| (None, room)),
                    false => row::survey(row, wanted, needed),
                };
                let (held, room) = surveyed.map_err(|corrupt| block.corrupt(corrupt))?;
                self.blocks.work(wanted.take_work())?;
                if !astray && gap.is_none() {
                    gap = room.map(|room| (block.number, room));
                }
                Ok(held.map(|held| (block.number, held)))
            })?
            .or(exists);
        }
        if exists.is_some() {
            return Err(Error::Exists);
        }
        if let Some((number, gap)) = gap {
            return self.rewrite(number, &gap.touched(&entry), |row| row::put(row, gap, &entry, &format));
        }
        if self.draft.disk.has_inline_data() {
            let superblock = &self.blocks.ground().superblock;
            if inline::extend(superblock, self.draft, needed)?
                && let (_, Some((number, gap))) = inline::survey(superblock, self.draft, &mut wanted, needed)?
            {
                return self.rewrite(number, &gap.touched(&entry), |row| row::put(row, gap, &entry, &format));
            }
            let (parent, mut records) = inline::entries(self.superblock(), self.draft)?;
            records.push(entry.bytes(&format)?);
            return self.found(parent, records);
        }
        let plan = grow::plan(self, &entry, wanted.hashed())?;
        self.apply(plan)
    }

    /// Removes a name that leads to `ino`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it does not exist or leads to another inode; otherwise as of [`Edit::insert`].
    pub(crate) fn remove(&mut self, name: &[u8], ino: Ino) -> Result<()> {
        name::check(name)?;
        let format = self.shape.format;
        let found = self.find(&mut self.wanted(name)?)?;
        let (number, held) = found.filter(|(_, held)| held.ino == ino).ok_or(Error::NotFound)?;
        self.hint = number;
        self.rewrite(number, &held.touched(), |row| row::take_out(row, held, &format))
    }

    /// Makes a name lead to another inode; also for `..`.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`], with nothing changed.
    pub(crate) fn set(&mut self, name: &[u8], ino: Ino, kind: Option<FileType>) -> Result<()> {
        if name != b".." {
            name::check(name)?;
        } else if self.draft.disk.has_inline_data() {
            return inline::set_parent(&self.blocks.ground().superblock, self.draft, ino);
        }
        let format = self.shape.format;
        let found = self.find(&mut self.wanted(name)?)?;
        let (number, held) = found.ok_or(Error::NotFound)?;
        self.rewrite(number, &held.touched(), |row| row::point(row, held, ino, kind, &format))
    }

    fn wanted<'n>(&self, name: &'n [u8]) -> Result<Wanted<'n>> {
        Wanted::new(self.superblock(), self.shape.folds, name)
    }

    /// Finds a name: the number of its block, or of its row in the inode, and its entry.
    fn find(&self, wanted: &mut Wanted<'_>) -> Result<Option<(u32, Held)>> {
        if self.draft.disk.has_inline_data() {
            return Ok(inline::survey(self.superblock(), self.draft, wanted, 0)?.0);
        }
        rows::search(self, wanted, self.hint, |block, wanted, _| {
            let held = row::find(block.row()?, wanted).map_err(|corrupt| block.corrupt(corrupt))?;
            self.blocks.work(wanted.take_work())?;
            Ok(held.map(|held| (block.number, held)))
        })
    }

    /// Changes the entries of one block, or of a row of the inode, in the bytes `touched`.
    fn rewrite(
        &mut self,
        number: u32,
        touched: &[Range<u32>],
        change: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        if self.draft.disk.has_inline_data() {
            return inline::rewrite(&self.blocks.ground().superblock, self.draft, number, change);
        }
        let (place, mut sheet) = grow::sheet(self, number)?;
        let few = touched.iter().map(|bytes| bytes.end - bytes.start).sum::<u32>() <= FEW;
        if few && self.shape.format.checksums && sheet.kind == DirBlockKind::Linear {
            let part = |range: &Range<u32>| range.start as usize..range.end as usize;
            let old = |range: &Range<u32>| Some((part(range).start, sheet.bytes.get(part(range))?.to_vec()));
            let before: Vec<(usize, Vec<u8>)> =
                touched.iter().filter(|range| !range.is_empty()).filter_map(old).collect();
            change(&mut sheet.bytes)?;
            // The block was verified, so the checksum was right.
            flip_dir_checksum(&mut sheet.bytes, &before)?;
            sheet.sealed = true;
        } else {
            change(&mut sheet.bytes)?;
        }
        self.apply(DirEdit { changed: vec![(place, sheet)], fresh: Vec::new() })
    }

    /// Writes the blocks of a directory that has none yet. On an error the draft is unchanged.
    fn found(&mut self, parent: Ino, records: Vec<Vec<u8>>) -> Result<()> {
        let format = self.shape.format;
        let dot = |name, ino| Entry { name, ino, kind: Some(FileType::Directory) }.bytes(&format);
        let dots = [dot(b".", self.shape.ino)?, dot(b"..", parent)?];
        let fresh = grow::lay_out(self, &dots, records)?;
        let before = (self.draft.disk.clone(), self.draft.raw.clone());
        let done = self.start_map().and_then(|()| self.apply(DirEdit { changed: Vec::new(), fresh }));
        if done.is_err() {
            (self.draft.disk, self.draft.raw) = before;
        }
        done
    }

    fn start_map(&mut self) -> Result<()> {
        crate::inline::edit::remove(&self.blocks.ground().superblock, self.draft)?;
        self.draft.disk.size = 0;
        self.shape.indexed = false;
        self.draft.disk.flags &= !(InodeFlags::INLINE_DATA | InodeFlags::INDEX);
        self.map.start(self.blocks, self.draft)
    }

    /// Carries out a plan. Everything that can fail comes before the first change, except failures of the body.
    fn apply(&mut self, mut plan: DirEdit) -> Result<()> {
        let Shape { format, seed, .. } = self.shape;
        let changed = plan.changed.iter_mut().map(|(_, sheet)| sheet);
        for sheet in changed.chain(&mut plan.fresh) {
            seal(sheet, seed, &format)?;
            self.blocks.work(sheet.bytes.len())?;
        }
        let makes_index = plan.fresh.iter().chain(plan.changed.iter().map(|(_, sheet)| sheet));
        let indexed =
            self.shape.indexed || makes_index.into_iter().any(|s| s.kind == DirBlockKind::HtreeRoot);
        let divides = !plan.fresh.is_empty();
        if divides {
            self.append(&plan.fresh, indexed)?;
        }
        for (at, (place, sheet)) in plan.changed.into_iter().enumerate() {
            let copy = |bytes: &mut [u8]| bytes.copy_from_slice(&sheet.bytes);
            // The first block is the one that names have moved out of.
            match divides && at == 0 {
                true => self.blocks.change_moved(place, copy)?,
                false => self.blocks.change(place, copy)?,
            }
        }
        // Without the feature nothing maintains the tree, so the directory loses it.
        self.shape.indexed = indexed;
        self.draft.disk.flags.set(InodeFlags::INDEX, indexed);
        Ok(())
    }

    fn append(&mut self, fresh: &[Sheet], indexed: bool) -> Result<()> {
        let (first, count) = (self.shape.blocks, fresh.len() as u32);
        let end = u64::from(first) + u64::from(count);
        let size = end * u64::from(self.shape.format.block_size);
        let most = if indexed { HTREE_BLOCKS_MAX } else { u32::MAX.into() };
        if end > most || (size >= SIZE_END && !self.shape.format.large_dir) {
            return Err(Error::Limit(Limit::Directory));
        }
        let places = self.map.append(self.blocks, self.draft, Lblk(first), count)?;
        for (number, (place, sheet)) in (first..).zip(places.into_iter().zip(fresh)) {
            self.blocks.describe(place, Role::Directory(self.draft.ino, Lblk(number)));
            self.blocks.fresh(place, |bytes| bytes.copy_from_slice(&sheet.bytes))?;
        }
        self.draft.disk.size = size;
        self.shape.blocks += count;
        Ok(())
    }
}

/// Refuses inodes that are not directories, and directories with encrypted names.
fn check(draft: &Draft) -> Result<()> {
    if draft.disk.file_type() != Some(FileType::Directory) {
        return Err(Error::NotDirectory);
    }
    if draft.disk.flags.contains(InodeFlags::ENCRYPT) {
        let feature = format!("an encrypted directory (inode {})", draft.ino);
        return Err(Error::Incompatible { action: "change names", feature });
    }
    Ok(())
}

/// Updates a block's checksum, including its tail.
fn seal(sheet: &mut Sheet, seed: u32, format: &DirFormat) -> Result<()> {
    if !format.checksums || sheet.sealed {
        return Ok(());
    }
    let sealed = match sheet.kind {
        DirBlockKind::Linear => encode_dir_tail(&mut sheet.bytes, seed),
        _ => update_htree_checksum(&mut sheet.bytes, seed),
    };
    sealed.map_err(Error::from)
}
