//! POSIX access control lists and the permission bits: the owner's entry, that of others, and the mask (or without a
//! mask the group's entry) are the nine bits of the mode. As Linux (`fs/posix_acl.c`).

use super::AclKind;
use super::lists::Lists;
use super::values;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::inode::draft::Draft;
use crate::inode::{Ext4State, Inode};
use uext4_ondisk::ext4::{Acl, AclEntry, AclTag, ListedValue, XattrIndex};

/// The permission bits of a mode.
const BITS: u16 = 0o777;
const READ_WRITE_EXECUTE: u16 = 7;

impl AclKind {
    fn space(self) -> XattrIndex {
        match self {
            AclKind::Access => XattrIndex::AclAccess,
            AclKind::Default => XattrIndex::AclDefault,
        }
    }
}

/// The list in a value of the system calls; `None` if it has no entries, which removes the list.
///
/// # Errors
/// [`Error::Invalid`].
pub(crate) fn from_call(value: &[u8]) -> Result<Option<Acl>> {
    let acl = Acl::decode_xattr(value).map_err(|corrupt| invalid(&corrupt.to_string()))?;
    Ok(Some(acl).filter(|acl| !acl.entries.is_empty()))
}

fn invalid(what: &str) -> Error {
    Error::Invalid(format!("not an access control list: {what}"))
}

/// Checks that a list can be set.
///
/// # Errors
/// [`Error::Invalid`].
pub(crate) fn check(acl: &Acl) -> Result<()> {
    if is_valid(acl) { Ok(()) } else { Err(invalid("its entries are incomplete or in a wrong order")) }
}

/// Whether it has all entries it needs, in their order. One with named entries needs a mask.
fn is_valid(acl: &Acl) -> bool {
    let rank = |tag: AclTag| match tag {
        AclTag::Owner => 0,
        AclTag::User(_) => 1,
        AclTag::OwningGroup => 2,
        AclTag::Group(_) => 3,
        AclTag::Mask => 4,
        AclTag::Other => 5,
    };
    let is_named = |tag: AclTag| matches!(tag, AclTag::User(_) | AclTag::Group(_));
    let count = |rank_of: i32| acl.entries.iter().filter(|entry| rank(entry.tag) == rank_of).count();
    let ordered = acl.entries.is_sorted_by_key(|entry| rank(entry.tag));
    let named = acl.entries.iter().any(|entry| is_named(entry.tag));
    let nobody = [AclTag::User(u32::MAX), AclTag::Group(u32::MAX)];
    let masks = if named { 1..=1 } else { 0..=1 };
    ordered
        && [0, 2, 5].iter().all(|rank_of| count(*rank_of) == 1)
        && masks.contains(&count(4))
        && !acl.entries.iter().any(|entry| nobody.contains(&entry.tag))
}

/// The permission bits that say the same as a list as far as they can, and whether they say all of it.
fn bits_of(acl: &Acl) -> (u16, bool) {
    let (mut bits, mut group, mut mask, mut all) = (0, 0, None, true);
    for AclEntry { tag, permissions } in &acl.entries {
        match tag {
            AclTag::Owner => bits |= permissions << 6,
            AclTag::OwningGroup => group = *permissions,
            AclTag::Other => bits |= permissions,
            AclTag::Mask => mask = Some(*permissions),
            AclTag::User(_) | AclTag::Group(_) => all = false,
        }
    }
    (bits | mask.unwrap_or(group) << 3, all && mask.is_none())
}

/// The entries that permission bits stand for, each with its three bits. A mask stands for the group.
fn entries_of_bits(acl: &mut Acl) -> impl Iterator<Item = (&mut AclEntry, u16)> {
    let masked = acl.entries.iter().any(|entry| entry.tag == AclTag::Mask);
    acl.entries.iter_mut().filter_map(move |entry| match entry.tag {
        AclTag::Owner => Some((entry, 6)),
        AclTag::OwningGroup if !masked => Some((entry, 3)),
        AclTag::Mask => Some((entry, 3)),
        AclTag::Other => Some((entry, 0)),
        _ => None,
    })
}

/// Sets a list: in the mode as far as that can say it, and as an attribute if that is not all.
pub(crate) fn set_in(lists: &mut Lists, mode: &mut u16, kind: AclKind, acl: Option<&Acl>) -> Result<()> {
    let stored = match (kind, acl) {
        (_, None) => None,
        (AclKind::Default, Some(acl)) => Some(acl),
        (AclKind::Access, Some(acl)) => {
            let (bits, all) = bits_of(acl);
            *mode = *mode & !BITS | bits;
            Some(acl).filter(|_| !all)
        }
    };
    match stored {
        Some(acl) => lists.set(kind.space(), b"", &acl.encode()),
        None => {
            lists.remove(kind.space(), b"");
            Ok(())
        }
    }
}

/// The default list of a directory.
///
/// # Errors
/// [`Error::Corrupt`] of its attributes.
pub(crate) fn default_of(state: &Ext4State, directory: &Inode) -> Result<Option<Acl>> {
    let Some(value) = super::value_of(state, directory, XattrIndex::AclDefault, b"")? else {
        return Ok(None);
    };
    let default = Acl::decode(&value).map_err(|corrupt| corrupt.in_inode(directory.ino()))?;
    Ok(Some(default).filter(|default| !default.entries.is_empty()))
}

/// What a new inode gets from the default list of its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InheritedAcl {
    /// Its permissions, which replace those asked for. No umask applies.
    pub(crate) mode: u16,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl InheritedAcl {
    /// What a new inode that is asked to have these permissions inherits from the default list of its directory.
    pub(crate) fn new(default: Acl, mode: u16, is_directory: bool) -> InheritedAcl {
        let mut access = default.clone();
        // Nobody gets more than was asked for.
        for (entry, shift) in entries_of_bits(&mut access) {
            entry.permissions &= mode >> shift & READ_WRITE_EXECUTE;
        }
        let (bits, all) = bits_of(&access);
        InheritedAcl {
            mode: mode & !BITS | bits & mode,
            access: Some(access).filter(|_| !all),
            default: Some(default).filter(|_| is_directory),
        }
    }

    /// Sets the lists of a new inode. The caller has set its mode.
    ///
    /// # Errors
    /// [`Limit::Attributes`](crate::Limit::Attributes).
    pub(crate) fn set_in(&self, lists: &mut Lists) -> Result<()> {
        for (kind, acl) in [(AclKind::Default, &self.default), (AclKind::Access, &self.access)] {
            if let Some(acl) = acl {
                lists.set(kind.space(), b"", &acl.encode())?;
            }
        }
        Ok(())
    }
}

/// Brings the access list of an inode in line with permissions that it gets: `chmod` over a list.
///
/// # Errors
/// [`Error::Corrupt`] of the list, [`Limit::Attributes`](crate::Limit::Attributes); nothing was changed then.
pub(crate) fn follow_mode(blocks: &impl Blocks, lists: &mut Lists, draft: &Draft, mode: u16) -> Result<()> {
    let Some(entry) = lists.find(XattrIndex::AclAccess, b"") else { return Ok(()) };
    let bytes = match entry.value {
        ListedValue::Here { .. } => entry.value.bytes().unwrap_or_default().to_vec(),
        ListedValue::Inode { inode, .. } => values::read(blocks, &values::check(blocks, inode, draft)?)?,
    };
    let mut acl = Acl::decode(&bytes).map_err(|corrupt| corrupt.in_inode(draft.ino))?;
    for (entry, shift) in entries_of_bits(&mut acl) {
        entry.permissions = mode >> shift & READ_WRITE_EXECUTE;
    }
    if acl.entries.is_empty() { Ok(()) } else { lists.set(XattrIndex::AclAccess, b"", &acl.encode()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(AclTag, u16)]) -> Acl {
        let entry = |&(tag, permissions): &(AclTag, u16)| AclEntry { tag, permissions };
        Acl { entries: entries.iter().map(entry).collect() }
    }

    #[test]
    fn bits_and_lists_say_the_same() {
        let minimal = acl(&[(AclTag::Owner, 6), (AclTag::OwningGroup, 4), (AclTag::Other, 1)]);
        assert!(is_valid(&minimal));
        assert_eq!(bits_of(&minimal), (0o641, true));
        let named = acl(&[
            (AclTag::Owner, 7),
            (AclTag::User(5), 6),
            (AclTag::OwningGroup, 1),
            (AclTag::Mask, 5),
            (AclTag::Other, 0),
        ]);
        assert!(is_valid(&named));
        assert_eq!(bits_of(&named), (0o750, false), "the mask stands for the group");
    }

    #[test]
    fn incomplete_and_unordered_lists_are_refused() {
        use AclTag::{Group, Mask, Other, Owner, OwningGroup, User};
        let bad: [&[AclTag]; 8] = [
            &[Owner, Other],
            &[OwningGroup, Owner, Other],
            &[Owner, User(1), OwningGroup, Other],
            &[Owner, OwningGroup, Group(1), Other],
            &[Owner, Owner, OwningGroup, Other],
            &[Owner, OwningGroup, Mask, Mask, Other],
            &[Owner, User(u32::MAX), OwningGroup, Mask, Other],
            &[Owner, OwningGroup, Other, Mask],
        ];
        for tags in bad {
            let acl =
                Acl { entries: tags.iter().map(|tag| AclEntry { tag: *tag, permissions: 7 }).collect() };
            assert!(!is_valid(&acl), "{tags:?}");
            assert!(matches!(check(&acl), Err(Error::Invalid(_))), "{tags:?}");
        }
        assert_eq!(from_call(&Acl::default().encode_xattr()).unwrap(), None);
        assert!(matches!(from_call(&[1, 0, 0, 0]), Err(Error::Invalid(_))), "the form of the disk");
    }
}
