//! Owners as users see them, and as the volume has them.

use std::collections::HashSet;

/// How numbers of users, or of groups, on the volume relate to those that users see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ids {
    /// They are the same.
    #[default]
    Same,
    /// Everything seems to have this one; what is stored cannot be changed.
    All(u32),
    /// The number `stored` on the volume appears as `shown`, and what user `shown` makes is stored as `stored`.
    One {
        /// The number on the volume.
        stored: u32,
        /// What users see.
        shown: u32,
    },
}

impl Ids {
    /// What users see of a number on the volume.
    pub(crate) fn shown(self, id: u32) -> u32 {
        match self {
            Ids::All(shown) => shown,
            Ids::One { stored, shown } if id == stored => shown,
            _ => id,
        }
    }

    /// What is stored for a number that users see.
    pub(crate) fn stored(self, id: u32) -> u32 {
        match self {
            Ids::One { stored, shown } if id == shown => stored,
            _ => id,
        }
    }

    /// What a change of an owner to `id` stores: nothing if all seem to have it.
    ///
    /// # Errors
    /// `None` if all seem to have another one, which cannot be given to one file.
    pub(crate) fn changed_to(self, id: u32) -> Option<Option<u32>> {
        match self {
            Ids::All(shown) => (shown == id).then_some(None),
            _ => Some(Some(self.stored(id))),
        }
    }
}

/// Both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Owners {
    pub(crate) users: Ids,
    pub(crate) groups: Ids,
}

/// Bytes before the entries of an access control list, of one entry, and where the number of an entry is.
const ACL_HEADER: usize = 4;
const ACL_ENTRY: usize = 8;
const ACL_NUMBER: usize = 4;
/// Tags of entries that have a number.
const ACL_USER: u16 = 2;
const ACL_GROUP: u16 = 8;

impl Owners {
    /// A value of this attribute as users see it: in an access control list, with their numbers.
    ///
    /// # Errors
    /// `None` if two users, or groups, of the list are the same one for those who see it.
    pub(crate) fn value_shown(self, name: &[u8], value: Vec<u8>) -> Option<Vec<u8>> {
        self.value(name, value, Ids::shown)
    }

    /// What is stored for a value that users give.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn value_stored(self, name: &[u8], value: Vec<u8>) -> Option<Vec<u8>> {
        self.value(name, value, Ids::stored)
    }

    fn value(self, name: &[u8], mut value: Vec<u8>, map: fn(Ids, u32) -> u32) -> Option<Vec<u8>> {
        let maps = |ids: Ids| matches!(ids, Ids::One { .. });
        let lists = [&b"system.posix_acl_access"[..], b"system.posix_acl_default"];
        if !lists.contains(&name) || !(maps(self.users) || maps(self.groups)) {
            return Some(value);
        }
        let mut met = HashSet::new();
        // What is no list is refused by who reads it.
        for entry in value.get_mut(ACL_HEADER..).unwrap_or_default().chunks_exact_mut(ACL_ENTRY) {
            let (head, number) = entry.split_at_mut(ACL_NUMBER);
            let tag = u16::from_le_bytes([head[0], head[1]]);
            let ids = match tag {
                ACL_USER => self.users,
                ACL_GROUP => self.groups,
                _ => continue,
            };
            let old = u32::from_le_bytes([number[0], number[1], number[2], number[3]]);
            // Where all seem to have one number, a list has those of the volume.
            let new = if maps(ids) { map(ids, old) } else { old };
            if !met.insert((tag, new)) {
                return None;
            }
            number.copy_from_slice(&new.to_le_bytes());
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_mapped_both_ways() {
        let all = Ids::All(7);
        assert_eq!((all.shown(0), all.stored(7), all.stored(9)), (7, 7, 9));
        assert_eq!((all.changed_to(7), all.changed_to(0)), (Some(None), None));
        let one = Ids::One { stored: 0, shown: 1000 };
        assert_eq!((one.shown(0), one.shown(1000), one.shown(5)), (1000, 1000, 5));
        assert_eq!((one.stored(1000), one.stored(0), one.stored(5)), (0, 0, 5));
        assert_eq!((one.changed_to(1000), one.changed_to(3)), (Some(Some(0)), Some(Some(3))));
        assert_eq!((Ids::Same.shown(3), Ids::Same.changed_to(4)), (3, Some(Some(4))));
    }

    /// A list with these users and groups, between its owner and others.
    fn list(users: &[u32], groups: &[u32]) -> Vec<u8> {
        let entry = |tag: u16, number: u32| [&tag.to_le_bytes()[..], &[6, 0], &number.to_le_bytes()].concat();
        let mut list = vec![2, 0, 0, 0];
        list.extend(entry(1, u32::MAX));
        list.extend(users.iter().flat_map(|&user| entry(ACL_USER, user)));
        list.extend(entry(4, u32::MAX));
        list.extend(groups.iter().flat_map(|&group| entry(ACL_GROUP, group)));
        list.extend(entry(32, u32::MAX));
        list
    }

    #[test]
    fn numbers_in_lists_are_mapped_as_owners_are() {
        let one = |stored, shown| Ids::One { stored, shown };
        let owners = Owners { users: one(0, 1000), groups: one(0, 100) };
        let (stored, shown) = (list(&[0, 5], &[7, 0]), list(&[1000, 5], &[7, 100]));
        for name in [&b"system.posix_acl_access"[..], b"system.posix_acl_default"] {
            assert_eq!(owners.value_shown(name, stored.clone()), Some(shown.clone()));
            assert_eq!(owners.value_stored(name, shown.clone()), Some(stored.clone()));
        }
        // Not in other attributes, and not where nothing is mapped one to one.
        assert_eq!(owners.value_shown(b"user.list", stored.clone()), Some(stored.clone()));
        for ids in [Ids::Same, Ids::All(7)] {
            let none = Owners { users: ids, groups: ids };
            assert_eq!(none.value_shown(b"system.posix_acl_access", stored.clone()), Some(stored.clone()));
        }
        let users = Owners { users: one(0, 1000), groups: Ids::All(3) };
        let expected = list(&[1000, 5], &[7, 0]);
        assert_eq!(users.value_shown(b"system.posix_acl_access", stored), Some(expected));
        // Users 0 and 1000 of the volume are one user here.
        let name = b"system.posix_acl_access";
        assert_eq!(owners.value_shown(name, list(&[0, 1000], &[])), None);
        assert_eq!(owners.value_stored(name, list(&[], &[100, 0])), None);
        // The same number of a user and of a group is two. What is no list stays as it is.
        assert!(owners.value_shown(name, list(&[9], &[9])).is_some());
        for bytes in [&[][..], &[2, 0], &[2, 0, 0, 0, 2, 0, 6]] {
            assert_eq!(owners.value_shown(name, bytes.to_vec()), Some(bytes.to_vec()));
        }
    }
}
