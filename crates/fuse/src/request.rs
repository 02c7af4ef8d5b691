//! Requests of the kernel: bounds-checked views of their bytes. A malformed one is `EINVAL`.

use crate::owners::Owners;
use crate::reply::{Errno, Outcome};
use crate::wire::{self, ExtensionHeader, InHeader, RingHead, op};
use uext4::Caller;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// A request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'b> {
    pub(crate) header: InHeader,
    /// How owners of the volume appear to its caller.
    owners: Owners,
    /// The first structure, with all that follows it if that came in the same piece.
    first: &'b [u8],
    /// What came apart from it.
    rest: &'b [u8],
    extensions: &'b [u8],
}

/// Cuts a structure off the front of some bytes.
pub(crate) fn cut<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Outcome<(T, &[u8])> {
    T::read_from_prefix(bytes).map_err(|_too_short| Errno::INVALID)
}

/// Cuts off a name that ends with a zero.
fn cut_name(bytes: &[u8]) -> Outcome<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Errno::INVALID)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

impl<'b> Request<'b> {
    /// Decodes the header.
    ///
    /// # Errors
    /// If the bytes are not one whole request. There is nothing to reply to then.
    pub(crate) fn parse(bytes: &'b [u8]) -> Outcome<Request<'b>> {
        let (header, rest): (InHeader, _) = cut(bytes)?;
        let extensions = usize::from(header.extensions) * 8;
        let arguments = rest.len().checked_sub(extensions).ok_or(Errno::INVALID)?;
        if header.len as usize != bytes.len() {
            return Err(Errno::INVALID);
        }
        let (first, extensions) = rest.split_at(arguments);
        Ok(Request { header, owners: Owners::default(), first, rest: &[], extensions })
    }

    /// Decodes what came through a ring: the header and the first structure in one place, the rest in another.
    ///
    /// # Errors
    /// If lengths do not fit.
    pub(crate) fn from_parts(head: &'b RingHead, rest: &'b [u8]) -> Outcome<Request<'b>> {
        let (header, _): (InHeader, _) = cut(&head.header)?;
        let apart = (header.len as usize).checked_sub(size_of::<InHeader>() + rest.len());
        let first = apart.and_then(|length| head.operation.get(..length)).ok_or(Errno::INVALID)?;
        let extensions = usize::from(header.extensions) * 8;
        let end = rest.len().checked_sub(extensions).ok_or(Errno::INVALID)?;
        let (rest, extensions) = rest.split_at(end);
        Ok(Request { header, owners: Owners::default(), first, rest, extensions })
    }

    /// All that follows the header, if that has no structure.
    fn only(&self) -> &'b [u8] {
        if self.first.is_empty() { self.rest } else { self.first }
    }

    /// As it appears where owners are mapped.
    pub(crate) fn with_owners(self, owners: Owners) -> Request<'b> {
        Request { owners, ..self }
    }

    /// The arguments, which are one structure and what follows it.
    pub(crate) fn arguments<T: FromBytes + KnownLayout + Immutable>(&self) -> Outcome<(T, &'b [u8])> {
        let (arguments, after) = cut(self.first)?;
        Ok((arguments, if self.rest.is_empty() { after } else { self.rest }))
    }

    /// A structure followed by a name.
    pub(crate) fn with_name<T: FromBytes + KnownLayout + Immutable>(&self) -> Outcome<(T, &'b [u8])> {
        let (arguments, rest) = self.arguments()?;
        Ok((arguments, checked(cut_name(rest)?.0)?))
    }

    /// A structure followed by two names.
    pub(crate) fn with_names<T: FromBytes + KnownLayout + Immutable>(
        &self,
    ) -> Outcome<(T, &'b [u8], &'b [u8])> {
        let (arguments, rest) = self.arguments()?;
        let (first, rest) = cut_name(rest)?;
        Ok((arguments, checked(first)?, checked(cut_name(rest)?.0)?))
    }

    /// The only argument is a name of a directory entry.
    pub(crate) fn name(&self) -> Outcome<&'b [u8]> {
        checked(cut_name(self.only())?.0)
    }

    /// The only argument is a text that ends with a zero.
    pub(crate) fn text(&self) -> Outcome<&'b [u8]> {
        Ok(cut_name(self.only())?.0)
    }

    /// A name and a text.
    pub(crate) fn name_and_text(&self) -> Outcome<(&'b [u8], &'b [u8])> {
        let (name, rest) = cut_name(self.only())?;
        Ok((checked(name)?, cut_name(rest)?.0))
    }

    /// A text after a structure, and what follows it.
    pub(crate) fn with_text<T: FromBytes + KnownLayout + Immutable>(
        &self,
    ) -> Outcome<(T, &'b [u8], &'b [u8])> {
        let (arguments, rest) = self.arguments()?;
        let (text, rest) = cut_name(rest)?;
        Ok((arguments, text, rest))
    }

    /// On whose behalf a name is made.
    pub(crate) fn caller(&self, umask: u32) -> Outcome<Caller> {
        let Owners { users, groups } = self.owners;
        let caller = Caller::new(users.stored(self.header.uid), groups.stored(self.header.gid)).umask(umask);
        Ok(caller.groups(self.groups()?.into_iter().map(|group| groups.stored(group)).collect::<Vec<_>>()))
    }

    /// Whether the caller has root's number.
    pub(crate) fn is_root(&self) -> bool {
        self.header.uid == 0
    }

    /// Whether the caller is in a group of the volume. The kernel sends only the first one: the others are in `/proc`
    /// while the caller waits. Not if they cannot be read.
    pub(crate) fn is_in(&self, gid: u32) -> bool {
        let gid = self.owners.groups.shown(gid);
        if self.header.gid == gid {
            return true;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.header.pid)).unwrap_or_default();
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
        groups.split_whitespace().any(|group| group.parse() == Ok(gid))
    }

    /// The group that a new inode may inherit, if the caller is in it: the kernel does not send the others.
    fn groups(&self) -> Outcome<Vec<u32>> {
        let mut rest = self.extensions;
        while !rest.is_empty() {
            let (header, after): (ExtensionHeader, _) = cut(rest)?;
            let body =
                (header.size as usize).checked_sub(size_of::<ExtensionHeader>()).ok_or(Errno::INVALID)?;
            let body = after.get(..body).ok_or(Errno::INVALID)?;
            if header.kind == wire::EXT_GROUPS {
                let (count, mut groups): (u32, _) = cut(body)?;
                let mut found = Vec::new();
                for _ in 0..count {
                    let (group, others): (u32, _) = cut(groups)?;
                    found.push(group);
                    groups = others;
                }
                return Ok(found);
            }
            rest = rest.get((header.size as usize).next_multiple_of(8)..).unwrap_or_default();
        }
        Ok(Vec::new())
    }

    /// Whether the kernel waits for no reply.
    pub(crate) fn expects_reply(&self) -> bool {
        !matches!(self.header.opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT)
    }
}

/// A name that a directory can have. The kernel passes up to 1024 bytes.
fn checked(name: &[u8]) -> Outcome<&[u8]> {
    if name.len() > wire::NAME_MAX {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{LinkIn, MkdirIn};

    fn request(opcode: u32, arguments: &[u8], extensions: &[u8]) -> Vec<u8> {
        let len = (40 + arguments.len() + extensions.len()) as u32;
        let words = [len, opcode, 7, 0, 1, 0, 1000, 1000, 1, (extensions.len() / 8) as u32];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        words.chain(arguments.iter().copied()).chain(extensions.iter().copied()).collect()
    }

    #[test]
    fn whole_requests_are_decoded() {
        let bytes =
            request(op::MKDIR, b"\xed\x01\0\0\x12\0\0\0dir\0", b"\x10\0\0\0\x20\0\0\0\x01\0\0\0\x2a\0\0\0");
        let request = Request::parse(&bytes).unwrap();
        let (mkdir, name) = request.with_name::<MkdirIn>().unwrap();
        assert_eq!((mkdir.mode, mkdir.umask, name), (0o755, 0o22, &b"dir"[..]));
        let caller = request.caller(mkdir.umask).unwrap();
        assert_eq!((caller.uid, caller.gid, &caller.groups[..]), (1000, 1000, &[42][..]));
    }

    #[test]
    fn malformed_requests_are_invalid() {
        let whole = request(op::LINK, b"\x05\0\0\0\0\0\0\0name\0", b"");
        for length in 0..whole.len() {
            assert_eq!(Request::parse(&whole[..length]).unwrap_err(), Errno::INVALID, "{length}");
        }
        // Shorter arguments, no zero, an extension that is longer than the request.
        for arguments in [&b""[..], b"\x05\0\0\0\0\0\0", b"\x05\0\0\0\0\0\0\0name"] {
            let bytes = request(op::LINK, arguments, b"");
            assert_eq!(Request::parse(&bytes).unwrap().with_name::<LinkIn>().unwrap_err(), Errno::INVALID);
        }
        let mut bytes = request(op::LINK, b"", b"");
        bytes[36] = 1;
        assert_eq!(Request::parse(&bytes).unwrap_err(), Errno::INVALID);
        for extension in [b"\xff\0\0\0\x20\0\0\0", b"\x03\0\0\0\x20\0\0\0", b"\x08\0\0\0\x20\0\0\0"] {
            let bytes = request(op::MKDIR, b"", extension);
            assert_eq!(Request::parse(&bytes).unwrap().caller(0).unwrap_err(), Errno::INVALID);
        }
    }

    #[test]
    fn long_names_are_refused_by_name() {
        let mut arguments = vec![b'x'; 256];
        arguments.push(0);
        let bytes = request(op::LOOKUP, &arguments, b"");
        assert_eq!(Request::parse(&bytes).unwrap().name().unwrap_err(), Errno(libc::ENAMETOOLONG));
        let bytes = request(op::LOOKUP, &arguments[1..], b"");
        assert_eq!(Request::parse(&bytes).unwrap().name().unwrap().len(), 255);
    }
}
