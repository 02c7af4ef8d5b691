//! Attribute values in inodes of their own: making one, counting its references, freeing it with the last.
//!
//! A value is written before an attribute has it: the inode is made as an orphan without links, gets its blocks and its
//! value in several handles, and waits in the table of known values. The change that needs it finds it there, and makes
//! it the attribute's in its own handle. So a change that finds no inode with its value records what it wants
//! ([`Orphans::wanted_values`](super::orphans::Orphans)) and fails with [`Error::NoSpace`] before it changes anything;
//! then [`Files::with_room`] makes the inode, and the change is tried again. After a crash in between, the next open
//! frees the orphan.
//!
//! Linux makes the inode in the handle of the attribute. The value's blocks go through the journal here as there, so
//! they are revoked when they are freed.

use super::free::check_frees;
use super::{Files, depth, orphans};
use crate::alloc::Space;
use crate::alloc::inode::NewInode;
use crate::alloc::search::Wish;
use crate::alloc::spread::Near;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::ground::trace::Role;
use crate::ground::unlogged::Unlogged;
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::map::edit::{self, Form};
use crate::xattr::{KnownAttributes, Lists, NewValue, values};
use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;
use uext4_ondisk::ext4::{
    Extent, Incompat, InodeFlags, ListedValue, XattrList, xattr_entry_hash, xattr_value_checksum_of,
};
use uext4_ondisk::{Ino, Lblk, Pblk};

const MODE: u16 = 0o100_600;
/// Blocks of a value written in one handle.
const WRITTEN: usize = 32;
/// Most known values of one checksum that are compared.
const COMPARED_MAX: usize = 32;

/// Values that a change waits for.
pub(crate) struct WantedValues {
    /// The inode whose attributes they are, with its owner and group: so are those of the new inodes.
    ino: Ino,
    uid: u32,
    gid: u32,
    values: Vec<NewValue>,
}

/// References to value inodes that a change adds, or with negative numbers drops.
#[derive(Default)]
pub(super) struct References(BTreeMap<Ino, i64>);

impl References {
    pub(super) fn add(&mut self, list: &XattrList, times: i64) {
        values::of(list).for_each(|(ino, _)| *self.0.entry(ino).or_default() += times);
    }
}

/// Checked changes of reference counts: the record of each inode, and the count afterwards.
pub(super) struct Recount(Vec<(Draft, u64)>);

impl Recount {
    /// Blocks that it changes at most.
    pub(super) fn credits(&self) -> u32 {
        if self.0.is_empty() { 0 } else { self.0.len() as u32 + orphans::CREDITS }
    }
}

impl Files<'_> {
    /// Finds the inodes of new values. If there is none for one of them, it is made before the next try.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if one is missing, [`Error::Corrupt`]: nothing was changed.
    pub(super) fn place_values(
        &self,
        blocks: &Journaled<'_>,
        known: &mut KnownAttributes,
        draft: &Draft,
        lists: &mut Lists,
    ) -> Result<()> {
        let missing = lists.place_values(|new| find_value(blocks, known, draft, new))?;
        if missing.is_empty() {
            return Ok(());
        }
        let (ino, uid, gid) = (draft.ino, draft.disk.uid, draft.disk.gid);
        let wanted = WantedValues { ino, uid, gid, values: missing };
        self.orphans.wanted_values.lock().insert(thread::current().id(), wanted);
        Err(Error::NoSpace)
    }

    /// Makes the inodes of the values that the last change of this thread waits for; adds them to `made`. Returns
    /// whether there were any.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Corrupt`].
    pub(super) fn make_wanted_values(&self, made: &mut Vec<Ino>) -> Result<bool> {
        if !self.has_values() {
            return Ok(false);
        }
        let wanted = self.orphans.wanted_values.lock().remove(&thread::current().id());
        let Some(wanted) = wanted else { return Ok(false) };
        for value in &wanted.values {
            made.push(self.make_value(&wanted, value)?);
        }
        Ok(true)
    }

    /// Frees those of the inodes that no attribute has got.
    pub(super) fn leave_unused_values(&self, made: &[Ino]) {
        let mut known = self.orphans.known.lock();
        for ino in made.iter().filter(|ino| known.unused.contains(ino)).copied().collect::<Vec<_>>() {
            known.unused.remove(&ino);
            known.values.forget(ino);
            self.state.leavers().add(ino);
        }
    }

    /// Whether values can be in inodes of their own.
    pub(super) fn has_values(&self) -> bool {
        self.state.superblock.features.incompat.contains(Incompat::EA_INODE)
    }

    /// Makes quota move all values of an inode to a new owner.
    ///
    /// # Errors
    /// [`Error::Corrupt`] of the attributes.
    pub(super) fn count_values(&self, blocks: &impl Blocks, draft: &mut Draft) -> Result<()> {
        if self.has_values() && self.state.quota.is_some() {
            let values = Lists::load(blocks, draft)?.values_before() as i64;
            draft.values += values;
            if let Some(charged) = &mut draft.charged {
                charged.values += values;
            }
        }
        Ok(())
    }

    /// Credits for changes of an inode's attributes because of the values that are in inodes of their own, besides
    /// [`attribute_blocks::credits`](super::attribute_blocks::credits). Whoever changes them
    /// meanwhile makes the change fail with [`Error::NoSpace`], to be tried again.
    ///
    /// # Errors
    /// [`Error::Corrupt`] of the attributes.
    pub(crate) fn value_credits(&self, inode: &Inode) -> Result<u32> {
        if !self.has_values() {
            return Ok(0);
        }
        let _changes_wait = inode.attributes.read();
        let blocks = Direct(self.state);
        let lists = Lists::load(&blocks, &Draft::load(&blocks, inode.ino())?)?;
        Ok(u32::try_from(lists.values_before()).unwrap_or(u32::MAX))
    }

    /// An inode with this value, without references.
    fn make_value(&self, wanted: &WantedValues, value: &NewValue) -> Result<Ino> {
        let ino = loop {
            if let Some(ino) = self.with_room(|| self.make_value_inode(wanted, value.checksum))? {
                break ino;
            }
            self.state.commit_all()?;
        };
        let filled =
            self.map_value(ino, value.bytes.len()).and_then(|()| self.write_value(ino, &value.bytes));
        if let Err(error) = filled {
            self.state.leavers().add(ino);
            return Err(error);
        }
        let mut known = self.orphans.known.lock();
        known.values.note(key(value.checksum), ino);
        known.unused.insert(ino);
        Ok(ino)
    }

    /// `None`: a commit has to come first.
    fn make_value_inode(&self, wanted: &WantedValues, checksum: u32) -> Result<Option<Ino>> {
        let state = self.state;
        let new = NewInode {
            mode: MODE,
            uid: wanted.uid,
            gid: wanted.gid,
            flags: InodeFlags::EA_INODE,
            generation: state.generation(),
            links: 0,
            now: state.clock.now(),
            limited: false,
        };
        Journaled::run(state, "new value", credits::inode(state) + orphans::CREDITS, |blocks| {
            if state.unlogged.as_ref().is_some_and(Unlogged::has_freed_inode) {
                return Ok(Ok(None));
            }
            let near = Near { parent: wanted.ino, last: None, spread: None };
            let mut made = match self.space.make_inode(blocks, &near, &new, |ino| state.knows_inode(ino)) {
                Err(full) if full.is_full() => return Ok(Err(full)),
                made => made?,
            };
            values::set_references(&mut made.disk, 0);
            values::set_checksum(&mut made.disk, checksum);
            made.store(blocks)?;
            self.add_orphan(blocks, made.ino)?;
            Ok(Ok(Some(made.ino)))
        })?
    }

    /// Gives an inode that nobody else uses as many blocks as a value needs.
    fn map_value(&self, ino: Ino, size: usize) -> Result<()> {
        let end = size.div_ceil(self.state.superblock.geometry.block_size() as usize) as u32;
        let mut at = 0;
        while at < end {
            let draft = Draft::load(&Direct(self.state), ino)?;
            let credits = match draft.disk.uses_extents() {
                true => self.credits(depth(&draft.disk), 1, 1),
                false => credits::pointers(self.state, 2, 1),
            };
            at = self.with_room(|| {
                Journaled::run(self.state, "allocate value", credits, |blocks| {
                    self.map_some(blocks, ino, at..end)
                })?
            })?;
        }
        Ok(())
    }

    /// Maps the beginning of a range, and returns where it goes on. `Err` inside: nothing was changed.
    fn map_some(&self, blocks: &mut Journaled<'_>, ino: Ino, range: Range<u32>) -> Result<Result<u32>> {
        let mut draft = Draft::load(blocks, ino)?;
        let size = self.state.superblock.geometry.cluster_blocks();
        let wanted = range.end - range.start;
        let nodes = edit::nodes(blocks, &draft, std::slice::from_ref(&range))? as u64;
        let limit = Form::of(&draft.disk).map_or(0, Form::reach);
        let wish = Wish { goal: self.home(ino), least: 1, most: wanted.into(), limit };
        let run = match self.space.allocate(blocks, None, &wish, nodes) {
            Err(full) if full.is_full() => return Ok(Err(full)),
            run => run?,
        };
        let length = (run.count as u32).min(wanted);
        let extent = Extent { logical: Lblk(range.start), length, physical: run.first, unwritten: false };
        let counted = draft.count(blocks.ground(), i64::from(length.div_ceil(size)));
        match counted.and_then(|()| edit::insert(blocks, &mut self.space.open(), &mut draft, extent)) {
            Ok(()) => {}
            Err(full) if full.is_full() => {
                self.space.open().give_back(blocks, ino, &[(run.first, run.count)])?;
                return Ok(Err(full));
            }
            Err(error) => return Err(error),
        }
        draft.store_in_chain(blocks)?;
        Ok(Ok(range.start + length))
    }

    /// Writes a value into the blocks of an inode that nobody else uses, and sets its size.
    fn write_value(&self, ino: Ino, value: &[u8]) -> Result<()> {
        let size = self.state.superblock.geometry.block_size() as usize;
        for (part, bytes) in value.chunks(size * WRITTEN).enumerate() {
            Journaled::run(self.state, "write value", WRITTEN as u32 + 1, |blocks| {
                let mut draft = Draft::load(blocks, ino)?;
                for (at, bytes) in bytes.chunks(size).enumerate() {
                    let block = block_of(blocks, &draft, Lblk((part * WRITTEN + at) as u32))?;
                    blocks.describe(block, Role::Value(draft.ino));
                    blocks.fresh(block, |new| {
                        let (value, rest) = new.split_at_mut(bytes.len());
                        value.copy_from_slice(bytes);
                        rest.fill(0);
                    })?;
                }
                draft.disk.size = ((part * WRITTEN * size) + bytes.len()) as u64;
                draft.store_in_chain(blocks)
            })?;
        }
        Ok(())
    }

    /// Checks that reference counts can be changed: all inodes are sound, and those that lose their last reference can
    /// be freed.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Incompatible`]; [`Limit::Attributes`] for a value with too many references. Nothing
    /// was changed.
    pub(super) fn check_references(
        &self,
        blocks: &impl Blocks,
        known: &KnownAttributes,
        owner: &Draft,
        references: &References,
    ) -> Result<Recount> {
        let mut all = Vec::new();
        for (ino, change) in references.0.iter().filter(|(_, change)| **change != 0) {
            let is_new = known.unused.contains(ino) && *change > 0;
            let draft = match is_new {
                true => values::load(blocks, *ino, owner)?,
                false => values::check(blocks, *ino, owner)?,
            };
            let after = values::references(&draft.disk).checked_add_signed(*change);
            let after = after.ok_or_else(|| values::wrong(*ino, "fewer references than attributes have"))?;
            if after > values::REFERENCES_MAX {
                return Err(Error::Limit(Limit::Attributes));
            }
            if after == 0 {
                self.check_frees_value(blocks, &draft)?;
            }
            all.push((draft, after));
        }
        Ok(Recount(all))
    }

    /// Checks that a value inode can be freed.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn check_frees_value(&self, blocks: &impl Blocks, draft: &Draft) -> Result<()> {
        check_frees(blocks, draft)?;
        self.space.check_free_inode(blocks, draft.ino)?;
        self.check_frees_map(blocks, draft)
    }

    /// Changes reference counts. A value without references becomes an orphan, which is freed later.
    ///
    /// # Errors
    /// Those of the body.
    pub(super) fn recount(
        &self,
        blocks: &mut Journaled<'_>,
        known: &mut KnownAttributes,
        recount: Recount,
    ) -> Result<()> {
        for (mut draft, after) in recount.0 {
            let (ino, before) = (draft.ino, values::references(&draft.disk));
            if before == 0 {
                known.unused.remove(&ino);
                self.remove_orphan(blocks, ino)?;
                draft.disk.links = 1;
            }
            if after == 0 {
                draft.disk.links = 0;
            }
            values::set_references(&mut draft.disk, after);
            draft.store_in_chain(blocks)?;
            if after == 0 {
                known.values.forget(ino);
                self.add_orphan(blocks, ino)?;
                self.state.leavers().add(ino);
            }
        }
        Ok(())
    }
}

/// By which a value is known: 0 would be no hash.
fn key(checksum: u32) -> u32 {
    checksum.max(1)
}

fn block_of(blocks: &impl Blocks, draft: &Draft, number: Lblk) -> Result<Pblk> {
    let extent = edit::leaf(blocks, draft, number)?.find(number);
    let block = extent.and_then(|extent| extent.physical_of(number));
    block.ok_or_else(|| values::wrong(draft.ino, "a hole"))
}

/// A known inode with this value, which another attribute may share.
fn find_value(
    blocks: &impl Blocks,
    known: &mut KnownAttributes,
    owner: &Draft,
    new: &NewValue,
) -> Result<Option<Ino>> {
    for ino in known.values.of(key(new.checksum)).into_iter().take(COMPARED_MAX) {
        let found = match known.unused.contains(&ino) {
            true => values::load(blocks, ino, owner),
            false => values::check(blocks, ino, owner),
        };
        // Whoever has this value finds out.
        let Ok(found) = found else {
            known.values.forget(ino);
            continue;
        };
        let fits = found.disk.size == new.bytes.len() as u64
            && values::checksum(&found.disk) == new.checksum
            && values::references(&found.disk) < values::REFERENCES_MAX;
        if fits && values::read(blocks, &found).is_ok_and(|value| value == new.bytes) {
            known.values.note(key(new.checksum), ino);
            return Ok(Some(ino));
        }
    }
    Ok(None)
}

/// Notes the values of an inode that an edit has seen.
pub(super) fn note_values(known: &mut KnownAttributes, lists: &Lists) {
    for entry in lists.record.entries.iter().chain(&lists.block.entries) {
        if let ListedValue::Inode { inode, .. } = entry.value {
            let name = xattr_entry_hash(&entry.name, &[], false);
            known.values.note(key(xattr_value_checksum_of(name, entry.hash)), inode);
        }
    }
}
