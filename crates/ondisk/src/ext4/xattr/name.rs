//! Name spaces: the prefix of a name is stored as a number.

/// The number that stands for the prefix of a name (`e_name_index`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum XattrIndex {
    /// `user.`
    User,
    /// `system.posix_acl_access`, the whole name.
    AclAccess,
    /// `system.posix_acl_default`, the whole name.
    AclDefault,
    /// `trusted.`
    Trusted,
    /// Of Lustre; without a name that users see.
    Lustre,
    /// `security.`
    Security,
    /// `system.`: what the file system keeps for itself, such as inline data.
    System,
    /// `system.richacl`, the whole name; never merged into Linux.
    RichAcl,
    /// Encryption contexts; without a name that users see.
    Encryption,
    /// `gnu.`: the Hurd's.
    Hurd,
}

use XattrIndex::{AclAccess, AclDefault, Encryption, Hurd, Lustre, RichAcl, Security, System, Trusted, User};

/// Prefixes as users see them. Longer ones come before those that begin them.
const PREFIXES: [(XattrIndex, &str); 8] = [
    (User, "user."),
    (AclAccess, "system.posix_acl_access"),
    (AclDefault, "system.posix_acl_default"),
    (RichAcl, "system.richacl"),
    (System, "system."),
    (Trusted, "trusted."),
    (Security, "security."),
    (Hurd, "gnu."),
];

impl XattrIndex {
    /// The name space of a stored number; `None` if it has no meaning.
    pub fn from_disk(number: u8) -> Option<XattrIndex> {
        Some(match number {
            1 => User,
            2 => AclAccess,
            3 => AclDefault,
            4 => Trusted,
            5 => Lustre,
            6 => Security,
            7 => System,
            8 => RichAcl,
            9 => Encryption,
            10 => Hurd,
            _ => return None,
        })
    }

    /// The number stored on disk.
    pub fn to_disk(self) -> u8 {
        match self {
            User => 1,
            AclAccess => 2,
            AclDefault => 3,
            Trusted => 4,
            Lustre => 5,
            Security => 6,
            System => 7,
            RichAcl => 8,
            Encryption => 9,
            Hurd => 10,
        }
    }

    /// The prefix that users see, with its dot; `None` for what has no name.
    pub fn prefix(self) -> Option<&'static str> {
        PREFIXES.iter().find(|(index, _)| *index == self).map(|(_, prefix)| *prefix)
    }

    /// Whether it is shown in lists. What the file system keeps for itself is not, as in the kernel
    /// (`ext4_xattr_handler_map`).
    pub fn is_listed(self) -> bool {
        !matches!(self, Lustre | System | Encryption)
    }

    /// Splits a full name into name space and the stored rest; `None` if no name space begins it.
    pub fn split(name: &[u8]) -> Option<(XattrIndex, &[u8])> {
        PREFIXES.iter().find_map(|(index, prefix)| Some((*index, name.strip_prefix(prefix.as_bytes())?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_and_join() {
        for number in 0..=255 {
            let Some(index) = XattrIndex::from_disk(number) else {
                assert!(number == 0 || number > 10);
                continue;
            };
            assert_eq!(index.to_disk(), number);
            if let Some(prefix) = index.prefix() {
                let name = format!("{prefix}x");
                assert_eq!(XattrIndex::split(name.as_bytes()), Some((index, &b"x"[..])));
            }
        }
        assert_eq!(XattrIndex::split(b"system.posix_acl_default"), Some((AclDefault, &b""[..])));
        assert_eq!(XattrIndex::split(b"system.data"), Some((System, &b"data"[..])));
        assert_eq!(XattrIndex::split(b"nothing"), None);
        assert!(!System.is_listed() && !Encryption.is_listed() && AclAccess.is_listed());
    }
}
