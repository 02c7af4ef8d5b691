//! Setting and removing attributes.
//!
//! As Linux: `user.` only on files and directories, nothing on immutable and append-only inodes, and access control
//! lists go through `acl.rs`. Who may do it is the caller's decision.

use super::Files;
use super::privileges::{CAPABILITY, most_credits};
use super::value_inodes::note_values;
use crate::ground::error::{AttributeError, Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::quota::Ids;
use crate::ground::state::{Ground, ROOT, is_system_file};
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::Change;
use crate::inode::metadata::FileKind;
use crate::xattr::{AclKind, InheritedAcl, Lists, XATTR_SIZE_MAX, XattrFlags, acl};
use uext4_ondisk::ext4::{Acl, InodeFlags, XattrIndex};

/// Most bytes of a name with its prefix (`XATTR_NAME_MAX`).
const NAME_MAX: usize = 255;

/// What is set: a value, or with `None` the attribute is removed.
enum Wanted<'a> {
    Value { space: XattrIndex, name: &'a [u8], value: Option<&'a [u8]>, flags: XattrFlags },
    Acl { kind: AclKind, acl: Option<Acl> },
}

/// The name space of a full name that can be set, and the rest.
///
/// # Errors
/// [`Error::NotSupported`] for another name space, [`Error::Attribute`], [`Error::Invalid`].
pub(crate) fn split(name: &[u8]) -> Result<(XattrIndex, &[u8])> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Error::Attribute(AttributeError::NameLength));
    }
    let unknown = Error::NotSupported("attributes of this name space");
    let (space, rest) = XattrIndex::split(name).ok_or(unknown.clone())?;
    let (is_settable, is_whole) = match space {
        XattrIndex::User | XattrIndex::Trusted | XattrIndex::Security | XattrIndex::Hurd => (true, false),
        XattrIndex::AclAccess | XattrIndex::AclDefault => (rest.is_empty(), true),
        _ => (false, false),
    };
    if !is_settable {
        return Err(unknown);
    }
    if name.contains(&0) || rest.is_empty() && !is_whole {
        return Err(Error::Invalid("an attribute's name is its prefix and more, without NUL".into()));
    }
    Ok((space, rest))
}

impl<'a> Wanted<'a> {
    fn new(name: &'a [u8], value: Option<&'a [u8]>, flags: XattrFlags) -> Result<Wanted<'a>> {
        if flags.contains(XattrFlags::CREATE | XattrFlags::REPLACE) {
            return Err(Error::Invalid("an attribute can be created or replaced, not both".into()));
        }
        let (space, rest) = split(name)?;
        if let Some(value) = value
            && value.len() > XATTR_SIZE_MAX as usize
        {
            return Err(Error::TooLarge { size: value.len() as u64, most: u64::from(XATTR_SIZE_MAX) });
        }
        let kind = match space {
            XattrIndex::AclAccess => AclKind::Access,
            XattrIndex::AclDefault => AclKind::Default,
            _ => return Ok(Wanted::Value { space, name: rest, value, flags }),
        };
        Ok(Wanted::Acl { kind, acl: value.map(acl::from_call).transpose()?.flatten() })
    }

    /// Checks that an inode can have it.
    fn check(&self, ground: &Ground, inode: &Inode) -> Result<()> {
        let (ino, superblock) = (inode.ino(), &ground.superblock);
        let reserved = ino < superblock.geometry.first_inode() && ino != ROOT;
        if reserved || is_system_file(superblock, ino) {
            return Err(Error::NotPermitted("an internal file of the volume"));
        }
        if inode.disk().flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(Error::NotPermitted("the file is immutable or append-only"));
        }
        let for_users = matches!(self, Wanted::Value { space: XattrIndex::User, .. });
        match inode.kind() {
            FileKind::Regular | FileKind::Directory => {}
            _ if for_users => {
                return Err(Error::NotPermitted("only files and directories have attributes of users"));
            }
            FileKind::Symlink if matches!(self, Wanted::Acl { .. }) => {
                return Err(Error::NotSupported("access control lists of symbolic links"));
            }
            _ => {}
        }
        match self {
            Wanted::Acl { kind: AclKind::Default, acl: Some(_) } if inode.kind() != FileKind::Directory => {
                Err(Error::Attribute(AttributeError::DefaultAcl))
            }
            Wanted::Acl { acl: Some(acl), .. } => acl::check(acl),
            _ => Ok(()),
        }
    }
}

impl Files<'_> {
    /// Sets an attribute, or removes it with `None`, in one handle.
    ///
    /// # Errors
    /// [`Error::Attribute`], [`Error::Invalid`], [`Error::TooLarge`]; [`Error::NotPermitted`];
    /// [`Error::NoAttribute`] if it must exist, [`Error::Exists`] if it must not;
    /// [`Limit::Attributes`](crate::Limit::Attributes) if it does not fit; [`Error::NoSpace`];
    /// [`Error::QuotaExceeded`];
    /// [`Error::Incompatible`], [`Error::Corrupt`]. Nothing was changed then.
    pub(crate) fn set_xattr(
        &self,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        flags: XattrFlags,
    ) -> Result<()> {
        let wanted = Wanted::new(name, value, flags)?;
        self.check_changes()?;
        // A failure to free another inode must not fail this call: it is retried later.
        let _waits = self.free_left();
        let done = self.with_room(|| {
            Journaled::run(self.state, "set xattr", most_credits(self, inode)?, |blocks| {
                let mut edit = inode.edit(blocks)?;
                let _readers_wait = inode.attributes.write();
                wanted.check(self.state, inode)?;
                let limited = flags.contains(XattrFlags::LIMITED) || inode.is_limited();
                if limited {
                    edit.obey_limits(blocks)?;
                }
                let lists = self.load_attributes(blocks, &edit)?;
                let mode = edit.disk.mode;
                if !self.set_in(blocks, &mut edit, lists, &wanted, limited)? && edit.disk.mode == mode {
                    return Ok(());
                }
                edit.stamp(self.state.clock.now(), false);
                edit.store(blocks, Change::Attributes)?;
                if let Wanted::Value {
                    space: XattrIndex::Security, name: CAPABILITY, value: Some(_), ..
                } = wanted
                {
                    // The next write strips it.
                    inode.state.set_privileged(true);
                }
                Ok(())
            })
        });
        let _waits = self.free_left();
        done
    }

    /// Sets or removes in a draft; whether attributes changed.
    fn set_in(
        &self,
        blocks: &mut Journaled<'_>,
        draft: &mut Draft,
        mut lists: Lists,
        wanted: &Wanted<'_>,
        limited: bool,
    ) -> Result<bool> {
        let mut mode = draft.disk.mode;
        match wanted {
            Wanted::Value { space, name, value, flags } => {
                let exists = lists.find(*space, name).is_some();
                let must_exist = value.is_none() || flags.contains(XattrFlags::REPLACE);
                if must_exist && !exists {
                    return Err(Error::NoAttribute);
                }
                if exists && flags.contains(XattrFlags::CREATE) {
                    return Err(Error::Exists);
                }
                match value {
                    Some(value) => lists.set(*space, name, value)?,
                    None => drop(lists.remove(*space, name)),
                }
            }
            Wanted::Acl { kind, acl } => acl::set_in(&mut lists, &mut mode, *kind, acl.as_ref())?,
        }
        let changed = lists.are_changed();
        if limited && lists.has_more_values() {
            // A value in an inode of its own counts for one.
            let (uid, gid) = (draft.disk.uid, draft.disk.gid);
            self.check_new_inode(blocks, Ids { uid, gid, project: draft.disk.project.unwrap_or(0) })?;
        }
        self.store_attributes(blocks, draft, lists)?;
        draft.disk.mode = mode;
        Ok(changed)
    }

    /// Gives a new inode, whose mode is set, the lists it inherits, and stores it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if they need a block, [`Limit::Attributes`](crate::Limit::Attributes), [`Error::Corrupt`]:
    /// nothing was changed then. Those of the body.
    pub(crate) fn inherit_acl(
        &self,
        blocks: &mut Journaled<'_>,
        draft: &mut Draft,
        acl: Option<&InheritedAcl>,
    ) -> Result<()> {
        let Some(acl) = acl else { return Ok(()) };
        let mut lists = Lists::load(blocks, draft)?;
        acl.set_in(&mut lists)?;
        self.store_attributes(blocks, draft, lists)?;
        draft.store(blocks)
    }

    /// The attributes of an inode that nobody else edits. Its block is known from now on.
    ///
    /// # Errors
    /// As of [`Lists::load`].
    pub(crate) fn load_attributes(&self, blocks: &Journaled<'_>, draft: &Draft) -> Result<Lists> {
        let lists = Lists::load(blocks, draft)?;
        if draft.disk.xattr_block.get() != 0 {
            let hash = lists.block.block_hash();
            self.orphans.known.lock().blocks.note(hash, draft.disk.xattr_block);
        }
        if lists.values_before() > 0 {
            note_values(&mut self.orphans.known.lock(), &lists);
        }
        Ok(lists)
    }
}
