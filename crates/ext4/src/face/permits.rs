//! Whether a caller may do something with an inode: the answer that the kernel's VFS would give.

use super::node::Node;
use crate::ground::caller::Caller;
use crate::ground::error::Result;
use crate::inode::metadata::FileKind;
use crate::xattr::AclKind;
use uext4_ondisk::ext4::{Acl, AclTag};

bitflags::bitflags! {
    /// What a caller wants to do with an inode.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct Access: u16 {
        /// Execute a file; look up names in a directory.
        const EXECUTE = 1;
        /// Write a file; change names in a directory.
        const WRITE = 2;
        /// Read a file; list a directory.
        const READ = 4;
    }
}

impl Node {
    /// Whether permission bits and access control list let the caller do all of this, or root's privileges do: what
    /// Linux asks before it opens a file or looks up a name. Directories on the way here are not checked, nor whether
    /// the volume or the file can be changed at all.
    ///
    /// # Errors
    /// Those of reading the access control list.
    pub fn permits(&self, caller: &Caller, access: Access) -> Result<bool> {
        let found = self.attributes();
        let granted = match () {
            () if caller.uid == found.uid => has(found.mode >> 6, access),
            () => {
                // Without a bit for the group there is no list, or its mask is empty.
                let kind = AclKind::Access;
                let acl =
                    if found.mode & 0o070 == 0 { None } else { self.volume().acl_of(self.ino(), kind)? };
                match acl {
                    Some(acl) => listed(&acl, found.gid, caller, access),
                    None if caller.is_in(found.gid) => has(found.mode >> 3, access),
                    None => has(found.mode, access),
                }
            }
        };
        // Root executes only what somebody may execute.
        let overrides =
            found.kind == FileKind::Directory || !access.contains(Access::EXECUTE) || found.mode & 0o111 != 0;
        Ok(granted || caller.is_root() && overrides)
    }
}

/// Whether three permission bits give all of it.
fn has(bits: u32, access: Access) -> bool {
    !bits & u32::from(access.bits()) == 0
}

/// What a list gives a caller who is not the owner. A caller who is in several of its groups needs one that gives all.
fn listed(acl: &Acl, gid: u32, caller: &Caller, access: Access) -> bool {
    let mask =
        acl.entries.iter().find(|entry| entry.tag == AclTag::Mask).map_or(7, |entry| entry.permissions);
    let mut in_group = false;
    for entry in &acl.entries {
        let gives = |bits: u16| has(u32::from(bits), access);
        match entry.tag {
            AclTag::User(uid) if uid == caller.uid => return gives(entry.permissions & mask),
            AclTag::OwningGroup | AclTag::Group(_) => {
                let group = if let AclTag::Group(group) = entry.tag { group } else { gid };
                if caller.is_in(group) {
                    in_group = true;
                    if gives(entry.permissions) {
                        return gives(mask);
                    }
                }
            }
            AclTag::Other => return !in_group && gives(entry.permissions),
            AclTag::Owner | AclTag::User(_) | AclTag::Mask => {}
        }
    }
    false
}
