//! Storing changed attributes: in the record, and in a block that inodes with equal attributes share.
//!
//! A block's attributes change in place only if one inode has it. Otherwise the inode gets another block: an existing
//! one with the same attributes ([`KnownBlocks`]), else a new one. The lock of the known blocks is held from the first
//! look at a reference count until it is changed.

use super::Files;
use crate::alloc::Space;
use crate::alloc::search::Wish;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::primary::change_superblock;
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use crate::xattr::{KnownBlocks, Lists, decode_block, read_block};
use uext4_ondisk::ext4::{Compat, ListedValue, XattrList, set_xattr_block_references};
use uext4_ondisk::{Ino, Pblk};

/// Most inodes that share a block (`EXT4_XATTR_REFCOUNT_MAX`).
const REFERENCES_MAX: u32 = 1024;
/// Most known blocks of one hash that are compared: a volume can hold many blocks that differ and have the same hash.
const COMPARED_MAX: usize = 32;

/// Blocks changed by storing attributes, besides the inode's record: the old block and the new one with their groups,
/// a revoke block, and the superblock.
pub(crate) fn credits(ground: &Ground) -> u32 {
    4 + credits::groups(ground, 2)
}

/// The block that an inode has, the number of inodes that share it, and the hash of its attributes.
struct Old {
    block: Pblk,
    references: u32,
    hash: u32,
}

impl Files<'_> {
    /// Stores an inode's changed attributes. The caller stores the draft.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if it needs a block, [`Error::Incompatible`], [`Error::Corrupt`]: nothing was changed then.
    /// Those of the body.
    pub(crate) fn store_attributes(
        &self,
        blocks: &mut Journaled<'_>,
        draft: &mut Draft,
        lists: Lists,
    ) -> Result<()> {
        refuse_value_inodes(draft.ino, &lists)?;
        let Lists { record, block, before, .. } = lists;
        if block != before.1 {
            self.store_block(blocks, draft, block)?;
        }
        if record != before.0 {
            let range = draft.disk.xattr_range(&self.state.superblock);
            record.encode_in_inode(&mut draft.raw[range])?;
        }
        Ok(())
    }

    fn store_block(&self, blocks: &mut Journaled<'_>, draft: &mut Draft, mut list: XattrList) -> Result<()> {
        let mut known = self.orphans.known_blocks.lock();
        let old = old(blocks, draft)?;
        if list.entries.is_empty() {
            let Some(old) = old else { return Ok(()) };
            self.check_release(blocks, draft.ino, &old)?;
            draft.count(blocks.ground(), -1)?;
            draft.disk.xattr_block = Pblk(0);
            return self.release(blocks, &mut known, draft.ino, &old);
        }
        list.sort();
        let superblock = &self.state.superblock;
        let (equal, hash) = (equal(blocks, &mut known, &list)?, list.block_hash());
        if let (None, Some(Old { block, references: 1, .. })) = (equal, &old) {
            let bytes = list.encode_block(1, *block, superblock)?;
            known.note(hash, *block);
            return blocks.change(*block, |old| old.copy_from_slice(&bytes));
        }
        match &old {
            Some(old) => self.check_release(blocks, draft.ino, old)?,
            None => drop(draft.counted(blocks.ground(), 1)?),
        }
        let new = match equal {
            Some((block, references)) => {
                change_references(blocks, block, references + 1)?;
                block
            }
            None => {
                let goal = old.as_ref().map_or(draft.place.0, |old| old.block);
                let wish = Wish { goal, least: 1, most: 1, limit: 1 << 48 };
                let block = self.space.allocate(blocks, &wish, 0)?.first;
                let bytes = list.encode_block(1, block, superblock)?;
                blocks.fresh(block, |new| new.copy_from_slice(&bytes))?;
                block
            }
        };
        known.note(hash, new);
        draft.disk.xattr_block = new;
        match old {
            Some(old) => self.release(blocks, &mut known, draft.ino, &old),
            None => {
                draft.count(blocks.ground(), 1)?;
                note_feature(blocks)
            }
        }
    }

    /// Frees an inode's attribute block, or drops the inode's reference to a shared one. The caller counts its blocks
    /// and stores the draft.
    ///
    /// # Errors
    /// [`Error::Corrupt`], with nothing changed. Those of the body.
    pub(crate) fn release_attribute_block(
        &self,
        blocks: &mut Journaled<'_>,
        draft: &mut Draft,
    ) -> Result<()> {
        let mut known = self.orphans.known_blocks.lock();
        let Some(old) = old(blocks, draft)? else { return Ok(()) };
        self.check_release(blocks, draft.ino, &old)?;
        draft.disk.xattr_block = Pblk(0);
        self.release(blocks, &mut known, draft.ino, &old)
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
        known: &mut KnownBlocks,
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
    Ok(found.map(|(list, references)| Old { block, references, hash: list.block_hash() }))
}

/// A known block with the same attributes that another inode may share, and the number of those that do.
fn equal(blocks: &impl Blocks, known: &mut KnownBlocks, list: &XattrList) -> Result<Option<(Pblk, u32)>> {
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
    blocks.change(block, |old| old.copy_from_slice(&bytes))
}

/// Volumes with attribute blocks have the feature `ext_attr`.
fn note_feature(blocks: &mut Journaled<'_>) -> Result<()> {
    if blocks.ground().superblock.features.compat.contains(Compat::EXT_ATTR) {
        return Ok(());
    }
    change_superblock(blocks, |superblock| superblock.features.compat |= Compat::EXT_ATTR)
}

/// Refuses to change attributes while values of theirs are in inodes of their own, whose references would change too.
fn refuse_value_inodes(ino: Ino, lists: &Lists) -> Result<()> {
    let elsewhere =
        |list: &XattrList| list.entries.iter().any(|entry| matches!(entry.value, ListedValue::Inode { .. }));
    let Lists { record, block, before, .. } = lists;
    let touched = block != &before.1 && (elsewhere(block) || elsewhere(&before.1));
    if touched || record != &before.0 && (elsewhere(record) || elsewhere(&before.0)) {
        let feature = format!("attributes in inodes of their own (inode {ino})");
        return Err(Error::Incompatible { action: "change the attributes", feature });
    }
    Ok(())
}
