//! Extended attributes and access control lists.

use super::attributes::strip_set_group;
use super::{Answer, Served};
use crate::reply::{Errno, Outcome};
use crate::request::Request;
use crate::wire::{GetxattrIn, GetxattrOut, SETXATTR_ACL_KILL_SGID, SetxattrIn};
use uext4::XattrFlags;

/// An access control list in which the caller would see two users, or two groups, as one.
const NOT_ONE_TO_ONE: Errno = Errno(libc::EOPNOTSUPP);

/// A value, or its length if the caller has no room yet.
fn value(value: Vec<u8>, room: u32) -> Outcome<Answer> {
    match room as usize {
        0 => Ok(Answer::of(&GetxattrOut { size: value.len() as u32, padding: 0 })),
        room if room < value.len() => Err(Errno(libc::ERANGE)),
        _ => Ok(Answer::bytes(value)),
    }
}

/// What Linux says of an attribute that is not there: names outside of its name spaces are not supported.
fn absence(name: &[u8]) -> Errno {
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let rest = spaces.iter().find_map(|space| name.strip_prefix(*space));
    match (rest, name) {
        (Some(b""), _) => Errno::INVALID,
        (Some(_), _) | (None, b"system.posix_acl_access" | b"system.posix_acl_default") => {
            Errno(libc::ENODATA)
        }
        _ => Errno::NOT_SUPPORTED,
    }
}

impl Served {
    /// GETXATTR.
    pub(super) fn xattr(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, name, _) = request.with_text::<GetxattrIn>()?;
        let stored = match self.nodes.get(request.header.node)?.xattr(name) {
            Err(uext4::Error::NoAttribute) => return Err(absence(name)),
            found => found?,
        };
        value(self.owners.value_shown(name, stored).ok_or(NOT_ONE_TO_ONE)?, asked.size)
    }

    /// LISTXATTR. Names of `trusted.` are root's.
    pub(super) fn list_xattrs(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, _): (GetxattrIn, _) = request.arguments()?;
        let mut list = Vec::new();
        for name in self.nodes.get(request.header.node)?.xattrs() {
            let name = name?;
            if request.is_root() || !name.as_bytes().starts_with(b"trusted.") {
                list.extend_from_slice(name.as_bytes());
                list.push(0);
            }
        }
        value(list, asked.size)
    }

    /// SETXATTR.
    pub(super) fn set_xattr(&self, request: &Request<'_>) -> Outcome<Answer> {
        let (asked, name, rest) = request.with_text::<SetxattrIn>()?;
        let flags = XattrFlags::from_bits(asked.flags).ok_or(Errno::INVALID)?;
        let value = rest.get(..asked.size as usize).ok_or(Errno::INVALID)?;
        let limited = if request.is_root() { XattrFlags::empty() } else { XattrFlags::LIMITED };
        let node = self.nodes.get(request.header.node)?;
        let stored = self.owners.value_stored(name, value.to_vec()).ok_or(NOT_ONE_TO_ONE)?;
        node.set_xattr(name, stored, flags | limited)?;
        if asked.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            strip_set_group(&node)?;
        }
        Ok(Answer::DONE)
    }

    /// REMOVEXATTR.
    pub(super) fn remove_xattr(&self, request: &Request<'_>) -> Outcome<Answer> {
        self.nodes.get(request.header.node)?.remove_xattr(request.text()?)?;
        Ok(Answer::DONE)
    }
}
