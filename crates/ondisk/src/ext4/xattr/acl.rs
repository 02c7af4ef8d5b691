//! POSIX access control lists, in the form of the disk (version 1, short entries where no name is needed) and
//! in that of the system calls (version 2, all entries of one length), which is what `getxattr` returns.

use crate::bytes::le32_at;
use crate::error::{Corrupt, CorruptKind};
use std::fmt;

const DISK_VERSION: u32 = 1;
const CALL_VERSION: u32 = 2;
const HEADER_SIZE: usize = 4;
const SHORT_ENTRY: usize = 4;
const LONG_ENTRY: usize = 8;
/// What stands for "nobody in particular" in the form of the system calls (`ACL_UNDEFINED_ID`).
const UNDEFINED_ID: u32 = u32::MAX;
/// Read, write, execute.
const PERMISSIONS: u16 = 7;

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclTag {
    /// The file's owner (`ACL_USER_OBJ`).
    Owner,
    /// This user (`ACL_USER`).
    User(u32),
    /// The file's group (`ACL_GROUP_OBJ`).
    OwningGroup,
    /// This group (`ACL_GROUP`).
    Group(u32),
    /// Most that named users and all groups get (`ACL_MASK`).
    Mask,
    /// Everybody else (`ACL_OTHER`).
    Other,
}

impl AclTag {
    /// The tag's number, and the name that comes with it.
    fn parts(self) -> (u16, Option<u32>) {
        match self {
            AclTag::Owner => (0x01, None),
            AclTag::User(id) => (0x02, Some(id)),
            AclTag::OwningGroup => (0x04, None),
            AclTag::Group(id) => (0x08, Some(id)),
            AclTag::Mask => (0x10, None),
            AclTag::Other => (0x20, None),
        }
    }

    /// The tag of a number. `id` is asked for where there is one.
    fn from_number(number: u16, id: impl FnOnce() -> Option<u32>) -> Option<AclTag> {
        Some(match number {
            0x01 => AclTag::Owner,
            0x02 => AclTag::User(id()?),
            0x04 => AclTag::OwningGroup,
            0x08 => AclTag::Group(id()?),
            0x10 => AclTag::Mask,
            0x20 => AclTag::Other,
            _ => return None,
        })
    }
}

/// Who may do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// Who.
    pub tag: AclTag,
    /// Read 4, write 2, execute 1.
    pub permissions: u16,
}

/// A list of entries in their stored order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// The entries.
    pub entries: Vec<AclEntry>,
}

impl Acl {
    /// Decodes the value stored on disk.
    ///
    /// # Errors
    /// [`CorruptKind::AclVersion`], [`CorruptKind::AclEntry`].
    pub fn decode(bytes: &[u8]) -> Result<Acl, Corrupt> {
        Self::decode_as(bytes, DISK_VERSION)
    }

    /// Decodes what `getxattr` returns.
    ///
    /// # Errors
    /// As [`Acl::decode`].
    pub fn decode_xattr(bytes: &[u8]) -> Result<Acl, Corrupt> {
        Self::decode_as(bytes, CALL_VERSION)
    }

    fn decode_as(bytes: &[u8], version: u32) -> Result<Acl, Corrupt> {
        if le32_at(bytes, 0) != Some(version) {
            return Err(CorruptKind::AclVersion.into());
        }
        let mut rest = bytes.get(HEADER_SIZE..).unwrap_or_default();
        let mut entries = Vec::with_capacity(rest.len() / SHORT_ENTRY);
        while !rest.is_empty() {
            let (entry, length) = decode_entry(rest, version).ok_or(CorruptKind::AclEntry)?;
            entries.push(entry);
            rest = rest.get(length..).unwrap_or_default();
        }
        Ok(Acl { entries })
    }

    /// The value as it is stored on disk.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_as(DISK_VERSION)
    }

    /// The value as `getxattr` returns it.
    pub fn encode_xattr(&self) -> Vec<u8> {
        self.encode_as(CALL_VERSION)
    }

    fn encode_as(&self, version: u32) -> Vec<u8> {
        let mut bytes = version.to_le_bytes().to_vec();
        for entry in &self.entries {
            let (number, id) = entry.tag.parts();
            bytes.extend(number.to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            match id {
                Some(id) => bytes.extend(id.to_le_bytes()),
                None if version == CALL_VERSION => bytes.extend(UNDEFINED_ID.to_le_bytes()),
                None => {}
            }
        }
        bytes
    }
}

/// The first entry of `bytes` and its length.
fn decode_entry(bytes: &[u8], version: u32) -> Option<(AclEntry, usize)> {
    let [a, b, c, d, ..] = *bytes else { return None };
    let permissions = u16::from_le_bytes([c, d]);
    let tag = AclTag::from_number(u16::from_le_bytes([a, b]), || le32_at(bytes, SHORT_ENTRY))?;
    let long = version == CALL_VERSION || tag.parts().1.is_some();
    let length = if long { LONG_ENTRY } else { SHORT_ENTRY };
    let whole = bytes.len() >= length && permissions & !PERMISSIONS == 0;
    whole.then_some((AclEntry { tag, permissions }, length))
}

impl fmt::Display for AclEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tag {
            AclTag::Owner => f.write_str("user::")?,
            AclTag::User(id) => write!(f, "user:{id}:")?,
            AclTag::OwningGroup => f.write_str("group::")?,
            AclTag::Group(id) => write!(f, "group:{id}:")?,
            AclTag::Mask => f.write_str("mask::")?,
            AclTag::Other => f.write_str("other::")?,
        }
        for (bit, letter) in [(4, "r"), (2, "w"), (1, "x")] {
            f.write_str(if self.permissions & bit != 0 { letter } else { "-" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Acl {
    /// The short form of `getfacl` and `setfacl`: entries with numeric names, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for entry in &self.entries {
            write!(f, "{separator}{entry}")?;
            separator = ",";
        }
        Ok(())
    }
}
