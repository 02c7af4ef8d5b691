//! Name spaces: the prefix of a name is stored as a number.

use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// The number that stands for the prefix of a name (`e_name_index`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(u8)]
pub enum XattrIndex {
    /// `user.`
    User = 1,
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
        XattrIndex::try_read_from_bytes(&[number]).ok()
    }

    /// The number stored on disk.
    pub fn to_disk(self) -> u8 {
        zerocopy::transmute!(self)
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
