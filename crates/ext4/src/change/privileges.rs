//! The first change of a file's contents strips its privileges: set-user-id, set-group-id if the group may execute it,
//! and the attribute `security.capability`.
//!
//! Linux: `file_remove_privs` and `setattr_should_drop_suidgid`. There a caller with `CAP_FSETID` keeps the set-id
//! bits; here the volume's option does. Set-group-id on a file that is not group-executable means mandatory locking,
//! and stays.
//!
//! Everything is checked before the first change.

use super::{Files, attribute_blocks};
use crate::ground::credits;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::state::Ground;
use crate::inode::edit::Change;
use crate::inode::{Ext4State, Inode};
use crate::xattr::{self, Lists};
use uext4_ondisk::ext4::{InodeFlags, XattrEntry, XattrIndex};

const SET_USER: u16 = 0o4000;
const SET_GROUP: u16 = 0o2000;
const GROUP_RUNS: u16 = 0o010;

/// The attribute's name after `security.`.
pub(crate) const CAPABILITY: &[u8] = b"capability";

/// The record, and its attributes.
pub(super) fn most_credits(files: &Files<'_>, inode: &Inode) -> Result<u32> {
    let ground = files.state;
    Ok(credits::inode(ground) + attribute_blocks::credits(ground) + files.value_credits(inode)?)
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

/// Removes the capability; whether there was one.
pub(super) fn strip(lists: &mut Lists) -> bool {
    lists.remove(XattrIndex::Security, CAPABILITY)
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
        xattr::any(self.state, inode, is_capability).map(drop)
    }

    /// Strips the privileges in one handle. The file is datasync-dirty then: a durable write makes this durable first.
    ///
    /// # Errors
    /// Those of [`Files::check_privileges`]; [`Error::NoSpace`] if the file needs an attribute block of its own; those
    /// of the journal. Nothing was changed then, or the volume is aborted.
    pub(crate) fn drop_privileges(&self, inode: &Inode) -> Result<()> {
        self.check_privileges(inode)?;
        let run = || {
            Journaled::run(self.state, "strip privileges", most_credits(self, inode)?, |blocks| {
                let mut edit = inode.edit(blocks)?;
                let _readers_wait = inode.attributes.write();
                let bits = set_id(self.state, edit.disk.mode);
                let mut lists = self.load_attributes(blocks, &edit)?;
                let capable = strip(&mut lists);
                if capable {
                    self.store_attributes(blocks, &mut edit, lists)?;
                }
                if bits != 0 || capable {
                    edit.disk.mode &= !bits;
                    edit.stamp(self.state.clock.now(), false);
                    edit.store(blocks, Change::Data)?;
                }
                // Under the editor lock: privileges set before this are gone, and later ones set the flag again.
                inode.state.set_privileged(false);
                Ok(())
            })
        };
        self.with_room(run)
    }
}
