//! The first change of a file's contents strips its privileges: set-user-id, set-group-id if the group may execute it,
//! and the attribute `security.capability`.
//!
//! Linux: `file_remove_privs` and `setattr_should_drop_suidgid`. There a caller with `CAP_FSETID` keeps the set-id
//! bits; here the volume's option does. Set-group-id on a file that is not group-executable means mandatory locking,
//! and stays.
//!
//! Everything is checked before the first change.

use super::Files;
use crate::alloc::Space;
use crate::alloc::search::Wish;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::inode::fields::now;
use crate::inode::{Ext4State, Inode};
use crate::xattr;
use uext4_ondisk::ext4::{
    InodeFlags, XattrArea, XattrBlock, XattrEntry, XattrFormat, XattrIndex, XattrValue, XattrsLeft,
    remove_block_xattr, remove_inode_xattr, set_xattr_block_references,
};
use uext4_ondisk::{Corrupt, Pblk};

const SET_USER: u16 = 0o4000;
const SET_GROUP: u16 = 0o2000;
const GROUP_RUNS: u16 = 0o010;

/// The attribute's name after `security.`.
pub(super) const CAPABILITY: &[u8] = b"capability";

/// The record, the attribute block, a new one for this file alone, a revoke block, and the groups of both.
pub(super) fn most_credits(ground: &Ground) -> u32 {
    4 + credits::groups(ground, 2)
}

/// The mode bits that give privileges.
pub(super) fn privileged_bits(mode: u16) -> u16 {
    let group = if mode & GROUP_RUNS != 0 { SET_GROUP } else { 0 };
    mode & (SET_USER | group)
}

/// The mode bits that a change of the contents strips.
pub(super) fn set_id(ground: &Ground, mode: u16) -> u16 {
    if ground.keeps_set_id { 0 } else { privileged_bits(mode) }
}

fn is_capability(entry: &XattrEntry<'_>) -> bool {
    entry.name_index == XattrIndex::Security.to_disk() && entry.name == CAPABILITY
}

/// Checks whether the first write has something to strip, and tells the engine. Reads the attribute block, if the file
/// has one.
///
/// # Errors
/// [`Error::Corrupt`], those of the device: if this cannot be known, the file must not be written.
pub(crate) fn note(state: &Ext4State, inode: &Inode) -> Result<()> {
    if inode.state.is_privileged() {
        return Ok(());
    }
    if set_id(state, inode.disk().mode) != 0 || xattr::any(state, inode, is_capability)? {
        inode.state.set_privileged(true);
    }
    Ok(())
}

/// An attribute block without the capability.
struct Stripped {
    block: Pblk,
    bytes: Vec<u8>,
    left: XattrsLeft,
    users: u32,
}

impl Files<'_> {
    /// Checks that what a write strips can be stripped, and that the file did not become immutable while it was open.
    ///
    /// # Errors
    /// [`Error::NotPermitted`]. [`Error::Incompatible`] naming what is missing. [`Error::Corrupt`] of attributes.
    pub(crate) fn check_privileges(&self, inode: &Inode) -> Result<()> {
        if inode.disk().flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted("the file is immutable"));
        }
        let action = "strip set-id bits or capabilities";
        // Ask the superblock only: `explain` runs on volumes opened for reading too.
        if !self.state.takes_changes() {
            let feature = format!("a volume that was not unmounted cleanly (inode {})", inode.ino());
            return Err(Error::Incompatible { action, feature });
        }
        let mut elsewhere = false;
        xattr::any(self.state, inode, |entry| {
            elsewhere |= is_capability(entry) && matches!(entry.value, XattrValue::Inode { .. });
            is_capability(entry)
        })?;
        if elsewhere {
            let feature = format!("a capability in an inode of its own (inode {})", inode.ino());
            return Err(Error::Incompatible { action, feature });
        }
        Ok(())
    }

    /// Strips the privileges in one handle. The file is datasync-dirty then: a durable write makes this durable first.
    ///
    /// # Errors
    /// Those of [`Files::check_privileges`]; [`Error::NoSpace`] if the file needs an attribute block of its own; those
    /// of the journal. Nothing was changed then, or the volume is aborted.
    pub(crate) fn drop_privileges(&self, inode: &Inode) -> Result<()> {
        self.check_privileges(inode)?;
        let run = || {
            Journaled::run(self.state, most_credits(self.state), |blocks| {
                let mut edit = inode.edit(blocks)?;
                let bits = set_id(self.state, edit.disk.mode);
                let capability = self.strip_capability(blocks, &mut edit)?;
                if bits != 0 || capability {
                    edit.disk.mode &= !bits;
                    edit.stamp(now(), false);
                    edit.store(blocks, Change::Data)?;
                }
                // Under the editor lock: privileges set before this are gone, and later ones set the flag again.
                inode.state.set_privileged(false);
                Ok(())
            })
        };
        self.with_room(run)
    }

    /// Strips the privileges from a draft, whatever the volume's option says.
    ///
    /// # Errors
    /// As of [`Files::drop_privileges`], which says what to check first.
    pub(super) fn strip(&self, blocks: &mut Journaled<'_>, draft: &mut Draft) -> Result<()> {
        self.strip_capability(blocks, draft)?;
        draft.disk.mode &= !privileged_bits(draft.disk.mode);
        Ok(())
    }

    fn strip_capability(&self, blocks: &mut Journaled<'_>, draft: &mut Draft) -> Result<bool> {
        // The record takes precedence; no name is in both.
        Ok(strip_record(blocks, draft)? || self.strip_block(blocks, draft)?)
    }

    /// Removes the capability from the attribute block. If the block is shared, the file gets one of its own.
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

/// Removes the capability from the record.
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

/// The attribute block without the capability, if it has one.
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
