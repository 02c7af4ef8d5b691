//! Sets attributes of an inode: permissions, owner, times, flags, project.
//!
//! Linux: `notify_change`, `ext4_setattr`. Everything is checked before the first change.

use super::Files;
use super::privileges::{most_credits, privileged_bits, set_id, strip};
use super::set_flags::{check_generation, check_immutable, flags_after, project_after};
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::state::{ROOT, is_system_file};
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::inode::fields::{CREATION_END, TIMES_END, storable};
use crate::inode::metadata::{FileKind, Timestamp};
use crate::inode::set_attributes::{SetAttributes, Time};
use crate::xattr::acl;
use uext4_ondisk::ext4::{Inode as DiskInode, InodeFlags, Superblock};

const PERMISSIONS: u16 = 0o7777;

impl Files<'_> {
    /// Checks that these attributes of the inode may be set.
    ///
    /// # Errors
    /// As of [`Files::set_attributes`].
    pub(crate) fn check_attributes(&self, inode: &Inode, set: &SetAttributes) -> Result<()> {
        set.check()?;
        self.check_changes()?;
        let superblock = &self.state.superblock;
        let reserved = inode.ino() < superblock.geometry.first_inode() && inode.ino() != ROOT;
        if reserved || is_system_file(superblock, inode.ino()) {
            return Err(Error::NotPermitted("an internal file of the volume"));
        }
        if strips(inode, set) {
            self.check_privileges(inode)?;
        }
        check(superblock, inode.kind(), &inode.disk(), set).map(drop)
    }

    /// Sets all given attributes but the size in one handle, and the time of change to now. An access control list
    /// follows the permissions.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] if the inode is immutable or append-only, or internal to the volume;
    /// [`Error::NotSupported`] for permissions of symbolic links, and what the record has no field for;
    /// [`Error::Invalid`]; those of stripping privileges ([`Files::drop_privileges`]), of [`Files::check_changes`] and
    /// of the journal. Nothing was changed then.
    pub(crate) fn set_attributes(&self, inode: &Inode, set: &SetAttributes) -> Result<()> {
        self.check_attributes(inode, set)?;
        let strips = strips(inode, set);
        let touches_xattrs = strips || set.mode.is_some();
        self.with_room(|| {
            let credits = if touches_xattrs { most_credits(self, inode)? } else { 1 };
            Journaled::run(self.state, "set attributes", credits, |blocks| {
                let mut edit = inode.edit(blocks)?;
                // It may have become immutable since the check.
                let (flags, project) = check(&self.state.superblock, inode.kind(), &edit.disk, set)?;
                self.want_entries(blocks, set.ids(&edit.disk, project))?;
                if set.limited {
                    self.check_new_owner(blocks, &edit, set.ids(&edit.disk, project))?;
                }
                if set.owner() || set.project.is_some() {
                    self.count_values(blocks, &mut edit)?;
                }
                if touches_xattrs {
                    let _readers_wait = inode.attributes.write();
                    let mut lists = self.load_attributes(blocks, &edit)?;
                    if strips {
                        strip(&mut lists);
                    }
                    if let Some(mode) = set.mode {
                        acl::follow_mode(blocks, &mut lists, &edit, mode as u16)?;
                    }
                    self.store_attributes(blocks, &mut edit, lists)?;
                }
                if strips {
                    edit.disk.mode &= !privileged_bits(edit.disk.mode);
                }
                let now = self.state.clock.now();
                apply(&mut edit, set, now);
                edit.disk.flags = flags;
                edit.disk.project = project.or(edit.disk.project);
                if set.modified.is_some() {
                    edit.forget_writes();
                }
                if set.accessed.is_some() {
                    edit.forget_accesses();
                }
                let sealed = flags.contains(InodeFlags::IMMUTABLE);
                let regular = inode.kind() == FileKind::Regular;
                // The next write of a file that is open already asks, and is refused if the file is immutable.
                if regular && (sealed || set_id(self.state, edit.disk.mode) != 0) {
                    inode.state.set_privileged(true);
                }
                edit.stamp(now, false);
                edit.store(blocks, Change::Attributes)?;
                if !touches_xattrs && set.flags.is_none() && set.project.is_none() {
                    blocks.declare(inode.ino(), 0..0);
                }
                Ok(())
            })
        })
    }
}

/// Whether privileges are stripped, which directories do not have.
fn strips(inode: &Inode, set: &SetAttributes) -> bool {
    set.strips() && inode.kind() != FileKind::Directory
}

/// Returns the flags afterwards, and the new project.
fn check(
    superblock: &Superblock,
    kind: FileKind,
    disk: &DiskInode,
    set: &SetAttributes,
) -> Result<(InodeFlags, Option<u32>)> {
    let flags = flags_after(superblock, kind, disk, set)?;
    check_immutable(disk, flags, set)?;
    if disk.flags.contains(InodeFlags::APPEND) && set.more_than_appending() {
        return Err(Error::NotPermitted("the file is append-only"));
    }
    if kind == FileKind::Symlink && set.mode.is_some() {
        return Err(Error::NotSupported("permissions of a symbolic link"));
    }
    if set.created.is_some() && disk.created.is_none() {
        return Err(Error::NotSupported("a time of creation in an inode without room for it"));
    }
    check_generation(superblock, set)?;
    Ok((flags, project_after(superblock, disk, set)?))
}

/// Changes the fields of the draft.
fn apply(draft: &mut Draft, set: &SetAttributes, now: Timestamp) {
    let (ino_size, disk) = (draft.disk.extra_isize, &mut draft.disk);
    let fit = |time: Time| match time {
        Time::Now => storable(now, ino_size, TIMES_END),
        Time::At(time) => storable(time, ino_size, TIMES_END),
    };
    disk.uid = set.uid.unwrap_or(disk.uid);
    disk.gid = set.gid.unwrap_or(disk.gid);
    disk.generation = set.generation.unwrap_or(disk.generation);
    if let Some(mode) = set.mode {
        disk.mode = disk.mode & !PERMISSIONS | mode as u16 & PERMISSIONS;
    }
    disk.accessed = set.accessed.map_or(disk.accessed, fit);
    disk.modified = set.modified.map_or(disk.modified, fit);
    if let Some(created) = set.created {
        disk.created = Some(storable(created, ino_size, CREATION_END));
    }
}
