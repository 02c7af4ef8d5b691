//! What a file is allowed to do when it is run goes with the first change of its contents: set-user-id, set-group-id if
//! the group may run it, and the attribute `security.capability`.
//!
//! Linux: `file_remove_privs` and `setattr_should_drop_suidgid`. There a caller with `CAP_FSETID` keeps the first two;
//! here the volume's option does. Set-group-id of a file that its group may not run means something else, and stays.
//!
//! Everything that can be wrong is looked at before the first change.

use super::Files;
use crate::alloc::Space;
use crate::alloc::search::Wish;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::error::{Error, Result};
use crate::ground::features;
use crate::ground::journaled::Journaled;
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::inode::fields::now;
use crate::inode::{Ext4State, Inode};
use crate::xattr;
use uext4_ondisk::ext4::{
    XattrArea, XattrBlock, XattrEntry, XattrFormat, XattrIndex, XattrValue, XattrsLeft, remove_block_xattr,
    remove_inode_xattr, set_xattr_block_references,
};
use uext4_ondisk::{Corrupt, Pblk};

const SET_USER: u16 = 0o4000;
const SET_GROUP: u16 = 0o2000;
const GROUP_RUNS: u16 = 0o010;

/// The name behind `security.`.
pub(super) const CAPABILITY: &[u8] = b"capability";

/// The record, the block of attributes, another one of its own, a block of revokes, and the groups of both.
fn most_credits(ground: &Ground) -> u32 {
    4 + credits::groups(ground, 2)
}

/// The bits of a mode that a change of the contents takes away.
pub(super) fn set_id(ground: &Ground, mode: u16) -> u16 {
    let group = if mode & GROUP_RUNS != 0 { SET_GROUP } else { 0 };
    if ground.keeps_set_id { 0 } else { mode & (SET_USER | group) }
}

fn is_capability(entry: &XattrEntry<'_>) -> bool {
    entry.name_index == XattrIndex::Security.to_disk() && entry.name == CAPABILITY
}

/// Finds out whether the first write has something to take away, and notes it for the engine. Reads the block of
/// attributes, if the file has one.
///
/// # Errors
/// [`Error::Corrupt`], those of the device: whoever cannot tell must not write.
pub(crate) fn note(state: &Ext4State, inode: &Inode) -> Result<()> {
    if inode.state.is_privileged() {
        return Ok(());
    }
    if set_id(state, inode.disk().mode) != 0 || xattr::any(state, inode, is_capability)? {
        inode.state.set_privileged(true);
    }
    Ok(())
}

/// Of an attribute block that loses the capability.
struct Stripped {
    block: Pblk,
    bytes: Vec<u8>,
    left: XattrsLeft,
    users: u32,
}

impl Files<'_> {
    /// Whether what a write takes away can be taken away.
    ///
    /// # Errors
    /// What the volume lacks. [`Error::Corrupt`] of attributes.
    pub(crate) fn check_privileges(&self, inode: &Inode) -> Result<()> {
        let action = "take set-id bits or capabilities away";
        // Of the superblock alone: `explain` asks this on volumes that are open for reading.
        if !self.state.takes_changes() {
            let feature = format!("a volume that was not left cleanly (inode {})", inode.ino());
            return Err(Error::Incompatible { action, feature });
        }
        let mut elsewhere = false;
        let found = xattr::any(self.state, inode, |entry| {
            elsewhere |= is_capability(entry) && matches!(entry.value, XattrValue::Inode { .. });
            is_capability(entry)
        })?;
        if elsewhere {
            let feature = format!("a capability in an inode of its own (inode {})", inode.ino());
            return Err(Error::Incompatible { action, feature });
        }
        // Its block may go, which is counted.
        if found { features::check_accounts(&self.state.superblock) } else { Ok(()) }
    }

    /// Takes it away, in one handle. The file is datasync-dirty then: who writes durably makes this durable first.
    ///
    /// # Errors
    /// Those of [`Files::check_privileges`]; [`Error::NoSpace`] if the file has to get an attribute block of its own;
    /// those of the journal. Nothing was changed then, or the volume is aborted.
    pub(crate) fn drop_privileges(&self, inode: &Inode) -> Result<()> {
        self.check_privileges(inode)?;
        let run = || {
            Journaled::run(self.state, most_credits(self.state), |blocks| {
                let mut edit = inode.edit(blocks)?;
                let bits = set_id(self.state, edit.disk.mode);
                let in_record = strip_record(blocks, &mut edit)?;
                // What is in the record counts; no name is in both.
                let in_block = !in_record && self.strip_block(blocks, &mut edit)?;
                if bits != 0 || in_record || in_block {
                    edit.disk.mode &= !bits;
                    edit.stamp(now(), false);
                    edit.store(blocks, Change::Data)?;
                }
                // With the editor's turn: who gives it some comes before, and they are gone, or after this.
                inode.state.set_privileged(false);
                Ok(())
            })
        };
        self.with_room(run)
    }

    /// Takes the capability out of the block of attributes. If others use the block, the file gets one of its own.
    fn strip_block(&self, blocks: &mut Journaled<'_>, draft: &mut Draft) -> Result<bool> {
        let _others_wait = self.orphans.shared_blocks.lock();
        let Some(stripped) = stripped(blocks, draft)? else { return Ok(false) };
        let Stripped { block, mut bytes, left, users } = stripped;
        let superblock = &self.state.superblock;
        let cluster = u64::from(superblock.geometry.cluster_blocks());
        if left == XattrsLeft::Nothing {
            draft.count(blocks.ground(), -1)?;
            draft.disk.xattr_block = Pblk(0);
        }
        match (left, users) {
            (XattrsLeft::Nothing, 0 | 1) => {
                self.space.open().give_back(blocks, draft.ino, &[(block, cluster)])?;
                blocks.freed(block)?;
            }
            (XattrsLeft::Some, 0 | 1) => {
                set_xattr_block_references(&mut bytes, 1, block, superblock)?;
                blocks.change(block, |old| old.copy_from_slice(&bytes))?;
            }
            (_, users) => {
                if left == XattrsLeft::Some {
                    let wish = Wish { goal: block, least: 1, most: 1, limit: 1 << 48 };
                    let own = self.space.allocate(blocks, &wish, 0)?.first;
                    set_xattr_block_references(&mut bytes, 1, own, superblock)?;
                    blocks.fresh(own, |new| new.copy_from_slice(&bytes))?;
                    draft.disk.xattr_block = own;
                }
                let mut shared = blocks.look(block, <[u8]>::to_vec)?;
                set_xattr_block_references(&mut shared, users - 1, block, superblock)?;
                blocks.change(block, |old| old.copy_from_slice(&shared))?;
            }
        }
        Ok(true)
    }
}

/// Takes the capability out of the record.
pub(super) fn strip_record(blocks: &impl Blocks, draft: &mut Draft) -> Result<bool> {
    let superblock = &blocks.ground().superblock;
    if draft.disk.extra_isize == 0 {
        return Ok(false);
    }
    let range = draft.disk.xattr_range(superblock);
    let Some(bytes) = draft.raw.get_mut(range) else { return Ok(false) };
    let place = |corrupt: Corrupt| Error::from(corrupt.in_inode(draft.ino));
    if XattrArea::in_inode(bytes, &XattrFormat::new(superblock)).map_err(place)?.is_none() {
        return Ok(false);
    }
    Ok(remove_inode_xattr(bytes, XattrIndex::Security, CAPABILITY).is_some())
}

/// The block of attributes without the capability, if it has it.
fn stripped(blocks: &impl Blocks, draft: &Draft) -> Result<Option<Stripped>> {
    let block = draft.disk.xattr_block;
    if block.get() == 0 {
        return Ok(None);
    }
    let place = |corrupt: Corrupt| Error::from(corrupt.in_inode(draft.ino));
    let mut bytes = blocks.look(block, <[u8]>::to_vec)?;
    let decoded = XattrBlock::decode(&bytes, block, &blocks.ground().superblock);
    let users = decoded.map_err(place)?.reference_count;
    let left = remove_block_xattr(&mut bytes, XattrIndex::Security, CAPABILITY);
    Ok(left.map(|left| Stripped { block, bytes, left, users }))
}
