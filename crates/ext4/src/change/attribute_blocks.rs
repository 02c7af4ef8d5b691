//! Storing changed attributes: in the record, in a block that inodes with equal attributes share, and references to
//! values in inodes of their own.
//!
//! A block's attributes change in place only if one inode has it. Otherwise the inode gets another block: an existing
//! one with the same attributes ([`KnownAttributes`]), else a new one. The lock of what is known is held from the first
//! look at a reference count until it is changed.
//!
//! A record refers to the values it names, and so does a block, once for all inodes that share it. Everything is
//! checked before the first change.

use super::value_inodes::References;
use super::{Files, orphans};
use crate::alloc::Space;
use crate::alloc::search::Wish;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::primary::change_superblock;
use crate::ground::state::Ground;
use crate::ground::trace::Role;
use crate::inode::draft::Draft;
use crate::xattr::{Known, KnownAttributes, Lists, decode_block, read_block, values};
use uext4_ondisk::ext4::{Compat, Incompat, ListedValue, XattrList, set_xattr_block_references};
use uext4_ondisk::{Ino, Pblk};

/// Most inodes that share a block (`EXT4_XATTR_REFCOUNT_MAX`).
const REFERENCES_MAX: u32 = 1024;
/// Most known blocks of one hash that are compared: a volume can hold many blocks that differ and have the same hash.
const COMPARED_MAX: usize = 32;
/// Access control lists that an inode may inherit.
const INHERITED: u32 = 2;
/// References to values that are dropped in one handle when an inode is freed.
const VALUES_DROPPED: usize = 32;

/// Blocks changed by storing attributes, besides the inode's record: the old block and the new one with their groups,
/// a revoke block, and the superblock; the values of the two access control lists that a new inode may inherit, if they
/// can be in inodes of their own.
pub(crate) fn credits(ground: &Ground) -> u32 {
    let elsewhere = ground.superblock.features.incompat.contains(Incompat::EA_INODE);
    4 + credits::groups(ground, 2) + if elsewhere { INHERITED + orphans::CREDITS } else { 0 }
}

/// Blocks changed by [`Files::drop_values`]: the record, its block, those of the values, and the chain of orphans.
pub(crate) fn drop_credits() -> u32 {
    2 + VALUES_DROPPED as u32 + orphans::CREDITS
}

/// The block that an inode has, the number of inodes that share it, and its attributes with their hash.
struct Old {
    block: Pblk,
    references: u32,
    hash: u32,
    list: XattrList,
}

/// What becomes of an inode's attribute block.
struct BlockChange {
    old: Option<Old>,
    list: XattrList,
    hash: u32,
    target: Target,
}

/// Where the attributes go.
enum Target {
    /// They are gone.
    Nowhere,
    /// They stay in the block, which the inode has alone.
    InPlace,
    /// An existing block, and the number of inodes that have it.
    Shared(Pblk, u32),
    New,
}

impl BlockChange {
    /// Clusters that the inode has more.
    fn clusters(&self) -> i64 {
        i64::from(!matches!(self.target, Target::Nowhere)) - i64::from(self.old.is_some())
    }

    /// The block that the inode leaves.
    fn left(&self) -> Option<&Old> {
        self.old.as_ref().filter(|_| !matches!(self.target, Target::InPlace))
    }

    /// Blocks, not the inodes that share them, refer to values.
    fn refer(&self, references: &mut References) {
        if matches!(self.target, Target::New | Target::InPlace) {
            references.add(&self.list, 1);
        }
        if let Some(old) = self.old.as_ref().filter(|old| old.references == 1) {
            references.add(&old.list, -1);
        }
    }
}

impl Files<'_> {
    /// Stores an inode's changed attributes. The caller stores the draft.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if it needs a block, or the inode of a value ([`Files::place_values`]),
    /// [`Error::Incompatible`], [`Error::Corrupt`]: nothing was changed then. Those of the body.
    pub(crate) fn store_attributes(
        &self,
        blocks: &mut Journaled<'_>,
        draft: &mut Draft,
        mut lists: Lists,
    ) -> Result<()> {
        if !lists.are_changed() {
            return Ok(());
        }
        let mut known = self.orphans.known.lock();
        self.place_values(blocks, &mut known, draft, &mut lists)?;
        let Lists { record, block, before, .. } = lists;
        let change = match block == before.1 {
            true => None,
            false => Some(self.plan_block(blocks, &mut known, draft, block.clone())?),
        };
        let mut references = References::default();
        if record != before.0 {
            references.add(&record, 1);
            references.add(&before.0, -1);
        }
        change.iter().for_each(|change| change.refer(&mut references));
        let recount = self.check_references(blocks, &known, draft, &references)?;
        if blocks.credits() < recount.credits() + 4 + credits::groups(self.state, 2) {
            // Others have changed them since the credits were counted.
            return Err(Error::NoSpace);
        }
        let superblock = &self.state.superblock;
        let of = |lists: [&XattrList; 2]| {
            let values = || lists.into_iter().flat_map(values::of);
            let clusters: u64 = values().map(|(_, size)| values::clusters(superblock, size)).sum();
            (values().count() as i64, clusters as i64)
        };
        let (after, before_them) = (of([&record, &block]), of([&before.0, &before.1]));
        let clusters = after.1 - before_them.1 + change.as_ref().map_or(0, BlockChange::clusters);
        draft.counted(blocks.ground(), clusters)?;
        if let Some(change) = change {
            self.apply_block(blocks, &mut known, draft, change)?;
        }
        self.recount(blocks, &mut known, recount)?;
        draft.count(blocks.ground(), clusters)?;
        draft.values += after.0 - before_them.0;
        if record != before.0 {
            let range = draft.disk.xattr_range(&self.state.superblock);
            record.encode_in_inode(&mut draft.raw[range])?;
        }
        Ok(())
    }

    /// Finds out where the attributes of a block go. Changes nothing.
    fn plan_block(
        &self,
        blocks: &Journaled<'_>,
        known: &mut KnownAttributes,
        draft: &Draft,
        mut list: XattrList,
    ) -> Result<BlockChange> {
        let old = old(blocks, draft)?;
        if list.entries.is_empty() {
            if let Some(old) = &old {
                self.check_release(blocks, draft.ino, old)?;
            }
            return Ok(BlockChange { old, list, hash: 0, target: Target::Nowhere });
        }
        list.sort();
        let hash = list.block_hash();
        let target = match (equal(blocks, &mut known.blocks, &list)?, &old) {
            (Some((block, references)), _) => Target::Shared(block, references),
            (None, Some(Old { references: 1, .. })) => Target::InPlace,
            (None, _) => Target::New,
        };
        let change = BlockChange { old, list, hash, target };
        change.left().map_or(Ok(()), |old| self.check_release(blocks, draft.ino, old))?;
        Ok(change)
    }

    /// Stores the attributes of a block.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing changed. Those of the body.
    fn apply_block(
        &self,
        blocks: &mut Journaled<'_>,
        known: &mut KnownAttributes,
        draft: &mut Draft,
        mut change: BlockChange,
    ) -> Result<()> {
        let superblock = &self.state.superblock;
        let block = match (&change.target, &change.old) {
            (Target::Nowhere, _) => Pblk(0),
            (Target::InPlace, Some(Old { block, .. })) => {
                let bytes = change.list.encode_block(1, *block, superblock)?;
                blocks.describe(*block, Role::Attributes);
                blocks.change(*block, |old| old.copy_from_slice(&bytes))?;
                *block
            }
            (Target::Shared(block, references), _) => {
                change_references(blocks, *block, references + 1)?;
                *block
            }
            (Target::New | Target::InPlace, old) => {
                let goal = old.as_ref().map_or(draft.place.0, |old| old.block);
                let wish = Wish { goal, least: 1, most: 1, limit: 1 << 48 };
                let block = self.space.allocate(blocks, None, &wish, 0)?.first;
                let bytes = change.list.encode_block(1, block, superblock)?;
                blocks.describe(block, Role::Attributes);
                blocks.fresh(block, |new| new.copy_from_slice(&bytes))?;
                block
            }
        };
        if block.get() != 0 {
            known.blocks.note(change.hash, block);
        }
        draft.disk.xattr_block = block;
        match change.left() {
            Some(old) => self.release(blocks, &mut known.blocks, draft.ino, old),
            None if change.old.is_none() && block.get() != 0 => note_feature(blocks),
            None => Ok(()),
        }
    }

    /// Frees an inode's attribute block, or drops the inode's reference to a shared one. The caller counts its blocks
    /// and stores the draft. `false`: nothing was done, since values must be dropped first ([`Files::drop_values`]).
    ///
    /// # Errors
    /// [`Error::Corrupt`], with nothing changed. Those of the body.
    pub(crate) fn release_attribute_block(
        &self,
        blocks: &mut Journaled<'_>,
        draft: &mut Draft,
    ) -> Result<bool> {
        let mut known = self.orphans.known.lock();
        let Some(old) = old(blocks, draft)? else { return Ok(true) };
        let values = values::of(&old.list).count();
        if values > 0 && old.references == 1 {
            return Ok(false);
        }
        self.check_release(blocks, draft.ino, &old)?;
        draft.disk.xattr_block = Pblk(0);
        draft.values -= values as i64;
        self.release(blocks, &mut known.blocks, draft.ino, &old)?;
        Ok(true)
    }

    /// Drops references to values that an inode without users has, as many as fit one handle; whether there may be
    /// more. The block that it shares with others keeps its own.
    ///
    /// # Errors
    /// [`Error::Corrupt`], with nothing changed. Those of the body.
    pub(crate) fn drop_values(&self, blocks: &mut Journaled<'_>, ino: Ino) -> Result<bool> {
        let mut draft = Draft::load(blocks, ino)?;
        let mut known = self.orphans.known.lock();
        let Lists { mut record, mut block, .. } = Lists::load(blocks, &draft)?;
        let alone = old(blocks, &draft)?.is_some_and(|old| old.references == 1);
        let (mut dropped, mut room) = (XattrList::default(), VALUES_DROPPED);
        let mut take = |list: &mut XattrList| {
            let before = dropped.entries.len();
            list.entries.retain(|entry| {
                let goes = room > 0 && matches!(entry.value, ListedValue::Inode { .. });
                if goes {
                    room -= 1;
                    dropped.entries.push(entry.clone());
                }
                !goes
            });
            dropped.entries.len() > before
        };
        let (from_record, from_block) = (take(&mut record), alone && take(&mut block));
        if !from_record && !from_block {
            return Ok(false);
        }
        let mut references = References::default();
        references.add(&dropped, -1);
        let recount = self.check_references(blocks, &known, &draft, &references)?;
        let superblock = &self.state.superblock;
        if from_record {
            let range = draft.disk.xattr_range(superblock);
            record.encode_in_inode(&mut draft.raw[range])?;
        }
        if from_block {
            let place = draft.disk.xattr_block;
            let bytes = block.encode_block(1, place, superblock)?;
            // Nobody else may get it: it is going to be freed.
            known.blocks.forget(place);
            blocks.describe(place, Role::Attributes);
            blocks.change(place, |old| old.copy_from_slice(&bytes))?;
        }
        self.recount(blocks, &mut known, recount)?;
        let clusters: u64 = values::of(&dropped).map(|(_, size)| values::clusters(superblock, size)).sum();
        // If it counts fewer than it has, there is nothing to keep right: it goes.
        let _ = draft.count(blocks.ground(), -(clusters as i64));
        draft.values -= dropped.entries.len() as i64;
        draft.store_in_chain(blocks)?;
        Ok(true)
    }

    /// Checks that a block can be released.
    fn check_release(&self, blocks: &impl Blocks, ino: Ino, old: &Old) -> Result<()> {
        match old.references {
            1 => self.space.check_give_back(blocks, ino, &[(old.block, self.cluster())]),
            _ => Ok(()),
        }
    }

    fn release(
        &self,
        blocks: &mut Journaled<'_>,
        known: &mut Known<Pblk>,
        ino: Ino,
        old: &Old,
    ) -> Result<()> {
        if old.references > 1 {
            // It may have been full, and forgotten.
            known.note(old.hash, old.block);
            return change_references(blocks, old.block, old.references - 1);
        }
        known.forget(old.block);
        self.space.open().give_back(blocks, ino, &[(old.block, self.cluster())])?;
        blocks.freed(old.block)
    }

    fn cluster(&self) -> u64 {
        u64::from(self.state.superblock.geometry.cluster_blocks())
    }
}

/// The block that an inode has.
fn old(blocks: &impl Blocks, draft: &Draft) -> Result<Option<Old>> {
    let block = draft.disk.xattr_block;
    let found = read_block(blocks, draft)?;
    Ok(found.map(|(list, references)| Old { block, references, hash: list.block_hash(), list }))
}

/// A known block with the same attributes that another inode may share, and the number of those that do.
fn equal(blocks: &impl Blocks, known: &mut Known<Pblk>, list: &XattrList) -> Result<Option<(Pblk, u32)>> {
    for block in known.of(list.block_hash()).into_iter().take(COMPARED_MAX) {
        match decode_block(blocks, block)? {
            // Of many full blocks with these attributes, none is read again until an inode leaves it.
            Ok((_, references)) if references >= REFERENCES_MAX => known.forget(block),
            Ok((found, references)) if found == *list => return Ok(Some((block, references))),
            Ok(_) => {}
            // Whoever has this block finds out.
            Err(_) => known.forget(block),
        }
    }
    Ok(None)
}

fn change_references(blocks: &mut Journaled<'_>, block: Pblk, references: u32) -> Result<()> {
    let mut bytes = blocks.look(block, <[u8]>::to_vec)?;
    set_xattr_block_references(&mut bytes, references, block, &blocks.ground().superblock)?;
    blocks.describe(block, Role::Attributes);
    blocks.change(block, |old| old.copy_from_slice(&bytes))
}

/// Volumes with attribute blocks have the feature `ext_attr`.
fn note_feature(blocks: &mut Journaled<'_>) -> Result<()> {
    if blocks.ground().superblock.features.compat.contains(Compat::EXT_ATTR) {
        return Ok(());
    }
    change_superblock(blocks, |superblock| superblock.features.compat |= Compat::EXT_ATTR)
}
